//! Cost of one change, by counting: the same with ten services and with ten thousand.
//!
//! Writes to the kernel are counted in netlink messages and bytes, API writes in requests, and the work of the process in allocations,
//! which this binary's allocator counts. If a cost does grow with the number of services, the test states how much and why.

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use serde_json::{Value, json};
use tailyard::model::base::net::Family;
use tailyard::model::config::EgressConfig;
use tailyard::model::controller::workload::objects::Kind;
use tailyard::model::firewall::iptables;
use tailyard::model::firewall::nft::element::edits;
use tailyard::model::firewall::nft::wire::batch;
use tailyard::model::firewall::ruleset::diff;
use tailyard::model::plan::Planned;
use tailyard::reconciler::cache::{ClusterCache, WatchRole};

use kit::passes::IdleGroup;
use kit::world;

const FEW: u32 = 10;
const MANY: u32 = 10_000;

/// Cost of one change of a config.
struct Change {
    /// Keys of the firewall, netlink messages, their bytes.
    netlink: [u64; 3],
    /// Lines for iptables-restore, of both families.
    lines: u64,
    /// Allocations to read the new config.
    read: AllocationInfo,
    /// Allocations to plan, compare and encode it.
    plan: AllocationInfo,
}

/// Runs the work; returns its allocations and its result.
fn counted<T>(work: impl FnOnce() -> T) -> (AllocationInfo, T) {
    let mut made = None;
    let info = measure(|| made = Some(work()));
    (info, made.expect("it was done"))
}

/// Cost of a change from a config with `from` services to one with `to`, of which one may have another target.
fn change(from: u32, to: u32, moved: Option<u32>) -> Change {
    let config = |services: u32, moved| Bytes::from(world::config(services * 2, moved).expect("a config"));
    let before = Planned::new(&world::with(&world::world(), EgressConfig::parse(&config(from, None)).expect("read")));
    let text = config(to, moved);
    let (read, egress) = counted(|| before.world.egress.next(&text).expect("read again"));
    let changed = world::with(&before.world, egress);
    let (plan, (after, delta, batch)) = counted(|| {
        let after = before.next(&changed);
        let delta = diff(&before.ruleset, &after.ruleset);
        let batch = batch(&edits(&before.ruleset, &delta, &after.ruleset), 1);
        (after, delta, batch)
    });
    let restored = Family::ALL.into_iter().filter_map(|family| iptables::delta(&before.ruleset, &delta, &after.ruleset, family));
    let netlink = [delta.keys() as u64, u64::from(batch.last - batch.first), batch.bytes.len() as u64];
    Change { netlink, lines: restored.map(|text| text.lines().count() as u64).sum(), read, plan }
}

/// Costs of retargeting, adding and removing a service.
fn changes(services: u32) -> [Change; 3] {
    [change(services, services, Some(7)), change(services, services + 1, None), change(services + 1, services, None)]
}

fn at_most(what: &str, counted: u64, bound: u64) {
    assert!(counted <= bound, "{what}: {counted}, at most {bound}");
}

#[test]
fn kernel_writes_per_change_are_independent_of_size() {
    for (few, many) in changes(FEW).into_iter().zip(changes(MANY)) {
        assert_eq!(few.netlink, many.netlink);
        at_most("keys", many.netlink[0], 2);
        // Chains hold a limited number of ports; with ten services they are not full.
        at_most("lines for iptables", many.lines, 4 * few.lines);
    }
}

#[test]
fn planning_allocations_per_change_are_independent_of_size() {
    for (few, many) in changes(FEW).into_iter().zip(changes(MANY)) {
        // Persistent maps are a few levels deeper.
        at_most("allocations to plan", many.plan.count_total, 2 * few.plan.count_total);
        at_most("allocations to read", many.read.count_total, 2 * few.read.count_total);
        at_most("bytes to plan", many.plan.bytes_total, 3 * few.plan.bytes_total);
        // The whole text is compared with the previous one, member by member; a new table holds the positions of the members.
        at_most("bytes to read", many.read.bytes_total, few.read.bytes_total + 80 * u64::from(MANY));
    }
}

/// Writes of a group's reconciliations after one of its Services is retargeted, until none is left. Allocations of the first of them, and
/// of the one before the change.
struct Passed {
    writes: Vec<(usize, usize)>,
    rest: u64,
    change: u64,
}

fn passed(services: u32) -> Passed {
    let mut group = IdleGroup::of(services as usize).expect("a group");
    let (rest, _) = counted(|| group.pass());
    group.retarget(7).expect("a Service");
    let (change, mut pass) = counted(|| group.pass());
    let mut writes = Vec::new();
    while !pass.apply.is_empty() || !pass.services.is_empty() {
        writes.push((pass.apply.len(), pass.services.len()));
        group.apply_plan(pass).expect("carried out");
        group.acknowledge().expect("taken up");
        pass = group.pass();
    }
    Passed { writes, rest: rest.count_total, change: change.count_total }
}

#[test]
fn api_writes_per_change_are_independent_of_size() {
    let (few, many) = (passed(FEW), passed(MANY));
    assert_eq!(few.writes, many.writes);
    assert!(!few.writes.is_empty());
    // The additional allocations of a change over an unchanged reconciliation do not grow.
    at_most("allocations of a change", many.change - many.rest, 2 * (few.change - few.rest));
    // A reconciliation checks that every Service is unchanged, and its place in the config, whose table has several in a node.
    at_most("allocations of a pass", many.rest - few.rest, u64::from(MANY) / 2);
}

/// A Node as a kubelet writes it.
fn node(number: u32) -> Value {
    let images: Vec<_> = (0..50).map(|image| json!({"names": [format!("registry.example/image-{image}")], "sizeBytes": 1})).collect();
    let conditions = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z", "reason": "KubeletReady"}]);
    let addresses = json!([{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "ExternalIP", "address": "198.51.100.1"}]);
    json!({"metadata": {"name": format!("node-{number}"), "resourceVersion": "1", "labels": {"topology.kubernetes.io/zone": "a"}},
        "spec": {"podCIDR": "10.244.0.0/24"}, "status": {"addresses": addresses, "conditions": conditions, "images": images}})
}

/// A Service that belongs to no group.
fn foreign(number: u32) -> Value {
    let labels = json!({"app.kubernetes.io/name": "shop", "app.kubernetes.io/instance": "shop", "app.kubernetes.io/managed-by": "Helm"});
    let metadata = json!({"name": format!("service-{number}"), "namespace": "shop", "resourceVersion": "1", "labels": labels,
        "uid": "0b7a2a5e-7c1c-4b7e-9d55-4b3f1d2f6c11", "annotations": {"meta.helm.sh/release-name": "shop", "team": "x".repeat(300)}});
    let spec = json!({"type": "ClusterIP", "clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7"], "selector": {"app": "shop"},
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}], "internalTrafficPolicy": "Cluster"});
    json!({"metadata": metadata, "spec": spec, "status": {"loadBalancer": {}}})
}

/// A slice of a child as Kubernetes' controller writes it.
fn slice(number: u32) -> Value {
    let child = format!("ts-service-{number}-abcde");
    let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "svc", "tailscale.com/parent-resource": child,
        "tailscale.com/parent-resource-ns": "default", "tailscale.com/proxy-group": "g", "tailscale.com/svc-type": "egress",
        "kubernetes.io/service-name": child, "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"});
    let owner =
        json!([{"apiVersion": "v1", "kind": "Service", "name": child, "uid": "0b7a2a5e-7c1c-4b7e-9d55-4b3f1d2f6c11", "controller": true}]);
    let metadata =
        json!({"name": format!("{child}-x7k2p"), "namespace": "ts", "resourceVersion": "1", "labels": labels, "ownerReferences": owner});
    let endpoint = |ordinal: u32| {
        json!({"addresses": [format!("10.0.0.{ordinal}")], "nodeName": format!("node-{ordinal}"), "zone": "eu-central-1a",
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "targetRef": {"kind": "Pod", "namespace": "ts", "name": format!("g-{ordinal}"), "uid": "0b7a2a5e-7c1c-4b7e-9d55-4b3f1d2f6c11"}})
    };
    json!({"metadata": metadata, "addressType": "IPv4", "endpoints": [endpoint(0), endpoint(1)],
        "ports": [{"name": "http", "port": 10_000, "protocol": "TCP"}, {"name": "tailscale-health-check", "port": 9002, "protocol": "TCP"}]})
}

#[test]
fn cache_keeps_little_of_objects_of_others() {
    let slices = WatchRole::Owned(Kind::EndpointSlice);
    let mut cache = ClusterCache::new(None, [WatchRole::Service, WatchRole::Node, slices]);
    for (role, count, object, bound) in [
        (WatchRole::Service, 10_000, foreign as fn(u32) -> Value, 400),
        (WatchRole::Node, 1_000, node, 3_000),
        (slices, 10_000, slice, 800),
    ] {
        let (info, ()) = counted(|| (0..count).for_each(|number| drop(cache.put(role.decode(object(number)).parse()))));
        let each = u64::try_from(info.bytes_current).expect("they are in memory") / u64::from(count);
        println!("{role:?}: {each} bytes each");
        assert_eq!(cache.stored(role), count as usize);
        assert!(each > 0);
        at_most("bytes of an object", each, bound);
    }
}
