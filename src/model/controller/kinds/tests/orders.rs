//! Release of advertised names in every order of events: an exhaustive state search in a small world.
//!
//! [`super::publishing`] generates long random histories in a larger world. Here every possible step of a group, its names, its replicas
//! and another cluster that may share a name is applied in each distinct state, until no new state is found. States are distinct if they
//! differ in the inputs of a pass. The clock is fixed, and each pass runs without a memo.

use std::collections::{HashMap, VecDeque};

use super::*;
use crate::model::controller::ingress::spec::service_name;
use crate::model::controller::workload::objects::certificate::{CertificateRecord, accounts_ref, domain_of};
use crate::model::controller::workload::vip_service::{DesiredVipService, ServiceOwner};

const GROUP: &str = "in";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    DeleteIngress(usize),
    DeleteGroup,
    /// The Pod of a replica is removed; its reported state stays.
    Kill(u32),
    /// A Tailscale Service is deleted at the control plane.
    DeleteVip(usize),
    /// The Secret of a certificate is deleted.
    DeleteSecret(usize),
    /// Another cluster becomes an owner of a Tailscale Service.
    Join(usize),
    /// The other cluster releases it.
    Leave(usize),
    /// A new leader without control plane data.
    Restart,
    /// The control plane responds to it.
    Answer,
    /// A pass over all groups.
    Pass,
    /// The StatefulSet controller creates and deletes Pods.
    Pods,
    /// A replica applies its config and reports it.
    Acknowledge(u32),
}

#[derive(Debug, Clone, Copy)]
struct Size {
    names: usize,
    replicas: u32,
    others: &'static [Other],
}

/// An actor besides the user and the reconciler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    /// Another cluster becomes an owner of advertised names, and releases them.
    Cluster,
    /// Deletes Tailscale Services at the control plane.
    Vandal,
    /// Deletes Secrets of certificates.
    Thief,
    /// Changes the leader.
    Leader,
    /// Kills Pods.
    Killer,
    Group,
}

/// A state, and the step that first reached it.
struct State {
    world: World,
    before: Option<(usize, Step)>,
    /// Successors without further actions of users or other actors.
    follows: Vec<usize>,
}

fn label(name: usize) -> String {
    format!("l{name}")
}

fn vip(name: usize) -> String {
    service_name(&label(name))
}

fn ingress(world: &World, name: usize) -> Option<&k8s_openapi::api::networking::v1::Ingress> {
    world.ingresses.get(&("default".to_owned(), format!("a{name}")))
}

fn them() -> ServiceOwner {
    ServiceOwner { id: "them".into(), ..ServiceOwner::default() }
}

/// Owners of a Tailscale Service; empty if it does not exist.
fn owners(world: &World, name: &str) -> Vec<String> {
    let text = world.hosted.vips.get(name).and_then(|vip| vip.annotations.get(crate::api::vip::OWNERS));
    let owners = text.map(|text| serde_json::from_str::<crate::api::vip::Owners>(text).expect("owners"));
    owners.into_iter().flat_map(|owners| owners.owner_refs).map(|reference| reference.operator_id).collect()
}

/// Certificate Secret of a name.
fn secret(world: &World, name: usize) -> Option<ObjectRef> {
    let of = |dns: &str| dns.split('.').next() == Some(&label(name));
    world.objects.iter().find(|(_, stored)| domain_of(stored).is_some_and(of)).map(|(object, _)| object.clone())
}

/// Whether a replica with a Pod is recorded as advertising a name. The record may be of an earlier Pod.
fn advertising(world: &World, name: &str) -> bool {
    world.observed_replicas(GROUP).values().any(|replica| {
        let says = replica.state.as_ref().is_some_and(|state| state.advertises.contains(name));
        says && replica.pod.is_some()
    })
}

/// Whether a replica serves a name according to its current Pod.
fn advertises(world: &World, name: &str) -> bool {
    world.observed_replicas(GROUP).values().any(|replica| crate::model::controller::ingress::advertise::serves(replica, name))
}

impl Size {
    /// A converged world with all names advertised.
    fn world(self) -> World {
        let mut world = super::publish::publishing(json!({"type": "ingress", "replicas": self.replicas}));
        for name in 0..self.names {
            world.ingress(&format!("a{name}"), GROUP, (&label(name), "web"));
        }
        world.settle();
        assert!((0..self.names).all(|name| advertising(&world, &vip(name))), "all is published");
        world
    }

    fn steps(self) -> Vec<Step> {
        let replicas = 0..self.replicas;
        let each = (0..self.names).flat_map(|name| {
            let user = [(None, Step::DeleteIngress(name))];
            let others = [(Other::Vandal, Step::DeleteVip(name)), (Other::Thief, Step::DeleteSecret(name))];
            let cluster = [(Other::Cluster, Step::Join(name)), (Other::Cluster, Step::Leave(name))];
            user.into_iter().chain(others.into_iter().chain(cluster).map(|(who, step)| (Some(who), step)))
        });
        let killer = replicas.clone().map(|ordinal| (Some(Other::Killer), Step::Kill(ordinal)));
        let leader = [(Some(Other::Leader), Step::Restart), (Some(Other::Leader), Step::Answer), (Some(Other::Group), Step::DeleteGroup)];
        let obeys = replicas.map(Step::Acknowledge).chain([Step::Pass, Step::Pods]).map(|step| (None, step));
        let all = each.chain(killer).chain(leader).chain(obeys);
        all.filter(|(who, _)| who.is_none_or(|who| self.others.contains(&who))).map(|(_, step)| step).collect()
    }

    /// Whether users have deleted all names.
    fn over(self, world: &World) -> bool {
        (0..self.names).all(|name| ingress(world, name).is_none_or(|stored| stored.metadata.deletion_timestamp.is_some()))
    }

    /// Remaining objects of our names, and of the group if it was deleted.
    fn remaining(self, world: &World) -> Vec<String> {
        let ours = |name: &String| owners(world, name).iter().any(|owner| owner == "here");
        let vips = (0..self.names).map(vip).filter(ours);
        let secrets = (0..self.names).filter_map(|name| secret(world, name)).map(|object| object.to_string());
        let ingresses = world.ingresses.keys().map(|(_, name)| name.clone());
        let config = world.config(GROUP).origins.into_keys();
        let is_terminating = world.groups.get(GROUP).is_none_or(|group| group.metadata.deletion_timestamp.is_some());
        let objects = world.objects.keys().filter(|object| is_terminating && **object != accounts_ref(NS)).map(ToString::to_string);
        let devices = world.devices.keys().map(ToString::to_string);
        let group = world.groups.keys().cloned().chain(devices).filter(|_| is_terminating);
        vips.chain(secrets).chain(ingresses).chain(config).chain(objects).chain(group).collect()
    }
}

impl Step {
    /// Whether the step happens without actions of users or other actors.
    fn follows(self) -> bool {
        matches!(self, Self::Answer | Self::Pass | Self::Pods | Self::Acknowledge(_))
    }

    /// Whether the step is possible in this world.
    fn can(self, world: &World) -> bool {
        let there = |ordinal| world.pods.contains_key(&names::replica(GROUP, ordinal));
        let owned = |name, by: &str| owners(world, &vip(name)).iter().any(|owner| owner == by);
        match self {
            Self::DeleteIngress(name) => ingress(world, name).is_some_and(|stored| stored.metadata.deletion_timestamp.is_none()),
            Self::DeleteGroup => world.groups.get(GROUP).is_some_and(|group| group.metadata.deletion_timestamp.is_none()),
            Self::Kill(ordinal) | Self::Acknowledge(ordinal) => there(ordinal),
            Self::DeleteVip(name) => world.hosted.vips.contains_key(&vip(name)),
            Self::DeleteSecret(name) => secret(world, name).is_some(),
            Self::Join(name) => !owned(name, "them"),
            Self::Leave(name) => owned(name, "them"),
            Self::Restart => world.hosted.listed.is_some(),
            Self::Answer => world.tailnet == TailnetState::Asking,
            Self::Pass | Self::Pods => true,
        }
    }

    fn on(self, world: &mut World) {
        match self {
            Self::DeleteIngress(name) => world.delete_ingress(&format!("a{name}")),
            Self::DeleteGroup => world.delete_group(GROUP),
            Self::Kill(ordinal) => drop(world.pods.remove(&names::replica(GROUP, ordinal))),
            Self::DeleteVip(name) => drop(world.hosted.vips.remove(&vip(name))),
            Self::DeleteSecret(name) => drop(secret(world, name).map(|object| world.objects.remove(&object))),
            // The cached list does not show it.
            Self::Join(name) => at_other_cluster(world, |hosted| {
                let (tags, ports) = (Vec::new(), Vec::new());
                let desired = DesiredVipService {
                    name: vip(name),
                    group: "g".into(),
                    tags,
                    ports,
                    share: true,
                    adopt: false,
                    taken_by: BTreeSet::new(),
                    sole_owner: None,
                };
                hosted.publish(&desired, &them(), true);
            }),
            Self::Leave(name) => at_other_cluster(world, |hosted| hosted.release(&vip(name), &them(), "g")),
            Self::Restart => (world.hosted.listed, world.tailnet) = (None, TailnetState::Asking),
            Self::Answer => world.tailnet = super::world::ready(),
            Self::Pass => {
                for name in world.keys_of_work() {
                    world.act(&name, &pass(&world.observe(&name)));
                }
            }
            Self::Pods => drop(world.controller()),
            Self::Acknowledge(ordinal) => world.replica(GROUP, ordinal),
        }
    }

    /// Checks the invariants of a pass.
    fn judge(self, size: Size, (before, after): (&World, &World)) -> Result<(), String> {
        if self != Self::Pass {
            return Ok(());
        }
        for name in 0..size.names {
            let (vip, theirs) = (vip(name), |world: &World, name: &str| owners(world, name).iter().any(|owner| owner == "them"));
            let gone = before.hosted.vips.contains_key(&vip) && !after.hosted.vips.contains_key(&vip);
            let ours = owners(after, &vip).iter().any(|owner| owner == "here");
            let stored =
                |world: &World| ingress(world, name).is_some_and(|stored| stored.metadata.finalizers.iter().flatten().next().is_some());
            let faults = [
                (gone && advertising(before, &vip), "it was deleted while a replica advertised it"),
                (theirs(before, &vip) != theirs(after, &vip), "another cluster's part in it was touched"),
                (secret(before, name).is_some() && secret(after, name).is_none() && ours, "its certificate went before it"),
                (stored(before) && !stored(after) && ours, "its Ingress was released first"),
                (stored(before) && !stored(after) && secret(after, name).is_some(), "its Ingress was released before its certificate"),
                (
                    advertises(after, &vip) && !after.config(GROUP).origins.contains_key(&vip),
                    "a replica advertises it, and nothing serves it",
                ),
            ];
            if let Some((_, what)) = faults.into_iter().find(|(is, _)| *is) {
                return Err(format!("{vip}: {what}"));
            }
        }
        Ok(())
    }
}

/// Changes the control plane as another cluster does; the cached list stays unchanged.
fn at_other_cluster(world: &mut World, act: impl FnOnce(&mut super::world::Hosted)) {
    let listed = world.hosted.listed.take();
    act(&mut world.hosted);
    world.hosted.listed = listed;
}

/// Key of a state: all inputs of a pass, without times and generated IDs.
fn key(world: &World) -> String {
    let metadata = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        (metadata.deletion_timestamp.is_some(), metadata.finalizers.clone().unwrap_or_default())
    };
    let groups: Vec<_> = world.groups.values().map(|group| metadata(&group.metadata)).collect();
    let ingresses: Vec<_> = world.ingresses.iter().map(|((_, name), stored)| (name, metadata(&stored.metadata))).collect();
    let objects: Vec<_> =
        world.objects.iter().map(|(object, stored)| (object.kind, &object.name, CertificateRecord::read(stored).filled)).collect();
    let config = world.config(GROUP);
    let config = (config.origins.keys(), config.serve.keys(), config.routes.keys());
    let replicas: Vec<_> = world.observed_replicas(GROUP).into_values().map(|replica| reported(&replica)).collect();
    let owned: Vec<_> = world.hosted.vips.keys().map(|name| (name, owners(world, name))).collect();
    let annotations = world.hosted.listed.as_deref().map(|listed| listed.services.iter().map(|(name, vip)| (name, &vip.annotations)));
    let listed = annotations.map(Iterator::collect::<Vec<_>>);
    let asking = world.tailnet == TailnetState::Asking;
    let plane = (owned, listed, asking, world.devices.keys().collect::<Vec<_>>(), world.keys.len());
    format!("{groups:?} {ingresses:?} {objects:?} {config:?} {replicas:?} {plane:?}")
}

/// Inputs of a pass from a replica.
fn reported(replica: &ObservedReplica) -> impl std::fmt::Debug + use<> {
    let uid = replica.pod.as_ref().map(|pod| pod.metadata.uid.clone());
    let state = replica.state.as_deref();
    let own = uid.clone().map(|uid| state.is_some_and(|state| state.pod_uid == uid));
    let state = state.map(|state| (state.device_id.clone(), state.advertises.clone()));
    let config = replica.config.as_deref();
    let advertised = config
        .map(|config| (config.advertises().map(str::to_owned).collect::<Vec<_>>(), config.auth_key().is_some(), config.key_id.is_some()));
    (own, state, advertised, replica.device().cloned())
}

/// Steps that reached a state, for failure messages.
fn story(states: &[State], mut at: usize) -> String {
    let mut steps = Vec::new();
    while let Some((before, step)) = states[at].before {
        steps.push(format!("{step:?}"));
        at = before;
    }
    steps.reverse();
    steps.join(", ")
}

/// Breadth-first search over all steps; returns the states in the order of their distance.
fn explore(size: Size) -> Vec<State> {
    let world = size.world();
    let mut visited = HashMap::from([(key(&world), 0)]);
    let mut states = vec![State { world, before: None, follows: Vec::new() }];
    let (steps, mut next) = (size.steps(), VecDeque::from([0]));
    while let Some(at) = next.pop_front() {
        for step in &steps {
            if !step.can(&states[at].world) {
                continue;
            }
            let mut world = states[at].world.fork();
            step.on(&mut world);
            if let Err(fault) = step.judge(size, (&states[at].world, &world)) {
                panic!("{fault}: after {}, {step:?}", story(&states, at));
            }
            let new = states.len();
            let to = *visited.entry(key(&world)).or_insert(new);
            if to == new {
                states.push(State { world, before: Some((at, *step)), follows: Vec::new() });
                next.push_back(new);
            }
            if step.follows() && to != at {
                states[at].follows.push(to);
            }
        }
    }
    states
}

/// Once users have deleted all names, every order of the following steps terminates with nothing left.
fn all_end(size: Size, states: &[State]) {
    let over: Vec<bool> = states.iter().map(|state| size.over(&state.world)).collect();
    let mut awaited: Vec<usize> = states.iter().map(|state| state.follows.len()).collect();
    let mut from = vec![Vec::new(); states.len()];
    for (at, state) in states.iter().enumerate() {
        state.follows.iter().for_each(|to| from[*to].push(at));
    }
    let mut ended: Vec<usize> = (0..states.len()).filter(|at| over[*at] && awaited[*at] == 0).collect();
    for at in &ended {
        let remaining = size.remaining(&states[*at].world);
        assert!(remaining.is_empty(), "{remaining:?} is left after {}", story(states, *at));
    }
    let mut count = 0;
    while let Some(at) = ended.pop() {
        count += 1;
        for before in &from[at] {
            awaited[*before] -= 1;
            if awaited[*before] == 0 && over[*before] {
                ended.push(*before);
            }
        }
    }
    let endless = (0..states.len()).find(|at| over[*at] && awaited[*at] > 0);
    assert!(endless.is_none(), "no end after {}", story(states, endless.unwrap_or_default()));
    assert_eq!(count, over.iter().filter(|over| **over).count());
}

/// Every order of steps is safe and terminates; visits at least `least` states.
fn every_order_ends(size: Size, least: usize) {
    let states = explore(size);
    assert!(states.len() >= least, "{} states of {size:?}", states.len());
    all_end(size, &states);
}

#[test]
fn name_is_released_in_every_order_of_interference() {
    let others = &[Other::Killer, Other::Group, Other::Vandal, Other::Thief, Other::Leader];
    every_order_ends(Size { names: 1, replicas: 1, others }, 1_500);
}

#[test]
fn name_of_two_clusters_is_released_in_every_order() {
    every_order_ends(Size { names: 1, replicas: 1, others: &[Other::Cluster, Other::Killer, Other::Group, Other::Leader] }, 500);
}

#[test]
fn name_on_two_replicas_is_released_in_every_order() {
    every_order_ends(Size { names: 1, replicas: 2, others: &[Other::Killer, Other::Group] }, 300);
}

#[test]
fn two_names_are_released_in_every_order() {
    every_order_ends(Size { names: 2, replicas: 1, others: &[Other::Killer, Other::Group] }, 400);
}
