//! Groups of objects without an annotation: defaults, classes and labels of namespaces.

use super::*;

fn namespace(version: u64, labels: Value) -> Value {
    json!({"metadata": {"name": "u", "resourceVersion": version.to_string(), "labels": labels}})
}

/// An empty cache with the defaults `e` and `i`.
fn defaulting() -> ClusterCache {
    let defaults = DefaultGroups { ingress: Some("i".into()), egress: Some("e".into()) };
    ClusterCache::new(None, DEFAULTS).serving(&ProxyGroupType::SERVED, rules(defaults, StandaloneScope::Nowhere))
}

/// A cache with an egress group `e`, ingress groups `i` and `j`, defaults `e` and `i`, and one Service and Ingress without annotation.
fn with_defaults() -> ClusterCache {
    let mut world = defaulting();
    for (name, kind) in [("e", "egress"), ("i", "ingress"), ("j", "ingress")] {
        world.put_json(WatchRole::Group, json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"type": kind}}));
    }
    world.put_json(WatchRole::Service, service("s", 1, None));
    let spec = json!({"ingressClassName": "tailscale", "tls": [{"hosts": ["app"]}]});
    world.put_json(WatchRole::Ingress, json!({"metadata": {"name": "a", "namespace": "u", "resourceVersion": "1"}, "spec": spec}));
    world
}

fn class(version: u64, parameters: Value) -> Value {
    json!({"metadata": {"name": "tailscale", "resourceVersion": version.to_string()},
        "spec": {"controller": "tailscale.com/ts-ingress", "parameters": parameters}})
}

/// Groups that see the Service, and groups that see the Ingress.
fn members(world: &ClusterCache) -> (Vec<&str>, Vec<&str>) {
    let of = |has: &dyn Fn(&indices::WorkloadObjects) -> bool| {
        world.indices.workloads.iter().filter(|(_, group)| has(group)).map(|(key, _)| key.name()).collect()
    };
    (of(&|group| !group.services.is_empty()), of(&|group| !group.ingresses.is_empty()))
}

/// Number of groups from which objects request the name of the Ingress.
fn requesting(world: &ClusterCache) -> usize {
    world.indices.claimants.groups("app").len()
}

#[test]
fn namespace_label_moves_objects_into_and_out_of_default_groups() {
    let mut world = with_defaults();
    world.put_json(WatchRole::IngressClass, class(1, json!(null)));
    assert_eq!(members(&world), (vec![], vec![]), "the labels of the namespace are unknown");
    assert_eq!(groups_of(&world.put_json(WatchRole::Namespace, namespace(1, json!({})))), ["e", "i"]);
    assert_eq!((members(&world), requesting(&world)), ((vec!["e"], vec!["i"]), 1));
    let out = json!({"tailyard.io/default-proxy-group": "disabled"});
    assert_eq!(groups_of(&world.put_json(WatchRole::Namespace, namespace(2, out))), ["e", "i"]);
    assert_eq!((members(&world), requesting(&world)), ((vec![], vec![]), 0));
    assert!(
        world.put_json(WatchRole::Namespace, namespace(3, json!({"tailyard.io/default-proxy-group": "disabled", "a": "b"}))).is_empty()
    );
    assert_eq!(groups_of(&world.put_json(WatchRole::Namespace, namespace(4, json!({})))), ["e", "i"]);
    assert_eq!(groups_of(&world.gone_json(WatchRole::Namespace, &namespace(5, json!({})))), ["e", "i"]);
    assert_eq!(members(&world), (vec![], vec![]));
}

#[test]
fn class_parameters_move_ingresses() {
    let mut world = with_defaults();
    world.put_json(WatchRole::Namespace, namespace(1, json!({})));
    assert_eq!(members(&world), (vec!["e"], vec![]), "the class is unknown");
    let group = |name: &str| json!({"apiGroup": "tailscale.com", "kind": "ProxyGroup", "name": name});
    world.put_json(WatchRole::IngressClass, class(1, group("j")));
    assert_eq!(members(&world).1, ["j"]);
    assert_eq!(groups_of(&world.put_json(WatchRole::IngressClass, class(2, group("i")))), ["i", "j"]);
    assert_eq!(members(&world).1, ["i"]);
    let wrong = json!({"apiGroup": "v1", "kind": "ConfigMap", "name": "i"});
    let keys = world.put_json(WatchRole::IngressClass, class(3, wrong));
    assert!(keys.contains(&WorkKey::Workload("".into())), "it is reported: {keys:?}");
    assert_eq!((members(&world).1, requesting(&world)), (vec![""], 0));
    world.put_json(WatchRole::IngressClass, class(4, json!(null)));
    assert_eq!(members(&world).1, ["i"], "by default");
    world.gone_json(WatchRole::IngressClass, &class(5, json!(null)));
    assert_eq!((members(&world).1, requesting(&world)), (vec![], 0));
}

#[test]
fn ingress_of_a_missing_class_stays_in_the_group_that_has_it() {
    let mut world = with_defaults();
    world.stores.entry(WatchRole::Owned(Kind::ConfigMap)).or_default();
    world.put_json(WatchRole::Namespace, namespace(1, json!({})));
    world.put_json(WatchRole::IngressClass, class(1, json!(null)));
    let owners = json!({"svc:app": {"kind": "Ingress", "namespace": "u", "name": "a"}}).to_string().into_bytes();
    let labels =
        json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "proxygroup", "tailscale.com/parent-resource": "i"});
    let config = json!({"metadata": {"name": "i-ingress-config", "namespace": "ts", "resourceVersion": "2", "labels": labels},
        "binaryData": {"tailyard-owners.json": k8s_openapi::ByteString(owners)}});
    world.put_json(WatchRole::Owned(Kind::ConfigMap), config);
    world.gone_json(WatchRole::IngressClass, &class(2, json!(null)));
    assert_eq!(members(&world).1, ["i"]);
    assert_eq!(world.publisher(PublishSource::Ingress, &("u".into(), "a".into())), Some("i".into()));
}

/// Objects of a random cache, each in one of four states; the last one is absence.
const STATES: usize = 4;

/// State of one object: its role and content; `None` if absent.
fn in_state(object: usize, state: usize) -> (WatchRole, Option<Value>) {
    let group = |kind: &str| json!({"apiGroup": "tailscale.com", "kind": kind, "name": "j"});
    let metadata = |name: &str, annotations: Value| json!({"name": name, "namespace": "u", "annotations": annotations});
    let service = |name: &str, annotations: Value| json!({"metadata": metadata(name, annotations), "spec": {"clusterIP": "10.0.0.1"}});
    let ingress = |class: &str, annotations: Value| json!({"metadata": metadata("a", annotations), "spec": {"ingressClassName": class}});
    let (role, states) = match object {
        0 => {
            let label = json!({"tailyard.io/default-proxy-group": "disabled"});
            (WatchRole::Namespace, [namespace(0, json!({})), namespace(0, label), namespace(0, json!({"a": "b"}))])
        }
        1 => (WatchRole::IngressClass, [class(0, json!(null)), class(0, group("ProxyGroup")), class(0, group("ConfigMap"))]),
        2 => {
            let target = json!({"tailscale.com/tailnet-ip": "::1", "tailscale.com/hostname": "db"});
            let named = json!({"tailscale.com/proxy-group": "e"});
            (WatchRole::Service, [service("s", target), service("s", named), service("s", json!({}))])
        }
        3 => {
            let (exposed, opted_out) = (json!({"tailscale.com/expose": "true"}), json!({"tailscale.com/proxy-group": ""}));
            (WatchRole::Service, [service("x", exposed), service("x", opted_out), service("x", json!({}))])
        }
        _ => {
            let (unnamed, named) = (json!({"tailyard.io/standby": "true"}), json!({"tailscale.com/proxy-group": "i"}));
            (WatchRole::Ingress, [ingress("tailscale", unnamed), ingress("tailscale", named), ingress("other", json!({}))])
        }
    };
    (role, states.get(state).cloned())
}

fn change(world: &mut ClusterCache, object: usize, state: usize, version: usize) {
    let (role, value) = in_state(object, state);
    let versioned = |mut value: Value| {
        value["metadata"]["resourceVersion"] = version.to_string().into();
        value
    };
    match value {
        Some(value) => drop(world.put_json(role, versioned(value))),
        None => drop(world.gone_json(role, &versioned(in_state(object, 0).1.expect("an object")))),
    }
}

proptest::proptest! {
    /// The indices and the messages about annotations do not depend on the order of changes.
    #[test]
    fn assignment_depends_on_the_newest_objects_only(changes in proptest::collection::vec((0..5_usize, 0..STATES), 1..20)) {
        let (mut world, mut newest) = (defaulting(), BTreeMap::new());
        for (version, (object, state)) in (1..).zip(changes) {
            change(&mut world, object, state, version);
            newest.insert(object, state);
        }
        let mut fresh = defaulting();
        for (object, state) in newest {
            change(&mut fresh, object, state, 1);
        }
        proptest::prop_assert_eq!(members(&world), members(&fresh));
        proptest::prop_assert_eq!(&world.indices.claimants, &fresh.indices.claimants);
        proptest::prop_assert_eq!(&world.annotations, &fresh.annotations);
        let pruned = |world: &ClusterCache| (world.count(WatchRole::Service), world.stored(WatchRole::Service));
        proptest::prop_assert_eq!(pruned(&world), pruned(&fresh));
    }
}
