//! Secrets that a compromised proxy Pod may write: nothing in them changes the plan of another workload, or widens a Role.

use std::sync::LazyLock;

use super::cluster::{Cluster, NS, ObjectId, device_id, encoded, merge};
use super::*;
use crate::api::names;
use crate::model::controller::workload::observed::Observed;

mod patches;

/// Image of the proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Image {
    Tailyard,
    /// The Tailscale operator's: the reconciler mints its key before its Pod exists.
    Tailscale,
}

/// A settled cluster.
#[derive(Debug)]
struct Scene {
    objects: BTreeMap<ObjectId, Value>,
    /// Workloads by key in the queue, with the names of the Secrets that their Pods may write.
    writable: Vec<(String, Vec<String>)>,
    /// Label sets, owner references and annotations of all objects, and values of all fields of Secrets.
    labels: Vec<serde_json::Map<String, Value>>,
    references: Vec<Value>,
    annotations: Vec<(String, Value)>,
    data: Vec<(String, Value)>,
}

/// Service with a proxy of its own whose tags are not those of the others.
const HR: &str = "victim/hr";
/// Ingress with a proxy of its own.
const SHOP: &str = "ingress/victim/shop";

/// Two groups with objects, and a Service and an Ingress with proxies of their own. The name of the egress group sorts before theirs.
fn cluster(image: Image) -> Cluster {
    let mut cluster = Cluster::new();
    let ready = json!([{"type": "ProxyClassReady", "status": "True", "observedGeneration": 1, "reason": "", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let stock = json!({"statefulSet": {"pod": {"tailscaleContainer": {"image": "tailscale/tailscale:v1.102.5"}}}});
    cluster.put("ProxyClass", json!({"metadata": {"name": "stock", "generation": 1}, "spec": stock, "status": {"conditions": ready}}));
    let class = (image == Image::Tailscale).then_some("stock");
    for (name, kind) in [("eg", "egress"), ("in", "ingress")] {
        cluster.put("ProxyGroup", json!({"metadata": {"name": name}, "spec": {"type": kind, "replicas": 2, "proxyClass": class}}));
    }
    let user = |name: &str, annotations: Value| json!({"name": name, "namespace": "victim", "annotations": annotations});
    let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
    let db = user("db", json!({"tailscale.com/proxy-group": "eg", "tailscale.com/tailnet-ip": "100.64.0.7"}));
    cluster.put("Service", json!({"metadata": db, "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": ports}}));
    let hr = user("hr", json!({"tailscale.com/tags": "tag:hr", "tailscale.com/proxy-class": class.unwrap_or("")}));
    let balanced = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "ports": ports});
    cluster.put("Service", json!({"metadata": hr, "spec": balanced}));
    cluster.put("Service", json!({"metadata": user("web", json!({})), "spec": {"clusterIP": "10.96.0.10", "ports": ports}}));
    for (name, annotations) in [("shop", json!({})), ("app", json!({"tailscale.com/proxy-group": "in"}))] {
        let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
        let spec = json!({"ingressClassName": "tailscale", "tls": [{"hosts": [name]}], "defaultBackend": backend});
        cluster.put("Ingress", json!({"metadata": user(name, annotations), "spec": spec}));
    }
    assert!(cluster.settles(), "the cluster finds no rest: {:?}", cluster.events);
    assert_eq!(cluster.takeovers, [""; 0]);
    cluster
}

/// Role of each workload, by key.
fn roles(cluster: &Cluster) -> BTreeMap<String, Value> {
    let mut roles = BTreeMap::new();
    for key in Cluster::keys(&cluster.cache) {
        let workload = cluster.observe(&cluster.cache, &key).workload;
        if let Some(role) = cluster.object("Role", NS, &workload) {
            roles.insert(key, role.clone());
        }
    }
    roles
}

fn scene(image: Image) -> Scene {
    let cluster = cluster(image);
    let writable = |role: &Value| Cluster::role_secrets(role, "patch").into_iter().collect();
    let writable: Vec<(String, Vec<String>)> = roles(&cluster).iter().map(|(key, role)| (key.clone(), writable(role))).collect();
    assert_eq!(writable.len(), 4, "{writable:?}");
    let metadata = || cluster.objects.values().map(|object| &object["metadata"]);
    let of = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let mut labels: Vec<_> = metadata().map(|metadata| of(&metadata["labels"])).filter(|labels| !labels.is_empty()).collect();
    labels.dedup();
    let references = metadata().flat_map(|metadata| metadata["ownerReferences"].as_array().cloned().unwrap_or_default());
    let annotations = metadata().flat_map(|metadata| of(&metadata["annotations"]));
    let secrets = cluster.objects.iter().filter(|((kind, ..), _)| *kind == "Secret");
    let hostile = [
        ("device_id", ""),
        ("device_ips", r#"["8.8.8.8","10.96.0.1"]"#),
        ("reissue_authkey", ""),
        ("reissue_authkey", "tskey-1"),
        ("egress-services", r#"{"podIPv4":"","services":null}"#),
        ("tailyard-rejected-target", "none of it"),
        ("profile-1", r#"{"AdvertiseServices":["svc:app","svc:hr","svc:shop"],"AdvertiseRoutes":["0.0.0.0/0"]}"#),
    ];
    let hostile = hostile.map(|(key, text)| (key.to_owned(), encoded(text)));
    let data = secrets.flat_map(|(_, secret)| of(&secret["data"])).chain(hostile);
    Scene {
        writable,
        references: references.collect(),
        annotations: annotations.collect(),
        data: data.collect(),
        labels,
        objects: cluster.objects,
    }
}

static SCENES: LazyLock<[Scene; 2]> = LazyLock::new(|| [Image::Tailyard, Image::Tailscale].map(scene));

/// Labels that make a state Secret look like that of an object with a proxy of its own.
fn labels_of(kind: &str, name: &str) -> Value {
    json!({names::MANAGED: "true", names::PARENT_TYPE: kind, names::PARENT: name, names::PARENT_NAMESPACE: "victim",
        names::PROXY_GROUP: null, names::SECRET_TYPE: "state"})
}

/// A replica of the egress group repeats a patch of its state Secret; the first passes after each are those of the victim.
fn attack(cluster: &mut Cluster, victim: &str, labels: &Value, data: &Value, mut check: impl FnMut(&Cluster)) {
    for _ in 0..10 {
        let patch = json!({"metadata": {"labels": labels, "ownerReferences": null}, "data": data});
        cluster.patch("Secret", NS, "eg-0", &patch);
        for _ in 0..3 {
            cluster.pass(victim);
            check(cluster);
        }
        cluster.round();
        check(cluster);
    }
}

#[test]
fn relabelled_state_secret_does_not_become_a_replica_of_an_ingress() {
    let mut cluster = cluster(Image::Tailyard);
    let role = cluster.object("Role", NS, "eg").expect("the Role of the group").clone();
    for (victim, kind, name) in [(SHOP, names::PARENT_INGRESS, "shop"), (HR, names::PARENT_SERVICE, "hr")] {
        let workload = cluster.observe(&cluster.cache, victim).workload;
        attack(&mut cluster, victim, &labels_of(kind, name), &json!({"device_id": encoded("neg0")}), |cluster| {
            let now = cluster.object("Role", NS, "eg").expect("the Role of the group");
            assert_eq!(now["rules"], role["rules"], "{victim} changes the Role of another workload");
            assert_eq!(cluster.observe(&cluster.cache, victim).workload, workload);
            assert_eq!(cluster.takeovers, [""; 0]);
        });
    }
}

#[test]
fn relabelled_state_secret_gets_no_auth_key_of_a_service() {
    let mut cluster = cluster(Image::Tailscale);
    let keys_of_hr = |cluster: &Cluster| cluster.minted.iter().filter(|key| key.tags == ["tag:hr"]).cloned().collect::<Vec<_>>();
    let (minted, workload) = (keys_of_hr(&cluster), cluster.observe(&cluster.cache, HR).workload);
    let device = device_id(&names::replica(&workload, 0));
    assert!(minted.len() == 1 && cluster.devices.contains_key(&device), "{:?}", cluster.devices);
    // The replica of the egress group requests a new key in place of the victim's device.
    let data = json!({"device_id": encoded(device.as_str()), "reissue_authkey": encoded("")});
    attack(&mut cluster, HR, &labels_of(names::PARENT_SERVICE, "hr"), &data, |cluster| {
        assert_eq!(keys_of_hr(cluster), minted, "no key for the tags of another workload");
        assert!(cluster.devices.contains_key(&device), "the device of another workload is deleted");
    });
    assert_eq!(cluster.observe(&cluster.cache, HR).workload, workload);
    assert_eq!(cluster.takeovers, [""; 0]);
}

#[test]
fn state_secret_without_labels_keeps_its_group_ready() {
    let mut cluster = cluster(Image::Tailyard);
    let ready = |cluster: &Cluster| {
        let group = cluster.object("ProxyGroup", "", "eg").expect("a group");
        let conditions = group["status"]["conditions"].as_array().expect("conditions").clone();
        conditions.into_iter().find(|condition| condition["type"] == "ProxyGroupReady").expect("a condition")
    };
    assert_eq!(ready(&cluster)["status"], "True");
    for labels in [json!(null), json!({names::MANAGED: null}), json!({names::PARENT: null}), json!({names::SECRET_TYPE: "certs"})] {
        let patch = json!({"metadata": {"labels": labels, "ownerReferences": null}});
        // Again and again, and then no more.
        for _ in 0..5 {
            cluster.patch("Secret", NS, "eg-0", &patch);
            cluster.round();
            let message = ready(&cluster)["message"].to_string();
            assert!(!message.contains("already exists"), "labels {labels}: {message}");
        }
        let settles = cluster.settles();
        assert!(settles, "labels {labels}: {:?} {:?}", cluster.events, &cluster.writes[cluster.writes.len() - 10..]);
        let condition = ready(&cluster);
        assert_eq!(condition["status"], "True", "labels {labels}: {}", condition["message"]);
        let replica = &cluster.observe(&cluster.cache, "eg").replicas[&0];
        assert!(replica.has_device() && replica.device().is_some_and(|device| device.id.as_str() == "neg0"), "{replica:?}");
    }
}

#[test]
fn changes_of_every_object_that_a_role_of_pods_lets_them_write_are_paced() {
    let watched: Vec<_> = WatchRole::TYPED.iter().copied().chain(Kind::ALL.map(WatchRole::Owned)).collect();
    for (image, expected) in [(Image::Tailyard, vec!["secrets"]), (Image::Tailscale, vec!["events", "secrets"])] {
        let roles = roles(&cluster(image));
        let permissions = roles.values().flat_map(|role| role["rules"].as_array().into_iter().flatten());
        let mut written = BTreeSet::new();
        for rule in permissions {
            let texts = |key: &str| rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>();
            if !texts("verbs").iter().any(|verb| ["create", "patch", "update", "delete"].contains(verb)) {
                continue;
            }
            let names = if rule["resourceNames"].is_null() { vec!["any"] } else { texts("resourceNames") };
            for role in watched.iter().filter(|role| texts("resources").contains(&role.resource().plural)) {
                written.insert(role.resource().plural);
                for name in &names {
                    let object = role.decode(json!({"metadata": {"name": name, "namespace": NS}}));
                    assert!(object.is_paced(), "{role:?} {name} with {image:?}");
                }
            }
        }
        assert_eq!(written.into_iter().collect::<Vec<_>>(), expected);
    }
}

/// Secrets whose content the cache has parsed as the state of a replica.
fn parsed_states(cache: &ClusterCache) -> BTreeSet<String> {
    let secrets = cache.objects(WatchRole::Owned(Kind::Secret));
    secrets.filter(|(_, object)| matches!(object, CachedObject::State(..))).map(|((_, name), _)| name.clone()).collect()
}

#[test]
fn only_secrets_with_the_name_of_a_replica_are_parsed_as_states() {
    let scene = &SCENES[0];
    let cluster = Cluster::new();
    let before = cluster.cache_of(&scene.objects, false);
    let replicas = |cache: &ClusterCache, key: &str| cluster.observe(cache, key).replicas.len();
    let expected: BTreeSet<_> = Cluster::keys(&before)
        .iter()
        .flat_map(|key| {
            let Observed { workload, replicas, .. } = cluster.observe(&before, key);
            replicas.into_keys().map(move |ordinal| names::replica(&workload, ordinal)).collect::<Vec<_>>()
        })
        .collect();
    let states = parsed_states(&before);
    assert!(states.is_subset(&expected), "parsed without any patch: {:?}", states.difference(&expected));
    let states = json!({"egress-services": encoded(r#"{"rejected":{"0":[""]}}"#), "device_id": encoded("nX")});
    for (attacker, writable) in &scene.writable {
        for (kind, labels) in [("state", labels_of(names::PARENT_INGRESS, "shop")), ("certs", json!({})), ("", json!({}))] {
            let mut objects = scene.objects.clone();
            for name in writable {
                let Some(secret) = objects.get_mut(&("Secret", NS.to_owned(), name.clone())) else { continue };
                let kind = if kind.is_empty() { Value::Null } else { json!(kind) };
                merge(secret, &json!({"metadata": {"labels": labels}, "data": states}));
                merge(secret, &json!({"metadata": {"labels": {names::SECRET_TYPE: kind}}}));
            }
            let after = cluster.cache_of(&objects, true);
            let parsed = parsed_states(&after);
            assert!(parsed.is_subset(&expected), "{attacker}, secret-type {kind:?}: {:?}", parsed.difference(&expected));
            for key in Cluster::keys(&before) {
                assert_eq!(replicas(&after, &key), replicas(&before, &key), "{attacker}, secret-type {kind:?}: replicas of {key}");
            }
        }
    }
}
