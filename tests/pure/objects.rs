//! Complete objects of typical groups: the reconciler's output for a spec and a class.
//!
//! `UPDATE_GOLDEN=1 cargo test --test pure objects` rewrites the golden files.

use kit::golden::assert_golden;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tailyard::api::proxygroup::Impersonation;
use tailyard::model::controller::key::WorkloadKey;
use tailyard::model::controller::kinds::group_policy::{self, PolicyRules};
use tailyard::model::controller::kinds::nameserver;
use tailyard::model::controller::kinds::nameserver::inputs::NameserverInputs;
use tailyard::model::controller::kinds::nameserver::records::RecordsPlan;
use tailyard::model::controller::kinds::pass;
use tailyard::model::controller::policy::assignment::{AssignmentRules, StandaloneScope};
use tailyard::model::controller::workload::actions::{ControlAction, GroupPlan};
use tailyard::model::controller::workload::control_plane::Capabilities;
use tailyard::model::controller::workload::identity::{DeviceId, DeviceName, DeviceRecord};
use tailyard::model::controller::workload::naming::new_name;
use tailyard::model::controller::workload::objects::Manifest;
use tailyard::model::controller::workload::observed::backend_service::BackendService;
use tailyard::model::controller::workload::observed::replica::{ObservedReplica, ReplicaConfig, ReplicaState};
use tailyard::model::controller::workload::observed::{Class, DeviceInputs, Observed, PublishInputs, ServiceList, TailnetState};
use tailyard::model::controller::workload::settings::GroupSettings;
use tailyard::model::controller::workload::target_inputs::TargetInputs;
use tailyard::model::controller::workload::vip_service::ServiceOwner;

/// A new group with one Service.
fn observed(spec: Value, class: Option<Value>) -> Observed {
    let group =
        json!({"metadata": {"name": "pg", "uid": "0d7c", "generation": 1, "finalizers": ["tailscale.com/finalizer"]}, "spec": spec});
    let class = class.map(|spec| json!({"metadata": {"name": "c"}, "spec": spec}));
    let service = json!({
        "metadata": {"name": "db", "namespace": "default", "uid": "5a1e", "annotations": {
            "tailscale.com/proxy-group": "pg", "tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"}},
        "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": [
            {"name": "postgres", "port": 5432, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]},
    });
    let node = |name: &str, ip: &str| {
        let status = json!({"addresses": [{"type": "ExternalIP", "address": ip}, {"type": "InternalIP", "address": "10.0.0.1"}]});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name, "labels": {"edge": "yes"}}, "status": status})).expect("a Node"))
    };
    Observed {
        key: WorkloadKey::of_group("pg"),
        workload: "pg".into(),
        now: Timestamp::from_second(1_800_000_000).expect("a time"),
        settings: Arc::new(GroupSettings {
            image_pull_secrets: vec!["mirror".into()],
            tags: vec!["tag:k8s".into()],
            drain_timeout: Duration::from_secs(50),
            service_monitors: true,
            ..GroupSettings::new("tailscale".into(), "ghcr.io/tailyard/tailyard:v1".into())
        }),
        assignment: Arc::new(AssignmentRules { ingress_class: "tailscale".into(), ..AssignmentRules::default() }),
        group: Some(Arc::new(serde_json::from_value(group).expect("a group"))),
        connector: None,
        class: class.map_or(Class::None, |class| Class::Ready(Arc::new(serde_json::from_value(class).expect("a class")))),
        tailnet: TailnetState::Ready { server_url: "https://controlplane.tailscale.com".into(), capabilities: Capabilities::TAILSCALE },
        replicas: BTreeMap::new(),
        owned: OrdMap::new(),
        certificates: OrdMap::new(),
        children: OrdMap::new(),
        slices: OrdMap::new(),
        services: OrdMap::unit(("default".into(), "db".into()), Arc::new(serde_json::from_value(service).expect("a Service"))),
        nodes: vec![node("a", "203.0.113.7"), node("b", "203.0.113.8"), node("c", "203.0.113.9")],
        namespaces: OrdMap::new(),
        names_before: 0,
        node_ports: BTreeSet::from([30_000]),
        targets: TargetInputs { is_complete: true, is_default_class: true, ..TargetInputs::default() },
        restricted_group: None,
        takeover_fault: None,
        publish: PublishInputs::default(),
        waiting: None,
        create_failure: None,
        replacements: 0,
        devices: DeviceInputs::default(),
        denied: BTreeMap::new(),
    }
}

/// A class with every field set.
fn everything() -> Value {
    json!({
        "statefulSet": {
            "labels": {"team": "net", "tailscale.com/managed": "no"},
            "annotations": {"note": "x"},
            "pod": {
                "labels": {"team": "net"},
                "annotations": {"note": "y"},
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "edge", "operator": "Exists"}]}]}}},
                "securityContext": {"runAsNonRoot": false},
                "imagePullSecrets": [{"name": "pull"}],
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"key": "edge", "operator": "Exists"}],
                "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
                "priorityClassName": "high",
                "dnsPolicy": "None",
                "dnsConfig": {"nameservers": ["10.96.0.10"]},
                "tailscaleContainer": {
                    "env": [{"name": "TS_ENABLE_HEALTH_CHECK", "value": "false"}, {"name": "EXTRA", "value": "1"}],
                    "image": "registry:5000/tailyard:v2",
                    "imagePullPolicy": "IfNotPresent",
                    "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "256Mi"}},
                    "securityContext": {"privileged": false},
                },
                "tailscaleInitContainer": {"image": "registry:5000/tailyard:v2", "resources": {"limits": {"memory": "32Mi"}}},
            },
        },
        "metrics": {"enable": true, "serviceMonitor": {"enable": true, "labels": {"release": "prometheus"}}},
        "tailscale": {"acceptRoutes": true},
    })
}

/// The objects of a pass, and each replica's config before its auth key is minted.
fn with_configs(GroupPlan { mut apply, control, .. }: GroupPlan) -> Vec<Manifest> {
    for action in control {
        let ControlAction::MintKey { draft, .. } = action else { continue };
        let config = draft.inputs.manifest(None, false);
        let state = config.object.name.trim_end_matches("-config");
        let place = apply.iter().position(|manifest| manifest.object.name == state).expect("the state Secret");
        apply.insert(place + 1, config);
    }
    apply
}

#[test]
fn applied_objects_match_golden_files() {
    let stock = json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.102.0"}}}});
    let endpoints = json!({"staticEndpoints": {"nodePort": {"ports": [{"port": 30000, "endPort": 30010}], "selector": {"edge": "yes"}}}});
    let unprivileged = json!({"type": "egress", "replicas": 3, "hostnamePrefix": "out", "tailyard": {
        "drainTimeoutSeconds": 120, "matchPortRange": {"start": 20000, "end": 20100}, "tunDeviceResource": "example.com/tun", "usePodSysctls": true,
        "firewallMode": "nftables"}});
    let cases = [
        ("plain", json!({"type": "egress"}), None),
        ("stock-image", json!({"type": "egress"}), Some(stock)),
        ("class", json!({"type": "egress"}), Some(everything())),
        ("unprivileged", unprivileged, None),
        ("static-endpoints", json!({"type": "egress"}), Some(endpoints)),
    ];
    for (name, observed) in cases
        .into_iter()
        .map(|(name, spec, class)| (name, observed(spec, class)))
        .chain(publishing())
        .chain(standalone())
        .chain([standalone_ingress(), api_server(), connector()])
    {
        let mut observed = observed;
        let mut applied = with_configs(pass(&observed));
        // The stock image starts only once its configs exist, and Pods that impersonate once their account and then its rights do.
        for _ in 0..2 {
            observed.owned = applied.iter().map(|manifest| (manifest.object.clone(), Arc::new(manifest.value.clone()))).collect();
            applied.extend(pass(&observed).apply);
        }
        let applied: Vec<_> = applied.into_iter().map(|manifest| manifest.value).collect();
        let text = format!("{}\n", serde_json::to_string_pretty(&applied).expect("JSON"));
        assert_golden(&format!("tests/golden/objects/{name}.json"), &text);
    }
}

#[test]
fn admission_objects_of_policies_match_the_golden_file() {
    let policy = |name: &str, annotations: Value, spec: Value| {
        let metadata = json!({"name": name, "namespace": "shop", "annotations": annotations});
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a policy"))
    };
    let ingress = || policy("ingress", Value::Null, json!({"ingress": ["web", "api"]}));
    let limit = policy("limit", json!({"tailyard.io/limit-standalone": "true"}), json!({"egress": ["", "out"]}));
    let rules = PolicyRules { reconciler: "system:serviceaccount:tailscale:tailyard-reconciler".into(), ingress_class: "tailscale".into() };
    let all = [vec![ingress()], vec![ingress(), limit]]
        .map(|policies| group_policy::manifests("shop", &policies, &rules).into_iter().map(|manifest| manifest.value).collect::<Vec<_>>());
    let text = format!("{}\n", serde_json::to_string_pretty(&all).expect("JSON"));
    assert_golden("tests/golden/admission/proxygrouppolicy.json", &text);
}

#[test]
fn objects_of_a_nameserver_match_the_golden_file() {
    let metadata = json!({"name": "ts-dns", "uid": "1f0c"});
    let config = serde_json::from_value(json!({"metadata": metadata, "spec": {"nameserver": {}}})).expect("a DNSConfig");
    let document = r#"{"version":"v1alpha1","ip4":{"db.tail1234.ts.net":["10.96.0.7"]},"ip6":{"db.tail1234.ts.net":["fd00:96::7"]}}"#;
    let inputs = NameserverInputs {
        namespace: "tailscale".into(),
        image: "tailyard:test".into(),
        records: RecordsPlan { document: document.to_owned(), ..RecordsPlan::default() },
        ..NameserverInputs::default()
    };
    let all: Vec<_> = nameserver::manifests(&config, &inputs).into_iter().map(|manifest| manifest.value).collect();
    assert_golden("tests/golden/nameserver/dnsconfig.json", &format!("{}\n", serde_json::to_string_pretty(&all).expect("JSON")));
}

/// Security contexts of the containers of an applied `StatefulSet`, by the container's name.
fn security_contexts(spec: Value, class: Option<Value>) -> BTreeMap<String, Value> {
    let applied = pass(&observed(spec, class)).apply;
    let set = applied.iter().find(|manifest| manifest.value["kind"] == "StatefulSet").expect("a StatefulSet");
    let pod = &set.value["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let containers = ["containers", "initContainers"].into_iter().flat_map(|key| pod[key].as_array().into_iter().flatten());
    containers.map(|container| (container["name"].as_str().expect("a name").to_owned(), container["securityContext"].clone())).collect()
}

#[test]
fn no_container_of_a_proxy_is_privileged() {
    let confined = |add: &[&str]| {
        json!({"privileged": false, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"add": add, "drop": ["ALL"]}})
    };
    let plain = security_contexts(json!({"type": "egress"}), None);
    assert_eq!(plain["tailscale"], confined(&["MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"]));
    assert_eq!(plain["sysctler"], json!({"privileged": true}), "it enables forwarding and ends");
    let own = json!({"tunDeviceResource": "example.com/tun", "usePodSysctls": true});
    let plugin = security_contexts(json!({"type": "egress", "tailyard": own}), None);
    assert_eq!(plugin, [("tailscale".to_owned(), confined(&["NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"]))].into());
    let container = |container: Value| Some(json!({"statefulSet": {"pod": {"tailscaleContainer": container}}}));
    let userspace = container(json!({"env": [{"name": "TS_USERSPACE", "value": "true"}]}));
    let userspace = security_contexts(json!({"type": "ingress"}), userspace);
    assert_eq!(userspace, [("tailscale".to_owned(), confined(&["NET_BIND_SERVICE"]))].into());
    let privileged = security_contexts(json!({"type": "egress"}), container(json!({"securityContext": {"privileged": true}})));
    assert_eq!(
        privileged,
        [("tailscale".to_owned(), json!({"privileged": true}))].into(),
        "a class decides, and forwarding needs no init container"
    );
}

#[test]
fn tailscaled_port_is_outside_the_match_port_range() {
    let class = json!({"staticEndpoints": {"nodePort": {"ports": [{"port": 30000, "endPort": 30010}]}}});
    let all_but_one = json!({"type": "egress", "tailyard": {"matchPortRange": {"start": 20000, "end": 29998}}});
    let applied = pass(&observed(all_but_one, Some(class))).apply;
    let service = applied.iter().find(|manifest| manifest.object.name == "pg-0-nodeport").expect("a node port");
    assert_eq!(service.value["spec"]["ports"][0]["targetPort"], 29_999);
}

/// Groups that publish an Ingress and a Service, with our image and the stock image.
fn publishing() -> [(&'static str, Observed); 2] {
    let stock = json!({"useLetsEncryptStagingEnvironment": true, "statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.102.0"}}}});
    [("ingress", None), ("ingress-stock-image", Some(stock))].map(|(name, class)| {
        let mut observed = observed(json!({"type": "ingress"}), class);
        let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
        let service = |name: &str, annotations: Value| -> Service {
            let metadata = json!({"name": name, "namespace": "default", "annotations": annotations});
            serde_json::from_value(json!({"metadata": metadata, "spec": {"clusterIP": "10.96.0.20", "ports": ports}})).expect("a Service")
        };
        let id = |name: &str| ("default".to_owned(), name.to_owned());
        let ours = json!({"tailscale.com/proxy-group": "pg", "tailscale.com/expose": "true", "tailscale.com/hostname": "whole"});
        observed.services = OrdMap::unit(id("whole"), Arc::new(service("whole", ours)));
        let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
        let ingress = json!({"metadata": {"name": "app", "namespace": "default", "annotations": {"tailscale.com/proxy-group": "pg", "tailscale.com/http-redirect": "true"}},
            "spec": {"ingressClassName": "tailscale", "defaultBackend": backend, "tls": [{"hosts": ["app"]}]}});
        let vip = |name: &str, ports: Value, ip: &str| {
            let object = json!({"name": name, "addrs": [ip], "ports": ports, "tags": ["tag:k8s"],
                "annotations": {"tailscale.com/owner-references": r#"{"ownerRefs":[{"operatorID":"here"}]}"#}});
            (name.to_owned(), serde_json::from_value(object).expect("a Tailscale Service"))
        };
        let services = [vip("svc:app", json!(["tcp:443", "tcp:80"]), "100.99.0.1"), vip("svc:whole", json!(["do-not-validate"]), "100.99.0.2")];
        observed.publish = PublishInputs {
            ingresses: OrdMap::unit(id("app"), Arc::new(serde_json::from_value(ingress).expect("an Ingress"))),
            backends: [(id("web"), Arc::new(BackendService::from(&service("web", json!({})))))].into(),
            backed: [id("whole")].into(),
            listed: Some(Arc::new(ServiceList { at: observed.now, services: services.into_iter().collect() })),
            ..PublishInputs::default()
        };
        let state = ReplicaState { device_name: DeviceName::parse("pg-0.tail1234.ts.net."), ..ReplicaState::default() };
        observed.replicas = BTreeMap::from([(0, ObservedReplica { state: Some(Arc::new(state)), ..ObservedReplica::default() })]);
        let settings = GroupSettings::clone(&observed.settings);
        observed.settings = Arc::new(GroupSettings { cluster: ServiceOwner { id: "here".into(), ..ServiceOwner::default() }, ..settings });
        (name, observed)
    })
}

/// A group that publishes the Kubernetes API, of which one replica has joined.
fn api_server() -> (&'static str, Observed) {
    let listed = json!({"impersonation": {"users": ["*"], "groups": ["viewers", "system:masters"]}});
    let mut observed = observed(json!({"type": "kube-apiserver", "kubeAPIServer": {"hostname": "kube"}, "tailyard": listed}), None);
    observed.services = OrdMap::new();
    let record = json!({"id": "n1", "domain": "tail1234.ts.net", "name": "pg-0.tail1234.ts.net", "addresses": ["100.64.0.1"]});
    let device: DeviceRecord = serde_json::from_value(record).expect("a record");
    let config = Arc::new(ReplicaConfig { device: Some(device), ..ReplicaConfig::default() });
    observed.replicas = BTreeMap::from([(0, ObservedReplica { config: Some(config), ..ObservedReplica::default() })]);
    observed.publish.listed = Some(Arc::new(ServiceList { at: observed.now, ..ServiceList::default() }));
    let all = Impersonation { users: vec!["*".to_owned()], groups: vec!["*".to_owned(), "system:masters".to_owned()] };
    let settings = GroupSettings { impersonation: all, ..(*observed.settings).clone() };
    observed.settings = Arc::new(settings);
    ("api-server", observed)
}

/// Standalone Services: each mode.
fn standalone() -> [(&'static str, Observed); 6] {
    let external = || json!({"type": "ExternalName", "externalName": "db.example.com"});
    let balanced =
        json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.20", "clusterIPs": ["10.96.0.20"]});
    let metrics = json!({"metrics": {"enable": true}});
    [
        ("standalone-load-balancer", json!({}), balanced.clone(), Some(metrics)),
        ("standalone-standby", json!({"tailyard.io/standby": "true"}), balanced, None),
        (
            "standalone-exposed",
            json!({"tailscale.com/expose": "true", "tailscale.com/hostname": "shop"}),
            json!({"clusterIP": "10.96.0.20"}),
            None,
        ),
        ("standalone-external-name", json!({"tailscale.com/expose": "true"}), external(), None),
        ("standalone-tailnet-ip", json!({"tailscale.com/tailnet-ip": "100.64.0.7"}), external(), None),
        ("standalone-tailnet-fqdn", json!({"tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"}), external(), None),
    ]
    .map(|(name, annotations, spec, class)| {
        let mut observed = observed(json!({"type": "egress"}), class);
        let service =
            json!({"metadata": {"name": "web", "namespace": "default", "uid": "1234-UID", "annotations": annotations}, "spec": spec});
        let service: Service = serde_json::from_value(service).expect("a Service");
        observed.group = None;
        observed.key = WorkloadKey::Service("default".into(), "web".into());
        observed.workload = new_name(&observed.key, "1234-UID", 0);
        observed.services = OrdMap::unit(("default".into(), "web".into()), Arc::new(service));
        observed.assignment = Arc::new(AssignmentRules { standalone: StandaloneScope::Everywhere, ..AssignmentRules::default() });
        (name, observed)
    })
}

/// A subnet router and exit node of two replicas.
fn connector() -> (&'static str, Observed) {
    let mut observed = observed(json!({"type": "egress"}), None);
    let spec = json!({"subnetRouter": {"advertiseRoutes": ["10.40.0.0/14"]}, "exitNode": true, "replicas": 2});
    let connector = json!({"metadata": {"name": "lab", "uid": "1234-UID", "generation": 1}, "spec": spec});
    observed.group = None;
    observed.connector = Some(Arc::new(serde_json::from_value(connector).expect("a Connector")));
    observed.key = WorkloadKey::Connector("lab".into());
    observed.workload = new_name(&observed.key, "1234-UID", 0);
    observed.services = OrdMap::new();
    observed.assignment = Arc::new(AssignmentRules { connectors: true, ..AssignmentRules::default() });
    ("connector", observed)
}

/// The proxy of an Ingress whose device has joined.
fn standalone_ingress() -> (&'static str, Observed) {
    let mut observed = observed(json!({"type": "ingress"}), Some(json!({"metrics": {"enable": true}})));
    let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
    let annotations = json!({"tailscale.com/http-redirect": "true", "tailscale.com/funnel": "true",
        "tailscale.com/experimental-forward-cluster-traffic-via-ingress": "true"});
    let ingress = json!({"metadata": {"name": "app", "namespace": "default", "uid": "1234-UID", "annotations": annotations},
        "spec": {"ingressClassName": "tailscale", "defaultBackend": backend, "tls": [{"hosts": ["app"]}]}});
    let ingress: Ingress = serde_json::from_value(ingress).expect("an Ingress");
    observed.group = None;
    observed.key = WorkloadKey::Ingress("default".into(), "app".into());
    observed.workload = new_name(&observed.key, "1234-UID", 0);
    observed.services = OrdMap::new();
    let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
    let web = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.20", "ports": ports}});
    let id = |name: &str| ("default".to_owned(), name.to_owned());
    observed.publish = PublishInputs {
        ingresses: OrdMap::unit(id("app"), Arc::new(ingress)),
        backends: [(id("web"), Arc::new(BackendService::from(&serde_json::from_value(web).expect("a Service"))))].into(),
        ..PublishInputs::default()
    };
    let device_id = DeviceId::parse("n1");
    let state = ReplicaState { device_id, device_name: DeviceName::parse("app.tail1234.ts.net."), ..ReplicaState::default() };
    let record = json!({"id": "n1", "domain": "tail1234.ts.net", "name": "app.tail1234.ts.net", "addresses": ["100.64.0.1"]});
    let device: DeviceRecord = serde_json::from_value(record).expect("a record");
    let config = ReplicaConfig { device: Some(device), ..ReplicaConfig::default() };
    let replica = ObservedReplica { state: Some(Arc::new(state)), config: Some(Arc::new(config)), ..ObservedReplica::default() };
    observed.replicas = BTreeMap::from([(0, replica)]);
    let rules = AssignmentRules { standalone: StandaloneScope::Everywhere, ..(*observed.assignment).clone() };
    observed.assignment = Arc::new(rules);
    ("standalone-ingress", observed)
}

/// Object of a kind in a golden file.
fn golden(name: &str, kind: &str) -> Value {
    let all: Vec<Value> = serde_json::from_str(&kit::golden::read(&format!("tests/golden/objects/{name}.json"))).expect("JSON");
    all.into_iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("{name} has no {kind}"))
}

#[test]
fn pod_roles_do_not_list_secrets() {
    let goldens = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/objects")).expect("golden files");
    let names: BTreeSet<String> =
        goldens.map(|file| file.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned()).collect();
    assert!(names.len() >= 12, "{names:?}");
    for name in &names {
        for rule in golden(name, "Role")["rules"].as_array().expect("rules") {
            let limited = rule["resourceNames"].as_array().is_some_and(|objects| !objects.is_empty());
            // The stock image's tailscaled detects renewed certificates only by listing Secrets.
            let other_image =
                name == "ingress-stock-image" && *rule == json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"]});
            let harmless = rule["resources"] == json!(["events"]) || rule["verbs"] == json!(["create"]);
            assert!(limited || harmless || other_image, "{name}: {rule}");
        }
    }
}

/// The admission policy restricts accounts that may not delete the Secret (config/rbac/policy.yaml).
#[test]
fn pod_roles_do_not_create_or_delete_secrets() {
    let mut written = 0;
    for file in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/objects")).expect("golden files") {
        let name = file.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned();
        let role = golden(&name, "Role");
        let rules = role["rules"].as_array().expect("rules").iter().filter(|rule| rule["resources"] == json!(["secrets"]));
        for verb in rules.flat_map(|rule| rule["verbs"].as_array().expect("verbs")) {
            assert!(["get", "list", "watch", "patch", "update"].iter().any(|allowed| verb == allowed), "{name}: {verb}");
            written += usize::from(verb == "patch");
        }
    }
    assert!(written >= 12, "{written} Roles");
}

#[test]
fn class_labels_do_not_replace_owner_labels() {
    let set = golden("class", "StatefulSet");
    for labels in [&set["metadata"]["labels"], &set["spec"]["template"]["metadata"]["labels"]] {
        assert_eq!((&labels["tailscale.com/managed"], &labels["tailscale.com/parent-resource"]), (&json!("true"), &json!("pg")));
        assert_eq!(labels["team"], "net");
    }
}
