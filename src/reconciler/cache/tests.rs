#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use serde_json::json;

use super::foreign::FOREIGN_TTL;
use super::*;
use crate::api::names;
use crate::model::controller::key::PublishSource;
use crate::model::controller::kinds::tests::simulation::Simulation;
use crate::model::controller::policy::assignment::{DefaultGroups, StandaloneScope};
use crate::model::controller::workload::objects::Kind;

mod admitted_keys;
mod api_server;
mod assignment;
mod bounded_objects;
mod claimants;
mod cluster;
mod collisions;
mod connectors;
mod group_names;
mod group_policies;
mod hostile;
mod ineffective;
mod namesakes;
mod nameserver;
mod pod_secrets;
mod proxy_names;
mod siblings;
mod tailnet_names;
mod target_policy;
mod upgrade;
mod variants;

const ALL: [WatchRole; 5] =
    [WatchRole::Group, WatchRole::Class, WatchRole::Service, WatchRole::Owned(Kind::Service), WatchRole::Owned(Kind::Secret)];
const DEFAULTS: [WatchRole; 5] = [WatchRole::Group, WatchRole::Service, WatchRole::Ingress, WatchRole::IngressClass, WatchRole::Namespace];

fn id(value: &Value) -> Id {
    let text = |key: &str| value["metadata"][key].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// Changes given as JSON.
impl ClusterCache {
    pub(super) fn put_json(&mut self, role: WatchRole, value: Value) -> BTreeSet<WorkKey> {
        self.put(role.decode(value).parse())
    }

    fn listed_json(&mut self, role: WatchRole, namespace: Option<&str>, value: Value) -> BTreeSet<WorkKey> {
        self.listed(namespace, role.decode(value).parse())
    }

    pub(super) fn gone_json(&mut self, role: WatchRole, value: &Value) -> BTreeSet<WorkKey> {
        self.gone(&role.decode(value.clone()))
    }

    /// Version of an object of any role, if stored.
    pub(in crate::reconciler) fn stored_version(&self, role: WatchRole, namespace: &str, name: &str) -> Option<u64> {
        let id = (namespace.to_owned(), name.to_owned());
        self.stores.get(&role)?.objects.get(&id).map(|stored| stored.version)
    }
}

/// Rules for our class.
fn rules(defaults: DefaultGroups, standalone: StandaloneScope) -> AssignmentRules {
    AssignmentRules { ingress_class: "tailscale".into(), defaults, standalone, ..AssignmentRules::default() }
}

fn world() -> ClusterCache {
    ClusterCache::new(Some("usual".into()), ALL)
}

fn group(name: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version.to_string()}, "spec": {"type": "egress"}})
}

fn service(name: &str, version: u64, group: Option<&str>) -> Value {
    let mut annotations = json!({"tailscale.com/tailnet-ip": "100.64.0.1"});
    if let Some(group) = group {
        annotations["tailscale.com/proxy-group"] = group.into();
    }
    json!({"metadata": {"name": name, "namespace": "u", "resourceVersion": version.to_string(), "annotations": annotations}})
}

fn child(name: &str, version: u64, parent: &str, group: &str) -> Value {
    let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "svc", "tailscale.com/parent-resource": parent,
        "tailscale.com/parent-resource-ns": "u", "tailscale.com/proxy-group": group});
    json!({"metadata": {"name": name, "namespace": "ts", "uid": name, "resourceVersion": version.to_string(), "labels": labels}})
}

fn groups_of(keys: &BTreeSet<WorkKey>) -> Vec<String> {
    keys.iter().filter(|key| matches!(key, WorkKey::Workload(_))).map(WorkKey::name).collect()
}

#[test]
fn events_with_older_versions_are_ignored() {
    let mut world = world();
    assert_eq!(groups_of(&world.put_json(WatchRole::Group, group("g", 5))), ["g"]);
    assert!(world.put_json(WatchRole::Group, group("g", 4)).is_empty());
    assert!(world.gone_json(WatchRole::Group, &group("g", 4)).is_empty(), "it was made again meanwhile");
    assert!(world.group("g").is_some());
    assert_eq!(groups_of(&world.gone_json(WatchRole::Group, &group("g", 6))), ["g"]);
    assert!(world.group("g").is_none());
}

#[test]
fn complete_list_removes_absent_objects() {
    let mut world = world();
    world.put_json(WatchRole::Group, group("old", 1));
    world.begin(WatchRole::Group, None);
    world.listed_json(WatchRole::Group, None, group("new", 2));
    assert!(world.group("old").is_some());
    assert_eq!(groups_of(&world.complete(WatchRole::Group, None)), ["old"]);
    assert!(world.group("old").is_none() && world.group("new").is_some());
}

#[test]
fn undecodable_object_is_ignored_and_hides_no_other() {
    let mut world = world();
    let mut bad = service("bad", 2, Some("g"));
    bad["spec"] = json!({"ports": 7});
    world.begin(WatchRole::Service, None);
    for object in [service("one", 1, Some("g")), bad.clone(), service("two", 3, Some("g"))] {
        world.listed_json(WatchRole::Service, None, object);
    }
    assert!(world.complete(WatchRole::Service, None).is_empty());
    assert_eq!((world.services(&"g".into()).len(), world.stored(WatchRole::Service)), (2, 3));
    let mut repaired = service("bad", 4, Some("g"));
    repaired["spec"] = json!({"ports": [{"port": 7}]});
    assert_eq!(groups_of(&world.put_json(WatchRole::Service, repaired)), ["g"]);
    bad["metadata"]["resourceVersion"] = json!("5");
    assert_eq!(groups_of(&world.put_json(WatchRole::Service, bad)), ["g"], "it is as if it were deleted");
    assert_eq!(world.services(&"g".into()).len(), 2);
}

#[test]
fn list_of_one_namespace_does_not_affect_another() {
    let mut world = ClusterCache::new(None, [WatchRole::Service, WatchRole::Service]);
    for namespace in ["u", "v"] {
        world.begin(WatchRole::Service, Some(namespace));
    }
    world.listed_json(WatchRole::Service, Some("u"), service("s", 1, Some("g")));
    world.complete(WatchRole::Service, Some("v"));
    assert_eq!((world.count(WatchRole::Service), world.missing()), (1, vec![WatchRole::Service]));
    world.complete(WatchRole::Service, Some("u"));
    assert!(world.missing().is_empty());
}

#[test]
fn standalone_service_is_observed_while_it_has_objects() {
    let class = Some("usual".to_owned());
    let defaults = DefaultGroups::default();
    let mut world = ClusterCache::new(class, DEFAULTS).serving(&ProxyGroupType::SERVED, rules(defaults, StandaloneScope::Everywhere));
    let keys = world.put_json(WatchRole::Service, service("s", 1, None));
    assert_eq!(groups_of(&keys), ["u/s"]);
    assert!(keys.contains(&WorkKey::Class("usual".into())) && world.users_of_class("usual") == ["u/s".into()]);
    assert_eq!((world.users_of_tailnet(None), WorkKey::Workload("u/s".into()).kind()), (vec!["u/s".into()], "Service"));
    assert!(world.workload(&"u/s".into()).starts_with("ts-s-"), "a new name");
    let own = |kind: &str, name: &str| {
        let mut object = child(name, 2, "s", "");
        object["metadata"]["labels"].as_object_mut().expect("labels").remove("tailscale.com/proxy-group");
        object["data"] = json!({"device_id": if kind == "Secret" { "bjE=" } else { "" }});
        object
    };
    assert_eq!(groups_of(&world.put_json(WatchRole::Owned(Kind::Service), own("Service", "ts-s-bbbbb"))), ["u/s"]);
    assert_eq!(world.workload(&"u/s".into()), "ts-s-bbbbb");
    assert_eq!(groups_of(&world.put_json(WatchRole::Owned(Kind::Secret), own("Secret", "ts-s-ccccc-0"))), [""; 0], "no record of it");
    assert_eq!(groups_of(&world.put_json(WatchRole::Owned(Kind::Secret), own("", "ts-s-ccccc-0-config"))), ["u/s"]);
    assert_eq!(world.workload(&"u/s".into()), "ts-s-bbbbb", "a config Secret decides no name");
    assert_eq!(groups_of(&world.put_json(WatchRole::Owned(Kind::StatefulSet), own("", "ts-s-ccccc"))), ["u/s"]);
    assert_eq!(world.workload(&"u/s".into()), "ts-s-ccccc", "the one with a device");
    assert_eq!(world.replicas(&"u/s".into(), "ts-s-ccccc").len(), 1);

    let plain = json!({"metadata": {"name": "s", "namespace": "u", "resourceVersion": "3"}});
    assert_eq!(groups_of(&world.put_json(WatchRole::Service, plain.clone())), ["u/s"]);
    assert_eq!(world.services(&"u/s".into()).len(), 1, "it is released first");
    let [state, config] = ["ts-s-ccccc-0", "ts-s-ccccc-0-config"].map(|name| (Kind::Secret, name));
    for (kind, name) in [(Kind::Service, "ts-s-bbbbb"), (Kind::StatefulSet, "ts-s-ccccc"), state, config] {
        world.gone_json(WatchRole::Owned(kind), &own("", name));
    }
    assert_eq!(world.services(&"u/s".into()).len(), 0);
    assert!(world.replicas(&"u/s".into(), "ts-s-ccccc").is_empty() && world.all().iter().all(|key| key.name() != "u/s"));
}

#[test]
fn device_index_follows_config_secrets_only() {
    let mut world = world();
    let record = json!({"id": "n1"}).to_string();
    let secret = |name: &str, version: &str| {
        let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": "g"});
        json!({"metadata": {"name": name, "namespace": "t", "resourceVersion": version, "labels": labels, "annotations": {names::DEVICE: record}}})
    };
    let id = crate::model::controller::workload::identity::DeviceId::parse("n1").expect("an ID");
    let recorded = |world: &ClusterCache| world.indices.devices.recorded_elsewhere("", &id, "other").map(str::to_owned);
    world.put_json(WatchRole::Owned(Kind::Secret), secret("g-0", "1"));
    assert_eq!(recorded(&world), None, "a Pod may write the annotations of its state Secret");
    world.put_json(WatchRole::Owned(Kind::Secret), secret("g-0-config", "2"));
    world.put_json(WatchRole::Owned(Kind::Secret), secret("g-0-config", "3"));
    assert_eq!(recorded(&world).as_deref(), Some("g-0-config"));
    world.gone_json(WatchRole::Owned(Kind::Secret), &secret("g-0-config", "4"));
    assert_eq!(recorded(&world), None);
}

#[test]
fn services_without_group_are_stored_without_content() {
    let mut world = world();
    assert!(world.put_json(WatchRole::Service, service("s", 1, None)).is_empty());
    assert_eq!((world.count(WatchRole::Service), world.stored(WatchRole::Service)), (0, 1));
    let stored = world.one(WatchRole::Service, &("u".to_owned(), "s".to_owned()));
    assert!(matches!(stored, Some(CachedObject::Backend(_))), "{stored:?}");
    assert_eq!(groups_of(&world.put_json(WatchRole::Service, service("s", 2, Some("g")))), ["g"]);
    assert_eq!(groups_of(&world.put_json(WatchRole::Service, service("s", 3, Some("h")))), ["g", "h"], "the old group is enqueued too");
    world.put_json(WatchRole::Owned(Kind::Service), child("c", 4, "s", "g"));
    assert_eq!(groups_of(&world.put_json(WatchRole::Service, service("s", 5, None))), ["g", "h"]);
    assert_eq!(world.count(WatchRole::Service), 1, "there is a child of it");
}

#[test]
fn pass_sees_the_objects_of_its_group() {
    let mut world = world();
    world.put_json(WatchRole::Group, group("g", 1));
    world.put_json(WatchRole::Service, service("s", 2, Some("other")));
    world.put_json(WatchRole::Owned(Kind::Service), child("c", 3, "s", "g"));
    let labels = json!({"tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": "g"});
    let secret = |name: &str| json!({"metadata": {"name": name, "namespace": "ts", "resourceVersion": "4", "labels": labels}});
    for name in ["g-0", "g-0-config", "g-11", "g-x"] {
        world.put_json(WatchRole::Owned(Kind::Secret), secret(name));
    }
    let replicas = world.replicas(&"g".into(), "g");
    assert_eq!(replicas.keys().copied().collect::<Vec<_>>(), [0, 11]);
    assert!(replicas[&0].state.is_some() && replicas[&0].config.is_some() && replicas[&11].config.is_none());
    assert_eq!(world.owned(&"g".into()).len(), 2, "child and config Secret, by labels");
    let all = world.with_secrets(world.owned(&"g".into()), &"g".into(), "g", "ts");
    assert_eq!(all.len(), 4, "state Secrets, by name");
    assert_eq!(world.services(&"g".into()).len(), 1, "its child is ours");
    let all: Vec<_> = world.all().into_iter().collect();
    assert_eq!(all, [WorkKey::Workload("g".into()), WorkKey::Workload("other".into()), WorkKey::DefaultControlPlane]);
}

#[test]
fn changed_credentials_secret_wakes_its_tailnets() {
    let mut world = ClusterCache::new(None, [WatchRole::Tailnet, WatchRole::Credentials]);
    let tailnet = |name: &str, secret: &str| json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"credentials": {"secretName": secret}}});
    for (name, secret) in [("a", "one"), ("b", "two"), ("c", "one")] {
        world.put_json(WatchRole::Tailnet, tailnet(name, secret));
    }
    let secret = |name: &str, version: u64| json!({"metadata": {"name": name, "namespace": "ts", "resourceVersion": version.to_string()}});
    let concerned: Vec<_> = world.put_json(WatchRole::Credentials, secret("one", 5)).into_iter().collect();
    assert_eq!(concerned, [WorkKey::Tailnet("a".into()), WorkKey::Tailnet("c".into())]);
    assert_eq!(world.gone_json(WatchRole::Credentials, &secret("one", 6)).into_iter().collect::<Vec<_>>(), concerned);
    assert!(world.put_json(WatchRole::Credentials, secret("other", 7)).is_empty());
}

#[test]
fn refused_node_ports_are_avoided_for_some_time() {
    let (mut world, now) = (world(), Instant::now());
    assert!((30_000..30_032).all(|port| world.refused_port(port, now)));
    assert!(!world.refused_port(30_032, now), "so many in a row are another fault than a port that is taken");
    assert!(world.refused_port(30_033, now + std::time::Duration::from_mins(10)), "they may be free by now");
}

#[test]
fn late_response_does_not_restore_a_deleted_object() {
    let mut world = world();
    world.put_json(WatchRole::Group, group("g", 5));
    world.gone_json(WatchRole::Group, &group("g", 7));
    assert!(world.put_json(WatchRole::Group, group("g", 6)).is_empty(), "our patch took its last finalizer away, and was answered late");
    assert!(world.group("g").is_none());
    assert_eq!(groups_of(&world.put_json(WatchRole::Group, group("g", 8))), ["g"], "made anew");
    for other in 0..3000 {
        world.gone_json(WatchRole::Group, &group(&format!("g{other}"), 10));
    }
    assert!(world.put_json(WatchRole::Group, group("g2999", 9)).is_empty());
    assert!(!world.put_json(WatchRole::Group, group("g0", 9)).is_empty(), "ends are not remembered for ever");
}

#[test]
fn settled_manifest_is_of_one_version_and_ends_with_its_object() {
    let (mut world, object) = (world(), ObjectRef::new(Kind::Service, "ts", "c"));
    let role = WatchRole::Owned(Kind::Service);
    let applied = |world: &mut ClusterCache, version: u64| {
        world.applied(role.decode(child("c", version, "s", "g")).parse(), "h".into());
    };
    applied(&mut world, 3);
    world.put_json(role, child("c", 3, "s", "g"));
    assert!(world.is_settled(&object, "h") && !world.is_settled(&object, "another"));
    world.put_json(role, child("c", 4, "s", "g"));
    assert!(!world.is_settled(&object, "h"), "another writer changed it");
    applied(&mut world, 3);
    assert!(!world.is_settled(&object, "h"), "the response is late");
    applied(&mut world, 4);
    assert!(world.is_settled(&object, "h"));
    world.gone_json(role, &child("c", 5, "s", "g"));
    world.put_json(role, child("c", 6, "s", "g"));
    assert!(!world.is_settled(&object, "h"), "collected and created again");
}

#[test]
fn deleted_object_is_removed_unless_it_has_finalizers() {
    let mut world = world();
    world.put_json(WatchRole::Owned(Kind::Service), child("c", 3, "s", "g"));
    let object = ObjectRef::new(Kind::Service, "ts", "c");
    world.deleted(&object, Some("another"));
    assert!(world.version(&object).is_some(), "another of that name was meant");
    assert_eq!(groups_of(&world.deleted(&object, Some("c"))), ["g"], "what waited for its end goes on");
    assert!(world.version(&object).is_none());
    let mut finalized = child("c", 9, "s", "g");
    finalized["metadata"]["finalizers"] = json!(["f"]);
    world.put_json(WatchRole::Owned(Kind::Service), finalized);
    world.deleted(&object, Some("c"));
    assert!(world.version(&object).is_some());
}

#[test]
fn foreign_object_is_remembered_for_some_time() {
    let mut world = world();
    let (object, now) = (ObjectRef::new(Kind::Secret, "ts", "g-0"), Instant::now());
    let found = WatchRole::Owned(Kind::Secret).decode(json!({"metadata": {"name": "g-0"}})).parse();
    world.found(&"g".into(), object.clone(), &found, now);
    assert!(world.forget_foreign(&"g".into(), now) && world.owned(&"g".into()).contains_key(&object));
    assert!(!world.forget_foreign(&"g".into(), now + FOREIGN_TTL));
    assert!(world.owned(&"g".into()).is_empty());
}

#[test]
fn a_class_wakes_the_groups_that_use_it() {
    let mut world = world();
    world.put_json(WatchRole::Group, group("g", 1));
    let mut named = group("h", 2);
    named["spec"]["proxyClass"] = "special".into();
    world.put_json(WatchRole::Group, named);
    let class = |name: &str| json!({"metadata": {"name": name, "resourceVersion": "7"}, "spec": {}});
    assert_eq!(groups_of(&world.put_json(WatchRole::Class, class("usual"))), ["g"], "it is the default one");
    assert_eq!(groups_of(&world.put_json(WatchRole::Class, class("special"))), ["h"]);
}

#[test]
fn nodes_are_needed_only_for_a_class_with_static_endpoints() {
    let mut world = ClusterCache::new(None, [WatchRole::Class, WatchRole::Group, WatchRole::Node]);
    for role in [WatchRole::Class, WatchRole::Group] {
        world.complete(role, None);
    }
    world.put_json(WatchRole::Group, group("g", 1));
    let mut direct = group("h", 2);
    direct["spec"]["proxyClass"] = "direct".into();
    world.put_json(WatchRole::Group, direct);
    assert!(!world.wants_nodes() && world.missing().is_empty());
    let class = json!({"metadata": {"name": "direct", "resourceVersion": "3"},
        "spec": {"staticEndpoints": {"nodePort": {"ports": [{"port": 31000}]}}}});
    world.put_json(WatchRole::Class, class);
    assert!(world.wants_nodes() && world.missing() == [WatchRole::Node]);
    let awaits = |world: &ClusterCache, name: &str| world.awaits_nodes(&name.into());
    assert!(awaits(&world, "h") && !awaits(&world, "g"));
    let node = json!({"metadata": {"name": "n", "resourceVersion": "4"}});
    assert_eq!(groups_of(&world.listed_json(WatchRole::Node, None, node)), ["h"], "no group of type ingress");
    assert_eq!(groups_of(&world.complete(WatchRole::Node, None)), ["h"], "also of a cluster in which none is seen");
    assert!(!awaits(&world, "h") && world.missing().is_empty());
}

/// An Event about a Pod that a `StatefulSet` cannot create.
fn create_failure(set: &str, version: u64, note: &str) -> Value {
    let metadata = json!({"name": format!("{set}.{version}"), "namespace": "ts", "resourceVersion": version.to_string()});
    json!({"metadata": metadata, "eventTime": null, "reason": "FailedCreate", "note": note, "deprecatedLastTimestamp": "2026-01-01T00:00:00Z",
        "regarding": {"kind": "StatefulSet", "name": set}})
}

#[test]
fn failure_to_create_a_pod_is_observed_until_its_event_is_deleted() {
    let role = WatchRole::CreateFailure;
    let mut world = ClusterCache::new(None, [WatchRole::Group, role]);
    world.complete(WatchRole::Group, None);
    assert!(world.missing().is_empty(), "Events are not awaited");
    world.put_json(WatchRole::Group, group("g", 1));
    let now = "2026-01-01T00:00:00Z".parse().expect("a time");
    let cause = |world: &ClusterCache| Some(world.create_failure("g", &BTreeMap::new(), now)?.cause);
    assert!(world.put_json(role, create_failure("other", 2, "no")).is_empty());
    assert_eq!(groups_of(&world.put_json(role, create_failure("g", 3, "no"))), ["g"]);
    assert_eq!(cause(&world).as_deref(), Some("no"));
    assert_eq!(groups_of(&world.gone_json(role, &create_failure("g", 3, "no"))), ["g"]);
    assert_eq!(cause(&world), None);
}

/// A Pod with the Tailscale operator's image may create Events.
#[test]
fn events_about_unknown_sets_are_not_stored_and_hide_none_about_a_known_one() {
    let role = WatchRole::CreateFailure;
    let mut world = ClusterCache::new(None, [WatchRole::Group, role]);
    world.put_json(WatchRole::Group, group("g", 1));
    let now = "2026-01-01T00:00:00Z".parse().expect("a time");
    for version in 2..10_000 {
        assert!(world.put_json(role, create_failure("other", version, "false")).is_empty());
    }
    assert_eq!(world.stored(role), 0);
    let cause = |world: &ClusterCache| Some(world.create_failure("g", &BTreeMap::new(), now)?.cause);
    assert_eq!(groups_of(&world.put_json(role, create_failure("g", 10_001, "true"))), ["g"]);
    assert_eq!((world.stored(role), cause(&world).as_deref()), (1, Some("true")));
    for (version, newest) in [(10_000, "true"), (10_002, "newer")] {
        world.put_json(role, create_failure("g", version, "newer"));
        assert_eq!((world.stored(role), cause(&world).as_deref()), (1, Some(newest)), "one of each set");
    }
    let mut moved = create_failure("other", 10_003, "false");
    moved["metadata"]["name"] = json!("g.10002");
    assert_eq!(groups_of(&world.put_json(role, moved)), ["g"], "it is about another set now");
    assert_eq!((world.stored(role), cause(&world)), (0, None));
    world.put_json(role, create_failure("g", 10_004, "true"));
    world.gone_json(WatchRole::Group, &group("g", 10_005));
    assert_eq!(world.stored(role), 0, "the set is not known any more");
}

#[test]
fn slice_events_matter_while_a_slice_is_managed_by_us() {
    let role = WatchRole::Owned(Kind::EndpointSlice);
    let slice = |name: &str, version: u64, by: &str, ready: bool| {
        let labels = json!({"tailscale.com/managed": "true", "tailscale.com/proxy-group": "g", "tailscale.com/svc-type": "egress",
            "kubernetes.io/service-name": "c", "endpointslice.kubernetes.io/managed-by": by});
        let metadata = json!({"name": name, "namespace": "ts", "resourceVersion": version.to_string(), "labels": labels});
        json!({"metadata": metadata, "addressType": "IPv4", "endpoints": [{"conditions": {"ready": ready}}]})
    };
    let ready = |world: &ClusterCache| {
        world.indices.workloads.get(&"g".into()).map(|group| group.slices.get("c").is_some_and(|slices| slices[0].ready))
    };
    let (theirs, own) = ("tailscale.com", "endpointslice-controller.k8s.io");
    let mut world = ClusterCache::new(None, [role]);
    assert!(world.put_json(role, slice("own", 1, own, false)).is_empty() && world.owned(&"g".into()).is_empty());
    assert_eq!(ready(&world), Some(false));
    let mut desired = slice("c-ipv4", 0, own, true);
    assert!(world.has_slice_like(&desired));
    desired["addressType"] = json!("IPv6");
    assert!(!world.has_slice_like(&desired));
    assert_eq!(groups_of(&world.put_json(role, slice("old", 2, theirs, true))), ["g"]);
    assert_eq!(world.owned(&"g".into()).len(), 1);
    assert_eq!(groups_of(&world.put_json(role, slice("own", 3, own, true))), ["g"]);
    assert_eq!(ready(&world), Some(true));
    assert_eq!(groups_of(&world.gone_json(role, &slice("old", 4, theirs, true))), ["g"]);
    assert!(world.owned(&"g".into()).is_empty() && world.put_json(role, slice("own", 5, own, false)).is_empty());
    world.gone_json(role, &slice("own", 6, own, false));
    assert_eq!(ready(&world), None);
}
