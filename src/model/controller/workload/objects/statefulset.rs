//! The `StatefulSet` of a workload.
//!
//! With our image the template does not depend on the number of replicas: each reads its config from the API, so scaling restarts no
//! Pod. The Tailscale operator's image reads its config from a mounted Secret; volumes exist for ordinals in tens, so that scaling within
//! ten restarts no Pod.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, HTTPGetAction, Lifecycle,
    LifecycleHandler, LocalObjectReference, PodAffinityTerm, PodAntiAffinity, PodDNSConfig, PodDNSConfigOption, PodSecurityContext,
    PodSpec, PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile, SecretVolumeSource, SecurityContext, Sysctl,
    TopologySpreadConstraint, Volume, VolumeMount, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::api::names;
use crate::model::controller::workload::naming::standby_name;
use crate::model::controller::workload::objects::overlay::overlay;
use crate::model::controller::workload::objects::shape::{DEBUG, RenderContext, is_stock};
use crate::model::controller::workload::objects::{Kind, Manifest, PROXY, SYSCTLER, env, unreachable_note};

/// Mount path of the replicas' configs, one folder for each.
const CONFIGS: &str = "/etc/tsconfig";
/// Mount path of the egress config.
const SERVICES: &str = "/etc/proxies";
/// Seconds for which the Tailscale operator's image must be healthy before it gets traffic. It is healthy as soon as it has an address;
/// a packet sent before its peers know the new endpoint is retried after five seconds.
const STOCK_SETTLES: i32 = 5;
/// Command by which the Tailscale operator's image enables IP forwarding.
const STOCK_SYSCTL: &str = "echo 1 > /proc/sys/net/ipv4/ip_forward; \
    if [ -e /proc/sys/net/ipv6/conf/all/forwarding ]; then echo 1 > /proc/sys/net/ipv6/conf/all/forwarding; fi";

/// The `StatefulSet`. `observed` supplies immutable fields.
pub fn stateful_set(shape: &RenderContext<'_>, observed: Option<&Value>) -> Manifest {
    Manifest::of(Kind::StatefulSet, &set(shape, observed))
}

/// The `StatefulSet` of the second Pod of a proxy, with the name of the first one in place of its own.
pub fn standby_set(shape: &RenderContext<'_>, observed: Option<&Value>) -> Manifest {
    let mut set = set(shape, observed);
    let label = |labels: &mut Option<BTreeMap<String, String>>| {
        labels.get_or_insert_default().insert(names::STANDBY.to_owned(), "true".to_owned());
    };
    set.metadata.name = Some(standby_name(&shape.owner.name));
    label(&mut set.metadata.labels);
    if let Some(spec) = &mut set.spec {
        label(&mut spec.selector.match_labels);
        let template = &mut spec.template;
        template.metadata.iter_mut().for_each(|metadata| label(&mut metadata.labels));
        let containers = template.spec.iter_mut().flat_map(|pod| &mut pod.containers);
        for container in containers.filter(|container| container.name == PROXY) {
            let variables = container.env.get_or_insert_default();
            env::set(variables, env::value("POD_NAME", &names::replica(&shape.owner.name, 0)));
            env::set(variables, env::field("TAILYARD_POD_NAME", "metadata.name"));
        }
    }
    Manifest::of(Kind::StatefulSet, &set)
}

fn set(shape: &RenderContext<'_>, observed: Option<&Value>) -> StatefulSet {
    let (labels, pod_labels) = (shape.owner.selector(), shape.owner.pod_labels());
    let is_replicated = shape.role().is_replicated;
    let new_policy = if is_replicated { "Parallel" } else { "OrderedReady" };
    let policy = observed.map(|observed| observed["spec"]["podManagementPolicy"].as_str().unwrap_or("OrderedReady"));
    let mut set = StatefulSet {
        metadata: shape.owner.metadata(shape.owner.name.clone(), None),
        spec: Some(StatefulSetSpec {
            replicas: Some(shape.spec.replicas.try_into().unwrap_or(i32::MAX)),
            pod_management_policy: Some(policy.unwrap_or(new_policy).to_owned()),
            selector: LabelSelector { match_labels: Some(labels), ..LabelSelector::default() },
            update_strategy: observed.filter(|observed| restarts_several(observed)).map(|_| one_at_a_time()),
            service_name: shape.role().has_headless_service().then(|| shape.owner.name.clone()),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(pod_labels), ..ObjectMeta::default() }),
                spec: Some(pod(shape)),
            },
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    };
    overlay(&mut set, shape);
    if !shape.stock() {
        spare_sysctler(&mut set, shape);
    }
    if observed.is_some_and(|observed| unreachable_note::is_missing(observed, shape.image())) {
        unreachable_note::remove(&mut set);
    }
    set
}

/// Whether another writer lets rollouts take out several Pods: since Kubernetes 1.37 the API server accepts that, with the default 1. Older
/// ones drop the field, so it is written only where it is not 1: a field that is dropped would be written again without end.
fn restarts_several(observed: &Value) -> bool {
    let at_once = &observed["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"];
    !at_once.is_null() && *at_once != 1
}

fn one_at_a_time() -> StatefulSetUpdateStrategy {
    let rolling_update = RollingUpdateStatefulSetStrategy { max_unavailable: Some(IntOrString::Int(1)), ..Default::default() };
    StatefulSetUpdateStrategy { rolling_update: Some(rolling_update), type_: Some("RollingUpdate".to_owned()) }
}

/// Removes the init container where the proxy forwards nothing, or can enable IP forwarding itself and no class configures the container: it
/// only delays starts.
fn spare_sysctler(set: &mut StatefulSet, shape: &RenderContext<'_>) {
    let is_configured = shape.pod().is_some_and(|pod| pod.tailscale_init_container.is_some());
    let Some(pod) = set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()) else { return };
    let privileged = |container: &Container| container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true));
    let is_privileged = pod.containers.iter().any(|container| container.name == PROXY && privileged(container));
    if shape.userspace() || (is_privileged && !is_configured) {
        pod.init_containers = None;
    }
}

fn pod(shape: &RenderContext<'_>) -> PodSpec {
    let by_pod = shape.own().and_then(|own| own.use_pod_sysctls).unwrap_or(false);
    let sysctl = |name: &str| Sysctl { name: name.to_owned(), value: "1".to_owned() };
    let sysctls = || vec![sysctl("net.ipv4.ip_forward"), sysctl("net.ipv6.conf.all.forwarding")];
    let pull_secrets: Vec<_> = shape.settings.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() }).collect();
    PodSpec {
        service_account_name: Some(shape.owner.name.clone()),
        termination_grace_period_seconds: Some(shape.termination_grace()),
        security_context: Some(PodSecurityContext {
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
            sysctls: by_pod.then(sysctls),
            ..PodSecurityContext::default()
        }),
        topology_spread_constraints: is_spread(shape).then(|| vec![over_nodes(shape)]),
        affinity: is_spread(shape).then(|| over_zones(shape)),
        init_containers: (!by_pod).then(|| vec![sysctler(shape)]),
        containers: vec![proxy(shape)],
        volumes: Some(volumes(shape).0),
        image_pull_secrets: (!pull_secrets.is_empty()).then_some(pull_secrets),
        dns_config: Some(dns()),
        ..PodSpec::default()
    }
}

/// Resolver options: a query to a lost DNS server is repeated after a second, not five, and names with a dot are looked up as they are
/// first.
fn dns() -> PodDNSConfig {
    let option = |(name, value): (&str, &str)| PodDNSConfigOption { name: Some(name.to_owned()), value: Some(value.to_owned()) };
    let options = [("ndots", "1"), ("timeout", "1"), ("attempts", "5")].map(option).to_vec();
    PodDNSConfig { options: Some(options), ..PodDNSConfig::default() }
}

fn is_spread(shape: &RenderContext<'_>) -> bool {
    shape.role().is_replicated || shape.standby()
}

fn siblings(shape: &RenderContext<'_>) -> LabelSelector {
    LabelSelector { match_labels: Some(shape.owner.labels()), ..LabelSelector::default() }
}

fn over_nodes(shape: &RenderContext<'_>) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(siblings(shape)),
        ..TopologySpreadConstraint::default()
    }
}

/// A preference, not a spread constraint: the scheduler ignores all constraints on a node that lacks the key of one.
fn over_zones(shape: &RenderContext<'_>) -> Affinity {
    let term = PodAffinityTerm {
        topology_key: "topology.kubernetes.io/zone".to_owned(),
        label_selector: Some(siblings(shape)),
        ..PodAffinityTerm::default()
    };
    let preferred = vec![WeightedPodAffinityTerm { weight: 100, pod_affinity_term: term }];
    let apart = PodAntiAffinity { preferred_during_scheduling_ignored_during_execution: Some(preferred), ..PodAntiAffinity::default() };
    Affinity { pod_anti_affinity: Some(apart), ..Affinity::default() }
}

fn sysctler(shape: &RenderContext<'_>) -> Container {
    let words: &[&str] =
        if is_stock(shape.init_image()) { &["/bin/sh", "-c", STOCK_SYSCTL] } else { &["tailyard", "enable-ip-forwarding"] };
    Container {
        name: SYSCTLER.to_owned(),
        image: Some(shape.init_image().to_owned()),
        command: Some(words.iter().map(|word| (*word).to_owned()).collect()),
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        resources: Some(requests("1m", "16Mi")),
        ..Container::default()
    }
}

/// Extended resource that provides the TUN device.
fn tun<'a>(shape: &'a RenderContext<'_>) -> Option<&'a str> {
    shape.own()?.tun_device_resource.as_deref().filter(|resource| !resource.is_empty())
}

/// Capabilities and file system of the proxy's container. Without a device plugin the proxy makes the node of its TUN device itself, which
/// container runtimes allow. The stock image needs a privileged container for that, and writes to its root file system.
fn security(shape: &RenderContext<'_>) -> SecurityContext {
    let plugin = tun(shape).is_some();
    let mut context = SecurityContext { privileged: Some(shape.stock() && !plugin), ..SecurityContext::default() };
    // Listeners of virtual hosts use ports such as 443 of the loopback network.
    let add: &[&str] = match (shape.stock(), plugin) {
        (true, false) => return context,
        (true, true) => &["NET_ADMIN", "NET_RAW"],
        (false, _) if shape.userspace() => &["NET_BIND_SERVICE"],
        (false, true) => &["NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"],
        (false, false) => &["MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"],
    };
    let add = add.iter().map(|name| (*name).to_owned()).collect();
    let drop = (!shape.stock()).then(|| vec!["ALL".to_owned()]);
    context.capabilities = Some(Capabilities { add: Some(add), drop });
    if !shape.stock() {
        context.allow_privilege_escalation = Some(false);
        context.read_only_root_filesystem = Some(true);
    }
    context
}

fn proxy(shape: &RenderContext<'_>) -> Container {
    let mut resources = requests("50m", "64Mi");
    resources.limits = tun(shape).map(|resource| [(resource.to_owned(), Quantity("1".to_owned()))].into());
    let mut ports = Vec::new();
    let mut port = |name: &str, port: u16| {
        let (name, protocol) = (Some(name.to_owned()), Some("TCP".to_owned()));
        ports.push(ContainerPort { name, container_port: port.into(), protocol, ..ContainerPort::default() });
    };
    if shape.metrics() {
        port("metrics", shape.health_port());
    }
    if shape.debug() {
        port("debug", DEBUG);
    }
    let stock = shape.stock();
    // The stock image serves the hook with its health server: without it on the Pod's address nothing is drained.
    let hook = shape.role().stock_pre_stop.filter(|_| stock && shape.health_address().is_none());
    let handler = |path| LifecycleHandler { http_get: Some(get(path, shape)), ..LifecycleHandler::default() };
    Container {
        name: PROXY.to_owned(),
        image: Some(shape.image().to_owned()),
        env: Some(env::of(shape, CONFIGS, SERVICES)),
        security_context: Some(security(shape)),
        resources: Some(resources),
        ports: (!ports.is_empty()).then_some(ports),
        volume_mounts: Some(volumes(shape).1),
        lifecycle: hook.map(|path| Lifecycle { pre_stop: Some(handler(path)), ..Lifecycle::default() }),
        readiness_probe: readiness(shape),
        liveness_probe: (!stock).then(|| probe(get("/livez", shape), 10, 5, 6)),
        ..Container::default()
    }
}

/// One late response is enough: Kubernetes' endpoints are the failover. With the Tailscale operator's image the Pod of an egress Service has
/// no probe: it forwards all that reaches the Pod's addresses to the target, probes too.
fn readiness(shape: &RenderContext<'_>) -> Option<Probe> {
    let stock = shape.stock();
    let is_answered = !(stock && shape.target.is_egress());
    is_answered.then(|| Probe {
        success_threshold: stock.then_some(STOCK_SETTLES),
        ..probe(get(if stock { "/healthz" } else { "/readyz" }, shape), 1, 2, 1)
    })
}

fn get(path: &str, shape: &RenderContext<'_>) -> HTTPGetAction {
    HTTPGetAction { path: Some(path.to_owned()), port: IntOrString::Int(shape.health_port().into()), ..HTTPGetAction::default() }
}

/// Port of a replica's health server: that of its Pod's readiness probe.
pub fn pod_health_port(pod: &PodSpec) -> Option<u16> {
    let proxy = pod.containers.iter().find(|container| container.name == PROXY)?;
    match proxy.readiness_probe.as_ref()?.http_get.as_ref()?.port {
        IntOrString::Int(port) => u16::try_from(port).ok().filter(|port| *port != 0),
        IntOrString::String(_) => None,
    }
}

fn probe(get: HTTPGetAction, period: i32, timeout: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(get),
        period_seconds: Some(period),
        timeout_seconds: Some(timeout),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

fn requests(cpu: &str, memory: &str) -> ResourceRequirements {
    let requests = [("cpu", cpu), ("memory", memory)].map(|(name, size)| (name.to_owned(), Quantity(size.to_owned())));
    ResourceRequirements { requests: Some(requests.into()), ..ResourceRequirements::default() }
}

fn volumes(shape: &RenderContext<'_>) -> (Vec<Volume>, Vec<VolumeMount>) {
    let group = &shape.owner.name;
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    if shape.stock() {
        let ordinals = if shape.role().is_replicated { shape.spec.replicas.max(10).div_ceil(10) * 10 } else { 1 };
        for ordinal in 0..ordinals {
            let secret_name = Some(names::replica_config(group, ordinal));
            let secret = SecretVolumeSource { secret_name, optional: Some(true), ..SecretVolumeSource::default() };
            let name = format!("tailscaledconfig-{ordinal}");
            mounts.push(mount(&name, &format!("{CONFIGS}/{}", names::replica(group, ordinal)), true));
            volumes.push(Volume { name, secret: Some(secret), ..Volume::default() });
        }
    } else {
        let memory = EmptyDirVolumeSource { medium: Some("Memory".to_owned()), ..EmptyDirVolumeSource::default() };
        mounts.push(mount("config", CONFIGS, false));
        volumes.push(Volume { name: "config".to_owned(), empty_dir: Some(memory.clone()), ..Volume::default() });
        // Sockets and locks: the rest of the file system is read-only.
        let at = |path: &str| VolumeMount { sub_path: Some(path.trim_start_matches('/').to_owned()), ..mount("scratch", path, false) };
        mounts.extend(["/run", "/tmp"].map(at));
        volumes.push(Volume { name: "scratch".to_owned(), empty_dir: Some(memory), ..Volume::default() });
    }
    if shape.has_failover() {
        mounts.push(mount(unreachable_note::VOLUME, unreachable_note::DIRECTORY, true));
        volumes.push(unreachable_note::volume());
    }
    if let Some(name) = shape.config_map() {
        mounts.push(mount("services", SERVICES, true));
        let config_map = ConfigMapVolumeSource { name, ..ConfigMapVolumeSource::default() };
        volumes.push(Volume { name: "services".to_owned(), config_map: Some(config_map), ..Volume::default() });
    }
    (volumes, mounts)
}
