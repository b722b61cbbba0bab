//! Whether replicas hold what they were told to forward, by what they say themselves and by what their Pods are.
//!
//! What a replica says counts only for the Pod that said it, and only word for word: same ports, same target, and addresses
//! where the target is a name. Never by the age of a config or by the time that it should have taken.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::{Observed, Replica};
use crate::api::egress;

/// How long a Pod that is not ready is waited for before the others go on without it.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// The replicas of a group as far as forwarding goes.
#[derive(Debug)]
pub(super) struct Standing<'a> {
    replicas: Vec<One<'a>>,
    /// Of the config that they are to hold.
    fingerprint: String,
}

/// One replica.
#[derive(Debug)]
struct One<'a> {
    /// What it says, if the Pod that said it is the one there is.
    says: Option<&'a egress::Status>,
    /// Whether its Pod gets traffic.
    ready: bool,
    /// Whether the others go on without it.
    silent: bool,
}

impl<'a> Standing<'a> {
    pub(super) fn of(observed: &'a Observed, wanted: u32, fingerprint: String) -> Self {
        let one = |ordinal: u32| match observed.replicas.get(&ordinal) {
            None => One { says: None, ready: false, silent: false },
            Some(replica) => {
                let (ready, since) = readiness(replica.pod.as_deref());
                let given_up = since.is_some_and(|since| elapsed(since, observed.now) >= PATIENCE);
                One { says: said(replica), ready, silent: !ready && given_up }
            }
        };
        Self { replicas: (0..wanted).map(one).collect(), fingerprint }
    }

    /// Whether some replica is not ready and not given up, so that time alone may change the answer.
    pub(super) fn waiting(&self) -> bool {
        self.replicas.iter().any(|one| !one.ready && !one.silent)
    }

    /// Whether the name of a service may point to the group: every replica that is waited for holds it, and one at least.
    pub(super) fn all(&self, key: &str, service: &egress::Service) -> bool {
        let mut counted = self.replicas.iter().filter(|one| !one.silent).peekable();
        counted.peek().is_some() && counted.all(|one| self.holds(one, key, service))
    }

    /// How many replicas forward a service now.
    pub(super) fn ready(&self, key: &str, service: &egress::Service) -> usize {
        self.replicas.iter().filter(|one| one.ready && self.holds(one, key, service)).count()
    }

    /// How many there should be.
    pub(super) fn wanted(&self) -> usize {
        self.replicas.len()
    }

    fn holds(&self, one: &One<'_>, key: &str, service: &egress::Service) -> bool {
        let Some(status) = one.says else { return false };
        match status.services.as_ref() {
            Some(services) => services.get(key).is_some_and(|held| {
                let resolved =
                    service.tailnet_target.fqdn.is_empty() || held.tailnet_target_ips.as_ref().is_some_and(|ips| !ips.is_empty());
                resolved && held.tailnet_target == service.tailnet_target && same(&held.ports, &service.ports)
            }),
            // With very many services a replica names the config as a whole, and what of it is not served.
            None => status.fingerprint.as_ref() == Some(&self.fingerprint) && !status.rejected.contains_key(key),
        }
    }
}

fn same(one: &[egress::PortMap], other: &[egress::PortMap]) -> bool {
    one == other || (one.len() == other.len() && one.iter().collect::<BTreeSet<_>>() == other.iter().collect())
}

/// What a replica says, if its Pod has the addresses of the one that said it.
fn said(replica: &Replica) -> Option<&egress::Status> {
    let status = replica.state.as_ref()?.egress.as_ref()?;
    let pod = replica.pod.as_ref()?.status.as_ref()?;
    let listed = pod.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let addresses: BTreeSet<IpAddr> = listed.chain(pod.pod_ip.as_deref()).filter_map(|ip| ip.parse().ok()).collect();
    let says = |ip: &IpAddr| {
        let text = if ip.is_ipv4() { &status.pod_ipv4 } else { &status.pod_ipv6 };
        text.parse() == Ok(*ip)
    };
    (!addresses.is_empty() && addresses.iter().all(says)).then_some(status)
}

/// Whether a Pod gets traffic, and since when it does not.
fn readiness(pod: Option<&Pod>) -> (bool, Option<Timestamp>) {
    let Some(pod) = pod else { return (false, None) };
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    let since = ready.and_then(|ready| ready.last_transition_time.as_ref()).or(pod.metadata.creation_timestamp.as_ref());
    let is = ready.is_some_and(|ready| ready.status == "True") && pod.metadata.deletion_timestamp.is_none();
    (is, since.map(|since| since.0))
}

/// Whether a Pod gets traffic.
pub(super) fn is_ready(pod: &Pod) -> bool {
    readiness(Some(pod)).0
}

/// How long ago.
pub(super) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(now.as_second().saturating_sub(since.as_second())).unwrap_or_default())
}
