//! The config file of a one-step login: what is mounted, what of it was good, and from where the daemon reads it.
//!
//! A file that is not good never reaches the daemon. Where it must start while the mounted file is bad, it reads a copy of the
//! last good one; and where this replica advertises only what it serves, it always reads a copy, which says no more than that, and that rejecting new connections when it leaves.

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
    /// What may be advertised; nothing where the file alone says it.
    limit: Option<Advertised>,
}

#[derive(Debug)]
struct AcceptedConf {
    path: PathBuf,
    bytes: Vec<u8>,
    services: Arc<BTreeSet<String>>,
    shields_up: bool,
}

/// What a look at the directory has found.
#[derive(Debug)]
pub(super) enum ConfReading {
    Same,
    /// A good file that differs from the last good one.
    Changed(ConfFile),
    /// A fault that was not there at the last look.
    Fault(DaemonError),
}

impl Conf {
    /// The directory of a one-step login; nothing for other logins.
    pub(super) fn new(settings: &DaemonSettings, limit: Option<Advertised>) -> Option<Self> {
        let Login::ConfigDir(dir) = &settings.login else { return None };
        let own = match &settings.state {
            StateStore::KubeSecret { dir: Some(dir), .. } | StateStore::Dir(dir) => dir.as_path(),
            StateStore::KubeSecret { .. } | StateStore::Memory => Path::new("/tmp"),
        };
        let copy = own.join("tailyard-last-good.hujson");
        Some(Self { dir: dir.clone(), copy, capver: OLDEST_CAPVER, good: None, copied: false, fault: None, limit })
    }

    /// Looks whether the file has changed.
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

    /// The file for a daemon that starts now: the mounted one, or a copy of the last good one where that is bad. Nothing while
    /// there has been no good one.
    pub(super) fn for_start(&mut self) -> Result<Option<&Path>, DaemonError> {
        let Some(good) = &self.good else { return Ok(None) };
        self.copied = self.fault.is_some() || self.limit.is_some();
        if self.copied {
            daemon::stage(&self.copy, &self.text(good))?;
            return Ok(Some(&self.copy));
        }
        Ok(Some(&good.path))
    }

    /// Makes the last good file be what the daemon reads when it is told to reload.
    pub(super) fn for_reload(&self) -> Result<(), DaemonError> {
        match &self.good {
            Some(good) if self.copied => daemon::stage(&self.copy, &self.text(good)),
            _ => Ok(()),
        }
    }

    fn text<'a>(&self, good: &'a AcceptedConf) -> Cow<'a, [u8]> {
        self.limit.as_ref().map_or(Cow::Borrowed(&good.bytes), |limit| conffile::advertising(&good.bytes, limit).into())
    }

    /// Changes what may be advertised; true if that is something else. Nothing changes where the file alone says it.
    pub(super) fn advertise(&mut self, advertised: &Advertised) -> bool {
        match &mut self.limit {
            Some(limit) if limit != advertised => {
                limit.clone_from(advertised);
                true
            }
            _ => false,
        }
    }

    /// The services that the last good file names.
    pub(super) fn services(&self) -> Option<&Arc<BTreeSet<String>>> {
        self.good.as_ref().map(|good| &good.services)
    }

    /// Whether the daemon does something else than what it was given says; never where the file alone says it.
    pub(super) fn differs(&self, state: &DaemonState) -> bool {
        let shields_up = self.good.as_ref().is_some_and(|good| good.shields_up);
        self.limit.as_ref().is_some_and(|limit| limit.services != *state.advertised || (limit.shut || shields_up) != state.shut)
    }
}

/// The key of a config file, read from its own file where the config names one; empty without.
pub(super) fn key(file: &ConfFile) -> Result<Secret, DaemonError> {
    file.auth_key.as_ref().map_or(Ok(Secret::default()), daemon::key)
}
