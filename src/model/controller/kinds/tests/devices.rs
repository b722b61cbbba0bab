//! Devices of replicas: what a Pod reports about its device is never shown, and a device has one record.

use proptest::prelude::*;
use serde_json::Value;

use super::simulation;
use super::world::device_id;
use super::*;
use crate::api::condition::PROXY_READY;
use crate::model::controller::policy::assignment::StandaloneScope;
use crate::model::controller::workload::identity::{DeviceId, DeviceLabel, DeviceName};

/// Values of `device_ips` and `device_fqdn` of a compromised Pod.
const INVENTED_ADDRESSES: [&str; 6] = [
    r#"["8.8.8.8","203.0.113.10","169.254.169.254","10.96.0.1"]"#,
    r#"["100.64.0.77"]"#,
    r#"["::1","fe80::1","fd7a:115c:a1e0::77"]"#,
    "[]",
    "null",
    "x",
];
const INVENTED_NAMES: [&str; 5] = ["mail.bank.example.", "shop-9.tail1234.ts.net.", "other.tail1234.ts.net.", "x", ""];

fn world() -> World {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    world
}

/// Creates a Service of type `LoadBalancer` with this host name, or renames it.
fn expose(world: &mut World, name: &str, hostname: &str) {
    let service = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("{name}-UID"), "annotations": {"tailscale.com/hostname": hostname}},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]},
    });
    let mut service: k8s_openapi::api::core::v1::Service = serde_json::from_value(service).expect("a Service");
    let key = ("default".to_owned(), name.to_owned());
    if let Some(stored) = world.services.get(&key) {
        service.status.clone_from(&stored.status);
        service.metadata.finalizers.clone_from(&stored.metadata.finalizers);
    }
    world.services.insert(key, service);
}

fn replica(world: &World, name: &str) -> String {
    format!("{}-0", world.observe(&*format!("default/{name}")).workload)
}

/// A Pod writes its state Secret, and does nothing else from now on.
fn write(world: &mut World, replica: &str, values: &[(&str, &str)]) {
    world.edit(&object(Kind::Secret, replica), |state| {
        for (key, value) in values {
            state["data"][key] = json!(k8s_openapi::ByteString(value.as_bytes().to_vec()));
        }
    });
    world.asleep.insert(replica.into());
}

fn shown(world: &World, name: &str) -> Value {
    let service = &world.services[&("default".to_owned(), name.to_owned())];
    serde_json::to_value(service.status.as_ref().and_then(|status| status.load_balancer.as_ref())).expect("JSON")["ingress"].clone()
}

fn recorded(world: &World, replica: &str) -> Option<DeviceId> {
    world.device_records().remove(&format!("{replica}-config")).map(|record| record.id)
}

#[test]
fn addresses_that_a_pod_invents_are_not_shown() {
    let mut world = world();
    expose(&mut world, "shop", "shop");
    world.group("pg", json!({"type": "egress"}));
    world.settle();
    let devices = |world: &World| world.groups["pg"].status.as_ref().expect("a status").devices.clone();
    let before = (shown(&world, "shop"), devices(&world));
    assert_eq!(before.0[0]["hostname"], "shop.tail1234.ts.net");
    assert_eq!(before.1.len(), 2);
    let proxy = replica(&world, "shop");
    for addresses in INVENTED_ADDRESSES {
        for name in INVENTED_NAMES {
            for replica in [&*proxy, "pg-0"] {
                write(&mut world, replica, &[("device_ips", addresses), ("device_fqdn", name)]);
            }
            world.rounds(3);
            assert_eq!(shown(&world, "shop"), before.0, "{addresses} {name}");
            let was_shown = |device: &&crate::api::proxygroup::TailnetDevice| before.1.contains(device);
            assert_eq!(devices(&world).iter().filter(was_shown).count(), devices(&world).len(), "{addresses} {name}");
        }
    }
}

#[test]
fn device_that_a_pod_invents_is_not_shown() {
    let mut world = world();
    expose(&mut world, "shop", "shop");
    world.rounds(2);
    let proxy = replica(&world, "shop");
    let uid = world.pods[&proxy].metadata.uid.clone().expect("a UID");
    write(
        &mut world,
        &proxy,
        &[("device_id", "nNone"), ("device_fqdn", "shop.tail1234.ts.net."), ("device_ips", r#"["8.8.8.8"]"#), ("pod_uid", &uid)],
    );
    world.rounds(5);
    assert_eq!((shown(&world, "shop"), recorded(&world, &proxy)), (Value::Null, None));
    assert_ne!(world.condition("shop", PROXY_READY).expect("a condition").0, "True");
}

#[test]
fn recorded_device_is_never_recorded_for_a_namesake() {
    for joins_first in [true, false] {
        let mut world = world();
        expose(&mut world, "a", "shop");
        world.settle();
        let (a, victim) = (replica(&world, "a"), device_id(&replica(&world, "a")));
        expose(&mut world, "b", "shop");
        if joins_first {
            world.settle();
        } else {
            world.asleep.insert(replica(&world, "b"));
            world.rounds(3);
        }
        let b = replica(&world, "b");
        for values in [&[("device_id", victim.as_str())][..], &[("reissue_authkey", "")], &[("device_id", victim.as_str())]] {
            write(&mut world, &b, values);
            world.rounds(5);
            assert!(world.devices.contains_key(&victim), "{joins_first} {values:?}");
            assert_eq!(recorded(&world, &a), Some(victim.clone()), "{joins_first} {values:?}");
            assert_ne!(recorded(&world, &b), Some(victim.clone()), "{joins_first} {values:?}");
        }
        world.delete_service("b");
        world.rounds(10);
        assert!(world.devices.contains_key(&victim), "the other's device stays");
    }
}

#[test]
fn namesake_gets_its_key_after_the_first_has_joined() {
    let mut world = world();
    for name in ["a", "b"] {
        expose(&mut world, name, "shop");
    }
    let (a, b) = (replica(&world, "a"), replica(&world, "b"));
    world.asleep.insert(a.clone());
    world.rounds(5);
    assert_eq!(world.minted, 1, "one key at a time under a host name");
    let (_, _, message) = world.condition("b", PROXY_READY).expect("a condition");
    assert!(message.contains("waits for its auth key") && message.contains(&a), "{message}");
    world.asleep.clear();
    world.settle();
    assert_eq!((world.minted, recorded(&world, &a), recorded(&world, &b)), (2, Some(device_id(&a)), Some(device_id(&b))));
}

#[test]
fn silent_namesake_delays_a_key_for_its_own_lifetime() {
    let mut world = world();
    expose(&mut world, "b", "shop");
    world.asleep.insert(replica(&world, "b"));
    world.rounds(5);
    expose(&mut world, "a", "shop");
    world.rounds(3);
    assert_eq!(world.minted, 1);
    world.now += 3_700;
    world.rounds(1);
    let (a, b) = (replica(&world, "a"), replica(&world, "b"));
    assert_eq!((world.minted, recorded(&world, &a)), (2, None), "it has joined and is not recorded yet");
    // Its namesake is faster.
    write(&mut world, &b, &[("device_id", device_id(&a).as_str())]);
    for key in ["default/b", "default/a", "default/b"] {
        world.pass(key);
        world.check();
    }
    assert_eq!((recorded(&world, &a), recorded(&world, &b)), (Some(device_id(&a)), None));
}

#[test]
fn rename_to_the_host_name_of_a_joining_replica_does_not_take_its_device() {
    let mut world = world();
    expose(&mut world, "b", "other");
    world.asleep.insert(replica(&world, "b"));
    world.rounds(3);
    expose(&mut world, "a", "shop");
    world.pass("default/a");
    world.live();
    world.pass("default/a");
    world.live();
    let (a, b) = (replica(&world, "a"), replica(&world, "b"));
    assert_eq!((world.minted, world.devices.contains_key(&device_id(&a)), recorded(&world, &a)), (2, true, None));
    expose(&mut world, "b", "shop");
    write(&mut world, &b, &[("device_id", device_id(&a).as_str())]);
    for key in ["default/b", "default/b", "default/a", "default/b"] {
        world.pass(key);
        world.check();
    }
    assert_eq!((recorded(&world, &a), recorded(&world, &b)), (Some(device_id(&a)), None));
}

#[test]
fn device_shared_by_two_records_of_an_earlier_version_is_not_deleted() {
    let mut world = world();
    for name in ["a", "b"] {
        expose(&mut world, name, name);
    }
    world.settle();
    let (a, b) = (replica(&world, "a"), replica(&world, "b"));
    let stolen = json!(serde_json::to_string(&world.device_records()[&format!("{a}-config")]).expect("JSON"));
    world.edit(&object(Kind::Secret, &format!("{b}-config")), |config| config["metadata"]["annotations"][names::DEVICE] = stolen);
    world.asleep.insert(b);
    world.delete_service("b");
    for _ in 0..10 {
        world.pass("default/b");
        world.live();
    }
    assert!(world.devices.contains_key(&device_id(&a)));
    assert_eq!((world.services.len(), world.event_count("DeviceOrphaned") > 0), (1, true));
}

#[test]
fn rename_by_an_administrator_costs_one_request_and_rest_none() {
    let mut world = world();
    expose(&mut world, "shop", "shop");
    world.group("pg", json!({"type": "egress", "replicas": 5}));
    world.settle();
    assert_eq!(world.device_requests, 6, "one for each new device");
    for _ in 0..5 {
        world.now += 3_600;
        world.settle();
    }
    assert_eq!(world.device_requests, 6, "none at rest");
    let proxy = replica(&world, "shop");
    let device = world.devices.get_mut(&device_id(&proxy)).expect("a device");
    device.name = DeviceLabel::Whole(DeviceName::parse("store.tail1234.ts.net").expect("a name"));
    write(&mut world, &proxy, &[("device_fqdn", "store.tail1234.ts.net.")]);
    world.settle();
    assert_eq!((world.device_requests, &shown(&world, "shop")[0]["hostname"]), (7, &json!("store.tail1234.ts.net")));
}

#[test]
fn report_that_is_not_confirmed_is_read_ever_less_often() {
    let mut world = world();
    expose(&mut world, "shop", "shop");
    world.settle();
    let (proxy, before) = (replica(&world, "shop"), world.device_requests);
    let mut minutes = Vec::new();
    for minute in 0..60 {
        let name = format!("invented-{minute}.tail1234.ts.net.");
        write(&mut world, &proxy, &[("device_fqdn", &name)]);
        let requests = world.device_requests;
        world.pass("default/shop");
        world.now += 60;
        minutes.push(world.device_requests - requests);
    }
    let (first, rest) = minutes.split_at(20);
    assert!(rest.iter().sum::<u32>() <= 4, "{first:?} {rest:?}");
    assert!(world.device_requests - before <= 14, "{minutes:?}");
}

#[test]
fn record_of_an_earlier_version_is_completed_by_one_request_and_the_status_stays() {
    let mut world = world();
    expose(&mut world, "shop", "shop");
    world.group("pg", json!({"type": "egress"}));
    world.settle();
    let status = |world: &World| (shown(world, "shop"), world.groups["pg"].status.clone(), world.condition("shop", PROXY_READY));
    let (before, requests) = (status(&world), world.device_requests);
    for config in world.device_records().into_keys() {
        world.edit(&object(Kind::Secret, &config), |config| {
            let record = config["metadata"]["annotations"][names::DEVICE].as_str().expect("a record");
            let mut record: Value = serde_json::from_str(record).expect("JSON");
            let record = record.as_object_mut().expect("an object");
            record.retain(|key, _| !["name", "addresses"].contains(&key.as_str()));
            config["metadata"]["annotations"][names::DEVICE] = json!(json!(record).to_string());
            config["metadata"]["annotations"].as_object_mut().expect("an object").remove(names::AUTH_KEY);
        });
    }
    world.device_reads.clear();
    let tailnet = std::mem::replace(&mut world.tailnet, TailnetState::Asking);
    world.rounds(3);
    assert_eq!(status(&world), before, "while the control plane is not known");
    world.tailnet = tailnet;
    world.settle();
    assert_eq!((status(&world), world.device_requests), (before, requests + 3));
    assert!(world.device_records().values().all(crate::model::controller::workload::identity::DeviceRecord::is_complete));
}

#[test]
fn record_stays_while_the_control_plane_is_away() {
    let mut world = world();
    expose(&mut world, "shop", "shop");
    world.settle();
    let before = (shown(&world, "shop"), world.device_records());
    world.tailnet = TailnetState::Unavailable("It cannot be reached.".into());
    let proxy = replica(&world, "shop");
    write(&mut world, &proxy, &[("device_fqdn", "mail.bank.example."), ("device_ips", r#"["8.8.8.8"]"#)]);
    world.rounds(5);
    assert_eq!((shown(&world, "shop"), world.device_records()), before);
}

/// Its first key is late: the control plane is unavailable, or another replica joins under its host name. Meanwhile its Pod claims a device
/// of another cluster with its host name and its tags.
#[test]
fn new_replica_has_no_device_before_its_first_key() {
    let other = DeviceId::parse("nOther").expect("an ID");
    for case in ["unavailable", "scaled while unavailable", "namesake"] {
        let mut world = world();
        let available = world.tailnet.clone();
        let unavailable = TailnetState::Unavailable("It cannot be reached.".into());
        let claimant = match case {
            "unavailable" => {
                world.tailnet = unavailable;
                expose(&mut world, "shop", "shop");
                replica(&world, "shop")
            }
            "scaled while unavailable" => {
                world.group("pg", json!({"type": "egress", "replicas": 1, "hostnamePrefix": "shop"}));
                world.settle();
                world.tailnet = unavailable;
                world.group("pg", json!({"type": "egress", "replicas": 2, "hostnamePrefix": "shop"}));
                "pg-1".to_owned()
            }
            _ => {
                expose(&mut world, "a", "shop");
                world.asleep.insert(replica(&world, "a"));
                world.rounds(5);
                expose(&mut world, "shop", "shop");
                replica(&world, "shop")
            }
        };
        world.rounds(3);
        let tags = world.settings.tags.clone();
        world.joined(other.clone(), tags);
        world.name_device(&other, if case.starts_with("scaled") { "shop-1" } else { "shop" });
        write(&mut world, &claimant, &[("device_id", other.as_str())]);
        world.rounds(3);
        world.tailnet = available;
        let minted = world.minted;
        world.now += 3_700;
        world.rounds(10);
        assert_eq!((recorded(&world, &claimant), world.minted), (None, minted + 1), "{case}");
        // Its Pod is replaced by one that is not compromised, which joins with the key.
        world.edit(&object(Kind::Secret, &claimant), |state| state["data"] = json!({}));
        world.asleep.remove(&claimant);
        world.rounds(5);
        assert_eq!(recorded(&world, &claimant), Some(device_id(&claimant)), "{case}");
        assert!(world.devices.contains_key(&other), "{case}");
    }
}

#[test]
fn domain_that_a_pod_invents_on_headscale_is_not_recorded() {
    let mut world = world();
    world.tailnet = super::world::headscale();
    expose(&mut world, "a", "a");
    world.settle();
    assert_eq!(shown(&world, "a")[0]["hostname"], "a.tail1234.ts.net", "the first replica reports the domain");
    expose(&mut world, "b", "b");
    world.rounds(2);
    let b = replica(&world, "b");
    for replica in [&*replica(&world, "a"), &*b] {
        write(&mut world, replica, &[("device_fqdn", "a.bank.example.")]);
    }
    world.asleep.remove(&b);
    world.rounds(5);
    write(&mut world, &b, &[("device_fqdn", "b.bank.example.")]);
    world.rounds(5);
    assert_eq!(shown(&world, "a")[0]["hostname"], "a.tail1234.ts.net");
    assert_eq!(shown(&world, "b")[0]["hostname"], "b.tail1234.ts.net");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The simulated cluster checks after each pass that every shown address and name is of a record, and that no device has two records.
    #[test]
    fn no_sequence_of_reports_shows_an_address_or_takes_a_device(
        writes in proptest::collection::vec((0_usize..3, 0_usize..7, 0_usize..6, 0_usize..5, any::<bool>(), 0_i64..90), 1..12),
    ) {
        let mut world = world();
        expose(&mut world, "a", "shop");
        expose(&mut world, "b", "shop");
        world.group("pg", json!({"type": "egress", "replicas": 1, "hostnamePrefix": "shop"}));
        world.rounds(3);
        let replicas = [replica(&world, "a"), replica(&world, "b"), "pg-0".to_owned()];
        let ids: Vec<_> = replicas.iter().map(|replica| device_id(replica).to_string()).collect();
        for (by, id, addresses, name, reissue, seconds) in writes {
            let id = ids.get(id).map_or("nNone", String::as_str);
            let mut values = vec![("device_id", id), ("device_ips", INVENTED_ADDRESSES[addresses]), ("device_fqdn", INVENTED_NAMES[name])];
            values.extend(reissue.then_some(("reissue_authkey", "")));
            if world.objects.contains_key(&object(Kind::Secret, &replicas[by])) {
                write(&mut world, &replicas[by], &values);
            }
            world.now += seconds;
            world.round();
            for (replica, own) in replicas.iter().zip(&ids) {
                let record = recorded(&world, replica);
                prop_assert!(record.as_ref().is_none_or(|record| record.as_str() == own), "{replica} has {record:?}");
            }
        }
    }
}

/// After a restore of headscale's database another machine can have the ID of a recorded device.
#[test]
fn recorded_device_whose_id_another_machine_has_is_as_deleted() {
    type Act = fn(&mut World, &str);
    let acts: [(&str, Act); 4] = [
        ("nothing", |_, _| {}),
        ("another key", |world, proxy| world.edit(&object(Kind::Secret, proxy), |state| state["data"]["reissue_authkey"] = json!(""))),
        ("another device", |world, proxy| {
            let mut other = simulation::joined(&device_id("other"), 99, vec!["tag:k8s".to_owned()], world.time());
            simulation::name_device(&mut other, "shop", "", false);
            write(world, proxy, &[("device_id", &other.id)]);
            world.devices.insert(device_id("other"), other);
        }),
        ("deletion", |world, _| world.delete_service("shop")),
    ];
    for (what, act) in acts {
        let run = |is_foreign: bool| {
            let mut world = world();
            world.tailnet = super::world::headscale();
            expose(&mut world, "shop", "shop");
            world.settle();
            let proxy = replica(&world, "shop");
            let id = device_id(&proxy);
            world.asleep.insert(proxy.clone());
            world.now += 60;
            let mut foreign = world.devices.remove(&id).expect("its device");
            foreign.created = Some(world.time());
            if is_foreign {
                world.devices.insert(id.clone(), foreign.clone());
            }
            act(&mut world, &proxy);
            for _ in 0..12 {
                world.wait(60);
                world.rounds(3);
            }
            if is_foreign {
                assert_eq!(world.devices.remove(&id).as_ref(), Some(&foreign), "{what}");
            }
            let condition = (!world.services.is_empty()).then(|| world.condition("shop", PROXY_READY));
            (world.minted, world.device_records(), condition, world.objects, world.devices)
        };
        assert_eq!(run(true), run(false), "{what}");
    }
}

/// headscale leaves the session of a deleted device open, so its replica does not notice.
#[test]
fn replica_whose_device_was_deleted_at_headscale_joins_again_with_another_key() {
    let mut world = world();
    world.tailnet = super::world::headscale();
    expose(&mut world, "shop", "shop");
    world.settle();
    let proxy = replica(&world, "shop");
    let (id, config) = (device_id(&proxy), object(Kind::Secret, &format!("{proxy}-config")));
    let marked = |world: &World| {
        let data = world.objects[&config]["data"].get("deleted-device").cloned();
        data.and_then(|data| serde_json::from_value::<k8s_openapi::ByteString>(data).ok())
    };
    world.asleep.insert(proxy.clone());
    world.wait(180);
    world.rounds(10);
    let requests = world.device_requests;
    world.rounds(60);
    assert_eq!((marked(&world), world.device_requests), (None, requests), "an existing device is read once in three minutes");
    world.devices.remove(&id);
    world.wait(180);
    world.rounds(2);
    assert_eq!(marked(&world), None, "one absence can be an error");
    world.rounds(10);
    assert_eq!(marked(&world).map(|marked| marked.0), Some(id.as_str().as_bytes().to_vec()));
    let condition = world.condition("shop", PROXY_READY).expect("a condition");
    assert!(condition.0 == "False" && condition.2.contains("was deleted at the control plane"), "{condition:?}");
    let minted = world.minted;
    world.edit(&object(Kind::Secret, &proxy), |state| state["data"]["reissue_authkey"] = json!(""));
    world.rounds(3);
    assert_eq!((world.minted, marked(&world), recorded(&world, &proxy)), (minted + 1, None, None));
}
