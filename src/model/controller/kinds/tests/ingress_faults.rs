//! An Ingress of a group has its address in its status, or a fault that is repeated as an Event.

use super::publish::{ingress, publishing};
use super::*;
use crate::api::vip::VipService;
use crate::model::controller::workload::actions::Notice;
use crate::model::controller::workload::event_schedule::{MIN_DURATION, REPEAT_INTERVAL};

/// Something by which an Ingress of a group may have no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Unapproved,
    NoHttps,
    SlowOrders,
    Asleep,
    Unready,
    NoPods,
    NoReplicas,
    ServiceDenied,
    ListDenied,
    Unavailable,
    Silent,
    ForeignService,
    WithoutServices,
    Invalid,
    DeletedGroup,
}

const ALL: [Trouble; 15] = [
    Trouble::Unapproved,
    Trouble::NoHttps,
    Trouble::SlowOrders,
    Trouble::Asleep,
    Trouble::Unready,
    Trouble::NoPods,
    Trouble::NoReplicas,
    Trouble::ServiceDenied,
    Trouble::ListDenied,
    Trouble::Unavailable,
    Trouble::Silent,
    Trouble::ForeignService,
    Trouble::WithoutServices,
    Trouble::Invalid,
    Trouble::DeletedGroup,
];

impl Trouble {
    fn begin(self, world: &mut World) {
        let replicas = || ["in-0", "in-1"].map(str::to_owned);
        match self {
            Self::Unapproved => drop(world.hosted.unapproved.insert("svc:app".into())),
            Self::NoHttps => world.hosted.no_https = true,
            Self::SlowOrders => world.hosted.slow_orders = true,
            Self::Asleep => world.asleep.extend(replicas()),
            Self::Unready => {
                for pod in world.pods.keys().cloned().collect::<Vec<_>>() {
                    world.set_ready(&pod, &json!({"type": "Ready", "status": "False"}));
                }
            }
            Self::NoPods => {
                world.unmade.extend(replicas());
                world.pods.clear();
            }
            Self::NoReplicas => world.group("in", json!({"type": "ingress", "replicas": 0})),
            Self::ServiceDenied => deny(world, "Tailscale Service svc:app"),
            Self::ListDenied => {
                deny(world, "the list of Tailscale Services");
                world.hosted.listed = None;
            }
            Self::Unavailable => world.tailnet = TailnetState::Unavailable("The credentials are rejected.".into()),
            Self::Silent => {
                world.tailnet = TailnetState::Asking;
                world.hosted.listed = None;
            }
            Self::ForeignService => {
                drop(world.hosted.vips.insert("svc:app".into(), VipService { name: "svc:app".into(), ..VipService::default() }));
                world.hosted.listed = None;
            }
            Self::WithoutServices => world.tailnet = headscale(),
            Self::Invalid => world.ingress("app", "in", ("app", "missing")),
            Self::DeletedGroup => world.delete_group("in"),
        }
    }
}

fn deny(world: &mut World, what: &str) {
    let denial = ControlPlaneError { since: world.time(), why: "The OAuth client lacks a scope: add it.".into(), refused: None };
    world.denied.insert(what.into(), denial);
}

/// Faults of the Ingress, of all workloads.
fn faults(world: &World) -> Vec<Notice> {
    let all = world.keys_of_work().into_iter().flat_map(|key| pass(&world.observe(&key)).faults);
    all.filter(|fault| fault.warning && fault.subject == WorkloadKey::Ingress("default".into(), "app".into())).collect()
}

fn has_address(world: &World) -> bool {
    let status = json!(world.ingresses[&("default".to_owned(), "app".to_owned())].status);
    status["loadBalancer"]["ingress"].as_array().is_some_and(|entries| !entries.is_empty())
}

/// A cluster with an Ingress and these troubles.
fn troubled(troubles: &[Trouble], is_served_before: bool) -> World {
    let mut world = publishing(ingress());
    if is_served_before {
        world.ingress("app", "in", ("app", "web"));
        world.settle();
        assert!(has_address(&world) && faults(&world).is_empty());
    }
    for trouble in troubles.iter().filter(|trouble| **trouble != Trouble::Invalid) {
        trouble.begin(&mut world);
    }
    let backend = if troubles.contains(&Trouble::Invalid) { "missing" } else { "web" };
    world.ingress("app", "in", ("app", backend));
    world.rounds(12);
    world
}

#[test]
fn ingress_of_a_group_has_its_address_or_a_fault() {
    let (mut without_address, mut silent) = (0, Vec::new());
    let pairs = ALL.iter().enumerate().flat_map(|(index, one)| ALL[index..].iter().map(move |other| [*one, *other]));
    let served = ALL.map(|trouble| ([trouble; 2], true));
    // A group does not move from one control plane to the other.
    let served = served.into_iter().filter(|(troubles, _)| !troubles.contains(&Trouble::WithoutServices));
    for (troubles, is_served_before) in pairs.map(|pair| (pair, false)).chain(served) {
        let mut world = troubled(&troubles, is_served_before);
        if has_address(&world) {
            continue;
        }
        without_address += 1;
        world.events.clear();
        for wait in [MIN_DURATION, REPEAT_INTERVAL] {
            world.now += i64::try_from(wait.as_secs()).expect("small");
            world.rounds(2);
        }
        let reported: Vec<_> = faults(&world).iter().map(|fault| fault.reason).collect();
        if reported.is_empty() || !reported.iter().any(|reason| world.event_count(reason) > 0) {
            silent.push((troubles, is_served_before, reported, has_address(&world)));
        }
    }
    silent.retain(|(.., has_address)| !has_address);
    assert!(silent.is_empty(), "{silent:#?}");
    assert!(without_address > 100, "{without_address}");
}

#[test]
fn fault_of_an_ingress_without_address_names_an_action() {
    for (trouble, reason, action) in [
        (Trouble::Unapproved, "NotAdvertised", "list their tag in autoApprovers.services"),
        (Trouble::NoHttps, "PartiallyAdvertised", "enable HTTPS certificates in the DNS page of the admin console"),
        (Trouble::SlowOrders, "NotAdvertised", "the log of the replicas has the state of the order"),
        (Trouble::Unready, "NotAdvertised", "ProxyGroup in has no ready replica: its conditions and its Pods say why"),
        (Trouble::ListDenied, "NotAdvertised", "The OAuth client lacks a scope: add it."),
        (Trouble::ServiceDenied, "TailscaleServiceDenied", "The OAuth client lacks a scope: add it."),
        (Trouble::Unavailable, "NotAdvertised", "The credentials are rejected."),
    ] {
        let mut world = troubled(&[trouble], false);
        let found: Vec<_> = faults(&world).into_iter().map(|fault| (fault.reason, fault.message)).collect();
        assert!(found.len() == 1 && found[0].0 == reason && found[0].1.contains(action), "{trouble:?}: {found:?}");
        let early = world.event_count("NotAdvertised");
        world.now += i64::try_from(MIN_DURATION.as_secs()).expect("small");
        world.rounds(2);
        assert_eq!((early, world.event_count(reason)), (0, 1), "{trouble:?}: each new Ingress waits for a while");
    }
}

#[test]
fn repaired_ingress_gets_an_event_that_its_faults_have_ended() {
    let mut world = troubled(&[Trouble::Unapproved], false);
    let wait = |world: &mut World| {
        world.now += i64::try_from(MIN_DURATION.as_secs()).expect("small");
        world.rounds(3);
    };
    wait(&mut world);
    world.hosted.unapproved.clear();
    world.rounds(3);
    assert!(has_address(&world) && faults(&world).is_empty());
    assert_eq!((world.event_count("NotAdvertised"), world.event_count("FaultResolved")), (1, 0));
    wait(&mut world);
    wait(&mut world);
    assert_eq!((world.event_count("NotAdvertised"), world.event_count("FaultResolved")), (1, 1));
}
