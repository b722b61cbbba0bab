//! `/status`: state of this replica for `tailyard status`. Informational only.

use std::sync::Arc;

use hyper::StatusCode;
use tokio::time::timeout;

use super::status_snapshot::{COUNTER_TIMEOUT, SnapshotSources};
use crate::api::replica::ReplicaStatus;
use crate::model::tailnet::health::{readiness, warnings};
use crate::model::tailnet::supervise::machine::DaemonPhase;
use crate::runtime::admin::{AdminResponse, text, typed};

pub(super) async fn page(sources: Arc<SnapshotSources>) -> AdminResponse {
    let facts = sources.facts();
    let (pressure, peers, rejects) = tokio::join!(
        timeout(COUNTER_TIMEOUT, (sources.pressure)()),
        timeout(COUNTER_TIMEOUT, (sources.peers)()),
        timeout(COUNTER_TIMEOUT, (sources.rejects)()),
    );
    let status = ReplicaStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        blockers: readiness(&facts).iter().map(ToString::to_string).collect(),
        warnings: warnings(&facts).iter().map(ToString::to_string).collect(),
        flows: pressure.ok().flatten().map(|pressure| pressure.entries),
        peers: peers.ok().flatten(),
        rejects: rejects.ok().flatten(),
        last_error: last_error(&sources),
    };
    match serde_json::to_vec(&status) {
        Ok(body) => typed(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot be encoded as JSON: {error}")),
    }
}

/// Most severe current error, else the last exit of tailscaled. Reasons only where messages may contain names of services.
fn last_error(sources: &SnapshotSources) -> Option<String> {
    let kernel =
        sources.programmed.borrow().fault.as_ref().map(|(fault, _)| format!("the kernel does not take the rules: {}", fault.reason));
    let egress = || sources.egress.as_ref()?.borrow().fault.as_ref().map(|fault| format!("egress config: {}", fault.reason()));
    let ingress = || sources.ingress.as_ref()?.borrow().fault.as_ref().map(|fault| format!("ingress config: {}", fault.reason()));
    let state = || {
        let health = sources.report.as_ref()?.borrow();
        health.fault.as_ref().map(|fault| format!("its state Secret cannot be written: {}", fault.reason))
    };
    let daemon = || {
        let state = sources.daemon.as_ref()?.borrow();
        let ended = state.last_exit.as_ref().map(|how| format!("tailscaled ended ({how}), started again {} times", state.restarts));
        let ails = state.last_error.as_ref().filter(|_| state.phase != DaemonPhase::Running).map(|(kind, _)| format!("tailscaled: {kind}"));
        ails.or(ended)
    };
    kernel.or_else(egress).or_else(ingress).or_else(state).or_else(daemon)
}
