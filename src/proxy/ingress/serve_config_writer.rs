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
                Ok(false) => {
                    if retry.failures() > 0 {
                        failed(&state, "Conflict", "another program changes it at the same time");
                    }
                    retry.next(fastrand::f64())
                }
                Err(error) => {
                    failed(&state, error.reason(), &error.to_string());
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
fn failed(state: &watch::Sender<ServeStatus>, reason: &'static str, error: &str) {
    state.send_if_modified(|state| {
        let unchanged = state.fault.as_ref().is_some_and(|(kind, _)| *kind == reason);
        if !unchanged {
            tracing::warn!(reason, "cannot apply the serve config, retrying: {error}");
        }
        state.fault = Some((reason, error.to_owned()));
        !unchanged
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;
    use tokio::time::sleep;

    use super::*;
    use crate::api::serve::ServiceConfig;

    /// tailscaled whose serve config another program changes before each write.
    async fn contend(listener: UnixListener, writes: Arc<AtomicU32>) {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let writes = Arc::clone(&writes);
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.expect("a request");
                let answer = if request[..length].starts_with(b"POST") {
                    writes.fetch_add(1, Ordering::SeqCst);
                    "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
                } else {
                    "HTTP/1.1 200 OK\r\nEtag: \"1\"\r\nContent-Length: 2\r\n\r\n{}"
                };
                stream.write_all(answer.as_bytes()).await.expect("answered");
                drop(stream.read_to_end(&mut Vec::new()).await);
            });
        }
    }

    #[tokio::test]
    async fn write_conflicts_are_retried_with_backoff_and_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let (socket, writes) = (dir.path().join("socket"), Arc::new(AtomicU32::new(0)));
        let server = tokio::spawn(contend(UnixListener::bind(&socket).expect("a socket"), Arc::clone(&writes)));
        let wanted = ServeConfig { services: [("svc:a".to_owned(), ServiceConfig::default())].into(), ..ServeConfig::default() };
        let (_daemon, daemon) = watch::channel(DaemonState { phase: DaemonPhase::Running, ..DaemonState::default() });
        let (_wanted, wanted) = watch::channel(Some(Arc::new(wanted)));
        let (state, mut status) = watch::channel(ServeStatus::default());
        let task = tokio::spawn(run(LocalApi::new(&socket), Inputs { daemon, wanted }, state));
        sleep(Duration::from_secs(1)).await;
        // After 0, 200, 600 ms.
        let writes = writes.load(Ordering::SeqCst);
        assert!(writes <= 4, "{writes} writes in a second");
        let fault = status.wait_for(|status| status.fault.is_some()).await.expect("a writer").fault.clone();
        assert_eq!(fault.map(|(reason, _)| reason), Some("Conflict"));
        task.abort();
        server.abort();
    }
}
