//! An edit, another order of events or a race gives no name of the tailnet to a second object.

use k8s_openapi::api::core::v1::Secret;

use super::cluster::{Cluster, NS};
use super::namesakes::{ALL, LABEL, NAME, Request, cluster, records};
use super::*;
use crate::api::names;
use crate::model::controller::workload::observed::replica::ReplicaConfig;

pub(super) const PROXIES: [Request; 3] = [Request::Ingress, Request::Exposed, Request::Egress];

pub(super) fn key(request: Request, namespace: &str) -> String {
    if request.kind() == "Ingress" { format!("ingress/{namespace}/{NAME}") } else { format!("{namespace}/{NAME}") }
}

/// Changes the requested label.
fn rename(cluster: &mut Cluster, request: Request, namespace: &str, label: &str) {
    let patch = match request.kind() {
        "Ingress" => json!({"spec": {"tls": [{"hosts": [label]}]}}),
        _ => json!({"metadata": {"annotations": {names::HOSTNAME: label}}}),
    };
    cluster.patch(request.kind(), namespace, NAME, &patch);
}

/// Host name in the config of an object's own proxy.
fn hostname(cluster: &Cluster, request: Request, namespace: &str) -> Option<String> {
    let workload = cluster.observe(&cluster.cache, &key(request, namespace)).workload;
    let secret: Secret = serde_json::from_value(cluster.object("Secret", NS, &format!("{workload}-0-config"))?.clone()).expect("a Secret");
    Some(ReplicaConfig::read(&secret).document?["Hostname"].as_str()?.to_owned())
}

fn namespaces(cluster: &mut Cluster) {
    for namespace in ["old", "new"] {
        let labels = json!({"kubernetes.io/metadata.name": namespace});
        cluster.put("Namespace", json!({"metadata": {"name": namespace, "labels": labels}}));
    }
}

pub(super) fn report(what: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{what}:\n{}", faults.join("\n"));
}

/// A proxy that exists under another name gets no name of another object by an edit.
#[test]
fn edit_of_an_object_with_a_proxy_takes_no_name_of_another() {
    let mut faults = Vec::new();
    for holder in ALL {
        for taker in PROXIES {
            let mut cluster = cluster();
            cluster.put(holder.kind(), holder.object("old"));
            let mut object = taker.object("new");
            match taker.kind() {
                "Ingress" => object["spec"]["tls"] = json!([{"hosts": ["foo"]}]),
                _ => object["metadata"]["annotations"][names::HOSTNAME] = json!("foo"),
            }
            cluster.put(taker.kind(), object);
            assert!(cluster.settles(), "{holder:?} {taker:?}");
            assert_eq!(hostname(&cluster, taker, "new").as_deref(), Some("foo"));
            rename(&mut cluster, taker, "new", LABEL);
            let settled = cluster.settles();
            let found = hostname(&cluster, taker, "new");
            if found.as_deref() == Some(LABEL) || !taker.is_refused(&cluster, "new") || !settled {
                faults.push(format!(
                    "{taker:?} beside {holder:?}: host name {found:?}, refused {}, settled {settled}",
                    taker.is_refused(&cluster, "new")
                ));
            }
        }
    }
    report("taken by an edit", &faults);
}

/// After a refused edit the name of the device stays with its proxy.
#[test]
fn name_of_a_proxy_that_stays_served_after_a_refused_edit_is_no_other_objects() {
    let mut faults = Vec::new();
    for holder in PROXIES {
        for other in ALL {
            for is_restarted in [false, true] {
                let mut cluster = cluster();
                cluster.put(holder.kind(), holder.object("old"));
                assert!(cluster.settles());
                let edit = match holder.kind() {
                    "Ingress" => json!({"spec": {"tls": [{"hosts": ["new"]}], "defaultBackend": null}}),
                    _ => json!({"metadata": {"annotations": {names::HOSTNAME: "Not_A_Label"}}}),
                };
                cluster.patch(holder.kind(), "old", NAME, &edit);
                cluster.rounds(5);
                assert_eq!(hostname(&cluster, holder, "old").as_deref(), Some(LABEL), "{holder:?} stays served");
                if is_restarted {
                    cluster.cache = cluster.cache_of(&cluster.objects, true);
                }
                cluster.put(other.kind(), other.object("new"));
                let settled = cluster.settles();
                if other.is_served(&cluster, "new") || !settled {
                    faults.push(format!("{other:?} beside {holder:?}, restarted {is_restarted}, settled {settled}"));
                }
            }
        }
    }
    report("taken after an edit", &faults);
}

/// An object with a proxy names a group that does not exist, refuses it, or is no label: the proxy serves on, with its name.
#[test]
fn name_of_a_proxy_that_waits_for_a_group_is_no_other_objects() {
    let mut faults = Vec::new();
    for holder in [Request::Ingress, Request::Exposed] {
        for group in ["nope", "in2", "a/b"] {
            for other in ALL {
                let mut cluster = cluster();
                namespaces(&mut cluster);
                cluster.permit_standalone();
                let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": "new"}});
                cluster.patch("ProxyGroup", "", "in2", &json!({"spec": {"tailyard": {"tenants": [{"namespaceSelector": selector}]}}}));
                cluster.put(holder.kind(), holder.object("old"));
                assert!(cluster.settles());
                cluster.patch(holder.kind(), "old", NAME, &json!({"metadata": {"annotations": {names::PROXY_GROUP: group}}}));
                cluster.rounds(10);
                assert_eq!(hostname(&cluster, holder, "old").as_deref(), Some(LABEL), "{holder:?} to {group} stays served");
                cluster.wait(60);
                cluster.put(other.kind(), other.object("new"));
                let settled = cluster.settles();
                let stays = hostname(&cluster, holder, "old");
                if other.is_served(&cluster, "new") || !settled || stays.as_deref() != Some(LABEL) {
                    faults.push(format!("{other:?} beside {holder:?} to {group}: settled {settled}, proxy {stays:?}"));
                }
            }
        }
    }
    report("taken during a move", &faults);
}

/// The name of an object in deletion is taken while its device or Tailscale Service exists: another device would get a number for ever.
#[test]
fn younger_object_gets_no_device_before_the_older_one_lost_the_name() {
    let mut faults = Vec::new();
    for older in [Request::GroupIngress, Request::GroupService, Request::Ingress, Request::Exposed, Request::Egress] {
        for younger in ALL {
            let mut cluster = cluster();
            cluster.put(older.kind(), older.object("old"));
            assert!(cluster.settles());
            cluster.wait(1);
            cluster.put(younger.kind(), younger.object("new"));
            assert!(cluster.settles());
            let minted = cluster.minted.len();
            let deleted = json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}});
            cluster.patch(older.kind(), "old", NAME, &deleted);
            let of = younger.group().map_or_else(|| key(younger, "new"), str::to_owned);
            for _ in 0..5 {
                cluster.pass(&of);
                cluster.live();
            }
            let recorded = records(&cluster);
            let is_held = match older.group() {
                Some(group) => recorded.contains(&(group, "old".to_owned())),
                None => hostname(&cluster, older, "old").as_deref() == Some(LABEL),
            };
            // Two groups share a Tailscale Service during a move.
            let is_taken = cluster.minted.len() > minted || (older.group().is_none() && !recorded.is_empty());
            if is_held && is_taken {
                faults.push(format!("{younger:?} while {older:?} is deleted: {recorded:?}, {} keys", cluster.minted.len() - minted));
            }
        }
    }
    report("taken during a deletion", &faults);
}

/// An object of a group names another group that refuses it: the former group serves on.
#[test]
fn name_of_a_group_stays_served_while_the_next_group_refuses_the_object() {
    let mut faults = Vec::new();
    for holder in [Request::GroupIngress, Request::GroupService] {
        for group in ["in2", "nope", "eg", "a/b"] {
            let mut cluster = cluster();
            namespaces(&mut cluster);
            let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": "new"}});
            cluster.patch("ProxyGroup", "", "in2", &json!({"spec": {"tailyard": {"tenants": [{"namespaceSelector": selector}]}}}));
            cluster.put("ProxyGroup", json!({"metadata": {"name": "eg"}, "spec": {"type": "egress", "replicas": 1}}));
            cluster.put(holder.kind(), holder.object("old"));
            assert!(cluster.settles());
            let record = [("in", "old".to_owned())];
            assert_eq!(records(&cluster), record);
            cluster.patch(holder.kind(), "old", NAME, &json!({"metadata": {"annotations": {names::PROXY_GROUP: group}}}));
            let settled = cluster.settles();
            if records(&cluster) != record || !settled {
                faults.push(format!("{holder:?} to {group}: {:?}, settled {settled}", records(&cluster)));
            }
        }
    }
    report("withdrawn", &faults);
}

/// An object without room in the config leaves its name to the next one of its group.
#[test]
fn older_object_that_is_too_large_keeps_no_name_from_another_of_its_group() {
    let mut cluster = cluster();
    let mut random = fastrand::Rng::with_seed(7);
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let paths: Vec<_> = (0..900)
        .map(|_| {
            let path: String = std::iter::once('/').chain((0..1_100).map(|_| random.alphanumeric())).collect();
            json!({"path": path, "pathType": "Prefix", "backend": backend})
        })
        .collect();
    let mut object = Request::GroupIngress.object("old");
    object["spec"]["rules"] = json!([{"http": {"paths": paths}}]);
    cluster.put("Ingress", object);
    assert!(cluster.settles());
    assert!(cluster.events.iter().any(|event| event.contains("ConfigFull")), "{:?}", cluster.events);
    cluster.wait(60);
    cluster.put("Ingress", Request::GroupIngress.object("new"));
    assert!(cluster.settles());
    assert_eq!(records(&cluster), [("in", "new".to_owned())], "{:#?}", cluster.events);
}

/// Passes over two workloads run at the same time, and an older request is repaired meanwhile: one of both gets the name.
#[test]
fn two_passes_at_the_same_time_give_a_name_to_one_object() {
    let mut faults = Vec::new();
    for (older, group) in [(Request::GroupService, "in2"), (Request::Exposed, "")] {
        for younger in [Request::GroupService, Request::Exposed] {
            let mut cluster = cluster();
            let mut object = older.object("old");
            object["metadata"]["annotations"][names::TAGS] = json!("bad");
            if !group.is_empty() {
                object["metadata"]["annotations"][names::PROXY_GROUP] = json!(group);
            }
            cluster.put("Service", object);
            assert!(cluster.settles());
            cluster.wait(60);
            cluster.put("Service", younger.object("new"));
            let of = |request: Request, group: &str, namespace: &str| {
                if request.group().is_some() { group.to_owned() } else { key(request, namespace) }
            };
            let (first_key, second_key) = (of(younger, "in", "new"), of(older, group, "old"));
            let first = cluster.plan(&cluster.cache, &first_key);
            cluster.patch("Service", "old", NAME, &json!({"metadata": {"annotations": {names::TAGS: null}}}));
            let second = cluster.plan(&cluster.cache, &second_key);
            cluster.act(&first_key, &first);
            cluster.act(&second_key, &second);
            let settled = cluster.settles();
            let served = [older.is_served(&cluster, "old"), younger.is_served(&cluster, "new")];
            if served != [true, false] && served != [false, true] || !settled {
                faults.push(format!("{older:?} {group} and {younger:?}: served {served:?}, settled {settled}, {:?}", records(&cluster)));
            }
        }
    }
    report("given to two", &faults);
}

/// Host names of a group's replicas are the group's.
#[test]
fn name_of_a_replica_of_a_group_is_no_other_objects() {
    let mut faults = Vec::new();
    for request in PROXIES {
        let mut cluster = cluster();
        assert!(cluster.settles());
        cluster.put(request.kind(), request.object("new"));
        rename(&mut cluster, request, "new", "in-0");
        assert!(cluster.settles());
        if hostname(&cluster, request, "new").is_some() {
            faults.push(format!("{request:?}: {:?}", hostname(&cluster, request, "new")));
        }
    }
    report("taken from a replica", &faults);
}

pub(super) fn exposed(cluster: &mut Cluster, namespace: &str, annotations: &Value) {
    cluster.put(
        "Service",
        json!({"metadata": {"name": "web", "namespace": namespace, "annotations": annotations},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "ports": [{"port": 80}]}}),
    );
    cluster.wait(1);
}

/// A tenant requests the host name of a group's next replica: it is refused, and the replica gets its key.
#[test]
fn request_for_the_host_name_of_a_replica_does_not_hold_the_replica() {
    for attacked in [false, true] {
        let mut cluster = cluster();
        assert!(cluster.settles());
        let mut waited = 0;
        if attacked {
            exposed(&mut cluster, "t", &json!({names::HOSTNAME: "in-1"}));
            cluster.rounds(3);
            assert!(cluster.minted.iter().all(|key| key.of != "t/web"), "{:?}", cluster.minted);
        }
        cluster.patch("ProxyGroup", "", "in", &json!({"spec": {"replicas": 2}}));
        let before = cluster.minted.len();
        while cluster.minted.len() == before && waited < 240 {
            cluster.pass("in");
            cluster.live();
            cluster.wait(60);
            waited += 1;
        }
        assert!(waited < 10, "attacked {attacked}: the replica waited {waited} min for its key");
    }
}

/// The Tailscale operator's config does not say which object has a name: of two requests of one group the served one has it.
#[test]
fn name_without_a_recorded_object_stays_with_the_object_that_is_served() {
    let mut faults = Vec::new();
    for (served, other, created) in [("new", "old", "2020-01-01T00:00:00Z"), ("new", "old", ""), ("old", "new", "")] {
        let mut cluster = cluster();
        cluster.put("Service", Request::GroupService.object(served));
        assert!(cluster.settles());
        let mut object = Request::GroupService.object(other);
        if !created.is_empty() {
            object["metadata"]["creationTimestamp"] = json!(created);
        }
        cluster.put("Service", object);
        assert!(cluster.settles());
        assert_eq!(records(&cluster), [("in", served.to_owned())]);
        let origins = json!({crate::api::routes::ORIGINS: null});
        cluster.patch("ConfigMap", NS, &names::ingress_config("in"), &json!({"data": origins, "binaryData": origins}));
        cluster.cache = cluster.cache_of(&cluster.objects, false);
        assert!(cluster.settles());
        if records(&cluster) != [("in", served.to_owned())] {
            faults.push(format!(
                "served {served}, other {other} {created}: {:?}, {:?} {:?}",
                records(&cluster),
                cluster.conditions(served, NAME),
                cluster.conditions(other, NAME)
            ));
        }
    }
    report("not recorded", &faults);
}
