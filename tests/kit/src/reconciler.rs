//! A cluster with the reconciler's definitions and rights, a control plane, and simulated kubelets and replicas.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::{ByteString, NamespaceResourceScope};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tailyard::api::names::{AUTH_KEY_ID, DEVICE};
use tailyard::api::proxygroup::ProxyGroup;
use tailyard::edge::netns::Namespace;
use tailyard::model::base::gzip;
use tailyard::model::config::source::{CopyKeys, Document, EgressDocument};
use tailyard::model::tailnet::status::ROOM;
use tempfile::TempDir;

use crate::apiserver::{Cluster, DEADLINE, NAMESPACE, cluster, cluster_in};
use crate::hosted::{CLIENT, DOMAIN, Hosted};
use crate::wait::{eventually_async, until_async};

mod health;
mod objects;
mod publisher;

pub use health::Health;

/// Where users' Services are.
pub const USERS: &str = "default";

/// Everything but the reconciler.
pub struct Stage {
    pub cluster: Cluster,
    pub hosted: Hosted,
    pub client: Client,
    place: TempDir,
    /// First letter of the IDs of its devices.
    ids: char,
}

/// A running reconciler, which is killed with the value.
pub struct Running {
    child: Child,
    port: u16,
    log: std::path::PathBuf,
}

/// Runs a test on a stage of its own.
pub fn stage(test: impl AsyncFnOnce(Stage) + Send) {
    cluster(async |cluster| {
        let mut stage = Stage::on(cluster, Hosted::start().await).await;
        if stage.all::<CustomResourceDefinition>().list(&ListParams::default()).await.expect("definitions").items.is_empty() {
            stage.define_all().await;
            stage.cluster.keep_content();
        }
        test(stage).await;
    });
}

/// Runs a test on a stage that has the rights, and no definitions yet.
pub fn bare(test: impl AsyncFnOnce(Stage) + Send) {
    let namespace = Namespace::make().expect("a network namespace");
    cluster_in(&namespace, async |cluster| test(Stage::on(cluster, Hosted::start().await).await).await);
}

impl Stage {
    async fn on(cluster: Cluster, hosted: Hosted) -> Self {
        let stage = Self { client: cluster.admin(), hosted, cluster, place: TempDir::new().expect("a directory"), ids: 'n' };
        stage.grant("cluster.yaml", "").await;
        stage.grant("namespace.yaml", "").await;
        stage.credential("id", CLIENT.0);
        stage.credential("secret", CLIENT.1);
        stage
    }

    /// Another cluster, in the same tailnet.
    pub async fn second(&self) -> Self {
        let stage = Self { ids: 'm', ..Self::on(Cluster::second().await, self.hosted.clone()).await };
        stage.define_all().await;
        stage
    }

    /// Applies a file of the repository unchanged.
    async fn file(&self, url: &str, text: &str) {
        let request = hyper::Request::patch(format!("{url}?fieldManager=test")).header("Content-Type", "application/apply-patch+yaml");
        self.client.request_text(request.body(text.as_bytes().to_vec()).expect("a request")).await.expect("applied");
    }

    /// Installs the definitions.
    pub async fn define_all(&self) {
        for kind in crate::definitions::KINDS {
            self.define(&format!("{kind}.tailscale.com"), &format!("config/crd/tailscale.com_{kind}.yaml")).await;
        }
    }

    /// Puts something into a file of the reconciler's own credentials, as the kubelet would into a mounted Secret.
    pub fn credential(&self, file: &str, text: &str) {
        fs::write(self.place.path().join(file), text).expect("written");
    }

    /// Removes a credential file.
    pub fn no_credential(&self, file: &str) {
        fs::remove_file(self.place.path().join(file)).expect("removed");
    }

    /// The messages of Events about objects of this name.
    pub async fn events(&self, name: &str) -> Vec<String> {
        let events = self.all::<Event>().list(&ListParams::default()).await.expect("Events");
        let of = |event: &Event| event.regarding.as_ref().and_then(|about| about.name.clone()).unwrap_or_default();
        let of = events.into_iter().filter(|event| of(event) == name);
        of.map(|event| format!("{} {}", event.reason.unwrap_or_default(), event.note.unwrap_or_default())).collect()
    }

    async fn define(&self, name: &str, path: &str) {
        let text = fs::read_to_string(crate::root().join(path)).expect("a definition");
        self.file(&format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"), &text).await;
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let established = async || {
            let status = api.get(name).await.ok().and_then(|definition| definition.status);
            let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
            conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
        };
        eventually_async("the definition is established", DEADLINE, established, |established| *established).await;
    }

    /// Applies a file of config/rbac with these namespaces: the reconciler's own, and a watched one.
    pub async fn grant(&self, file: &str, watched: &str) {
        let path = crate::root().join("config/rbac").join(file);
        let text = fs::read_to_string(path).expect("rights").replace("namespace: tailscale", &format!("namespace: {NAMESPACE}"));
        let text = text
            .replace("serviceaccounts:tailscale", &format!("serviceaccounts:{NAMESPACE}"))
            .replace("namespace: watched", &format!("namespace: {watched}"));
        for document in text.split("\n---\n") {
            let value = |key: &str| {
                let line = document.lines().find_map(|line| line.trim_start().strip_prefix(key)).expect("a line");
                line.trim().to_owned()
            };
            let (kind, name) = (value("kind:"), value("name:"));
            let space = if kind.starts_with("Cluster") { String::new() } else { format!("namespaces/{}/", value("namespace:")) };
            let plural = format!("{}s", kind.to_lowercase());
            self.file(&format!("/apis/rbac.authorization.k8s.io/v1/{space}{plural}/{name}"), document).await;
        }
    }

    /// Applies the admission policy of config/rbac, for the reconciler's namespace. It is in force a moment later.
    pub async fn admission_policy(&self) {
        let text = fs::read_to_string(crate::root().join("config/rbac/policy.yaml")).expect("a policy");
        let text = text.replace("metadata.name: tailscale", &format!("metadata.name: {NAMESPACE}"));
        for (plural, document) in ["validatingadmissionpolicies", "validatingadmissionpolicybindings"].iter().zip(text.split("\n---\n")) {
            self.file(&format!("/apis/admissionregistration.k8s.io/v1/{plural}/tailyard-proxy-secrets"), document).await;
        }
    }

    /// The compiled binary, to be run as this user of the cluster.
    pub fn tailyard(&self, user: &str, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(crate::tailyard());
        command.args(args).args(["--namespace", NAMESPACE]).env("KUBECONFIG", self.cluster.kubeconfig_of(user));
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Starts a reconciler.
    pub fn reconciler(&self, name: &str, port: u16) -> Running {
        self.reconciler_with(name, port, &[])
    }

    /// Starts a reconciler with more arguments, and the allocator of the image.
    pub fn reconciler_with(&self, name: &str, port: u16, arguments: &[&str]) -> Running {
        self.start_reconciler(name, port, arguments, 0)
    }

    /// Starts a reconciler whose processes have this group, so that packets to a replica can be dropped ([`Health::cut_off`]).
    pub fn reconciler_of_gid(&self, name: &str, port: u16, gid: u32) -> Running {
        self.start_reconciler(name, port, &[], gid)
    }

    fn start_reconciler(&self, name: &str, port: u16, arguments: &[&str], gid: u32) -> Running {
        let log = self.place.path().join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).expect("a log");
        let path = |name: &str| self.place.path().join(name);
        let child = Command::new(crate::tailyard())
            .args(["reconciler", "--namespace", NAMESPACE, "--cluster-domain", "cluster.local", "--image", "tailyard:test"])
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig_of("reconciler"))
            .args(["--login-server", &self.hosted.url(), "--admin-addr", &format!("127.0.0.1:{port}")])
            .arg("--client-id-file")
            .arg(path("id"))
            .arg("--client-secret-file")
            .arg(path("secret"))
            .args(arguments)
            .env("POD_NAME", name)
            .gid(gid)
            .envs(crate::allocator_variables())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("the binary");
        Running { child, port, log }
    }

    pub fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub fn here<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub fn users(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), USERS)
    }

    pub async fn apply<K>(&self, api: Api<K>, name: &str, object: Value)
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let done = async || {
            api.patch(name, &PatchParams::apply("user").force(), &Patch::Apply(&object)).await.map(drop).map_err(|e| e.to_string())
        };
        eventually_async("the user's object is taken", DEADLINE, done, Result::is_ok).await.expect("it holds");
    }

    /// Makes a group, or changes the number of its replicas.
    pub async fn group(&self, name: &str, replicas: u32) {
        self.group_of(name, json!({"type": "egress", "replicas": replicas})).await;
    }

    /// Creates a group, or changes its spec.
    pub async fn group_of(&self, name: &str, spec: Value) {
        let object = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": name}, "spec": spec});
        self.apply(self.all::<ProxyGroup>(), name, object).await;
    }

    /// Makes a Service to a tailnet address, or changes its group.
    pub async fn service(&self, name: &str, group: &str) {
        let annotations = json!({"tailscale.com/proxy-group": group, "tailscale.com/tailnet-ip": "100.64.0.9"});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations},
            "spec": {"type": "ExternalName", "externalName": "placeholder.invalid", "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}});
        let api = self.users();
        if api.get_opt(name).await.expect("an answer").is_some() {
            let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
            api.patch(name, &PatchParams::default(), &patch).await.expect("changed");
        } else {
            self.apply(api, name, object).await;
        }
    }

    /// Simulates the kubelet: creates a ready Pod of a replica with an address.
    pub async fn pod(&self, group: &str, ordinal: u8) -> Pod {
        let name = format!("{group}-{ordinal}");
        let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": group});
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"serviceAccountName": group, "containers": [{"name": "tailscale", "image": "x"}]}});
        self.apply(self.here::<Pod>(), &name, object).await;
        let ip = format!("10.1.{}.{}", group.len(), ordinal + 1);
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        self.here::<Pod>().patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status")
    }

    /// Simulates the replicas: they join the tailnet and acknowledge the egress config.
    pub async fn join(&self, group: &str, replicas: u8) {
        for ordinal in 0..replicas {
            self.member(group, ordinal).await;
        }
        self.acknowledge(group, replicas).await;
    }

    /// Simulates a replica: it joins the tailnet.
    pub async fn member(&self, group: &str, ordinal: u8) {
        let pod = self.pod(group, ordinal).await;
        let name = pod.name_any();
        let there = async || self.here::<Secret>().get_opt(&name).await.ok().flatten().is_some();
        eventually_async("the state Secret", DEADLINE, there, |there| *there).await;
        self.log_in(&pod, &format!("{}{group}{ordinal}", self.ids), &name).await;
    }

    /// Simulates a tailscaled: once its Pod has an auth key, or had a device before, the device joins the tailnet, and the Pod reports it.
    pub async fn log_in(&self, pod: &Pod, id: &str, label: &str) {
        let name = pod.name_any();
        let can_join = async || {
            let config = self.here::<Secret>().get_opt(&format!("{name}-config")).await.ok().flatten();
            let annotations = config.map(|config| config.annotations().clone()).unwrap_or_default();
            let has_key = annotations.contains_key(AUTH_KEY_ID) || annotations.contains_key(DEVICE);
            has_key || self.hosted.devices().contains(id) || self.cluster.secret(&name).await.0.contains_key("device_id")
        };
        until_async("an auth key", DEADLINE, can_join).await;
        self.hosted.add_device(id, label);
        let (fqdn, uid) = (format!("{label}.{DOMAIN}."), pod.uid().expect("a UID"));
        let addresses = json!(self.hosted.addresses(id)).to_string();
        let values = [("device_id", id), ("device_fqdn", &fqdn), ("device_ips", &addresses), ("pod_uid", &uid)];
        self.cluster.patch_secret(&name, &values).await;
    }

    /// Simulates the replicas: they acknowledge the current egress config.
    pub async fn acknowledge(&self, group: &str, replicas: u8) {
        let mut services = self.config(group).await;
        for service in services.values_mut() {
            service.as_object_mut().expect("a service").remove("healthCheckEndpoint");
            service["tailnetTargetIPs"] = json!(["100.64.0.9"]);
        }
        for ordinal in 0..replicas {
            let name = format!("{group}-{ordinal}");
            let pod = self.here::<Pod>().get(&name).await.expect("a Pod");
            let ip = pod.status.and_then(|status| status.pod_ip).expect("an address");
            let whole = json!({"podIPv4": ip, "podIPv6": "", "services": services}).to_string().into_bytes();
            let short = json!({"podIPv4": ip, "podIPv6": "", "services": null}).to_string().into_bytes();
            let (status, packed) =
                if whole.len() > ROOM { (short, Some(ByteString(gzip::pack(&whole).expect("packed")))) } else { (whole, None) };
            let patch = Patch::Merge(json!({"data": {"egress-services": ByteString(status), "egress-services.gz": packed}}));
            self.here::<Secret>().patch(&name, &PatchParams::default(), &patch).await.expect("patched");
        }
    }

    /// The keys of a group's egress config as they are mounted.
    pub async fn keys(&self, group: &str) -> CopyKeys {
        let config = self.here::<ConfigMap>().get_opt(&format!("{group}-egress-config")).await.expect("an answer");
        let data = config.and_then(|config| config.binary_data).unwrap_or_default();
        data.into_iter().map(|(key, ByteString(value))| (key, value.into())).collect()
    }

    /// The services of a group's egress config, unpacked as a replica does it.
    pub async fn config(&self, group: &str) -> Map<String, Value> {
        let text = EgressDocument::unpacked(self.keys(group).await).remove("egress-services");
        text.map_or(Map::new(), |text| serde_json::from_slice(&text).expect("a config"))
    }

    /// Acknowledges the config until the Service is ready and points to its child in that group.
    pub async fn served(&self, service: &str, group: &str, replicas: u8) {
        let look = async || {
            self.acknowledge(group, replicas).await;
            let child = self.child(service).await.into_iter().find(|(_, of)| of == group);
            (self.condition(service, "TailscaleEgressSvcReady").await, self.external_name(service).await, child)
        };
        eventually_async("the Service is served by that group", DEADLINE, look, |(condition, name, child)| {
            let points = child.as_ref().is_some_and(|(child, _)| name.split('.').next() == Some(child));
            points && condition.starts_with("True ReadyToRouteTraffic")
        })
        .await;
    }

    /// The name that a user's Service points to; empty if it has none.
    pub async fn external_name(&self, service: &str) -> String {
        let spec = self.users().get(service).await.expect("a Service").spec;
        spec.and_then(|spec| spec.external_name).unwrap_or_default()
    }

    /// A condition of a user's Service: status, reason and message; empty if absent.
    pub async fn condition(&self, service: &str, kind: &str) -> String {
        let status = self.users().get_opt(service).await.ok().flatten().and_then(|service| service.status);
        let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
        let condition = conditions.into_iter().find(|condition| condition.type_ == kind);
        condition.map_or(String::new(), |condition| format!("{} {} {}", condition.status, condition.reason, condition.message))
    }

    /// The condition `ProxyGroupReady` of a group.
    pub async fn ready(&self, group: &str) -> String {
        self.says(group, "ProxyGroupReady").await
    }

    /// A condition of a group.
    pub async fn says(&self, group: &str, kind: &str) -> String {
        let status = self.all::<ProxyGroup>().get_opt(group).await.ok().flatten().and_then(|group| group.status);
        let condition = status.unwrap_or_default().conditions.into_iter().find(|condition| condition.type_ == kind);
        condition.map_or(String::new(), |condition| format!("{} {} {}", condition.status, condition.reason, condition.message))
    }

    /// The children of a user's Service: name and group.
    pub async fn child(&self, service: &str) -> Vec<(String, String)> {
        let labels = format!("tailscale.com/parent-resource-type=svc,tailscale.com/parent-resource={service}");
        let found = self.here::<Service>().list(&ListParams::default().labels(&labels)).await.expect("a list");
        found
            .into_iter()
            .map(|child| (child.name_any(), child.labels().get("tailscale.com/proxy-group").cloned().unwrap_or_default()))
            .collect()
    }

    pub async fn delete<K>(&self, api: &Api<K>, name: &str)
    where
        K: Clone + DeserializeOwned + Debug,
    {
        api.delete(name, &DeleteParams::default()).await.expect("deleted");
    }

    /// Waits until an object is gone.
    pub async fn gone<K>(&self, api: &Api<K>, name: &str)
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let there = async || api.get_opt(name).await.map_or(true, |found| found.is_some());
        eventually_async(&format!("{name} is gone"), DEADLINE, there, |there| !there).await;
    }

    /// Waits until the reconciler is idle and writes nothing; returns its number of reconciliations.
    pub async fn quiet(&self, running: &Running) -> u64 {
        let mut last = (usize::MAX, 0);
        let look = async || {
            // A full round of requeued objects after the last write shows that no write follows.
            let now = (self.cluster.writes().len(), running.looks());
            let quiet = now.0 == last.0 && now.1 > last.1 + 3;
            if now.0 != last.0 {
                last = now;
            }
            self.poke().await;
            (quiet, now)
        };
        eventually_async("nothing more is written", DEADLINE, look, |(quiet, _)| *quiet).await.1.1
    }

    /// Sets a meaningless annotation on each group, so that each is reconciled.
    pub async fn poke(&self) {
        let api = self.all::<ProxyGroup>();
        for group in api.list(&ListParams::default()).await.expect("a list") {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"poke": fastrand::u64(..).to_string()}}}));
            api.patch(&group.name_any(), &PatchParams::default(), &patch).await.expect("poked");
        }
    }
}

impl Running {
    /// Kills it.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// The log output.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The response to a GET request.
    pub fn get(&self, path: &str) -> String {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        ask().unwrap_or_default()
    }

    /// The sum of the metric series whose line contains this text.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn metric(&self, text: &str) -> u64 {
        let page = self.get("/metrics");
        let values = page.lines().filter(|line| line.contains(text) && !line.starts_with('#'));
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
    }

    /// Number of reconciliations of groups.
    pub fn looks(&self) -> u64 {
        self.metric("tailyard_reconcile_total{kind=\"ProxyGroup\"")
    }

    /// Waits until it is the leader, or is not.
    pub async fn leads(&self, leads: bool) {
        let line = format!("\ntailyard_leader {}\n", u8::from(leads));
        eventually_async(line.trim(), DEADLINE, async || self.get("/metrics"), |page| page.contains(&line)).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.kill().and_then(|()| self.child.wait()).is_err() {
            println!("process {} could not be ended", self.child.id());
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            println!("--- {}:\n{}", self.log.display(), lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}
