//! Folds messages of tailscaled's IPN bus into a netmap.
//!
//! [`Fold`] stores every peer by ID and counts the peers of each prefix, so that the cost of a message depends on its changes, not on the
//! size of the tailnet. The published [`Arc`] is changed in place unless shared.

mod peer;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use self::peer::{Peer, self_node, self_status};
use crate::api::localapi::{DaemonStatus, DnsConfig, DnsRecord, NodeId, Notify, Prefs};
use crate::model::base::netmap::{Fqdn, NetMap, SelfNode};
use ipnet::IpNet;

/// Health code of a failed login.
pub const LOGIN_STATE: &str = "login-state";

/// State of the daemon (`ipn.State`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum BackendState {
    #[default]
    NoState,
    /// In use by another user; not on servers.
    InUseOtherUser,
    NeedsLogin,
    NeedsMachineAuth,
    Stopped,
    Starting,
    Running,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    pub state: BackendState,
    /// The netmap; `None` before the first complete one.
    pub netmap: Option<Arc<NetMap>>,
    /// Codes of the daemon's health warnings.
    pub health: Arc<BTreeSet<String>>,
    /// Current preferences; `None` before the daemon's first report.
    pub prefs: Option<Prefs>,
    /// Whether the daemon has a node key of an earlier login, from the last status.
    pub have_node_key: bool,
}

/// Required actions after one message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effect {
    /// Request the complete status. For a new netmap the bus reports only that this node may have changed; peers may be removed and DNS
    /// records changed.
    pub ask_status: bool,
    /// Error message of the daemon (e.g. slow reader): messages may be lost, so subscribe again.
    pub lost: Option<String>,
}

/// Addresses of DNS records by name.
type DnsRecords = imbl::OrdMap<Fqdn, BTreeSet<IpAddr>>;

#[derive(Debug, Clone, Default)]
pub struct Fold {
    snapshot: Snapshot,
    peers: HashMap<NodeId, Peer>,
    names: HashMap<Fqdn, BTreeSet<NodeId>>,
    holders: HashMap<IpNet, u32>,
    accept_routes: Option<bool>,
}

impl BackendState {
    /// In the order of the bus's numbers, from 0.
    const ALL: [Self; 7] =
        [Self::NoState, Self::InUseOtherUser, Self::NeedsLogin, Self::NeedsMachineAuth, Self::Stopped, Self::Starting, Self::Running];

    /// From the number on the bus; an unknown one is no state.
    pub fn from_number(number: i64) -> Self {
        usize::try_from(number).ok().and_then(|number| Self::ALL.get(number).copied()).unwrap_or_default()
    }

    /// From the word in a status; an unknown one is no state.
    pub fn from_word(word: &str) -> Self {
        Self::ALL.into_iter().find(|state| state.to_string() == word).unwrap_or_default()
    }
}

/// The word in a status.
impl fmt::Display for BackendState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Snapshot {
    /// Whether the daemon reports a permanently failed login.
    pub fn login_broken(&self) -> bool {
        self.health.contains(LOGIN_STATE)
    }
}

impl Fold {
    /// Current state. Cheap; the next change of the netmap copies it if this snapshot is still in use.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot.clone()
    }

    /// The daemon has exited: its state is unknown, the netmap stays.
    pub fn disconnected(&mut self) {
        self.snapshot.state = BackendState::NoState;
        self.snapshot.health = Arc::default();
    }

    pub fn fold(&mut self, message: Notify) -> Effect {
        let mut effect = Effect { ask_status: message.self_change.is_some(), lost: message.err_message };
        if let Some(prefs) = message.prefs {
            self.prefs(prefs);
        }
        if let Some(map) = message.net_map {
            let nodes = map.peers.iter().map(|node| (node.id, Peer::of_node(node)));
            let records = records(&map.dns.extra_records);
            self.replace(map.self_node.as_ref().map(self_node), nodes, Some(records), &map.dns.cert_domains);
        }
        if let Some(status) = message.initial_status {
            self.status(&status);
        }
        if let Some(node) = message.self_change {
            self.change(|map| map.node = Some(self_node(&node)));
        }
        for node in &message.peers_changed {
            self.upsert(node.id, Peer::of_node(node));
        }
        for id in &message.peers_removed {
            self.remove(*id);
        }
        if let Some(health) = message.health {
            self.snapshot.health = Arc::new(health.warnings.into_keys().collect());
        }
        if let Some(number) = message.state {
            let before = std::mem::replace(&mut self.snapshot.state, BackendState::from_number(number));
            effect.ask_status |= before != BackendState::Running && self.snapshot.state == BackendState::Running;
        }
        effect
    }

    /// Replaces the complete state.
    pub fn status(&mut self, status: &DaemonStatus) {
        self.snapshot.state = BackendState::from_word(&status.backend_state);
        self.snapshot.have_node_key = status.have_node_key;
        // Before a login the node has no addresses: that is not a netmap, and the previous one stays.
        let Some(node) = status.node.as_ref().filter(|node| !node.tailscale_ips.is_empty()) else { return };
        let records = status.extra_records.as_deref().map(records);
        let node = self_status(node);
        let peers = status.peer.values().map(|peer| (peer.node_id, Peer::of_status(peer)));
        self.replace(Some(node), peers, records, &status.cert_domains);
    }

    /// Sets DNS records and certificate domains.
    pub fn dns(&mut self, dns: &DnsConfig) {
        self.names(Some(records(&dns.extra_records)), &dns.cert_domains);
    }

    /// Sets DNS records, if reported, and certificate domains.
    fn names(&mut self, records: Option<DnsRecords>, certs: &[String]) {
        self.change(|map| {
            if let Some(records) = records.filter(|records| map.records != *records) {
                map.records = records;
            }
            map.cert_domains = certs.to_vec();
        });
    }

    fn prefs(&mut self, prefs: Prefs) {
        if self.accept_routes != Some(prefs.route_all) {
            let peers = std::mem::take(&mut self.peers);
            self.forget();
            self.accept_routes = Some(prefs.route_all);
            for (id, peer) in peers {
                self.upsert(id, peer);
            }
        }
        self.snapshot.prefs = Some(prefs);
    }

    /// Removes every peer; a complete netmap stays complete.
    fn forget(&mut self) {
        self.peers.clear();
        self.names.clear();
        self.holders.clear();
        self.change(|map| {
            map.peers.clear();
            map.routes.clear();
        });
    }

    fn replace(
        &mut self,
        node: Option<SelfNode>,
        peers: impl Iterator<Item = (NodeId, Peer)>,
        records: Option<DnsRecords>,
        certs: &[String],
    ) {
        let before = self.snapshot.netmap.clone();
        self.forget();
        self.snapshot.netmap.get_or_insert_default();
        self.change(|map| map.node = node);
        for (id, peer) in peers {
            self.upsert(id, peer);
        }
        self.names(records, certs);
        if before.is_some() && before == self.snapshot.netmap {
            self.snapshot.netmap = before; // consumers that compare pointers see no change
        }
    }

    /// Edits the netmap, if complete.
    fn change(&mut self, edit: impl FnOnce(&mut NetMap)) {
        if let Some(map) = &mut self.snapshot.netmap {
            edit(Arc::make_mut(map));
        }
    }

    fn upsert(&mut self, id: NodeId, peer: Peer) {
        if self.snapshot.netmap.is_none() || self.peers.get(&id) == Some(&peer) {
            return;
        }
        self.remove(id);
        if let Some(name) = &peer.name {
            self.names.entry(name.clone()).or_default().insert(id);
        }
        let fresh: Vec<IpNet> = peer.routes(self.accept_routes).filter(|net| bump(&mut self.holders, *net)).collect();
        let name = peer.name.clone();
        self.peers.insert(id, peer);
        self.change(|map| map.routes.extend(fresh));
        if let Some(name) = name {
            self.rename(name);
        }
    }

    fn remove(&mut self, id: NodeId) {
        let Some(peer) = self.peers.remove(&id) else { return };
        let gone: Vec<IpNet> = peer.routes(self.accept_routes).filter(|net| drop_one(&mut self.holders, *net)).collect();
        self.change(|map| {
            for net in gone {
                map.routes.remove(&net);
            }
        });
        if let Some(name) = peer.name {
            if let Some(ids) = self.names.get_mut(&name) {
                ids.remove(&id);
            }
            self.rename(name);
        }
    }

    /// Sets the addresses of a name: those of all nodes with it.
    fn rename(&mut self, name: Fqdn) {
        let ids = self.names.get(&name).cloned().unwrap_or_default();
        let addresses: BTreeSet<IpAddr> =
            ids.iter().filter_map(|id| self.peers.get(id)).flat_map(|peer| peer.addresses.iter().copied()).collect();
        if ids.is_empty() {
            self.names.remove(&name);
        }
        self.change(|map| drop(if addresses.is_empty() { map.peers.remove(&name) } else { map.peers.insert(name, addresses) }));
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
