//! Our CRDs on a real API server, and the Tailscale operator's with our types: rejected objects with their messages, and round trips of
//! accepted ones.

use std::fmt::Debug;

use hyper::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tailyard::api::connector::Connector;
use tailyard::api::dnsconfig::DNSConfig;
use tailyard::api::proxyclass::ProxyClass;
use tailyard::api::proxygroup::{ProxyGroup, ProxyGroupType};
use tailyard::api::proxygrouppolicy::ProxyGroupPolicy;
use tailyard::api::tailnet::Tailnet;

use kit::apiserver::{Cluster, DEADLINE, cluster};
use kit::definitions::{ours, theirs};
use kit::wait::eventually_async;

/// Applies CRDs, replacing existing ones, and waits until they are served.
pub(super) async fn install(cluster: &Cluster, definitions: [Value; 6]) {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.admin());
    for definition in definitions {
        let name = definition["metadata"]["name"].as_str().expect("a name").to_owned();
        let parameters = PatchParams::apply("test").force();
        let applied = api.patch(&name, &parameters, &Patch::Apply(&definition)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let generation = applied.metadata.generation;
        let conditions = async || {
            let status = api.get(&name).await.expect("a definition").status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default().into_iter();
            conditions.map(|condition| (condition.type_, condition.status)).collect::<Vec<_>>()
        };
        let holds = |name: &str| (name.to_owned(), "True".to_owned());
        let conditions =
            eventually_async("an established kind", DEADLINE, conditions, |conditions| conditions.contains(&holds("Established"))).await;
        assert!(conditions.contains(&holds("NamesAccepted")), "{name}: {conditions:?}");
        assert!(!conditions.iter().any(|(kind, _)| kind.contains("NonStructural")), "{name}: {conditions:?}");
        assert!(generation.is_some(), "{name}");
    }
    for kind in ["Connector", "DNSConfig", "ProxyClass", "ProxyGroup", "ProxyGroupPolicy", "Tailnet"] {
        let api = objects(cluster, kind);
        let served = async || api.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string());
        eventually_async("a served kind", DEADLINE, served, Result::is_ok).await.expect("it holds");
    }
}

/// API of a kind without our types.
fn objects(cluster: &Cluster, kind: &str) -> Api<DynamicObject> {
    let resource = match kind {
        "Connector" => ApiResource::erase::<Connector>(&()),
        "DNSConfig" => ApiResource::erase::<DNSConfig>(&()),
        "ProxyClass" => ApiResource::erase::<ProxyClass>(&()),
        "ProxyGroup" => ApiResource::erase::<ProxyGroup>(&()),
        "ProxyGroupPolicy" => {
            return Api::namespaced_with(cluster.admin(), "default", &ApiResource::erase::<ProxyGroupPolicy>(&()));
        }
        _ => ApiResource::erase::<Tailnet>(&()),
    };
    Api::all_with(cluster.admin(), &resource)
}

fn object(kind: &str, name: &str, spec: &Value) -> DynamicObject {
    let object = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(object).expect("an object")
}

/// Message of a rejected request.
fn refusal<T: Debug>(what: &str, result: Result<T, kube::Error>) -> String {
    match result.expect_err(what) {
        kube::Error::Api(status) => status.message,
        error => panic!("{what}: {error}"),
    }
}

/// Rejected specs: the kind, the spec and what the message contains.
type Rejected = (&'static str, Value, &'static [&'static str]);

fn rejected_groups() -> Vec<Rejected> {
    let group = |field: &str, value: Value| json!({"type": "egress", field: value});
    let ours = |value: Value| json!({"type": "egress", "tailyard": value});
    let range = |value: Value| ours(json!({"matchPortRange": value}));
    let long = "a".repeat(64);
    vec![
        ("ProxyGroup", json!({}), &["spec.type", "Required value"]),
        ("ProxyGroup", json!({"type": "sideways"}), &["spec.type", "Unsupported value", "\"egress\", \"ingress\", \"kube-apiserver\""]),
        ("ProxyGroup", group("tags", json!(["tag:a", "k8s"])), &["spec.tags[1]", "should match '^tag:[a-zA-Z][a-zA-Z0-9-]*$'"]),
        ("ProxyGroup", group("replicas", json!(-1)), &["spec.replicas", "greater than or equal to 0"]),
        ("ProxyGroup", group("replicas", json!("two")), &["spec.replicas", "must be of type integer"]),
        ("ProxyGroup", group("hostnamePrefix", json!("-a")), &["spec.hostnamePrefix", "should match '^[a-z0-9][a-z0-9-]{0,61}$'"]),
        ("ProxyGroup", group("hostnamePrefix", json!("Aa")), &["spec.hostnamePrefix", "should match"]),
        ("ProxyGroup", group("hostnamePrefix", json!(long)), &["spec.hostnamePrefix", "should match"]),
        ("ProxyGroup", group("kubeAPIServer", json!({"mode": "some"})), &["spec.kubeAPIServer.mode", "\"auth\", \"noauth\""]),
        ("ProxyGroup", group("kubeAPIServer", json!({"hostname": "a-"})), &["spec.kubeAPIServer.hostname", "should match"]),
        ("ProxyGroup", ours(json!({"drainTimeoutSeconds": -1})), &["spec.tailyard.drainTimeoutSeconds", "greater than or equal to 0"]),
        ("ProxyGroup", range(json!({"start": 1})), &["spec.tailyard.matchPortRange.end", "Required value"]),
        ("ProxyGroup", range(json!({"start": 0, "end": 1})), &["spec.tailyard.matchPortRange.start", "greater than or equal to 1"]),
        ("ProxyGroup", range(json!({"start": 1, "end": 65536})), &["spec.tailyard.matchPortRange.end", "less than or equal to 65535"]),
        (
            "ProxyGroup",
            range(json!({"start": 2, "end": 1})),
            &["spec.tailyard.matchPortRange", "start must not be above matchPortRange.end"],
        ),
        ("ProxyGroup", ours(json!({"tunDeviceResource": "tun"})), &["spec.tailyard.tunDeviceResource", "should match"]),
        ("ProxyGroup", ours(json!({"trafficDistribution": "PreferClose"})), &["spec.tailyard.trafficDistribution", "\"PreferSameZone\""]),
        ("ProxyGroup", ours(json!({"firewallMode": "pf"})), &["spec.tailyard.firewallMode", "\"iptables-legacy\""]),
    ]
}

fn rejected_specs() -> Vec<Rejected> {
    let pod = |value: Value| json!({"statefulSet": {"pod": value}});
    let container = |value: Value| json!({"statefulSet": {"pod": {"tailscaleContainer": value}}});
    let ports = |value: Value| json!({"staticEndpoints": {"nodePort": value}});
    let long = "a".repeat(64);
    let others: Vec<Rejected> = vec![
        ("ProxyClass", json!({"statefulSet": {"labels": {"a": "b c"}}}), &["spec.statefulSet.labels.a", "should match"]),
        ("ProxyClass", json!({"statefulSet": {"labels": {"a": long}}}), &["spec.statefulSet.labels.a", "63"]),
        ("ProxyClass", pod(json!({"labels": {"a": "-b"}})), &["spec.statefulSet.pod.labels.a", "should match"]),
        ("ProxyClass", pod(json!({"dnsPolicy": "Mine"})), &["spec.statefulSet.pod.dnsPolicy", "\"ClusterFirstWithHostNet\""]),
        ("ProxyClass", pod(json!({"topologySpreadConstraints": [{}]})), &["topologySpreadConstraints[0].maxSkew", "Required value"]),
        ("ProxyClass", pod(json!({"tailscaleInitContainer": {"env": [{"name": "A B"}]}})), &["tailscaleInitContainer.env[0].name"]),
        ("ProxyClass", container(json!({"env": [{"name": "1A"}]})), &["env[0].name", "should match '^[-._a-zA-Z][-._a-zA-Z0-9]*$'"]),
        ("ProxyClass", container(json!({"env": [{"value": "a"}]})), &["env[0].name", "Required value"]),
        ("ProxyClass", container(json!({"imagePullPolicy": "Sometimes"})), &["imagePullPolicy", "\"Always\", \"Never\", \"IfNotPresent\""]),
        ("ProxyClass", container(json!({"resources": {"limits": {"cpu": "ten"}}})), &["resources.limits.cpu", "should match"]),
        ("ProxyClass", container(json!({"resources": {"claims": [{"name": "a"}, {"name": "a"}]}})), &["claims[1]", "Duplicate value"]),
        ("ProxyClass", json!({"metrics": {}}), &["spec.metrics.enable", "Required value"]),
        (
            "ProxyClass",
            json!({"metrics": {"enable": true, "serviceMonitor": {}}}),
            &["spec.metrics.serviceMonitor.enable", "Required value"],
        ),
        (
            "ProxyClass",
            json!({"metrics": {"enable": false, "serviceMonitor": {"enable": true}}}),
            &["spec.metrics", "ServiceMonitor can only be enabled if metrics are enabled"],
        ),
        (
            "ProxyClass",
            json!({"metrics": {"enable": true, "serviceMonitor": {"enable": true, "labels": {"a": "b "}}}}),
            &["spec.metrics.serviceMonitor.labels.a", "should match"],
        ),
        ("ProxyClass", json!({"staticEndpoints": {}}), &["spec.staticEndpoints.nodePort", "Required value"]),
        ("ProxyClass", ports(json!({})), &["spec.staticEndpoints.nodePort.ports", "Required value"]),
        ("ProxyClass", ports(json!({"ports": []})), &["spec.staticEndpoints.nodePort.ports", "at least 1 items"]),
        ("ProxyClass", ports(json!({"ports": [{"endPort": 1}]})), &["ports[0].port", "Required value"]),
        ("ProxyGroupPolicy", json!({"ingress": "in"}), &["spec.ingress", "must be of type array"]),
        ("ProxyGroupPolicy", json!({"egress": [1]}), &["spec.egress[0]", "must be of type string"]),
        ("Tailnet", json!({}), &["spec.credentials", "Required value"]),
        ("Tailnet", json!({"credentials": {}}), &["spec.credentials.secretName", "Required value"]),
        ("Tailnet", json!({"loginUrl": 1, "credentials": {"secretName": "a"}}), &["spec.loginUrl", "must be of type string"]),
    ];
    rejected_groups().into_iter().chain(rejected_connectors()).chain(others).collect()
}

fn rejected_connectors() -> Vec<Rejected> {
    let exit = |field: &str, value: Value| json!({"exitNode": true, field: value});
    let both = |more: Value| json!({"subnetRouter": {"advertiseRoutes": ["10.0.0.0/8"]}, "appConnector": more});
    vec![
        ("Connector", json!({}), &["at least one of exit node, subnet router or app connector"]),
        ("Connector", json!({"exitNode": false}), &["at least one of exit node, subnet router or app connector"]),
        ("Connector", both(json!({})), &["mutually exclusive with exitNode and subnetRouter"]),
        ("Connector", exit("appConnector", json!({})), &["mutually exclusive with exitNode and subnetRouter"]),
        ("Connector", json!({"subnetRouter": {}}), &["spec.subnetRouter.advertiseRoutes", "Required value"]),
        ("Connector", json!({"subnetRouter": {"advertiseRoutes": []}}), &["advertiseRoutes", "at least 1 items"]),
        ("Connector", json!({"subnetRouter": {"advertiseRoutes": ["10.0.0.0"]}}), &["advertiseRoutes[0]", "cidr"]),
        ("Connector", json!({"appConnector": {"routes": []}}), &["spec.appConnector.routes", "at least 1 items"]),
        ("Connector", exit("replicas", json!(-1)), &["spec.replicas", "greater than or equal to 0"]),
        ("Connector", exit("hostname", json!("a")), &["spec.hostname", "should match '^[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$'"]),
        ("Connector", exit("hostnamePrefix", json!("-a")), &["spec.hostnamePrefix", "should match '^[a-z0-9][a-z0-9-]{0,61}$'"]),
        ("Connector", exit("tags", json!(["a"])), &["spec.tags[0]", "should match"]),
        ("Connector", json!({"exitNode": true, "hostname": "ab", "replicas": 2}), &["hostname", "replicas is greater than 1"]),
        ("Connector", json!({"exitNode": true, "hostname": "ab", "hostnamePrefix": "a"}), &["hostname and hostnamePrefix"]),
    ]
}

/// A container with every field that a class may set.
fn container() -> Value {
    json!({
        "env": [{"name": "TS_DEBUG", "value": "$(POD_IP)"}, {"name": "EMPTY"}],
        "image": "registry.example/tailscale:1",
        "imagePullPolicy": "IfNotPresent",
        "resources": {
            "limits": {"cpu": "500m", "memory": "64Mi"},
            "requests": {"cpu": "0.1"},
            "claims": [{"name": "tun", "request": "one"}],
        },
        "securityContext": {
            "allowPrivilegeEscalation": false, "privileged": false, "procMount": "Default", "readOnlyRootFilesystem": true,
            "runAsGroup": 1, "runAsNonRoot": true, "runAsUser": 1,
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "a"},
            "capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]},
            "seLinuxOptions": {"level": "a", "role": "b", "type": "c", "user": "d"},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "debug": {"enable": true},
    })
}

/// A Pod with every field that a class may set.
fn pod() -> Value {
    let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]});
    let term = json!({"topologyKey": "zone", "labelSelector": selector, "namespaces": ["a"], "namespaceSelector": {"matchLabels": {"a": "b"}},
        "matchLabelKeys": ["c"], "mismatchLabelKeys": ["d"]});
    let node = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]});
    let of_pods = json!({
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}],
        "requiredDuringSchedulingIgnoredDuringExecution": [term],
    });
    json!({
        "labels": {"a": "b", "empty": "x"}, "annotations": {"a": "any thing"},
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": node}],
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [node]},
            },
            "podAffinity": of_pods,
            "podAntiAffinity": of_pods,
        },
        "tailscaleContainer": container(),
        "tailscaleInitContainer": {"image": "registry.example/tailscale:1"},
        "securityContext": {
            "fsGroup": 1, "fsGroupChangePolicy": "Always", "runAsGroup": 1, "runAsNonRoot": true, "runAsUser": 1,
            "seLinuxChangePolicy": "Recursive", "supplementalGroups": [1], "supplementalGroupsPolicy": "Strict",
            "sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}], "seccompProfile": {"type": "RuntimeDefault"},
        },
        "imagePullSecrets": [{"name": "a"}], "nodeName": "n", "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 1}, {"operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector,
            "minDomains": 1, "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Honor", "matchLabelKeys": ["c"]}],
        "priorityClassName": "high", "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.1"], "searches": ["a"], "options": [{"name": "ndots", "value": "2"}]},
    })
}

/// Specs with every field of the Tailscale operator's schema.
fn good() -> Vec<(&'static str, &'static str, Value)> {
    let class = json!({
        "statefulSet": {"labels": {"a": "b"}, "annotations": {"a": "b"}, "pod": pod()},
        "metrics": {"enable": true, "serviceMonitor": {"enable": true, "labels": {"release": "prometheus"}}},
        "tailscale": {"acceptRoutes": true},
        "useLetsEncryptStagingEnvironment": true,
        "staticEndpoints": {"nodePort": {"ports": [{"port": 30000, "endPort": 30010}, {"port": 31000}], "selector": {"a": "b"}}},
    });
    let group = json!({"type": "kube-apiserver", "tags": ["tag:k8s", "tag:A-1"], "replicas": 0, "hostnamePrefix": "a-", "proxyClass": "c",
        "kubeAPIServer": {"mode": "noauth", "hostname": "api"}, "tailnet": "t"});
    vec![
        ("ProxyGroup", "least", json!({"type": "egress"})),
        ("ProxyGroup", "most", group),
        ("ProxyClass", "least", json!({})),
        ("ProxyClass", "most", class),
        ("Tailnet", "least", json!({"credentials": {"secretName": "a"}})),
        ("Tailnet", "most", json!({"loginUrl": "https://control.example", "credentials": {"secretName": "a"}})),
        ("ProxyGroupPolicy", "least", json!({})),
        ("ProxyGroupPolicy", "most", json!({"ingress": ["in"], "egress": ["eg", ""]})),
        ("Connector", "least", json!({"exitNode": true})),
        ("Connector", "app", json!({"appConnector": {"routes": ["198.51.100.0/24"]}})),
        (
            "Connector",
            "most",
            json!({"subnetRouter": {"advertiseRoutes": ["10.40.0.0/14", "fd00::/8"]}, "exitNode": true, "tags": ["tag:k8s"], "replicas": 2,
                "hostnamePrefix": "a-", "proxyClass": "c", "tailnet": "t"}),
        ),
    ]
}

/// A status in the Tailscale operator's format.
fn status(kind: &str) -> Value {
    let condition = json!({"type": format!("{kind}Ready"), "status": "True", "reason": format!("{kind}Valid"), "message": "",
        "observedGeneration": 1, "lastTransitionTime": "2026-01-02T03:04:05Z"});
    match kind {
        "ProxyGroup" => json!({"conditions": [condition], "url": "https://api.example.ts.net",
            "devices": [{"hostname": "a-0", "tailnetIPs": ["100.64.0.1", "fd7a:115c:a1e0::1"], "staticEndpoints": ["203.0.113.7:31667"]}, {"hostname": "a-1"}]}),
        "Connector" => json!({"conditions": [condition], "subnetRoutes": "10.40.0.0/14", "isExitNode": true, "isAppConnector": true,
            "hostname": "a-0.example.ts.net", "tailnetIPs": ["100.64.0.1"],
            "devices": [{"hostname": "a-0.example.ts.net", "tailnetIPs": ["100.64.0.1"]}, {"hostname": "a-1.example.ts.net"}]}),
        _ => json!({"conditions": [condition]}),
    }
}

/// Round trip of an object through our types.
fn through_our_types(kind: &str, stored: &DynamicObject) -> Value {
    fn through<T: Serialize + DeserializeOwned>(value: Value) -> Value {
        serde_json::to_value(serde_json::from_value::<T>(value).expect("our type")).expect("JSON")
    }
    let stored = serde_json::to_value(stored).expect("JSON");
    match kind {
        "Connector" => through::<Connector>(stored),
        "ProxyClass" => through::<ProxyClass>(stored),
        "ProxyGroup" => through::<ProxyGroup>(stored),
        "ProxyGroupPolicy" => through::<ProxyGroupPolicy>(stored),
        _ => through::<Tailnet>(stored),
    }
}

/// Creates every valid object with its status: the stored object equals the sent one, and our types preserve every field.
async fn valid_objects_are_stored(cluster: &Cluster) {
    for (kind, name, spec) in good() {
        let api = objects(cluster, kind);
        let made = api.create(&PostParams::default(), &object(kind, name, &spec)).await;
        let mut made = made.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
        assert_eq!(made.data["spec"], spec, "{kind} {name}: nothing is dropped and there are no defaults");
        made.data["status"] = status(kind);
        let stored = api.replace_status(name, &PostParams::default(), &made).await.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
        assert_eq!(stored.data["status"], status(kind), "{kind} {name}");
        let ours = through_our_types(kind, &stored);
        assert_eq!(ours, serde_json::to_value(&stored).expect("JSON"), "{kind} {name}");
    }
    let groups: Api<ProxyGroup> = Api::all(cluster.admin());
    let least = groups.get("least").await.expect("a group");
    assert_eq!((least.spec.type_, least.spec.replicas), (ProxyGroupType::Egress, None));
    assert_eq!(groups.list(&ListParams::default()).await.expect("groups").items.len(), 2);
}

/// Behaviour common to both sets of definitions.
async fn nothing_is_null_and_quantities_may_be_numbers(cluster: &Cluster) {
    let nothing = json!({"type": "egress", "tags": null, "replicas": null, "proxyClass": null, "kubeAPIServer": null});
    let made =
        objects(cluster, "ProxyGroup").create(&PostParams::default(), &object("ProxyGroup", "nothing", &nothing)).await.expect("made");
    assert_eq!(made.data["spec"], json!({"type": "egress"}));
    let number = json!({"statefulSet": {"pod": {"tailscaleContainer": {"resources": {"limits": {"cpu": 1}}}}}});
    objects(cluster, "ProxyClass").create(&PostParams::default(), &object("ProxyClass", "number", &number)).await.expect("made");
    let class = Api::<ProxyClass>::all(cluster.admin()).get("number").await.expect("a class");
    let container = class.spec.stateful_set.and_then(|set| set.pod?.tailscale_container).expect("a container");
    assert_eq!(container.resources.and_then(|resources| resources.limits).expect("limits")["cpu"].0, "1");
}

#[test]
fn definitions_reject_invalid_objects_and_keep_valid_ones() {
    cluster(async |cluster| {
        install(&cluster, ours()).await;
        for (kind, spec, parts) in rejected_specs() {
            let what = format!("{kind} {spec}");
            let message = refusal(&what, objects(&cluster, kind).create(&PostParams::default(), &object(kind, "bad", &spec)).await);
            for part in parts {
                assert!(message.contains(part), "{what}: {message}");
            }
        }
        valid_objects_are_stored(&cluster).await;
        nothing_is_null_and_quantities_may_be_numbers(&cluster).await;
        what_is_set_for_good_stays(&cluster).await;
        conditions_are_checked(&cluster).await;
        columns_are_shown(&cluster).await;
    });
}

async fn what_is_set_for_good_stays(cluster: &Cluster) {
    let groups = objects(cluster, "ProxyGroup");
    let change = async |spec: Value| groups.patch("free", &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await;
    groups.create(&PostParams::default(), &object("ProxyGroup", "free", &json!({"type": "egress"}))).await.expect("made");
    let message = refusal("another type", change(json!({"type": "ingress"})).await);
    assert!(message.contains("spec.type") && message.contains("ProxyGroup type is immutable"), "{message}");
    change(json!({"tailnet": "a"})).await.expect("a rule of change needs a value before");
    let message = refusal("another tailnet", change(json!({"tailnet": "b"})).await);
    assert!(message.contains("spec.tailnet") && message.contains("ProxyGroup tailnet is immutable"), "{message}");
    change(json!({"tailnet": null, "replicas": 3, "tags": ["tag:b"]})).await.expect("the rest may change, and a tailnet may go");
}

async fn conditions_are_checked(cluster: &Cluster) {
    let groups = objects(cluster, "ProxyGroup");
    let good = status("ProxyGroup")["conditions"][0].clone();
    let cases = [
        (json!({"reason": "not one word"}), "should match"),
        (json!({"reason": ""}), "at least 1 chars"),
        (json!({"status": "Perhaps"}), "\"True\", \"False\", \"Unknown\""),
        (json!({"type": "a b"}), "should match"),
        (json!({"observedGeneration": -1}), "greater than or equal to 0"),
        (json!({"lastTransitionTime": "yesterday"}), "date-time"),
    ];
    for (wrong, part) in cases {
        let mut condition = good.clone();
        condition.as_object_mut().expect("an object").extend(wrong.as_object().expect("an object").clone());
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        let message = refusal(&wrong.to_string(), groups.patch_status("least", &PatchParams::default(), &patch).await);
        assert!(message.contains("status.conditions[0]") && message.contains(part), "{wrong}: {message}");
    }
    let twice = Patch::Merge(json!({"status": {"conditions": [good, good]}}));
    let message = refusal("one type twice", groups.patch_status("least", &PatchParams::default(), &twice).await);
    assert!(message.contains("Duplicate value"), "{message}");
}

/// Columns of `kubectl get`, which requests a table.
async fn columns_are_shown(cluster: &Cluster) {
    let cases = [
        (
            "proxygroups",
            json!(["Name", "Status", "URL", "Type", "Age"]),
            json!(["most", "ProxyGroupValid", "https://api.example.ts.net", "kube-apiserver"]),
        ),
        (
            "connectors",
            json!(["Name", "SubnetRoutes", "IsExitNode", "IsAppConnector", "Status", "Age"]),
            json!(["most", "10.40.0.0/14", "true", "true", "ConnectorValid"]),
        ),
        ("proxyclasses", json!(["Name", "Status", "Age"]), json!(["most", "ProxyClassValid"])),
        ("tailnets", json!(["Name", "Age", "Status"]), json!(["most"])),
    ];
    for (kind, columns, cells) in cases {
        let request = Request::get(format!("/apis/tailscale.com/v1alpha1/{kind}/most"));
        let request = request.header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body(vec![]).expect("a request");
        let table: Value = cluster.admin().request(request).await.expect("a table");
        let names = table["columnDefinitions"].as_array().expect("columns").iter().map(|column| column["name"].clone());
        assert_eq!(Value::from(names.collect::<Vec<_>>()), columns, "{kind}");
        let cells = cells.as_array().expect("cells");
        assert_eq!(table["rows"][0]["cells"].as_array().expect("cells")[..cells.len()], cells[..], "{kind}");
    }
}

#[test]
fn operator_definitions_accept_our_types_and_can_be_exchanged() {
    cluster(async |cluster| {
        install(&cluster, theirs()).await;
        valid_objects_are_stored(&cluster).await;
        nothing_is_null_and_quantities_may_be_numbers(&cluster).await;

        let groups: Api<ProxyGroup> = Api::all(cluster.admin());
        let own = json!({"type": "egress", "tailyard": {"drainTimeoutSeconds": 30, "matchPortRange": {"start": 1, "end": 2}, "tunDeviceResource": "a.example/tun",
            "usePodSysctls": true, "firewallMode": "iptables-nft"}});
        let made: DynamicObject = object("ProxyGroup", "own", &own);
        let made = objects(&cluster, "ProxyGroup").create(&PostParams::default(), &made).await.expect("made");
        assert_eq!(made.data["spec"], json!({"type": "egress"}), "what is ours alone is dropped and nothing else is said of it");
        assert_eq!(groups.get("own").await.expect("a group").spec.tailyard, None);

        let applied = Patch::Apply(object("ProxyGroup", "own", &own));
        let message = refusal("applied", groups.patch("own", &PatchParams::apply("test").force(), &applied).await);
        assert!(message.contains(".spec.tailyard: field not declared in schema"), "server-side apply is stricter: {message}");

        install(&cluster, ours()).await;
        let before = groups.get("most").await.expect("a group");
        assert_eq!(serde_json::to_value(&before.spec).expect("JSON"), good()[1].2, "objects stay as they are");
        let write = async || {
            let patch = Patch::Merge(json!({"spec": own}));
            let written = groups.patch("own", &PatchParams::default(), &patch).await.expect("written");
            serde_json::to_value(written.spec).expect("JSON")
        };
        // The API server serves the new schema shortly after the definition's status reports it.
        eventually_async("fields of ours", DEADLINE, write, |spec| *spec == own).await;
        let firewall = groups.get("own").await.expect("a group").spec.tailyard.and_then(|ours| ours.firewall_mode);
        assert_eq!(firewall, Some("iptables-nft".to_owned()));

        install(&cluster, theirs()).await;
        eventually_async("theirs again", DEADLINE, async || groups.get("own").await.expect("a group").spec.tailyard, Option::is_none).await;
        let after = groups.get("most").await.expect("a group");
        assert_eq!((after.spec, after.status), (before.spec, before.status));
    });
}
