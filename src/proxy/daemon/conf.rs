//! The config file of a one-step login: what is mounted, what of it was good, and from where the daemon reads it.
//!
//! A file that is not good never reaches the daemon. Where it must start while the mounted file is bad, it reads a copy of the
//! last good one.

use std::path::{Path, PathBuf};

use crate::edge::daemon::{self, DaemonError};
use crate::model::supervise::conffile::{ConfFile, OLDEST_CAPVER, check};
use crate::model::supervise::{DaemonSettings, Login, Secret, StateStore};

/// The config directory and what is known of it.
#[derive(Debug)]
pub(super) struct Conf {
    dir: PathBuf,
    copy: PathBuf,
    /// The daemon's capability version.
    pub(super) capver: u32,
    good: Option<Good>,
    /// Whether the daemon reads the copy.
    copied: bool,
    fault: Option<String>,
}

#[derive(Debug)]
struct Good {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// What a look at the directory has found.
#[derive(Debug)]
pub(super) enum Look {
    /// Nothing new.
    Same,
    /// A good file that differs from the last good one.
    Changed(ConfFile),
    /// A fault that was not there at the last look.
    Fault(DaemonError),
}

impl Conf {
    /// The directory of a one-step login; nothing for other logins.
    pub(super) fn new(settings: &DaemonSettings) -> Option<Self> {
        let Login::ConfigDir(dir) = &settings.login else { return None };
        let own = match &settings.state {
            StateStore::KubeSecret { dir: Some(dir), .. } | StateStore::Dir(dir) => dir.as_path(),
            StateStore::KubeSecret { .. } | StateStore::Memory => Path::new("/tmp"),
        };
        let copy = own.join("tailyard-last-good.hujson");
        Some(Self { dir: dir.clone(), copy, capver: OLDEST_CAPVER, good: None, copied: false, fault: None })
    }

    /// Looks whether the file has changed.
    pub(super) fn look(&mut self) -> Look {
        let found = daemon::config(&self.dir, self.capver).and_then(|(path, bytes)| Ok((check(&bytes)?, path, bytes)));
        match found {
            Ok((file, path, bytes)) => {
                self.fault = None;
                if self.good.as_ref().is_some_and(|good| good.path == path && good.bytes == bytes) {
                    return Look::Same;
                }
                self.good = Some(Good { path, bytes });
                Look::Changed(file)
            }
            Err(fault) => {
                let text = fault.to_string();
                let known = self.fault.as_ref() == Some(&text);
                self.fault = Some(text);
                if known { Look::Same } else { Look::Fault(fault) }
            }
        }
    }

    /// What is wrong with the mounted file, if anything.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The file for a daemon that starts now: the mounted one, or a copy of the last good one where that is bad. Nothing while
    /// there has been no good one.
    pub(super) fn for_start(&mut self) -> Result<Option<&Path>, DaemonError> {
        let Some(good) = &self.good else { return Ok(None) };
        self.copied = self.fault.is_some();
        if self.copied {
            daemon::stage(&self.copy, &good.bytes)?;
            return Ok(Some(&self.copy));
        }
        Ok(Some(&good.path))
    }

    /// Makes the last good file be what the daemon reads when it is told to reload.
    pub(super) fn for_reload(&self) -> Result<(), DaemonError> {
        match &self.good {
            Some(good) if self.copied => daemon::stage(&self.copy, &good.bytes),
            _ => Ok(()),
        }
    }
}

/// The key of a config file, read from its own file where the config names one; empty without.
pub(super) fn key(file: &ConfFile) -> Result<Secret, DaemonError> {
    file.auth_key.as_ref().map_or(Ok(Secret::default()), daemon::key)
}
