use futures_util::stream::{iter, once};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::api::proxygroup::ProxyGroupType;
use crate::model::base::backoff::Backoff;
use crate::model::controller::policy::assignment::AssignmentRules;

const ROLE: WatchRole = WatchRole::Owned(Kind::Secret);

fn stores() -> (Stores, InformerWatch) {
    let queue = Queue::new(Arc::new(|failures| Backoff::RECONCILE.after(failures, 0.5)));
    let follow = Follow { resource: ROLE.resource(), namespace: None, labels: None, fields: None };
    (Stores::new(ClusterCache::new(None, [ROLE]), queue), InformerWatch { role: ROLE, follow })
}

fn state(version: u64) -> Delivered {
    let metadata = json!({"name": "g-0", "namespace": "ts", "resourceVersion": version.to_string()});
    ROLE.decode(json!({"metadata": metadata, "data": {"egress-services": "e30="}}))
}

fn version(stores: &Stores) -> Option<u64> {
    stores.cache().version(&ObjectRef::new(Kind::Secret, "ts", "g-0"))
}

#[tokio::test(start_paused = true)]
async fn state_secret_is_parsed_at_a_rate_and_its_newest_version_in_the_end() {
    let (stores, watch) = stores();
    let mut parsed = BTreeSet::new();
    let writes = iter(1..=1_400).then(|number| async move {
        tokio::time::sleep(Duration::from_secs(10) / 1_400).await;
        WatchChange::Put(state(number))
    });
    let idle = once(async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        WatchChange::Live
    });
    let changes = Box::pin(writes.chain(idle).inspect(|_| {
        parsed.insert(version(&stores));
    }));
    stores.follow(&watch, changes, |_, _| {}).await;
    assert!((20..=36).contains(&parsed.len()), "of 1,400 versions in some 11 s: {parsed:?}");
    assert_eq!(version(&stores), Some(1_400));
}

/// How a large state Secret arrives.
#[derive(Debug, Clone, Copy)]
enum Arrival {
    Change,
    List,
    /// In the response to an apply, or to another write.
    Applied,
    Assumed,
    /// It was found by a write.
    Found,
}

#[tokio::test]
async fn other_tasks_run_while_a_large_state_is_parsed() {
    for arrival in [Arrival::Change, Arrival::List, Arrival::Applied, Arrival::Assumed, Arrival::Found] {
        let (stores, watch) = stores();
        let status = format!(r#"{{"services":{{"a":{{"tailnetTarget":{{}},"ports":[{}]}}}}}}"#, vec!["{}"; 90_000].join(","));
        let data = json!({"egress-services": k8s_openapi::ByteString(status.into_bytes())});
        let secret = json!({"metadata": {"name": "g-0", "namespace": "ts", "resourceVersion": "1"}, "data": data});
        let object = ObjectRef::new(Kind::Secret, "ts", "g-0");
        let is_parsed = std::cell::Cell::new(false);
        let arrives = async {
            let follow = async |changes: Vec<_>| stores.follow(&watch, iter(changes), |_, _| {}).await;
            match arrival {
                Arrival::Change => follow(vec![WatchChange::Put(ROLE.decode(secret))]).await,
                Arrival::List => follow(vec![WatchChange::Begin, WatchChange::Listed(ROLE.decode(secret)), WatchChange::Complete]).await,
                Arrival::Applied => stores.applied(Kind::Secret, secret, "hash".into()).await,
                Arrival::Assumed => stores.assume(ROLE, secret).await,
                Arrival::Found => stores.found(&"g".into(), object.clone(), secret).await,
            }
            is_parsed.set(true);
        };
        let other = async {
            let mut turns = 0;
            while !is_parsed.get() {
                turns += 1;
                tokio::task::yield_now().await;
            }
            turns
        };
        let ((), turns) = tokio::join!(arrives, other);
        assert!(turns > 10, "{arrival:?}: {turns} turns");
        let is_stored = !matches!(arrival, Arrival::Found);
        assert_eq!(
            (version(&stores), stores.cache().is_settled(&object, "hash")),
            (is_stored.then_some(1), matches!(arrival, Arrival::Applied))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_version_of_a_deleted_secret_is_dropped() {
    for ends in [vec![WatchChange::Gone(state(100))], vec![WatchChange::Begin, WatchChange::Complete]] {
        let (stores, watch) = stores();
        let writes = iter((1..=50).map(|number| WatchChange::Put(state(number))));
        let idle = once(async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            WatchChange::Live
        });
        stores.follow(&watch, Box::pin(writes.chain(iter(ends)).chain(idle)), |_, _| {}).await;
        assert_eq!(version(&stores), None);
    }
}

/// Roles whose objects tenants or Pods may write. Of Events one is stored for each set.
const PACED: [WatchRole; 6] =
    [WatchRole::Service, WatchRole::Ingress, WatchRole::BackendSlice, WatchRole::Owned(Kind::RoleBinding), WatchRole::Credentials, ROLE];

/// An object of any role.
fn object(role: WatchRole, (namespace, name): (&str, &str), version: u64, variant: u8) -> Delivered {
    let service = format!("web{}", variant % 2);
    let group = if variant.is_multiple_of(2) { json!({}) } else { json!({"tailscale.com/proxy-group": "g"}) };
    let metadata = json!({"name": name, "namespace": namespace, "resourceVersion": version.to_string(),
        "labels": {"kubernetes.io/service-name": service, "tailscale.com/managed": "true"}, "annotations": group});
    let ports = if variant == 3 { json!("no ports") } else { json!([{"port": 1 + variant}]) };
    let backend = json!({"service": {"name": service, "port": {"number": 80}}});
    role.decode(json!({"metadata": metadata, "addressType": "IPv4", "data": {"egress-services": "e30="},
        "spec": {"ports": ports, "ingressClassName": "tailscale", "defaultBackend": backend},
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": variant < 2}}],
        "roleRef": {"kind": "Role", "name": service}, "eventTime": null, "reason": "FailedCreate", "note": service,
        "regarding": {"kind": "StatefulSet", "name": service}, "deprecatedLastTimestamp": "2026-01-01T00:00:00Z"}))
}

fn cache(role: WatchRole) -> ClusterCache {
    let rules = AssignmentRules { ingress_class: "tailscale".into(), ..AssignmentRules::default() };
    ClusterCache::new(None, [role]).serving(&ProxyGroupType::SERVED, rules)
}

/// Follows changes of a role, each after its pause, and then none; looks at the stores before each change.
async fn follow(role: WatchRole, changes: Vec<(Duration, WatchChange<Delivered>)>, mut before: impl FnMut(&Stores) + Send) -> Stores {
    let (Stores { queue, .. }, watch) = stores();
    let (stores, watch) = (Stores::new(cache(role), queue), InformerWatch { role, ..watch });
    let idle = (Duration::from_secs(5), WatchChange::Live);
    let changes = iter(changes.into_iter().chain([idle])).then(|(pause, change)| async move {
        tokio::time::sleep(pause).await;
        change
    });
    stores.follow(&watch, Box::pin(changes.inspect(|_| before(&stores))), |_, _| {}).await;
    stores
}

#[tokio::test(start_paused = true)]
async fn object_that_is_written_without_end_is_stored_at_a_rate_and_delays_no_other() {
    let (often, other) = (("a", "g-0"), ("b", "g-1"));
    for role in PACED {
        let of = |number: u64| if number.is_multiple_of(200) { other } else { often };
        let change = |number| (Duration::from_millis(5), WatchChange::Put(object(role, of(number), number, 1 + u8::from(number % 2 == 1))));
        let (mut number, mut versions) = (0, BTreeSet::new());
        let stores = follow(role, (1..=2_000).map(change).collect(), |stores| {
            let version = |(namespace, name)| stores.cache().stored_version(role, namespace, name);
            if number > 0 && of(number) == other {
                assert_eq!(version(other), Some(number), "{role:?}: at once");
            }
            versions.extend(version(often));
            number += 1;
        });
        let stores = stores.await;
        assert!((20..=42).contains(&versions.len()), "{role:?}: {} of 2,000 in 10 s", versions.len());
        assert_eq!(stores.cache().stored_version(role, "a", "g-0"), Some(1_999), "{role:?}");
    }
}

/// An Event about a set; one about an empty name has another reason.
fn event(name: &str, version: u64, set: &str) -> Delivered {
    let metadata = json!({"name": name, "namespace": "ts", "resourceVersion": version.to_string()});
    let reason = if set.is_empty() { "Other" } else { "FailedCreate" };
    WatchRole::CreateFailure.decode(json!({"metadata": metadata, "eventTime": null, "reason": reason, "note": "false",
        "regarding": {"kind": "StatefulSet", "name": set}, "deprecatedLastTimestamp": "2026-01-01T00:00:00Z"}))
}

/// Stores with a group `g`, and the watch of Events.
async fn stores_of_events() -> (Stores, InformerWatch) {
    let (Stores { queue, .. }, watch) = stores();
    let stores = Stores::new(ClusterCache::new(None, [WatchRole::Group, WatchRole::CreateFailure]), queue);
    let group = json!({"metadata": {"name": "g", "resourceVersion": "1"}, "spec": {"type": "egress"}});
    let group = WatchChange::Listed(WatchRole::Group.decode(group));
    let groups = InformerWatch { role: WatchRole::Group, follow: watch.follow };
    stores.follow(&groups, Box::pin(iter([WatchChange::Begin, group, WatchChange::Complete])), |_, _| {}).await;
    (stores, InformerWatch { role: WatchRole::CreateFailure, follow: groups.follow })
}

/// An Event has the name of a set, and is about none: the Events about the set are stored as without it.
#[tokio::test(start_paused = true)]
async fn event_with_the_name_of_a_set_delays_and_replaces_none_about_it() {
    let role = WatchRole::CreateFailure;
    // Events in this order, and what is stored of the last one at once, and in the end.
    let (of, none) = (|set: &'static str, count| vec![("e", set); count], |name, count| vec![(name, ""); count]);
    let rows = [
        ("as many as the burst, before", [none("g", 20), of("g", 1)].concat(), Some(21), Some(21)),
        ("after one that waits", [of("g", 21), none("g", 1)].concat(), Some(20), Some(21)),
        ("of another name, before", [none("x", 40), of("g", 1)].concat(), Some(41), Some(41)),
        ("of the same name, after one that waits", [of("g", 21), none("e", 1)].concat(), None, None),
        ("of the same name, before", [none("e", 1), of("g", 1)].concat(), Some(2), Some(2)),
    ];
    for (row, events, at_once, in_the_end) in rows {
        let (stores, watch) = stores_of_events().await;
        let version_of_e = || stores.cache().stored_version(role, "ts", "e");
        let puts = (1..).zip(events).map(|(version, (name, set))| WatchChange::Put(event(name, version, set)));
        let mut looked_at = None;
        let idle = once(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            WatchChange::Live
        });
        let end = once(async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            WatchChange::Live
        });
        let changes = iter(puts).chain(idle.inspect(|_| looked_at = version_of_e())).chain(end);
        stores.follow(&watch, Box::pin(changes), |_, _| {}).await;
        assert_eq!((looked_at, version_of_e()), (at_once, in_the_end), "{row}");
    }
}

/// A Pod with the Tailscale operator's image may create Events.
#[tokio::test(start_paused = true)]
async fn events_about_a_set_are_stored_at_a_rate_whatever_their_names() {
    let role = WatchRole::CreateFailure;
    let event = |number: u64| event(&format!("e{number}"), number, "g");
    let (stores, watch) = stores_of_events().await;
    let newest = |stores: &Stores| (1..=2_000).find(|number| stores.cache().stored_version(role, "ts", &format!("e{number}")).is_some());
    let writes = iter(1..=2_000).then(|number| async move {
        tokio::time::sleep(Duration::from_millis(5)).await;
        WatchChange::Put(event(number))
    });
    let gone = once(async { WatchChange::Gone(event(1_999)) });
    let idle = once(async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        WatchChange::Live
    });
    let mut versions = BTreeSet::new();
    let changes = Box::pin(writes.chain(gone).chain(idle).inspect(|_| versions.extend(newest(&stores))));
    stores.follow(&watch, changes, |_, _| {}).await;
    assert!((20..=42).contains(&versions.len()), "{} of 2,000 in 10 s", versions.len());
    assert_eq!(newest(&stores), Some(2_000), "the newest");
}

/// A second rollout takes the first one back.
#[tokio::test(start_paused = true)]
async fn two_rollouts_of_a_backend_are_not_delayed() {
    let role = WatchRole::BackendSlice;
    for pause in [0, 100, 200].map(Duration::from_millis) {
        let changes = (1..=20).map(|number| (pause, WatchChange::Put(object(role, ("a", "web"), number, u8::from(number % 2 == 1)))));
        let mut number = 0;
        let before = |stores: &Stores| {
            let version = stores.cache().stored_version(role, "a", "web");
            assert_eq!(version, (number > 0).then_some(number), "every {pause:?}");
            number += 1;
        };
        follow(role, changes.collect(), before).await;
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_was_deleted_and_created_without_end_is_stored_within_an_interval() {
    for role in PACED {
        let id = ("a", "g-0");
        let mut changes = Vec::new();
        for number in 1..=1_000 {
            changes.push((Duration::from_millis(5), WatchChange::Put(object(role, id, number * 2, 1))));
            changes.push((Duration::from_millis(5), WatchChange::Gone(object(role, id, number * 2 + 1, 1))));
        }
        changes.push((Duration::ZERO, WatchChange::Put(object(role, id, 3_000, 1))));
        changes.push((Duration::from_millis(501), WatchChange::Live));
        let mut versions = BTreeSet::new();
        let stores = follow(role, changes, |stores| versions.extend(stores.cache().stored_version(role, id.0, id.1))).await;
        assert!(versions.len() <= 42, "{role:?}: {} of 1,000 in 10 s", versions.len());
        assert_eq!(versions.last(), Some(&3_000), "{role:?}: {versions:?}");
        assert!(stores.cache().stored_version(role, id.0, id.1).is_some());
    }
}

/// A change of the objects in the API server.
#[derive(Debug, Clone)]
enum Step {
    /// So many writes, the last one of this variant.
    Put(u8, u8, u8),
    Delete(u8),
    /// The watch is lost while objects change, each to a variant or deleted.
    Relist(Vec<(u8, Option<u8>)>),
    /// The kind is not installed.
    Uninstall,
}

/// Events of a watch of these steps.
fn events(role: WatchRole, steps: &[(u64, Step)]) -> Vec<(Duration, WatchChange<Delivered>)> {
    let (mut exist, mut version, mut events) = (std::collections::BTreeMap::new(), 0, Vec::new());
    for (pause, step) in steps {
        let pause = Duration::from_millis(*pause);
        version += 1;
        let read = |name: u8, version: u64, variant: u8| object(role, ("a", &format!("g-{name}")), version, variant);
        match step {
            Step::Put(name, variant, writes) => {
                for later in (0..*writes).rev() {
                    version += 1;
                    let variant = (variant + later) % 4;
                    exist.insert(*name, (version, variant));
                    events.push((pause, WatchChange::Put(read(*name, version, variant))));
                }
            }
            Step::Delete(name) => {
                if let Some((_, variant)) = exist.remove(name) {
                    events.push((pause, WatchChange::Gone(read(*name, version, variant))));
                }
            }
            Step::Relist(changed) => {
                for (name, variant) in changed {
                    version += 1;
                    exist.remove(name);
                    exist.extend(variant.map(|variant| (*name, (version, variant))));
                }
                events.push((pause, WatchChange::Begin));
                let listed = exist.iter().map(|(name, (version, variant))| WatchChange::Listed(read(*name, *version, *variant)));
                events.extend(listed.chain([WatchChange::Complete]).map(|change| (pause, change)));
            }
            Step::Uninstall => {
                exist.clear();
                events.extend([WatchChange::Begin, WatchChange::Unknown].map(|change| (pause, change)));
            }
        }
    }
    events
}

/// The cache after these changes, each stored at once.
fn unpaced(role: WatchRole, changes: Vec<(Duration, WatchChange<Delivered>)>) -> ClusterCache {
    let mut cache = cache(role);
    for (_, change) in changes {
        match change {
            WatchChange::Begin => cache.begin(role, None),
            WatchChange::Listed(object) => drop(cache.listed(None, object.parse())),
            WatchChange::Complete => drop(cache.complete(role, None)),
            WatchChange::Put(object) => drop(cache.put(object.parse())),
            WatchChange::Gone(object) => drop(cache.gone(&object)),
            WatchChange::Unknown => {
                cache.lacks(role);
                cache.complete(role, None);
            }
            WatchChange::Live | WatchChange::Lost(_) => {}
        }
    }
    cache
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let changed = proptest::collection::vec((0_u8..2, proptest::option::of(0_u8..4)), 0..3);
    let step = prop_oneof![
        4 => (0_u8..2, 0_u8..4, 1_u8..30).prop_map(|(name, variant, writes)| Step::Put(name, variant, writes)),
        1 => (0_u8..2).prop_map(Step::Delete),
        1 => changed.prop_map(Step::Relist),
        1 => Just(Step::Uninstall),
    ];
    proptest::collection::vec((prop_oneof![Just(0_u64), 0_u64..100, 0_u64..700], step), 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn cache_at_rest_equals_that_without_pacing(role in proptest::sample::select(PACED.to_vec()), steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        let stores = runtime.block_on(follow(role, events(role, &steps), |_| {}));
        let (paced, unpaced) = (format!("{:?}", stores.cache()), format!("{:?}", unpaced(role, events(role, &steps))));
        prop_assert_eq!(paced, unpaced);
    }
}

/// Watches deliver in any order.
#[tokio::test]
async fn event_that_is_listed_before_its_set_is_stored() {
    let queue = Queue::new(Arc::new(|failures| Backoff::RECONCILE.after(failures, 0.5)));
    let stores = Stores::new(ClusterCache::new(None, [WatchRole::Group, WatchRole::CreateFailure]), queue);
    let watch = |role: WatchRole| {
        let follow = Follow { resource: role.resource(), namespace: None, labels: None, fields: None };
        InformerWatch { role, follow }
    };
    let list = |object: Delivered| iter([WatchChange::Begin, WatchChange::Listed(object), WatchChange::Complete]);
    let group = json!({"metadata": {"name": "g", "resourceVersion": "1"}, "spec": {"type": "egress"}});
    let event = json!({"metadata": {"name": "g.1", "namespace": "ts", "resourceVersion": "2"}, "eventTime": null, "reason": "FailedCreate",
        "note": "no", "deprecatedLastTimestamp": "2026-01-01T00:00:00Z", "regarding": {"kind": "StatefulSet", "name": "g"}});
    let [groups, events] = [WatchRole::Group, WatchRole::CreateFailure].map(watch);
    let of_events = stores.follow(&events, list(events.role.decode(event)), |_, _| {});
    let of_groups = stores.follow(&groups, list(groups.role.decode(group)), |_, _| {});
    tokio::join!(of_events, of_groups);
    assert_eq!(stores.cache().stored(WatchRole::CreateFailure), 1);
}

#[test]
fn request_of_the_reconciler_is_watched_where_services_of_its_namespace_are_not() {
    let of_services = |watched: &[&str]| {
        let watched: Vec<_> = watched.iter().map(|name| (*name).to_owned()).collect();
        let services = watches("ts", &watched, false).into_iter().filter(|watch| watch.role == WatchRole::Service);
        services.map(|watch| (watch.follow.namespace, watch.follow.fields)).collect::<Vec<_>>()
    };
    let of = |namespace: &str, fields| (Some(namespace.to_owned()), fields);
    assert_eq!(OWN_REQUEST, format!("metadata.name={}", crate::api::names::API_SERVER_SERVICE));
    assert_eq!(of_services(&[]), [(None, None)]);
    assert_eq!(of_services(&["shop"]), [of("shop", None), of("ts", Some(OWN_REQUEST))]);
    assert_eq!(of_services(&["shop", "ts"]), [of("shop", None), of("ts", None)]);
}
