//! Folds messages of tailscaled's IPN bus into a netmap.
//!
//! [`Fold`] stores every peer by ID and counts the peers of each prefix, so that the cost of a message depends on its changes, not on the
//! size of the tailnet. The published [`Arc`] is changed in place unless shared.

mod peer;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Serialize;

use self::peer::{Peer, self_node, self_status};
use crate::api::localapi::{DaemonStatus, DnsConfig, DnsRecord, NodeId, Notify, Prefs, Warning};
use crate::model::base::netmap::{Fqdn, NetMap, SelfNode};

/// Health code of a failed login.
pub const LOGIN_STATE: &str = "login-state";

/// tailscaled's state (`ipn.State`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
pub enum BackendState {
    /// Unknown.
    #[default]
    NoState,
    /// In use by another user; not on servers.
    InUseOtherUser,
    /// Login required.
    NeedsLogin,
    /// Approval by an administrator required.
    NeedsMachineAuth,
    /// Stopped by preferences.
    Stopped,
    Starting,
    /// Connected to the tailnet.
    Running,
}

/// State after some messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    pub state: BackendState,
    /// The netmap; `None` before the first complete one.
    pub netmap: Option<Arc<NetMap>>,
    /// Health warnings by code.
    pub health: Arc<BTreeMap<String, Warning>>,
    /// Current preferences, once received.
    pub prefs: Option<Prefs>,
    /// Whether the daemon has a node key of an earlier login, by the last status.
    pub have_node_key: bool,
}

/// Effect of one message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effect {
    /// The snapshot differs from the one before.
    pub changed: bool,
    /// The complete status must be read: the bus reports a new map only as a possible change of this node, but it may have removed peers
    /// and changed DNS records.
    pub ask_status: bool,
    /// Error message of the daemon (e.g. slow reader): messages may be lost, so subscribe again.
    pub lost: Option<String>,
}

/// Addresses of DNS records by name.
type DnsRecords = imbl::OrdMap<Fqdn, BTreeSet<IpAddr>>;

/// The fold over a stream of messages.
#[derive(Debug, Clone, Default)]
pub struct Fold {
    snapshot: Snapshot,
    peers: HashMap<NodeId, Peer>,
    names: HashMap<Fqdn, BTreeSet<NodeId>>,
    holders: HashMap<IpNet, u32>,
    accept_routes: Option<bool>,
}

impl BackendState {
    /// From the bus's number; unknown ones are [`Self::NoState`].
    #[must_use]
    pub fn from_number(number: i64) -> Self {
        match number {
            1 => Self::InUseOtherUser,
            2 => Self::NeedsLogin,
            3 => Self::NeedsMachineAuth,
            4 => Self::Stopped,
            5 => Self::Starting,
            6 => Self::Running,
            _ => Self::NoState,
        }
    }

    /// From a status's text; unknown ones are [`Self::NoState`].
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        (1..=6).map(Self::from_number).find(|state| state.word() == word).unwrap_or_default()
    }

    /// Text in a status.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::NoState => "NoState",
            Self::InUseOtherUser => "InUseOtherUser",
            Self::NeedsLogin => "NeedsLogin",
            Self::NeedsMachineAuth => "NeedsMachineAuth",
            Self::Stopped => "Stopped",
            Self::Starting => "Starting",
            Self::Running => "Running",
        }
    }
}

impl fmt::Display for BackendState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Snapshot {
    /// Whether the daemon reports a permanent login failure.
    #[must_use]
    pub fn login_broken(&self) -> bool {
        self.health.contains_key(LOGIN_STATE)
    }
}

impl Fold {
    /// Current snapshot. Cheap; the next change of the netmap copies it if the snapshot is still shared.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot.clone()
    }

    /// The daemon has exited: its state is unknown, the netmap stays.
    pub fn disconnected(&mut self) {
        self.snapshot.state = BackendState::NoState;
        self.snapshot.health = Arc::default();
    }

    /// Folds a message.
    pub fn fold(&mut self, message: Notify) -> Effect {
        let mut effect = Effect { lost: message.err_message, ..Effect::default() };
        if let Some(prefs) = message.prefs {
            effect.changed |= self.prefs(prefs);
        }
        if let Some(map) = message.net_map {
            let nodes = map.peers.iter().map(|node| (node.id, Peer::of_node(node)));
            let records = records(&map.dns.extra_records);
            effect.changed |= self.replace(map.self_node.as_ref().map(self_node), nodes, Some(records), &map.dns.cert_domains);
        }
        if let Some(status) = message.initial_status {
            effect.changed |= self.status(&status);
        }
        if let Some(node) = message.self_change {
            effect.ask_status = true;
            effect.changed |= self.change(|map| set(&mut map.node, Some(self_node(&node))));
        }
        for node in &message.peers_changed {
            effect.changed |= self.upsert(node.id, Peer::of_node(node));
        }
        for id in &message.peers_removed {
            effect.changed |= self.remove(*id);
        }
        if let Some(health) = message.health
            && *self.snapshot.health != health.warnings
        {
            self.snapshot.health = Arc::new(health.warnings);
            effect.changed = true;
        }
        if let Some(number) = message.state {
            let moved = set(&mut self.snapshot.state, BackendState::from_number(number));
            effect.changed |= moved;
            effect.ask_status |= moved && self.snapshot.state == BackendState::Running;
        }
        effect
    }

    /// Replaces the state by a complete status.
    pub fn status(&mut self, status: &DaemonStatus) -> bool {
        let state = set(&mut self.snapshot.state, BackendState::from_word(&status.backend_state));
        let state = set(&mut self.snapshot.have_node_key, status.have_node_key) || state;
        // A node without addresses is not logged in: the previous netmap stays.
        let Some(node) = status.node.as_ref().filter(|node| !node.tailscale_ips.is_empty()) else { return state };
        let records = status.extra_records.as_deref().map(records);
        let node = self_status(node);
        let peers = status.peer.values().map(|peer| (peer.node_id, Peer::of_status(peer)));
        self.replace(Some(node), peers, records, &status.cert_domains) || state
    }

    /// Folds DNS records and certificate domains.
    pub fn dns(&mut self, dns: &DnsConfig) -> bool {
        self.names(Some(records(&dns.extra_records)), &dns.cert_domains)
    }

    /// Sets DNS records, if given, and certificate domains.
    fn names(&mut self, records: Option<DnsRecords>, certs: &[String]) -> bool {
        self.change(|map| {
            let changed = records.is_some_and(|records| set(&mut map.records, records));
            set(&mut map.cert_domains, certs.to_vec()) || changed
        })
    }

    fn prefs(&mut self, prefs: Prefs) -> bool {
        if self.accept_routes != Some(prefs.route_all) {
            let peers = std::mem::take(&mut self.peers);
            self.forget();
            self.accept_routes = Some(prefs.route_all);
            for (id, peer) in peers {
                self.upsert(id, peer);
            }
        }
        set(&mut self.snapshot.prefs, Some(prefs))
    }

    /// Removes every peer; a complete netmap stays complete.
    fn forget(&mut self) {
        self.peers.clear();
        self.names.clear();
        self.holders.clear();
        if let Some(old) = self.snapshot.netmap.take() {
            let netmap = NetMap {
                node: old.node.clone(),
                records: old.records.clone(),
                cert_domains: old.cert_domains.clone(),
                ..NetMap::default()
            };
            self.snapshot.netmap = Some(Arc::new(netmap));
        }
    }

    fn replace(
        &mut self,
        node: Option<SelfNode>,
        peers: impl Iterator<Item = (NodeId, Peer)>,
        records: Option<DnsRecords>,
        certs: &[String],
    ) -> bool {
        let before = self.snapshot.netmap.clone();
        self.forget();
        self.snapshot.netmap.get_or_insert_default();
        self.change(|map| set(&mut map.node, node));
        for (id, peer) in peers {
            self.upsert(id, peer);
        }
        self.names(records, certs);
        let same = before.is_some() && before == self.snapshot.netmap;
        if same {
            self.snapshot.netmap = before; // consumers that compare pointers see no change
        }
        !same
    }

    /// Edits the netmap, if present; the edit returns whether it changed anything.
    fn change(&mut self, edit: impl FnOnce(&mut NetMap) -> bool) -> bool {
        self.snapshot.netmap.as_mut().is_some_and(|map| edit(Arc::make_mut(map)))
    }

    fn upsert(&mut self, id: NodeId, peer: Peer) -> bool {
        if self.snapshot.netmap.is_none() || self.peers.get(&id) == Some(&peer) {
            return false;
        }
        self.remove(id);
        if let Some(name) = &peer.name {
            self.names.entry(name.clone()).or_default().insert(id);
        }
        let fresh: Vec<IpNet> = peer.routes(self.accept_routes).filter(|net| bump(&mut self.holders, *net)).collect();
        let name = peer.name.clone();
        self.peers.insert(id, peer);
        self.change(|map| {
            map.routes.extend(fresh);
            true
        });
        if let Some(name) = name {
            self.rename(name);
        }
        true
    }

    fn remove(&mut self, id: NodeId) -> bool {
        let Some(peer) = self.peers.remove(&id) else { return false };
        let gone: Vec<IpNet> = peer.routes(self.accept_routes).filter(|net| drop_one(&mut self.holders, *net)).collect();
        self.change(|map| {
            for net in gone {
                map.routes.remove(&net);
            }
            true
        });
        if let Some(name) = peer.name {
            if let Some(ids) = self.names.get_mut(&name) {
                ids.remove(&id);
            }
            self.rename(name);
        }
        true
    }

    /// Sets the addresses of a name: those of all nodes with it.
    fn rename(&mut self, name: Fqdn) {
        let ids = self.names.get(&name).cloned().unwrap_or_default();
        let addresses: BTreeSet<IpAddr> =
            ids.iter().filter_map(|id| self.peers.get(id)).flat_map(|peer| peer.addresses.iter().copied()).collect();
        if ids.is_empty() {
            self.names.remove(&name);
        }
        self.change(
            |map| {
                if addresses.is_empty() { map.peers.remove(&name).is_some() } else { map.peers.insert(name, addresses).is_none() }
            },
        );
    }
}

fn records(records: &[DnsRecord]) -> DnsRecords {
    let mut by_name = DnsRecords::new();
    for record in records {
        if let (Some(name), Ok(ip)) = (Fqdn::new(&record.name), record.value.parse()) {
            by_name.entry(name).or_default().insert(ip);
        }
    }
    by_name
}

/// Sets a value; returns whether it differs.
fn set<T: PartialEq>(place: &mut T, value: T) -> bool {
    let differs = *place != value;
    if differs {
        *place = value;
    }
    differs
}

/// Increments the count; true for the first.
fn bump(holders: &mut HashMap<IpNet, u32>, net: IpNet) -> bool {
    let count = holders.entry(net).or_default();
    *count += 1;
    *count == 1
}

/// Decrements the count; true for the last.
fn drop_one(holders: &mut HashMap<IpNet, u32>, net: IpNet) -> bool {
    let Some(count) = holders.get_mut(&net) else { return false };
    *count -= 1;
    if *count == 0 {
        holders.remove(&net);
    }
    holders.get(&net).is_none()
}

#[cfg(test)]
mod tests;
