//! Keeps a copy of what tailscaled keeps in the state Secret: one that has to start again while the API server is away starts
//! from the copy, and what it writes then goes back into the Secret.
//!
//! While tailscaled uses the Secret it is its only writer; nothing here writes then.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::DaemonState;
use crate::edge::files;
use crate::edge::kube::{KubeError, StateSecret};
use crate::model::state::consistent;
use crate::model::supervise::Phase;
use crate::model::supervise::kept::{Kept, changes, from_file, of_daemon};

/// How long a node that has become part of the tailnet may take to write down what it is.
const SETTLED: Duration = Duration::from_secs(2);
/// How soon to try again what failed, and how often what is written into the file is looked for.
const AGAIN: Duration = Duration::from_secs(5);
/// How old a copy may become.
const OLD: Duration = Duration::from_mins(10);

/// How long the Secret may take to be had by one that starts again; longer means that the API server is away. It takes milliseconds else,
/// and a start from the copy that need not have been costs nothing.
const SOON: Duration = Duration::from_millis(500);

/// Asks whether the Secret can be had now. tailscaled itself waits 30 s for an API server that takes connections and does not answer.
#[derive(Clone)]
pub struct Reach(Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>);

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reach")
    }
}

impl Reach {
    /// Asks by this.
    #[must_use]
    pub fn new(ask: impl Fn() -> BoxFuture<'static, bool> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    /// Asks for this Secret.
    #[must_use]
    pub fn of(secret: &StateSecret) -> Self {
        let secret = secret.clone();
        Self::new(move || {
            let secret = secret.clone();
            Box::pin(async move { matches!(timeout(SOON, secret.get()).await, Ok(Ok(_))) })
        })
    }

    /// The answer, within half a second.
    pub async fn ask(&self) -> bool {
        (self.0)().await
    }
}

/// Copies until nobody tells how the daemon fares.
pub async fn run(secret: StateSecret, file: PathBuf, mut daemon: watch::Receiver<DaemonState>, kept: watch::Sender<Kept>) {
    loop {
        let Ok((restarts, from_file)) =
            daemon.wait_for(|daemon| daemon.phase == Phase::Running).await.map(|daemon| (daemon.restarts, daemon.from_file))
        else {
            return;
        };
        // A device that was one before has written all already.
        if kept.borrow().content.is_none() {
            // What cannot be had now is told by the look that follows.
            let _ = take(&secret, &kept).await;
        }
        sleep(SETTLED).await;
        let done = if from_file { give_back(&secret, &file, &kept).await } else { take(&secret, &kept).await };
        let rest = match done {
            Ok(()) if !from_file => OLD,
            Ok(()) => AGAIN,
            Err(error) => {
                tracing::debug!(kind = error.kind(), "what tailscaled keeps in its Secret cannot be copied: {error}");
                AGAIN
            }
        };
        let changed = daemon.wait_for(|daemon| daemon.phase != Phase::Running || daemon.restarts != restarts);
        if timeout(rest, changed).await.is_ok_and(|changed| changed.is_err()) {
            return;
        }
    }
}

/// Takes a copy of the Secret, once all is there that makes a device.
async fn take(secret: &StateSecret, kept: &watch::Sender<Kept>) -> Result<(), KubeError> {
    let whole = secret.get().await?.filter(consistent).map(|values| of_daemon(&values)).filter(|own| !own.is_empty());
    if whole.is_some() {
        kept.send_modify(|kept| kept.content = whole);
    }
    Ok(())
}

/// Writes into the Secret what the file holds.
async fn give_back(secret: &StateSecret, file: &Path, kept: &watch::Sender<Kept>) -> Result<(), KubeError> {
    // It is replaced whole, so what is read is whole; what cannot be read now can be a moment later.
    let Some(written) = files::read_one(file).ok().flatten().and_then(|text| from_file(&text)) else { return Ok(()) };
    let Some(held) = secret.get().await? else { return Ok(()) };
    let changes = changes(&written, &held);
    if !changes.is_empty() {
        kept.send_modify(|kept| kept.given_back = false);
        secret.patch(&changes).await?;
    }
    kept.send_modify(|kept| *kept = Kept { content: Some(of_daemon(&written)), given_back: true });
    Ok(())
}
