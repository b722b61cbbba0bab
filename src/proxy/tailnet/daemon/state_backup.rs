//! Backup of tailscaled's keys in the state Secret: a daemon that restarts while the API server is unavailable starts from the backup, and
//! its later changes are written back to the Secret. In Pods created by our reconciler a file also has the backup, for restarted
//! containers.
//!
//! While tailscaled uses the Secret it is the only writer of its keys; this module writes nothing then.

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

/// Time after login until tailscaled has written its complete state.
const SETTLE_DELAY: Duration = Duration::from_secs(2);
/// Retry delay after failures, and interval of checks for changes in the file.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum age of a backup.
const MAX_AGE: Duration = Duration::from_mins(10);

/// Timeout of the Secret check before a restart; beyond it the API server counts as unavailable. The check normally takes milliseconds, and
/// an unnecessary start from the backup costs nothing.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// Checks whether the Secret is readable now. tailscaled itself waits 30 s for an API server that accepts connections and does not answer.
pub type Reach = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// Checks this Secret, with the timeout [`CHECK_TIMEOUT`].
pub fn reach(secret: &StateSecret) -> Reach {
    let secret = secret.clone();
    Arc::new(move || {
        let secret = secret.clone();
        Box::pin(async move { matches!(timeout(CHECK_TIMEOUT, secret.get()).await, Ok(Ok(_))) })
    })
}

/// The backup of an earlier container of this Pod. Blocks.
pub fn load(settings: &DaemonSettings) -> StateBackup {
    if settings.pod_dir().is_none() {
        return StateBackup::default();
    }
    // An unreadable file counts as absent: the Secret has the state, unless the API server is unavailable too.
    let read = |path: Option<PathBuf>| path.and_then(|path| files::read_one(&path).ok().flatten());
    StateBackup::from_files(read(settings.state_file()).as_deref(), read(settings.state_copy()).as_deref())
}

/// Backups of tailscaled's state.
#[derive(Debug, Clone)]
pub struct StateCopies {
    pub secret: StateSecret,
    /// State file of a tailscaled that was started without the Secret.
    pub used: PathBuf,
    /// Backup file for the next container; `None` if the next container would not see it.
    pub copy: Option<PathBuf>,
    pub backup: watch::Sender<StateBackup>,
}

impl StateCopies {
    /// Backs up until the sender of the daemon's state is dropped.
    pub async fn run(self, mut daemon: watch::Receiver<DaemonState>) {
        let (mut saved, mut fault) = (None, None);
        loop {
            let Ok((restarts, from_file)) =
                daemon.wait_for(|daemon| daemon.phase == DaemonPhase::Running).await.map(|daemon| (daemon.restarts, daemon.from_file))
            else {
                return;
            };
            // A device that existed before has written its complete state already.
            if self.backup.borrow().content.is_none() {
                // The attempt below reports any error.
                let _ = self.take().await;
                self.save(&mut saved);
            }
            sleep(SETTLE_DELAY).await;
            let done = if from_file { self.write_secret().await } else { self.take().await };
            self.save(&mut saved);
            let rest = match done {
                Ok(()) if !from_file => MAX_AGE,
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

    /// Whether a tailscaled has run in this Pod and left its state.
    pub fn are_there(&self) -> bool {
        self.backup.borrow().content.is_some()
    }

    /// Copies the Secret, if it has a complete device.
    async fn take(&self) -> Result<(), KubeError> {
        let whole = self.secret.get().await?.filter(consistent).map(|values| of_daemon(&values)).filter(|own| !own.is_empty());
        if whole.is_some() {
            self.backup.send_modify(|backup| backup.content = whole);
        }
        Ok(())
    }

    /// Writes the backup file, if the content has changed.
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

    /// Writes the state file's content to the Secret.
    pub async fn write_secret(&self) -> Result<(), KubeError> {
        // The file is replaced as a whole, so the content is complete; a failed read can succeed a moment later.
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
