//! Certificates of names that are not wanted now.
//!
//! A config may lack a name for a moment, and the kubelet may mount an older one: a certificate stays for [`RETENTION`], also in the copy for
//! the next container, whose Secret may be unreadable by then.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::Issued;
use crate::model::ingress::certificate::Pair;

/// Time for which a certificate stays after its name was last wanted.
const RETENTION: SignedDuration = SignedDuration::from_hours(1);
/// Maximum number of certificates, about 5 MB.
pub(super) const MAX_CERTIFICATES: usize = 1_000;

/// A certificate in the copy for the next container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedCertificate {
    pub pair: Pair,
    /// The Secret that it was read from; empty if unknown.
    pub secret: String,
}

/// Certificates by name, with their Secrets and the times when they are dropped.
#[derive(Debug, Default)]
pub(super) struct CertBackup(BTreeMap<String, (Issued, String, Timestamp)>);

impl CertBackup {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `secret`: empty if unknown.
    pub(super) fn add(&mut self, name: String, secret: String, issued: Issued) {
        let until = issued.leaf.certificate.until;
        self.0.insert(name, (issued, secret, until));
    }

    /// Removes a certificate and returns it, unless it is another Secret's.
    pub(super) fn take(&mut self, name: &str, secret: &str) -> Option<Issued> {
        let (issued, from, _) = self.0.remove(name)?;
        (from.is_empty() || from == secret).then_some(issued)
    }

    /// Starts the retention of new certificates. Drops those that end, and those that end first beyond the maximum.
    pub(super) fn limit(&mut self, now: Timestamp) {
        let last = now.checked_add(RETENTION).unwrap_or(Timestamp::MAX);
        self.0.values_mut().for_each(|(.., end)| *end = last.min(*end));
        self.0.retain(|_, (.., end)| *end > now);
        let excess = self.0.len().saturating_sub(MAX_CERTIFICATES);
        if excess > 0 {
            let mut ends: Vec<_> = self.0.iter().map(|(name, (.., end))| (*end, name.clone())).collect();
            ends.sort();
            ends.into_iter().take(excess).for_each(|(_, name)| drop(self.0.remove(&name)));
        }
    }

    pub(super) fn copy(&self, now: Timestamp) -> impl Iterator<Item = (String, CopiedCertificate)> {
        let current = self.0.iter().filter(move |(_, (.., end))| *end > now);
        current.map(|(name, (issued, secret, _))| (name.clone(), CopiedCertificate { pair: issued.pair.clone(), secret: secret.clone() }))
    }

    /// When certificates are dropped.
    pub(super) fn ends(&self) -> impl Iterator<Item = Timestamp> {
        self.0.values().map(|(.., end)| *end)
    }
}
