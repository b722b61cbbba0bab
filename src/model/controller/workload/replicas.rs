//! Secrets and auth keys of replicas, and their removal from the tailnet.
//!
//! A surplus replica drains first: nothing of it changes while its Pod exists or could return. Then its device is deleted, then its
//! Secrets, which are the record of the device.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::api::condition::reason;
use crate::api::names;
use crate::api::siblings::Siblings;
use crate::api::targets::TargetRules;
use crate::model::controller::workload::actions::{ConfigDraft, ControlAction, Delete, end_of_device};
use crate::model::controller::workload::auth_keys::{KeyDecision, ReplicaLogin, decide};
use crate::model::controller::workload::device_records;
use crate::model::controller::workload::device_records::{claimed_device, draft, record};
use crate::model::controller::workload::identity::KeyMint;
use crate::model::controller::workload::objects::nodeport::node_port_ref;
use crate::model::controller::workload::objects::secrets::{ReplicaSecret, config_ref, state, state_ref};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::observed::TailnetState;
use crate::model::controller::workload::observed::replica::{ObservedReplica, ReplicaConfig};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::{Ownership, Pass, deletion, is_terminating};
use crate::model::controller::workload::readiness::{elapsed, pod_addresses};
use crate::model::controller::workload::role::Role;
use crate::model::controller::workload::target_rules;

/// Time after the end of a Pod's grace period in which its node reports that it is gone, unless the node is lost.
const NODE_REPORT_TIMEOUT: Duration = Duration::from_mins(2);

/// Time in which a Pod writes its deleted state Secret again.
const REPORT_WAIT: Duration = Duration::from_secs(20);

/// What a replica advertises in the tailnet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReplicaAdvertisement {
    /// Tailscale Services.
    pub(crate) names: BTreeSet<String>,
    pub(crate) routes: BTreeSet<String>,
    /// Whether it is an app connector; `None` for what is no Connector.
    pub(crate) app_connector: Option<bool>,
}

#[derive(Debug)]
struct ReplicaInputs<'a> {
    endpoints: Option<&'a Vec<String>>,
    /// `None`: another writer decides it.
    advertised: Option<&'a ReplicaAdvertisement>,
    targets: Option<&'a TargetRules>,
    siblings: Option<&'a Siblings>,
}

/// Plans the Secrets of every desired replica, by ordinal: static endpoints, and what is advertised if the reconciler decides it.
pub(crate) fn secrets<'a>(
    pass: &Pass<'a>,
    shape: &RenderContext<'_>,
    endpoints: &BTreeMap<u32, Vec<String>>,
    advertised: Option<&BTreeMap<u32, ReplicaAdvertisement>>,
) -> PlanPart<'a> {
    let mut work = pass.part();
    let (none, targets) = (ObservedReplica::default(), target_rules::rules(pass, shape));
    let siblings = siblings(pass, shape);
    for ordinal in 0..shape.spec.replicas {
        work.want(state(&shape.owner, ordinal));
        if work.foreign(&state_ref(&shape.owner, ordinal)) {
            // The config Secret would record that the state is ours.
            continue;
        }
        let (state, config_object) = (work.owned(&state_ref(&shape.owner, ordinal)), config_ref(&shape.owner, ordinal));
        if state.is_some_and(|state| is_terminating(state)) && work.owned(&config_object).is_none() {
            // It names the device of a removed replica.
            continue;
        }
        let replica = pass.observed.replicas.get(&ordinal).unwrap_or(&none);
        let inputs = ReplicaInputs {
            endpoints: endpoints.get(&ordinal),
            advertised: advertised.and_then(|all| all.get(&ordinal)),
            targets: targets.as_ref(),
            siblings: siblings.as_ref(),
        };
        config(&mut work, shape, ordinal, replica, &inputs);
    }
    work
}

fn config(work: &mut PlanPart<'_>, shape: &RenderContext<'_>, ordinal: u32, replica: &ObservedReplica, inputs: &ReplicaInputs<'_>) {
    let config = replica.config.as_deref();
    let Some(document) = document(&work.observed.tailnet, shape, ordinal, config, inputs) else { return };
    let is_new = replica.is_new();
    let recorded = replica.device();
    let mint = config.and_then(|config| config.mint.clone());
    let deleted = device_records::deleted(work, ordinal, replica);
    let (device, targets, siblings) = (recorded.cloned(), inputs.targets.cloned(), inputs.siblings.cloned());
    let former = config.and_then(|config| config.former.clone()).filter(|_| replica.has_former_pod());
    let owner = shape.owner.clone();
    let secret = ReplicaSecret { owner, ordinal, document, device, mint, is_new, targets, siblings, deleted, former };
    let state = replica.state.as_deref();
    let key = config.and_then(ReplicaConfig::auth_key);
    let due = (shape.stock() || replica.pod.is_some()) && !awaits_report(work, ordinal, replica);
    // A Pod can remove its state Secret from the cache, not the record of its device.
    let device = replica.has_device() || (state.is_none() && recorded.is_some());
    let is_settled = recorded.is_some() || secret.mint.is_none();
    let login = ReplicaLogin { key, reissue: state.and_then(|state| state.reissue.as_deref()), device, is_settled, due };
    let id = config.and_then(|existing| existing.key_id.as_ref());
    let decision = decide(&login);
    if let KeyDecision::Keep | KeyDecision::Drop = decision {
        let reused_key = key.filter(|_| decision == KeyDecision::Keep);
        work.want(secret.manifest(reused_key.map(|key| (key, id)), false));
        return record(work, shape, ordinal, replica, secret);
    }
    let reissue = decision == KeyDecision::Reissue;
    // Without a key the replica waits; with the failed one it gets at least the rest of its config.
    if !work.observed.tailnet.is_ready() || device_records::namesake_joins(work, &secret) {
        work.want(secret.manifest(key.map(|key| (key, id)), false));
        return;
    }
    let replaces = claimed_device(work, ordinal, replica).filter(|_| reissue);
    let tags = shape.spec.admitted.or_default(shape.settings);
    // A replica that had a device can request keys by writing its state Secret: count them.
    let reissue = reissue || recorded.is_some();
    let earlier = |mint: &KeyMint| Some((mint.previous.clone()?, mint.previous_created));
    let previous = recorded.map(|record| (record.id.clone(), record.created)).or_else(|| secret.mint.as_ref().and_then(earlier));
    let draft = draft(work, shape, ReplicaSecret { device: None, deleted: None, ..secret });
    let draft = Box::new(ConfigDraft { tags: tags.as_slice().to_vec(), previous, ..draft });
    let revokes = config.and_then(|config| config.unused_key(work.observed.now)).cloned();
    work.plan.control.push(ControlAction::MintKey { ordinal, tags, draft, reissue, replaces, revokes });
}

/// Addresses of the replicas of an egress group that do not leave; `None` for Pods that do not read them.
fn siblings(pass: &Pass<'_>, shape: &RenderContext<'_>) -> Option<Siblings> {
    if shape.spec.role != Role::EgressGroup || shape.stock() {
        return None;
    }
    let pods = pass.observed.replicas.values().filter_map(|replica| replica.pod.as_ref());
    let addresses = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none()).flat_map(|pod| pod_addresses(pod));
    Some(Siblings::new(addresses))
}

/// Whether a first key waits for the report of a Pod that is older than its config Secret: the record was deleted, and the Pod most likely has
/// a device, which the report names.
fn awaits_report(work: &mut PlanPart<'_>, ordinal: u32, replica: &ObservedReplica) -> bool {
    let Some(pod) = replica.pod.as_deref() else { return false };
    // Written without key first: its creation time is that of the loss.
    let Some(config) = work.owned(&config_ref(work.owner, ordinal)) else { return true };
    let created = config["metadata"]["creationTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let Some((created, started)) = created.zip(pod.metadata.creation_timestamp.as_ref()) else { return false };
    let wait = REPORT_WAIT.saturating_sub(elapsed(created, work.observed.now));
    let waits = started.0 < created && !wait.is_zero();
    if waits {
        work.again(wait);
    }
    waits
}

/// Warns of requested tags that devices do not have.
pub(crate) fn warn_other_tags(work: &mut PlanPart<'_>, wanted: u32) {
    let others = other_tags(work, wanted);
    if !others.is_empty() {
        let message = format!(
            "spec.tags concern replicas that join later. The devices of {} have other tags: change them at the control plane, or delete \
             the devices there, and the replicas join again with the new tags",
            others.join(", ")
        );
        work.warn_workload(reason::TAGS_NOT_APPLIED, message);
    }
}

/// Replicas below an ordinal whose recorded devices have other tags than requested: tags come with the auth key only.
pub(crate) fn other_tags(work: &Pass<'_>, wanted: u32) -> Vec<String> {
    let Some(spec) = work.spec else { return Vec::new() };
    let tags: BTreeSet<_> = spec.tags(&work.observed.settings).iter().collect();
    let differs = |replica: &ObservedReplica| replica.device().is_some_and(|record| record.tags.iter().collect::<BTreeSet<_>>() != tags);
    let others = work.observed.replicas.range(..wanted).filter(|(_, replica)| differs(replica));
    others.map(|(ordinal, _)| names::replica(&work.observed.workload, *ordinal)).collect()
}

/// A replica's config without its key; `None` if unknown now: the existing one stays. Empty for a replica without one: its Secret says that it
/// is new before its Pod can run.
fn document(
    tailnet: &TailnetState,
    shape: &RenderContext<'_>,
    ordinal: u32,
    existing: Option<&ReplicaConfig>,
    ReplicaInputs { endpoints, advertised, .. }: &ReplicaInputs<'_>,
) -> Option<Map<String, Value>> {
    let found = existing.and_then(|entry| entry.document.as_ref());
    let server = match tailnet {
        TailnetState::Ready { server_url, .. } => server_url.as_str(),
        TailnetState::Asking | TailnetState::Unavailable(_) if existing.is_none() => return Some(Map::new()),
        TailnetState::Asking | TailnetState::Unavailable(_) => found?.get("ServerURL")?.as_str()?,
    };
    let accept_routes = shape.class.and_then(|class| class.tailscale.as_ref()).is_some_and(|tailscale| tailscale.accept_routes);
    let fixed = json!({
        "Version": "alpha0",
        "Locked": false,
        "ServerURL": server,
        "Hostname": shape.spec.config_hostname(ordinal),
        "acceptDNS": false,
        "acceptRoutes": accept_routes,
    });
    let Value::Object(mut document) = fixed else { return None };
    document.extend(shape.role().device_options.iter().map(|(field, value)| ((*field).to_owned(), (*value).into())));
    // Another writer sets these fields of an egress group: copy them.
    let carried = |field: &str| found.and_then(|item| item.get(field)).cloned();
    let (services, routes) = match advertised {
        None => (carried("AdvertiseServices"), carried("AdvertiseRoutes")),
        Some(ReplicaAdvertisement { names, routes, app_connector }) => {
            document.extend(app_connector.map(|advertise| ("AppConnector".into(), json!({"Advertise": advertise}))));
            // tailscaled keeps its routes if the field is absent. The Tailscale operator removes it with the last route of a Connector, so that
            // nothing shows which ones the device still has.
            let has_routes = !routes.is_empty() || app_connector.is_some() || carried("AdvertiseRoutes").is_some();
            ((!names.is_empty()).then(|| json!(names)), has_routes.then(|| json!(routes)))
        }
    };
    document.extend(services.map(|services| ("AdvertiseServices".into(), services)));
    document.extend(routes.map(|routes| ("AdvertiseRoutes".into(), routes)));
    document.extend(endpoints.filter(|list| !list.is_empty()).map(|list| ("StaticEndpoints".into(), json!(list))));
    Some(document)
}

/// Removes replicas from ordinal `from` on. Returns whether all are gone.
pub(crate) fn remove_replicas<'a>(pass: &Pass<'a>, from: u32) -> (PlanPart<'a>, bool) {
    let mut work = pass.part();
    let owner = pass.owner;
    let set = pass.owned(&ObjectRef::new(Kind::StatefulSet, &owner.namespace, owner.name.clone()));
    let number = |pointer: &str| set.and_then(|set| set.pointer(pointer)).and_then(Value::as_u64);
    let lowered = number("/spec/replicas").unwrap_or(0).max(number("/status/replicas").unwrap_or(0));
    let mut all_gone = true;
    for (ordinal, replica) in pass.observed.replicas.range(from..) {
        if runs(&mut work, replica) || u64::from(*ordinal) < lowered {
            all_gone = false;
        } else {
            all_gone &= remove_replica(&mut work, *ordinal, replica);
        }
    }
    (work, all_gone)
}

/// Whether a replica's Pod exists. One that is not gone long after its grace period is on a lost node: its device is deleted, so that it
/// cannot serve any more. The object of a user must not wait for it.
fn runs(work: &mut PlanPart<'_>, replica: &ObservedReplica) -> bool {
    let (is_group, now) = (work.observed.key.group().is_some(), work.observed.now);
    let wait = |pod: &Pod| {
        let end = pod.metadata.deletion_timestamp.as_ref().filter(|_| !is_group)?;
        Some(NODE_REPORT_TIMEOUT.saturating_sub(elapsed(end.0, now)))
    };
    let pods = replica.pod.iter().chain(&work.observed.waiting);
    match pods.map(|pod| wait(pod)).try_fold(Duration::ZERO, |longest, wait| Some(longest.max(wait?))) {
        None => true,
        Some(wait) => {
            if !wait.is_zero() {
                work.again(wait);
            }
            !wait.is_zero()
        }
    }
}

/// Removes a replica's device and Secrets. Returns whether nothing is left that the garbage collector does not delete.
fn remove_replica(work: &mut PlanPart<'_>, ordinal: u32, replica: &ObservedReplica) -> bool {
    let owner = work.owner;
    let secrets = [state_ref(owner, ordinal), config_ref(owner, ordinal)];
    let is_ours = |object: &ObjectRef, found: &Value| work.ownership(object, found) == Ownership::Ours || work.is_held(object, found);
    let mine = |object: &ObjectRef| work.owned(object).filter(|existing| is_ours(object, existing));
    let has_config = mine(&secrets[1]).is_some();
    let delete = |object: &ObjectRef| match mine(object) {
        Some(existing) => Some(deletion(object, existing)),
        // A Pod can remove its state Secret from the cache.
        None if has_config && work.owned(object).is_none() => Some(Delete { object: object.clone(), uid: None }),
        None => None,
    };
    let then: Vec<Delete> = secrets.iter().filter_map(delete).collect();
    let is_over = work.owned(&secrets[1]).is_none() && work.owned(&secrets[0]).is_some_and(|state| is_terminating(state));
    work.delete(&node_port_ref(owner, ordinal));
    // A state Secret in deletion without config Secret names a device that was deleted.
    let device = if is_over { None } else { claimed_device(work, ordinal, replica) };
    device_records::report_shared(work, ordinal, replica);
    let key = replica.config.as_ref().and_then(|config| config.unused_key(work.observed.now)).cloned();
    let what = match (&device, &key) {
        (Some(device), _) => format!("device {}", device.id),
        (None, Some(id)) => format!("auth key {id}"),
        (None, None) => {
            work.plan.delete.extend(then);
            return true;
        }
    };
    let request = device.as_ref().map_or_else(|| what.clone(), |_| end_of_device(ordinal));
    let denial = work.observed.denied.get(&request).filter(|denial| work.deletion_timed_out(denial));
    let why = match (&work.observed.tailnet, denial) {
        (TailnetState::Ready { .. }, None) => {
            let revoked = if device.is_some() { Vec::new() } else { then.clone() };
            work.plan.control.extend(key.map(|id| ControlAction::RevokeKey { ordinal, id, then: revoked }));
            work.plan.control.extend(device.map(|device| ControlAction::DeleteDevice { ordinal, device, then }));
            return false;
        }
        (TailnetState::Ready { .. }, Some(denial)) => &denial.why,
        (TailnetState::Unavailable(_), _) if work.observed.deletion_deadline_passed() => "it is unavailable",
        (TailnetState::Asking | TailnetState::Unavailable(_), _) => return false,
    };
    left_behind(work, (owner, ordinal), &what, why, then);
    true
}

/// Deletes the record of something that stays at the control plane, and reports it.
fn left_behind(work: &mut PlanPart<'_>, (owner, ordinal): (&Owner, u32), what: &str, why: &str, record: Vec<Delete>) {
    let replica = names::replica(&owner.name, ordinal);
    let message = format!("The control plane still has {what} of replica {replica}: remove it there. It was not removed, as {why}");
    work.warn_workload(reason::DEVICE_ORPHANED, message);
    work.plan.delete.extend(record);
}
