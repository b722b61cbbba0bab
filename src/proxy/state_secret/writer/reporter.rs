//! Status reporter: reports the device as soon as the netmap has it, and the status of each applied plan.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Ledger, MIN_WRITE_INTERVAL};
use crate::api::serve::ServeConfig;
use crate::api::{egress, ingress, state};
use crate::model::base::netmap::{NetMap, RouteOverlaps, SelfNode};
use crate::model::plan::Planned;
use crate::model::tailnet::advertise::AdvertiseStatus;
use crate::model::tailnet::status::{Encoded, Omitted, PodAddresses, ServeHistory, egress_status, encode, ingress_status};
use crate::proxy::forwarding::ruleset_sync::Programmed;
use crate::proxy::ingress::serve_config_writer::ServeStatus;
use crate::runtime::timer::until;

#[derive(Debug)]
pub struct Inputs {
    pub programmed: watch::Receiver<Programmed>,
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
    /// Serve config in force, if this replica decides it; otherwise the sender may be dropped.
    pub serving: watch::Receiver<ServeStatus>,
    pub advertise_status: watch::Receiver<AdvertiseStatus>,
    pub overlaps: watch::Receiver<Option<RouteOverlaps>>,
}

#[derive(Debug, Clone, Copy)]
pub struct ReportInputs {
    pub pod: PodAddresses,
    pub egress: bool,
    pub ingress: bool,
    /// Whether rules are applied: not in userspace, where tailscaled itself serves.
    pub forwards: bool,
    /// Grace period before an unresolved service is reported; [`crate::model::tailnet::status::RESOLUTION_GRACE`].
    pub grace: Duration,
    /// Maximum size of the egress status, in bytes.
    pub room: usize,
}

/// Updates the ledger with the state in force, at most one status per [`MIN_WRITE_INTERVAL`]; ends when an input's sender is dropped.
///
/// The first complete status is reported at once: under the Tailscale operator the previous replica may be gone already, and no replica
/// serves until this one is reported. Without a netmap nothing is reported, because the next status would then have to wait.
pub async fn run(mut inputs: Inputs, about: ReportInputs, ledger: Ledger) {
    let start = Instant::now();
    let mut patience = ServeHistory::new(about.grace);
    loop {
        let now = start.elapsed();
        if let Some(node) = inputs.netmap.borrow_and_update().as_ref().and_then(|netmap| netmap.node.as_ref()) {
            device(&ledger, node);
            if !about.forwards {
                reachable(&ledger, node);
            }
        }
        let programmed = inputs.programmed.borrow_and_update().clone();
        let reported = programmed.planned.filter(|planned| programmed.current && planned.world.netmap.is_some());
        if let Some(planned) = &reported {
            accepted(&ledger, about, planned, &mut patience, now);
        }
        served(&ledger, inputs.serving.borrow_and_update().config.as_deref(), inputs.netmap.borrow().as_deref());
        record_unserved(&ledger, &inputs.advertise_status.borrow_and_update());
        if let Some(overlaps) = &*inputs.overlaps.borrow_and_update() {
            let reported: BTreeMap<_, _> = overlaps.iter().take(state::MAX_ROUTE_OVERLAPS).collect();
            record(&ledger, state::ROUTE_OVERLAPS, reported.is_empty(), json(&reported));
        }
        let due = patience.due(now).map(|at| start + at);
        let changed = tokio::select! {
            changed = inputs.programmed.changed() => changed,
            changed = inputs.netmap.changed() => changed,
            Ok(()) = inputs.serving.changed() => Ok(()),
            Ok(()) = inputs.advertise_status.changed() => Ok(()),
            Ok(()) = inputs.overlaps.changed() => Ok(()),
            () = until(due) => Ok(()),
        };
        if changed.is_err() {
            return;
        }
        if reported.is_some() {
            sleep(MIN_WRITE_INTERVAL.saturating_sub(start.elapsed().saturating_sub(now))).await;
        }
    }
}

/// The operator deletes an old device by its ID, so the ID is reported even if no rule is ever applied.
fn device(ledger: &Ledger, node: &SelfNode) {
    if !node.stable_id.is_empty() {
        ledger.set(state::DEVICE_ID, node.stable_id.as_str());
    }
}

/// Name and addresses mean that the device is reachable, so they are reported after the rules are applied, if there are any.
fn reachable(ledger: &Ledger, node: &SelfNode) {
    if !node.name.is_empty() {
        let ips: Vec<_> = node.addresses.iter().map(ToString::to_string).collect();
        ledger.set(state::DEVICE_FQDN, format!("{}.", node.name.trim_end_matches('.')));
        ledger.set(state::DEVICE_IPS, json(&ips));
    }
}

fn accepted(ledger: &Ledger, about: ReportInputs, planned: &Planned, patience: &mut ServeHistory, now: Duration) {
    let (plan, world) = (&planned.plan, &planned.world);
    if let Some(mode) = world.single.variable() {
        match plan.rejected.get(mode) {
            Some(reasons) => ledger.set(state::REJECTED_TARGET, reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
            None => ledger.remove(state::REJECTED_TARGET),
        }
    }
    if let Some(node) = world.netmap.as_ref().and_then(|netmap| netmap.node.as_ref()) {
        reachable(ledger, node);
    }
    if about.egress {
        let withheld = patience.withheld(plan, &world.egress, now);
        let Encoded { plain, packed, omitted } = encode(egress_status(plan, &world.egress, about.pod, &withheld), about.room);
        if omitted != Omitted::Nothing && packed.is_none() {
            tracing::warn!(bytes = plain.len(), ?omitted, "the egress status exceeds the size of its Secret; truncating it");
        }
        ledger.set(egress::KEY, plain);
        match packed {
            Some(packed) => ledger.set(egress::KEY_COMPRESSED, packed),
            None => ledger.remove(egress::KEY_COMPRESSED),
        }
    }
    if about.ingress {
        ledger.set(ingress::KEY, json(&ingress_status(plan, &world.ingress, about.pod)));
    }
}

/// Reports the node's own TLS name once tailscaled has a serve config: the operator takes this name for the hostname of the served
/// services.
fn served(ledger: &Ledger, config: Option<&ServeConfig>, netmap: Option<&NetMap>) {
    if let (Some(_), Some(netmap)) = (config.filter(|config| **config != ServeConfig::default()), netmap) {
        ledger.set(state::HTTPS_ENDPOINT, netmap.cert_domains.first().map_or(state::NO_HTTPS, String::as_str));
    }
}

/// Reports services that clients cannot reach; the reconciler passes this on to their users. While this is unknown, the last report stays.
fn record_unserved(ledger: &Ledger, status: &AdvertiseStatus) {
    if let Some(errors) = &status.funnel_errors {
        let texts: BTreeMap<_, _> = errors.iter().map(|(service, why)| (service, why.to_string())).collect();
        record(ledger, state::FUNNEL_ERRORS, errors.is_empty(), json(&texts));
    }
    if let Some(services) = &status.unapproved {
        record(ledger, state::UNAPPROVED, services.is_empty(), json(services));
    }
}

fn record(ledger: &Ledger, key: &'static str, is_empty: bool, value: Vec<u8>) {
    if is_empty { ledger.remove(key) } else { ledger.set(key, value) }
}

/// JSON of values whose serialization cannot fail.
fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests;
