//! The only writer of tailscaled's serve config: read, compared, and written where it differs, as often as somebody else changes it.
//!
//! What tailscaled holds is told only after it was read back from the very process that runs: whoever advertises goes by it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::api::serve::ServeConfig;
use crate::edge::localapi::{LocalApi, LocalApiError};
use crate::model::base::backoff::Backoff;
use crate::model::tailnet::serve_config::steps;
use crate::model::tailnet::supervise::DaemonPhase;
use crate::proxy::tailnet::daemon::DaemonState;

/// How often it is looked whether somebody else has changed it.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// What the writer goes by.
#[derive(Debug)]
pub struct Inputs {
    /// How tailscaled fares.
    pub daemon: watch::Receiver<DaemonState>,
    /// What it is to serve; nothing while that is not known.
    pub wanted: watch::Receiver<Option<Arc<ServeConfig>>>,
}

/// What tailscaled serves.
#[derive(Debug, Clone, Default)]
pub struct ServeStatus {
    /// What it serves; nothing before it was read from the process that runs.
    pub config: Option<Arc<ServeConfig>>,
    /// Which process that was: how often it was started again.
    pub start: u64,
    /// Why it could not be read or written last: the kind, of a closed set, and what happened.
    pub fault: Option<(&'static str, String)>,
    /// How often it was written.
    pub writes: u64,
}

/// Keeps tailscaled serving what is wanted; ends when an input's sender is gone.
pub async fn run(api: LocalApi, mut inputs: Inputs, state: watch::Sender<ServeStatus>) {
    let mut retry = Backoff::DAEMON;
    loop {
        let start = inputs.running();
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
            () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

impl Inputs {
    /// Which start of tailscaled runs, if one does.
    fn running(&self) -> Option<u64> {
        running(&self.daemon.borrow())
    }
}

fn running(state: &DaemonState) -> Option<u64> {
    (state.phase == DaemonPhase::Running).then_some(state.restarts)
}

/// Waits until it is another start of tailscaled that runs, or none.
async fn restarted(daemon: &mut watch::Receiver<DaemonState>, started_at: Option<u64>) -> Result<(), watch::error::RecvError> {
    daemon.wait_for(|state| running(state) != started_at).await.map(drop)
}

/// Reads what is served and writes what is to be; true once they are the same, false where somebody else came in between.
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

/// What tailscaled served stays what it serves.
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
