//! Config file of a one-step login: the mounted file, the last good content, and the path that the daemon reads.
//!
//! An invalid file never reaches the daemon. If the daemon starts while the mounted file is invalid, it reads a copy of the last good one.
//! If this replica advertises only the services it serves, the daemon always reads a copy that names only these services, and that
//! turns shields-up on during shutdown.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DaemonState;
use crate::edge::daemon::{self, DaemonError};
use crate::model::tailnet::advertise::Advertised;
use crate::model::tailnet::supervise::conffile::{self, ConfFile, OLDEST_CAPVER, check};
use crate::model::tailnet::supervise::{DaemonSettings, Login, Secret, StateStore};

#[derive(Debug)]
pub(super) struct Conf {
    dir: PathBuf,
    copy: PathBuf,
    pub(super) capver: u32,
    good: Option<AcceptedConf>,
    /// Whether the daemon reads the copy.
    copied: bool,
    fault: Option<String>,
    /// Services that may be advertised; `None` if the file alone decides.
    limit: Option<Advertised>,
}

#[derive(Debug)]
struct AcceptedConf {
    path: PathBuf,
    bytes: Vec<u8>,
    services: Arc<BTreeSet<String>>,
    shields_up: bool,
}

#[derive(Debug)]
pub(super) enum ConfReading {
    Same,
    /// A good file that differs from the last good one.
    Changed(ConfFile),
    /// An error that the last check did not have.
    Fault(DaemonError),
}

impl Conf {
    /// The config of a one-step login; `None` for other logins.
    pub(super) fn new(settings: &DaemonSettings, limit: Option<Advertised>) -> Option<Self> {
        let Login::ConfigDir(dir) = &settings.login else { return None };
        let own = match &settings.state {
            StateStore::KubeSecret { dir: Some(dir), .. } | StateStore::Dir(dir) => dir.as_path(),
            StateStore::KubeSecret { .. } | StateStore::Memory => Path::new("/tmp"),
        };
        let copy = own.join("tailyard-last-good.hujson");
        Some(Self { dir: dir.clone(), copy, capver: OLDEST_CAPVER, good: None, copied: false, fault: None, limit })
    }

    /// Checks whether the file has changed.
    pub(super) fn look(&mut self) -> ConfReading {
        let found = daemon::config(&self.dir, self.capver).and_then(|(path, bytes)| Ok((check(&bytes)?, path, bytes)));
        match found {
            Ok((file, path, bytes)) => {
                self.fault = None;
                if self.good.as_ref().is_some_and(|good| good.path == path && good.bytes == bytes) {
                    return ConfReading::Same;
                }
                self.good = Some(AcceptedConf { path, bytes, services: Arc::new(file.services.clone()), shields_up: file.shields_up });
                ConfReading::Changed(file)
            }
            Err(fault) => {
                let text = fault.to_string();
                let unchanged = self.fault.as_ref() == Some(&text);
                self.fault = Some(text);
                if unchanged { ConfReading::Same } else { ConfReading::Fault(fault) }
            }
        }
    }

    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The file for a daemon that starts now: the mounted one, or a copy of the last good one. `None` before the first good file.
    pub(super) fn for_start(&mut self) -> Result<Option<&Path>, DaemonError> {
        let Some(good) = &self.good else { return Ok(None) };
        self.copied = self.fault.is_some() || self.limit.is_some();
        if self.copied {
            daemon::stage(&self.copy, &self.text(good))?;
            return Ok(Some(&self.copy));
        }
        Ok(Some(&good.path))
    }

    /// Updates the copy, if the daemon reads it, before a reload.
    pub(super) fn for_reload(&self) -> Result<(), DaemonError> {
        match &self.good {
            Some(good) if self.copied => daemon::stage(&self.copy, &self.text(good)),
            _ => Ok(()),
        }
    }

    fn text<'a>(&self, good: &'a AcceptedConf) -> Cow<'a, [u8]> {
        self.limit.as_ref().map_or(Cow::Borrowed(&good.bytes), |limit| conffile::advertising(&good.bytes, limit).into())
    }

    /// Changes the services that may be advertised; true if they differ. No effect if the file alone decides.
    pub(super) fn advertise(&mut self, advertised: &Advertised) -> bool {
        match &mut self.limit {
            Some(limit) if limit != advertised => {
                limit.clone_from(advertised);
                true
            }
            _ => false,
        }
    }

    /// Services in the last good file.
    pub(super) fn services(&self) -> Option<&Arc<BTreeSet<String>>> {
        self.good.as_ref().map(|good| &good.services)
    }

    /// Whether the daemon's state differs from the limited config; always false if the file alone decides.
    pub(super) fn differs(&self, state: &DaemonState) -> bool {
        let shields_up = self.good.as_ref().is_some_and(|good| good.shields_up);
        self.limit.as_ref().is_some_and(|limit| limit.services != *state.advertised || (limit.shields_up || shields_up) != state.shields_up)
    }
}

/// The config's auth key, read from a separate file if the config names one; empty without a key.
pub(super) fn key(file: &ConfFile) -> Result<Secret, DaemonError> {
    file.auth_key.as_ref().map_or(Ok(Secret::default()), daemon::key)
}
