//! The only writer of tailscaled's serve config: reads, compares and writes differences, also after foreign changes.
//!
//! Publishes a config only after it was read back from the running process, because advertising depends on it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::serve::ServeConfig;
use crate::edge::localapi::{LocalApi, LocalApiError};
use crate::model::base::backoff::Backoff;
use crate::model::tailnet::serve_config::steps;
use crate::model::tailnet::supervise::DaemonPhase;
use crate::proxy::tailnet::daemon::DaemonState;
use crate::runtime::timer::until;

/// Interval of checks for foreign changes.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Inputs {
    pub daemon: watch::Receiver<DaemonState>,
    /// Desired config; `None` while unknown.
    pub wanted: watch::Receiver<Option<Arc<ServeConfig>>>,
}

#[derive(Debug, Clone, Default)]
pub struct ServeStatus {
    /// Current config; `None` before it was read from the running process.
    pub config: Option<Arc<ServeConfig>>,
    /// Number of restarts of the process that it was read from.
    pub start: u64,
    /// Last error: reason of a closed set, and message.
    pub fault: Option<(&'static str, String)>,
    pub writes: u64,
}

/// Keeps the serve config up to date; ends when a sender is dropped.
pub async fn run(api: LocalApi, mut inputs: Inputs, state: watch::Sender<ServeStatus>) {
    let mut retry = Backoff::DAEMON;
    loop {
        let start = running(&inputs.daemon.borrow());
        let wanted = inputs.wanted.borrow_and_update().clone();
        if start.is_none_or(|start| start != state.borrow().start) {
            state.send_if_modified(|state| std::mem::take(&mut state.config).is_some());
        }
        let mut again = None;
        if let (Some(start), Some(wanted)) = (start, wanted) {
            let rest = match bring(&api, &wanted, start, &state).await {
                Ok(true) => {
                    retry.reset();
                    POLL_INTERVAL
                }
                Ok(false) => Duration::ZERO,
                Err(error) => {
                    failed(&state, &error);
                    retry.next(fastrand::f64())
                }
            };
            again = Some(Instant::now() + rest);
        }
        let changed = tokio::select! {
            changed = inputs.wanted.changed() => changed,
            changed = restarted(&mut inputs.daemon, start) => changed,
            () = until(again) => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Restart count of tailscaled, if it runs.
fn running(state: &DaemonState) -> Option<u64> {
    (state.phase == DaemonPhase::Running).then_some(state.restarts)
}

/// Waits until tailscaled restarts or stops.
async fn restarted(daemon: &mut watch::Receiver<DaemonState>, started_at: Option<u64>) -> Result<(), watch::error::RecvError> {
    daemon.wait_for(|state| running(state) != started_at).await.map(drop)
}

/// Reads and writes the config; true if equal, false after a concurrent write.
async fn bring(api: &LocalApi, wanted: &Arc<ServeConfig>, start: u64, state: &watch::Sender<ServeStatus>) -> Result<bool, LocalApiError> {
    let found = api.serve_config().await?;
    let steps = steps(&found.config, wanted);
    let writes = steps.len() as u64;
    let mut etag = found.etag;
    for (index, step) in steps.iter().enumerate() {
        if index > 0 {
            etag = api.serve_config().await?.etag;
        }
        if !api.set_serve_config(step, etag.as_deref()).await? {
            return Ok(false);
        }
    }
    if writes > 0 {
        tracing::info!(services = wanted.services.len(), ports = wanted.tcp.len(), "serve config applied");
    }
    state.send_if_modified(|state| {
        let same = state.config.as_ref() == Some(wanted) && state.start == start && state.fault.is_none() && writes == 0;
        let config = Some(Arc::clone(wanted));
        *state = ServeStatus { config, start, fault: None, writes: state.writes + writes };
        !same
    });
    Ok(true)
}

/// Records an error; the previous config stays.
fn failed(state: &watch::Sender<ServeStatus>, error: &LocalApiError) {
    state.send_if_modified(|state| {
        let unchanged = state.fault.as_ref().is_some_and(|(kind, _)| *kind == error.reason());
        if !unchanged {
            tracing::warn!(reason = error.reason(), "cannot apply the serve config, retrying: {error}");
        }
        state.fault = Some((error.reason(), error.to_string()));
        !unchanged
    });
}
