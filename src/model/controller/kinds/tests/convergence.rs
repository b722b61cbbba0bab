//! Egress reconciliation converges to the desired state after any sequence of changes.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

/// An action of users or clusters.
#[derive(Debug, Clone)]
enum Act {
    Group(u8, u8),
    DeleteGroup(u8),
    Service(u8, u8, Vec<u16>),
    Break(u8, u8),
    Unannotate(u8),
    DeleteService(u8),
    /// The default group, and whether the namespace opts out.
    Rules(Option<u8>, bool),
    Lose(u8),
    Restart(u8),
    Sleep(u8),
    Wake,
    Time(u8),
}

fn acts() -> impl Strategy<Value = Act> {
    let ports = prop::collection::btree_set(prop::sample::select(vec![80u16, 443, 5432, 9002]), 1..3);
    prop_oneof![
        3 => (0u8..3, 0u8..4).prop_map(|(group, replicas)| Act::Group(group, replicas)),
        1 => (0u8..3).prop_map(Act::DeleteGroup),
        6 => (0u8..4, 0u8..3, ports).prop_map(|(name, group, ports)| Act::Service(name, group, ports.into_iter().collect())),
        1 => (0u8..4, 0u8..3).prop_map(|(name, group)| Act::Break(name, group)),
        1 => (0u8..4).prop_map(Act::Unannotate),
        2 => (0u8..4).prop_map(Act::DeleteService),
        3 => any::<u8>().prop_map(Act::Lose),
        2 => any::<u8>().prop_map(Act::Restart),
        1 => any::<u8>().prop_map(Act::Sleep),
        1 => Just(Act::Wake),
        1 => any::<u8>().prop_map(Act::Time),
    ]
}

/// The same with Services that name no group, and changes of the default group.
fn acts_by_default() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => acts(),
        2 => (0u8..4, prop::sample::select(vec![80u16, 443])).prop_map(|(name, port)| Act::Service(name, UNNAMED, vec![port])),
        1 => (prop::option::weighted(0.8, 0u8..3), prop::bool::weighted(0.2)).prop_map(|(group, out)| Act::Rules(group, out)),
    ]
}

/// Number that means: no annotation.
const UNNAMED: u8 = u8::MAX;

impl Act {
    fn on(&self, world: &mut World) {
        let (group, service) = (|group: u8| format!("g{group}"), |name: u8| format!("s{name}"));
        let nth = |count: usize, which: u8| usize::from(which) % count.max(1);
        match self {
            Self::Group(name, replicas) => {
                let deleting = world.groups.get(&group(*name)).is_some_and(|stored| stored.metadata.deletion_timestamp.is_some());
                if !deleting {
                    world.group(&group(*name), json!({"type": "egress", "replicas": replicas}));
                }
            }
            Self::DeleteGroup(name) => world.delete_group(&group(*name)),
            Self::Service(name, UNNAMED, ports) => {
                world.service(&service(*name), json!({"tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"}), ports);
            }
            Self::Rules(default, out) => {
                world.assignment.defaults.egress = default.map(group);
                world.assignment.update_namespace("default", (!out).then(Default::default).as_ref());
            }
            Self::Service(name, to_group, ports) => world.service(&service(*name), to(&group(*to_group)), ports),
            Self::Break(name, to_group) => {
                let annotations = json!({"tailscale.com/proxy-group": group(*to_group), "tailscale.com/tailnet-ip": "x"});
                world.service(&service(*name), annotations, &[80]);
            }
            Self::Unannotate(name) => world.service(&service(*name), json!({}), &[80]),
            Self::DeleteService(name) => world.delete_service(&service(*name)),
            Self::Lose(which) => {
                // Secrets are never lost: with a state Secret the identity would be lost, and the device would have no owner.
                let config = |object: &&ObjectRef| object.kind != Kind::Secret;
                let lost = world.objects.keys().filter(config).nth(nth(world.objects.keys().filter(config).count(), *which)).cloned();
                lost.map(|lost| world.objects.remove(&lost));
            }
            Self::Restart(which) => {
                let pod = world.pods.keys().nth(nth(world.pods.len(), *which)).cloned();
                pod.map(|pod| world.pods.remove(&pod));
            }
            Self::Sleep(which) => world.asleep.extend(world.pods.keys().nth(nth(world.pods.len(), *which)).cloned()),
            Self::Wake => world.asleep.clear(),
            Self::Time(seconds) => world.now += i64::from(*seconds),
        }
    }
}

proptest! {
    // The same cases each time, as a run costs seconds; another seed explores others.
    #![proptest_config(ProptestConfig { cases: 48, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// After any sequence of changes passes terminate, everything requested is served and everything else is removed.
    #[test]
    fn egress_reconciliation_converges(acts in prop::collection::vec((acts(), 0u8..3), 1..30)) {
        run(acts)?;
    }

    #[test]
    fn egress_reconciliation_with_default_groups_converges(acts in prop::collection::vec((acts_by_default(), 0u8..3), 1..30)) {
        run(acts)?;
    }
}

fn run(acts: Vec<(Act, u8)>) -> Result<(), TestCaseError> {
    let mut world = World::new();
    for (act, rounds) in acts {
        act.on(&mut world);
        world.rounds(rounds.into());
    }
    world.asleep.clear();
    world.settle();
    for ((_, name), service) in &world.services {
        prop_assert!(service.metadata.deletion_timestamp.is_none(), "{} is stuck", name);
        // Check the assigned group: its previous group may still serve it meanwhile.
        let Some(group) = world.assignment.egress(service).group().map(str::to_owned) else { continue };
        let serves = world.groups.get(&group).is_some_and(|group| group.spec.replicas != Some(0));
        if serves && validate::service(service).is_empty() {
            prop_assert_eq!(&world.condition(name, EGRESS_SVC_READY).expect("a condition").0, "True", "{}", name);
            let key = format!("default-{name}");
            prop_assert!(world.entries(&group).contains_key(&key));
        }
    }
    prop_assert!(world.groups.values().all(|group| group.metadata.deletion_timestamp.is_none()));
    let replicas: usize = world.groups.values().map(|group| group.spec.desired_replicas() as usize).sum();
    prop_assert_eq!((world.devices.len(), world.keys.len()), (replicas, 0), "nothing is left behind");
    for group in world.groups.keys().cloned().collect::<Vec<_>>() {
        world.delete_group(&group);
    }
    for name in world.services.keys().map(|(_, name)| name.clone()).collect::<Vec<_>>() {
        world.delete_service(&name);
    }
    world.settle();
    prop_assert!(world.services.is_empty() && world.groups.is_empty(), "{:?}", world.services.keys());
    prop_assert!(world.objects.is_empty() && world.devices.is_empty(), "{:?}", world.objects.keys());
    Ok(())
}
