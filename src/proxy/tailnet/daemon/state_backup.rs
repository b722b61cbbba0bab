//! Keeps a copy of what tailscaled keeps in the state Secret: one that has to start again while the API server is away starts
//! from the copy, and what it writes then goes back into the Secret. In a Pod of ours a file holds the copy too, so that a
//! container that starts again finds it.
//!
//! While tailscaled uses the Secret it is its only writer; nothing here writes then.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::DaemonState;
use crate::edge::files;
use crate::edge::kube::{KubeError, StateSecret};
use crate::model::tailnet::state::{Content, consistent};
use crate::model::tailnet::supervise::state_backup::{StateBackup, changes, from_file, of_daemon, to_file};
use crate::model::tailnet::supervise::{DaemonPhase, DaemonSettings};

/// How long a node that has become part of the tailnet may take to write down what it is.
const SETTLED: Duration = Duration::from_secs(2);
/// How soon to try again what failed, and how often what is written into the file is looked for.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How old a copy may become.
const OLD: Duration = Duration::from_mins(10);

/// How long the Secret may take to be had by one that starts again; longer means that the API server is away. It takes milliseconds else,
/// and a start from the copy that need not have been costs nothing.
const SOON: Duration = Duration::from_millis(500);

/// Asks whether the Secret can be read now. tailscaled itself waits 30 s for an API server that accepts connections and does not answer.
pub type Reach = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// Asks for this Secret, for [`SOON`] at most.
pub fn reach(secret: &StateSecret) -> Reach {
    let secret = secret.clone();
    Arc::new(move || {
        let secret = secret.clone();
        Box::pin(async move { matches!(timeout(SOON, secret.get()).await, Ok(Ok(_))) })
    })
}

/// What an earlier container of this Pod has left. Blocks.
pub fn load(settings: &DaemonSettings) -> StateBackup {
    if settings.pod_dir().is_none() {
        return StateBackup::default();
    }
    // What cannot be read is not there: the Secret has it, unless the API server is away too.
    let read = |path: Option<PathBuf>| path.and_then(|path| files::read_one(&path).ok().flatten());
    StateBackup::from_files(read(settings.state_file()).as_deref(), read(settings.state_copy()).as_deref())
}

/// The copies of what is in the Secret.
#[derive(Debug, Clone)]
pub struct StateCopies {
    pub secret: StateSecret,
    /// What a tailscaled uses that was started without the Secret.
    pub used: PathBuf,
    /// The file for the next container; nothing where none finds it.
    pub copy: Option<PathBuf>,
    pub backup: watch::Sender<StateBackup>,
}

impl StateCopies {
    /// Copies until nobody tells how the daemon fares.
    pub async fn run(self, mut daemon: watch::Receiver<DaemonState>) {
        let (mut saved, mut fault) = (None, None);
        loop {
            let Ok((restarts, from_file)) =
                daemon.wait_for(|daemon| daemon.phase == DaemonPhase::Running).await.map(|daemon| (daemon.restarts, daemon.from_file))
            else {
                return;
            };
            // A device that was one before has written all already.
            if self.backup.borrow().content.is_none() {
                // What cannot be had now is told by the look that follows.
                let _ = self.take().await;
                self.save(&mut saved);
            }
            sleep(SETTLED).await;
            let done = if from_file { self.give_back().await } else { self.take().await };
            self.save(&mut saved);
            let rest = match done {
                Ok(()) if !from_file => OLD,
                Ok(()) => RETRY_INTERVAL,
                Err(ref error) => {
                    if fault != Some(error.reason()) {
                        tracing::warn!(
                            reason = error.reason(),
                            from_file,
                            "tailscaled's state and its Secret cannot be made equal: {error}"
                        );
                    }
                    RETRY_INTERVAL
                }
            };
            fault = done.err().map(|error| error.reason());
            let changed = daemon.wait_for(|daemon| daemon.phase != DaemonPhase::Running || daemon.restarts != restarts);
            if timeout(rest, changed).await.is_ok_and(|changed| changed.is_err()) {
                return;
            }
        }
    }

    /// A tailscaled has run in this Pod and left its state.
    pub fn are_there(&self) -> bool {
        self.backup.borrow().content.is_some()
    }

    /// Takes a copy of the Secret, once all is there that makes a device.
    async fn take(&self) -> Result<(), KubeError> {
        let whole = self.secret.get().await?.filter(consistent).map(|values| of_daemon(&values)).filter(|own| !own.is_empty());
        if whole.is_some() {
            self.backup.send_modify(|backup| backup.content = whole);
        }
        Ok(())
    }

    /// Writes the copy for the next container, if it has changed.
    fn save(&self, saved: &mut Option<Content>) {
        let Some(copy) = &self.copy else { return };
        let Some(content) = self.backup.borrow().content.clone().filter(|content| saved.as_ref() != Some(content)) else { return };
        match files::replace_private(copy, &to_file(&content)) {
            Ok(()) => *saved = Some(content),
            Err(fault) => tracing::warn!(
                reason = fault.reason(),
                "cannot back up tailscaled's state; a restarted container needs the API server: {fault}"
            ),
        }
    }

    /// Writes into the Secret what the file holds.
    pub async fn give_back(&self) -> Result<(), KubeError> {
        // It is replaced whole, so what is read is whole; what cannot be read now can be a moment later.
        let Some(written) = files::read_one(&self.used).ok().flatten().and_then(|text| from_file(&text)) else { return Ok(()) };
        let Some(secret) = self.secret.get().await? else { return Ok(()) };
        let changes = changes(&written, &secret);
        if !changes.is_empty() {
            self.backup.send_modify(|backup| backup.given_back = false);
            self.secret.patch(&changes).await?;
        }
        self.backup.send_modify(|retained| *retained = StateBackup { content: Some(of_daemon(&written)), given_back: true });
        Ok(())
    }
}
