//! Certificate store of a replica, by DNS name: the Secret as last read, and the last valid certificate in it.
//!
//! A loaded certificate stays loaded while its Secret is missing or unreadable. Never reads the clock and writes no logs: notable events
//! are returned as [`CertNotice`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;

use crate::api::issuance::OrderNote;
use crate::api::names::{ACCOUNT_FINGERPRINT, ISSUANCE};
use crate::api::routes::Host;
use crate::model::ingress::cert_orders::{Certificate, NameRecord, OrderFailure, Validity, renew_at, usable};
use crate::model::ingress::certificate::{CertificateError, Leaf, Pair};

mod backup;
mod notice;

use backup::CertBackup;
pub use backup::CopiedCertificate;
pub use notice::{CertNotice, FailedOrder, VersionedSecret};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CertStoreState {
    pub names: BTreeMap<String, NameState>,
    /// Completed orders of this replica by outcome: `issued` or the kind of failure.
    pub orders: BTreeMap<&'static str, u64>,
    /// Certificates restored from memory because their Secret had lost them.
    pub restored: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameState {
    /// Whether the group orders it.
    pub issue: bool,
    /// Whether the control server permits a certificate for it on this node.
    pub permitted: bool,
    pub certificate: Option<Certificate>,
    /// Kind of fault in its Secret.
    pub fault: Option<&'static str>,
    /// Ordering replica, and outcome of the previous order.
    pub note: OrderNote,
}

/// A certificate that was issued to this replica or loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    pub pair: Pair,
    leaf: Leaf,
    /// Fingerprint of the ACME account that ordered it.
    pub by: Bytes,
}

impl Issued {
    pub fn new(name: &str, pair: Pair, by: Bytes) -> Result<Self, CertificateError> {
        let leaf = pair.leaf()?;
        leaf.is_for(name)?;
        Ok(Self { pair, leaf, by })
    }
}

/// Certificates and the state of their Secrets.
#[derive(Debug, Default)]
pub struct CertStore {
    wanted: Arc<BTreeMap<String, Host>>,
    permitted: BTreeSet<String>,
    secrets: BTreeMap<String, VersionedSecret>,
    /// Secrets that do not exist.
    absent: BTreeSet<String>,
    /// Watch errors by Secret.
    lost: BTreeMap<String, &'static str>,
    names: BTreeMap<String, NamedCertificate>,
    orders: BTreeMap<&'static str, u64>,
    restored: u64,
    /// Certificates of an earlier container of this Pod, and of names that were wanted recently.
    backup: CertBackup,
    notices: Vec<CertNotice>,
}

#[derive(Debug, Default)]
struct NamedCertificate {
    /// Last valid content of its Secret.
    good: Option<Issued>,
    issued: Option<Issued>,
    /// Current content of its Secret, or the fault in it.
    loaded: Option<Result<Certificate, CertificateError>>,
    /// Last failed order of this replica.
    failure: Option<(&'static str, String)>,
}

impl CertStore {
    /// Starts with the certificates of an earlier container of this Pod. They are served until the Secrets are read; they are not reported
    /// as their content.
    pub fn with_backup(copy: BTreeMap<String, CopiedCertificate>) -> Self {
        let mut store = Self::default();
        store.add_backup(copy);
        store
    }

    /// Adds certificates that this Pod has besides the Secrets.
    pub fn add_backup(&mut self, copy: BTreeMap<String, CopiedCertificate>) {
        for (name, CopiedCertificate { pair, secret }) in copy {
            if let Ok(issued) = Issued::new(&name, pair, Bytes::new()) {
                self.backup.add(name, secret, issued);
            }
        }
    }

    pub fn has_backup(&self) -> bool {
        !self.backup.is_empty()
    }

    /// Notices since the last call, oldest first.
    pub fn take_notices(&mut self) -> Vec<CertNotice> {
        std::mem::take(&mut self.notices)
    }

    /// Whether a name is served by a certificate of an earlier container because its Secret was not read yet.
    pub fn serves_backup(&self) -> bool {
        self.names.values().any(|entry| entry.good.is_some() && entry.loaded.is_none())
    }

    /// Sets the desired hosts and drops the state of all others, but for their certificates. Returns the Secrets to watch.
    pub fn want(&mut self, wanted: Arc<BTreeMap<String, Host>>, permitted: BTreeSet<String>, now: Timestamp) -> BTreeSet<String> {
        let secrets: BTreeSet<_> = wanted.iter().map(|(name, host)| secret_of(name, host).to_owned()).collect();
        let moved = |name: &String| {
            let of = |hosts: &BTreeMap<String, Host>| hosts.get(name).map(|host| secret_of(name, host).to_owned());
            of(&wanted) != of(&self.wanted)
        };
        for (name, entry) in self.names.extract_if(.., |name, _| moved(name)) {
            // A name that is wanted with another Secret gets that one's certificate.
            let former = self.wanted.get(&name).filter(|_| !wanted.contains_key(&name));
            if let Some((good, host)) = entry.good.zip(former) {
                let secret = secret_of(&name, host).to_owned();
                self.backup.add(name, secret, good);
            }
        }
        self.secrets.retain(|secret, _| secrets.contains(secret));
        self.absent.retain(|secret| secrets.contains(secret));
        self.lost.retain(|secret, _| secrets.contains(secret));
        for (name, host) in wanted.iter() {
            if let Some(good) = self.backup.take(name, secret_of(name, host)) {
                self.names.entry(name.clone()).or_default().good.get_or_insert(good);
            }
        }
        self.backup.limit(now);
        (self.wanted, self.permitted) = (wanted, permitted);
        for secret in &secrets {
            self.read(secret, now);
        }
        secrets
    }

    /// Names whose certificates the group orders.
    pub fn ours(&self) -> BTreeSet<String> {
        let ours = self.wanted.iter().filter(|(name, host)| host.issue && self.permitted.contains(*name));
        ours.map(|(name, _)| name.clone()).collect()
    }

    /// Applies a version of a Secret; returns the new records of its names. Versions older than the current one are ignored.
    pub fn put(&mut self, secret: &str, noted: VersionedSecret, now: Timestamp) -> Vec<(String, Option<NameRecord>)> {
        let number = |version: &str| version.parse::<u64>().unwrap_or_default();
        if self.secrets.get(secret).is_some_and(|other| number(&noted.version) < number(&other.version)) {
            return Vec::new();
        }
        self.lost.remove(secret);
        self.absent.remove(secret);
        self.secrets.insert(secret.to_owned(), noted);
        self.read(secret, now);
        self.records_of(secret)
    }

    pub fn gone(&mut self, secret: &str) -> Vec<(String, Option<NameRecord>)> {
        self.lost.remove(secret);
        self.secrets.remove(secret);
        let is_new = self.absent.insert(secret.to_owned());
        for name in self.names_of(secret) {
            // The reconciler creates Secrets of ordered certificates; the metric alone reports their absence.
            if is_new && self.wanted.get(&name).is_some_and(|host| !host.issue) {
                self.notices.push(CertNotice::Absent { name: name.clone(), secret: secret.to_owned() });
            }
            self.names.entry(name).or_default().loaded = None;
        }
        self.records_of(secret)
    }

    /// Whether the content of every Secret is known, or the reason why it is unavailable.
    pub fn is_loaded(&self) -> bool {
        let is_listed = |secret: &str| self.secrets.contains_key(secret) || self.absent.contains(secret) || self.lost.contains_key(secret);
        self.wanted.iter().all(|(name, host)| is_listed(secret_of(name, host)))
    }

    /// Records that a Secret cannot be watched. Returns whether this kind of error is new.
    pub fn lost(&mut self, secret: &str, kind: &'static str) -> bool {
        let is_new = !self.lost.values().any(|other| *other == kind);
        self.lost.insert(secret.to_owned(), kind);
        is_new
    }

    /// Parses a Secret for each of its names.
    fn read(&mut self, secret: &str, now: Timestamp) {
        let Some(noted) = self.secrets.get(secret) else { return };
        let value = |key: &str| noted.values.get(key).cloned().unwrap_or_default();
        let (chain, key, by) = (value("tls.crt"), value("tls.key"), value(ACCOUNT_FINGERPRINT));
        for name in self.names_of(secret) {
            let entry = self.names.entry(name.clone()).or_default();
            let same = |good: &&Issued| *good.pair.chain == *chain && *good.pair.key == *key && good.by == by;
            if let Some(good) = entry.good.as_ref().filter(same) {
                entry.loaded = Some(Ok(good.leaf.certificate.clone()));
                continue;
            }
            let pair = Pair { chain: chain.to_vec().into(), key: key.to_vec().into() };
            let checked = Issued::new(&name, pair, by.clone()).map(|loaded| {
                let certificate = loaded.leaf.certificate.clone();
                if let Some(reason) = untimely(&certificate, now) {
                    let Certificate { from, until, .. } = certificate;
                    self.notices.push(CertNotice::Untimely { name: name.clone(), secret: secret.to_owned(), reason, from, until });
                }
                entry.issued.take_if(|issued| *issued == loaded);
                entry.good = Some(loaded);
                certificate
            });
            let ordered = self.wanted.get(&name).is_some_and(|host| host.issue);
            if let Err(error) = checked.as_ref()
                && entry.is_news(ordered, error)
            {
                self.notices.push(CertNotice::Invalid { name: name.clone(), secret: secret.to_owned(), error: error.clone() });
            }
            entry.loaded = Some(checked);
        }
    }

    fn names_of(&self, secret: &str) -> Vec<String> {
        let own = self.wanted.iter().filter(|(name, host)| secret_of(name, host) == secret);
        own.map(|(name, _)| name.clone()).collect()
    }

    fn records_of(&self, secret: &str) -> Vec<(String, Option<NameRecord>)> {
        self.names_of(secret).into_iter().map(|name| (name.clone(), self.record(&name))).collect()
    }

    /// Records of all desired names whose Secret was observed.
    pub fn records(&self) -> Vec<(String, Option<NameRecord>)> {
        self.wanted.keys().filter_map(|name| Some((name.clone(), Some(self.record(name)?)))).collect()
    }

    /// Shared record of a name; `None` while its Secret does not exist or was not observed.
    pub fn record(&self, name: &str) -> Option<NameRecord> {
        let noted = self.secrets.get(&self.secret(name))?;
        let certificate = self.names.get(name)?.loaded.clone()?.ok();
        Some(NameRecord { version: noted.version.clone(), certificate, note: self.note(name) })
    }

    /// Order note of a name. An unreadable note counts as empty: its author is treated as dead.
    fn note(&self, name: &str) -> OrderNote {
        let text = self.secrets.get(&self.secret(name)).and_then(|noted| noted.annotations.get(ISSUANCE));
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    pub fn secret(&self, name: &str) -> String {
        self.wanted.get(name).map_or(name, |host| secret_of(name, host)).to_owned()
    }

    /// Fingerprint of the account that ordered a name's certificate; empty if unknown.
    pub fn fingerprint(&self, name: &str) -> Bytes {
        let noted = self.secrets.get(&self.secret(name));
        noted.and_then(|noted| noted.values.get(ACCOUNT_FINGERPRINT).cloned()).unwrap_or_default()
    }

    /// A certificate that is in memory but not in its Secret, and not due for renewal: it is stored again instead of ordering another.
    pub fn reusable(&self, name: &str, now: Timestamp) -> Option<Issued> {
        let entry = self.names.get(name)?;
        let loaded = entry.loaded.as_ref().and_then(|loaded| loaded.as_ref().ok());
        let lost = |found: &&Issued| loaded.is_none_or(|loaded| loaded.until < found.leaf.certificate.until);
        let fresh = |found: &&Issued| now < renew_at(&found.leaf.certificate, None);
        [entry.issued.as_ref(), entry.good.as_ref()].into_iter().flatten().filter(lost).find(fresh).cloned()
    }

    /// Issued certificate that is not stored yet.
    pub fn issued(&self, name: &str) -> Option<&Issued> {
        self.names.get(name)?.issued.as_ref()
    }

    pub fn failure(&self, name: &str) -> Option<&(&'static str, String)> {
        self.names.get(name)?.failure.as_ref()
    }

    /// Records the outcome of an order.
    pub fn ended(&mut self, name: &str, end: Result<Issued, FailedOrder>) -> Result<Certificate, OrderFailure> {
        let entry = self.names.entry(name.to_owned()).or_default();
        let name = name.to_owned();
        match end {
            Ok(issued) => {
                let certificate = issued.leaf.certificate.clone();
                if entry.good.as_ref() == Some(&issued) || entry.issued.as_ref() == Some(&issued) {
                    self.notices.push(CertNotice::Restored { name });
                    self.restored += 1;
                } else {
                    self.notices.push(CertNotice::Issued { name, until: certificate.until });
                    *self.orders.entry("issued").or_default() += 1;
                }
                (entry.issued, entry.failure) = (Some(issued), None);
                Ok(certificate)
            }
            Err(FailedOrder { failure, reason, message }) => {
                *self.orders.entry(reason).or_default() += 1;
                entry.failure = Some((reason, message.clone()));
                self.notices.push(CertNotice::Failed { name, failure, reason, message });
                Err(failure)
            }
        }
    }

    /// Currently valid certificates.
    pub fn pairs(&self, now: Timestamp) -> BTreeMap<String, Pair> {
        let good = self.names.iter().filter_map(|(name, entry)| Some((name, entry.good.as_ref()?)));
        good.filter(|(_, good)| usable(&good.leaf.certificate, now)).map(|(name, good)| (name.clone(), good.pair.clone())).collect()
    }

    /// Certificates for the next container of this Pod: the valid ones, and those of names that were wanted recently.
    pub fn copy(&self, now: Timestamp) -> BTreeMap<String, CopiedCertificate> {
        let served = self.pairs(now).into_iter().map(|(name, pair)| {
            let secret = self.secret(&name);
            (name, CopiedCertificate { pair, secret })
        });
        self.backup.copy(now).chain(served).collect()
    }

    /// Time until the next certificate becomes valid, expires or is dropped.
    pub fn next_end(&self, now: Timestamp) -> Option<Duration> {
        let good = self.names.values().filter_map(|entry| entry.good.as_ref());
        let times = good.flat_map(|good| [good.leaf.certificate.from, good.leaf.certificate.until]).chain(self.backup.ends());
        times.filter(|time| *time > now).min().and_then(|time| Duration::try_from(time.duration_since(now)).ok())
    }

    /// Reason why the content of a Secret is unavailable.
    fn fault_of(&self, secret: &str) -> Option<&'static str> {
        self.lost.get(secret).copied().or_else(|| self.absent.contains(secret).then_some("NoSecret"))
    }

    pub fn state(&self, now: Timestamp) -> CertStoreState {
        let of = |(name, host): (&String, &Host)| {
            let entry = self.names.get(name);
            let fault = entry.and_then(|entry| match entry.loaded.as_ref()? {
                Ok(loaded) => untimely(loaded, now),
                Err(error) => Some(error.reason()),
            });
            let state = NameState {
                issue: host.issue,
                permitted: self.permitted.contains(name),
                certificate: entry.and_then(|entry| entry.good.as_ref()).map(|good| good.leaf.certificate.clone()),
                fault: fault.or_else(|| self.fault_of(secret_of(name, host))),
                note: self.note(name),
            };
            (name.clone(), state)
        };
        CertStoreState { names: self.wanted.iter().map(of).collect(), orders: self.orders.clone(), restored: self.restored }
    }
}

/// Reason why a certificate is not valid now; `None` if it is.
fn untimely(certificate: &Certificate, now: Timestamp) -> Option<&'static str> {
    match Validity::of(certificate, now).0 {
        Validity::Early(_) => Some("Early"),
        Validity::Ended(_) => Some("Expired"),
        Validity::Valid | Validity::Ending(_) => None,
    }
}

impl NamedCertificate {
    /// Whether an invalid Secret is newly invalid; an empty Secret that awaits its first order does not count.
    fn is_news(&self, ordered: bool, error: &CertificateError) -> bool {
        let unchanged = self.loaded.as_ref().and_then(|loaded| loaded.as_ref().err()).map(CertificateError::reason) == Some(error.reason());
        let awaited = ordered && *error == CertificateError::Empty;
        !unchanged && !awaited
    }
}

fn secret_of<'a>(name: &'a str, host: &'a Host) -> &'a str {
    if host.secret.is_empty() { name } else { &host.secret }
}

/// Serialized note, with its failure if any.
pub fn note_text(note: &OrderNote, failure: Option<&(&'static str, String)>) -> String {
    let (reason, message) =
        failure.filter(|_| note.failures > 0).map(|(kind, text)| ((*kind).to_owned(), text.clone())).unwrap_or_default();
    serde_json::to_string(&OrderNote { reason, message, ..note.clone() }).unwrap_or_default()
}

#[cfg(test)]
mod tests;
