//! Two objects that want one name in the proxies' namespace: the existing object stays with its owner, the other one is refused or takes
//! another name, and nothing oscillates.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::cluster::{Cluster, NS, is_of, owner};
use super::*;
use crate::api::names;
use crate::model::controller::workload::naming;
use crate::model::controller::workload::objects::child::child_name;

/// Rounds in which two owners of one object would overwrite each other.
const ROUNDS: usize = 20;
/// Most writes of all objects after a second Service that wants the name of a child.
const MAX_WRITES: usize = 8;

fn with_groups() -> Cluster {
    let mut cluster = Cluster::new();
    for name in ["eg", "eh"] {
        cluster.put("ProxyGroup", json!({"metadata": {"name": name}, "spec": {"type": "egress", "replicas": 1}}));
    }
    cluster
}

/// Creates an egress Service of a group.
fn egress(cluster: &mut Cluster, (namespace, name): (&str, &str), group: &str) {
    let annotations = json!({names::PROXY_GROUP: group, names::TAILNET_FQDN: format!("{namespace}.tail1234.ts.net")});
    let ports = json!([{"name": "db", "port": 5432, "protocol": "TCP"}]);
    cluster.put(
        "Service",
        json!({"metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": ports}}),
    );
    cluster.wait(1);
}

/// The child of a Service, by name.
fn children(cluster: &Cluster, of: &str) -> Vec<String> {
    let is_child = |(kind, namespace, _): &&(&str, String, String)| *kind == "Service" && namespace == NS;
    let children = cluster.objects.iter().filter(|(id, _)| is_child(id));
    children.filter(|(_, child)| owner(child).contains(&format!(" {of} "))).map(|((.., name), _)| name.clone()).collect()
}

fn external_name(cluster: &Cluster, namespace: &str, name: &str) -> String {
    cluster.object("Service", namespace, name).expect("a Service")["spec"]["externalName"].as_str().expect("a name").to_owned()
}

fn has(cluster: &Cluster, (namespace, name): (&str, &str), condition: &str) -> bool {
    cluster.conditions(namespace, name).iter().any(|one| one.starts_with(condition))
}

/// Checks that one child of this name exists and is that of `first`, and that `second` is refused.
fn check_children(cluster: &mut Cluster, child: &str, first: (&str, &str), second: (&str, &str)) {
    let before = cluster.writes.len();
    for _ in 0..ROUNDS {
        cluster.round();
        assert_eq!(cluster.takeovers, [""; 0]);
    }
    let writes = &cluster.writes[before..];
    assert!(writes.len() <= MAX_WRITES, "{writes:?}");
    assert_eq!(children(cluster, &format!("{}/{}", first.0, first.1)), [child]);
    assert_eq!(children(cluster, &format!("{}/{}", second.0, second.1)), [""; 0]);
    assert!(has(cluster, first, "TailscaleEgressSvcReady True"), "{:?}", cluster.conditions(first.0, first.1));
    assert_eq!(external_name(cluster, first.0, first.1), format!("{child}.{NS}.svc.cluster.local"));
    let refused = cluster.conditions(second.0, second.1);
    assert!(refused.iter().any(|one| one.contains(" False ") && one.contains(child)), "the younger is refused: {refused:?}");
    assert_eq!(external_name(cluster, second.0, second.1), "placeholder");
    assert!(cluster.settles(), "{:?}", cluster.events);
}

/// The child of an older Service has the name that a new one of another namespace computes for its own.
fn two_services_with_one_child_name(group: &str) {
    let mut cluster = with_groups();
    egress(&mut cluster, ("victim", "db"), "eg");
    assert!(cluster.settles());
    let mut object = cluster.object("Service", NS, &children(&cluster, "victim/db")[0]).expect("a child").clone();
    let child = child_name("t", "evil", group);
    cluster.delete_object("Service", NS, &children(&cluster, "victim/db")[0]);
    object["metadata"]["name"] = json!(child);
    cluster.put("Service", object);
    assert!(cluster.settles());
    assert_eq!((children(&cluster, "victim/db"), cluster.takeovers.len()), (vec![child.clone()], 0), "names stay");
    egress(&mut cluster, ("t", "evil"), group);
    check_children(&mut cluster, &child, ("victim", "db"), ("t", "evil"));
    // The younger one leaves: nothing of the older one is deleted.
    cluster.delete_object("Service", "t", "evil");
    cluster.rounds(ROUNDS);
    assert_eq!((children(&cluster, "victim/db"), cluster.takeovers), (vec![child], Vec::new()));
}

#[test]
fn two_services_with_one_child_name_in_one_group() {
    two_services_with_one_child_name("eg");
}

#[test]
fn two_services_with_one_child_name_in_two_groups() {
    two_services_with_one_child_name("eh");
}

/// Two of these values with one name, by a hash of twelve bits.
fn pair<T: Clone>(values: impl Iterator<Item = T>, name: impl Fn(&T) -> String) -> [T; 2] {
    naming::SUFFIX_LENGTH.set(3);
    let mut by_name: HashMap<String, T> = HashMap::new();
    let found = values.into_iter().find_map(|value| by_name.insert(name(&value), value.clone()).map(|first| [first, value]));
    found.expect("two names of 4,096 are equal")
}

#[test]
fn new_services_whose_child_names_are_equal_get_one_child() {
    let name = |number: u32| format!("db{}{number:09}", "-".repeat(52));
    for other in ["eg", "eh"] {
        let names = (0..6_000).map(|number| (if number % 2 == 0 { "eg" } else { other }, name(number)));
        let [first, second] = pair(names, |(group, name)| child_name("n", name, group));
        let mut cluster = with_groups();
        for (group, name) in [&first, &second] {
            egress(&mut cluster, ("n", name), group);
        }
        let child = child_name("n", &first.1, first.0);
        cluster.rounds(5);
        // Of two groups the first to write it has it, later also if its Service is the younger one.
        let is_first = !children(&cluster, &format!("n/{}", first.1)).is_empty();
        let (first, second) = if is_first { (first, second) } else { (second, first) };
        check_children(&mut cluster, &child, ("n", &first.1), ("n", &second.1));
    }
}

/// Creates a Service with a proxy of its own.
fn exposed(cluster: &mut Cluster, namespace: &str, uid: &str) {
    cluster.put("Service", service(namespace, uid));
    cluster.wait(1);
}

fn service(namespace: &str, uid: &str) -> Value {
    json!({"metadata": {"name": "web", "namespace": namespace, "uid": uid, "resourceVersion": "1"},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "ports": [{"port": 80}]}})
}

/// The name of the workload that a new Service gets in an empty cluster.
fn candidate(namespace: &str, uid: &str) -> String {
    let cluster = Cluster::new();
    let id = ("Service", namespace.to_owned(), "web".to_owned());
    let cache = cluster.cache_of(&[(id, service(namespace, uid))].into(), false);
    cluster.observe(&cache, &format!("{namespace}/web")).workload
}

/// `StatefulSet`s of a Service.
fn sets(cluster: &Cluster, namespace: &str) -> Vec<String> {
    let key = format!("{namespace}/web");
    let sets = cluster.objects.iter().filter(|((kind, ..), set)| *kind == "StatefulSet" && is_of(&key, &owner(set)));
    sets.map(|((.., name), _)| name.clone()).collect()
}

/// Whether each Service has a workload of its own or a refusal; otherwise the fault.
fn settled(cluster: &mut Cluster, namespaces: &[String]) -> Result<(), String> {
    for _ in 0..ROUNDS {
        cluster.round();
        if !cluster.takeovers.is_empty() {
            return Err(format!("{:?}", cluster.takeovers));
        }
    }
    if !cluster.settles() {
        return Err(format!("no rest: {:?}", cluster.events.last()));
    }
    for namespace in namespaces {
        let conditions = cluster.conditions(namespace, "web");
        let says = |status: &str| conditions.iter().any(|one| one.starts_with(&format!("TailscaleProxyReady {status} ")));
        match sets(cluster, namespace).len() {
            1 if says("True") => {}
            0 if says("False") => {}
            found => return Err(format!("{namespace}/web has {found} workloads: {conditions:?}")),
        }
    }
    if cluster.minted.len() > namespaces.len() {
        return Err(format!("{} auth keys for {} objects", cluster.minted.len(), namespaces.len()));
    }
    Ok(())
}

#[test]
fn workload_whose_name_a_new_service_computes_keeps_its_objects() {
    let mut cluster = Cluster::new();
    let taken = candidate("t", "uid-t");
    exposed(&mut cluster, "victim", "uid-victim");
    cluster.take_over(("victim", "web"), &taken);
    assert!(cluster.settles());
    let (devices, set) =
        (cluster.devices.clone(), cluster.object("StatefulSet", NS, &taken).expect("a StatefulSet")["metadata"]["uid"].clone());
    assert_eq!((sets(&cluster, "victim"), cluster.minted.len(), devices.len()), (vec![taken.clone()], 0, 1));
    exposed(&mut cluster, "t", "uid-t");
    settled(&mut cluster, &["victim".to_owned(), "t".to_owned()]).expect("settled");
    assert_eq!(cluster.object("StatefulSet", NS, &taken).expect("a StatefulSet")["metadata"]["uid"], set);
    assert_eq!((sets(&cluster, "victim"), has(&cluster, ("victim", "web"), "TailscaleProxyReady True")), (vec![taken.clone()], true));
    assert!(devices.keys().all(|device| cluster.devices.contains_key(device)), "the device stays");
    // The younger one leaves: nothing of the older one is deleted.
    cluster.patch("Service", "t", "web", &json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}}));
    cluster.rounds(ROUNDS);
    assert_eq!((sets(&cluster, "victim"), cluster.takeovers.clone()), (vec![taken], Vec::new()));
    assert!(devices.keys().all(|device| cluster.devices.contains_key(device)));
}

#[test]
fn new_services_whose_workload_names_are_equal_settle() {
    naming::SUFFIX_LENGTH.set(3);
    let uids = || (0..6_000).map(|number| format!("uid-{number}"));
    let name = |namespace: &str, uid: &str| naming::new_name(&format!("{namespace}/web").as_str().into(), uid, 0);
    let of_a: HashMap<String, String> = uids().map(|uid| (name("a", &uid), uid)).collect();
    let (uid_b, uid_a) = uids().find_map(|uid| Some((uid.clone(), of_a.get(&name("b", &uid))?))).expect("two equal names");
    let mut cluster = Cluster::new();
    exposed(&mut cluster, "b", &uid_b);
    exposed(&mut cluster, "a", uid_a);
    settled(&mut cluster, &["a".to_owned(), "b".to_owned()]).expect("settled");
    assert_eq!(["a", "b"].map(|namespace| sets(&cluster, namespace).len()), [1, 1], "the second one takes another name");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    /// Sixteen names for a hundred Services: those that get none are refused.
    #[test]
    fn hundred_services_of_one_name_settle_with_a_hash_of_four_bits(rounds in prop::collection::vec(0..2_usize, 100)) {
        naming::SUFFIX_LENGTH.set(1);
        let mut cluster = Cluster::new();
        let namespaces: Vec<_> = (0..rounds.len()).map(|number| format!("n{number}")).collect();
        for (namespace, rounds) in namespaces.iter().zip(&rounds) {
            exposed(&mut cluster, namespace, &format!("uid-{namespace}"));
            cluster.rounds(*rounds);
        }
        let settled = settled(&mut cluster, &namespaces);
        prop_assert!(settled.is_ok(), "{}", settled.unwrap_err());
        let served = namespaces.iter().filter(|namespace| !sets(&cluster, namespace).is_empty()).count();
        prop_assert!((8..=16).contains(&served), "{served} of 16 names are used");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    /// Stands for a short hash: the workload of an object has the name that a younger one computes for its own. `holds`: the younger one, if
    /// any; each Service arrives after a number of rounds.
    #[test]
    fn services_of_one_name_settle_while_others_have_their_names(
        holds in prop::collection::vec((prop::option::weighted(0.6, any::<Index>()), 0..3_usize), 2..7),
    ) {
        let namespace = |number: usize| format!("n{number}");
        let mut cluster = Cluster::new();
        let mut taken = BTreeSet::new();
        for (number, (holds_name, rounds)) in holds.iter().enumerate() {
            exposed(&mut cluster, &namespace(number), &format!("uid-{number}"));
            let younger = holds_name.map(|index| number + 1 + index.index(holds.len())).filter(|younger| *younger < holds.len());
            if let Some(younger) = younger.filter(|younger| taken.insert(*younger)) {
                let name = candidate(&namespace(younger), &format!("uid-{younger}"));
                cluster.take_over((&namespace(number), "web"), &name);
            }
            cluster.rounds(*rounds);
        }
        let namespaces: Vec<_> = (0..holds.len()).map(namespace).collect();
        let settled = settled(&mut cluster, &namespaces);
        prop_assert!(settled.is_ok(), "{}", settled.unwrap_err());
    }
}
