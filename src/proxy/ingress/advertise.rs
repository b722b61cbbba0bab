//! Decides what tailscaled serves and what it advertises, from what is in place: the kernel's mappings and this replica's listeners.
//!
//! Handlers come before what leads to them and go after it: a service is advertised once tailscaled serves it, and tailscaled
//! serves it for as long as it says that it advertises it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::routes::Listener;
use crate::api::serve::ServeConfig;
use crate::model::base::netmap::NetMap;
use crate::model::config::IngressConfig;
use crate::model::config::source::ServeContent;
use crate::model::ingress::vhosts::{Vhost, node};
use crate::model::tailnet::advertise::{AdvertiseInputs, Advertised, Placement, WithdrawalProgress};
use crate::model::tailnet::serve_config::{self, FunnelError, SitePorts};
use crate::model::tailnet::supervise::DaemonPhase;
use crate::proxy::forwarding::ruleset_sync::Programmed;
use crate::proxy::ingress::l7::InPlace;
use crate::proxy::ingress::serve_config_writer::ServeStatus;
use crate::proxy::tailnet::daemon::{DaemonState, changed};
use crate::proxy::tailnet::peer_warmup::WarmupProgress;
use crate::runtime::watch_ext::put;

/// How long a replica that starts waits for what it should serve to be advertised and approved. A service that nobody approves,
/// or whose certificate does not come, is not to keep a rollout waiting for ever.
pub const BOUND: Duration = Duration::from_mins(1);

/// Why a service is not advertised by a tailscaled that no config file tells to.
const UNTOLD: &str = "tailscaled has no config file that could tell it to advertise: give it one (TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR), or advertise nothing (TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT=false)";

/// What it goes by; nothing in a cell means not heard yet.
#[derive(Debug)]
pub struct Inputs {
    /// How tailscaled fares, what its config names and what it advertises.
    pub daemon: watch::Receiver<DaemonState>,
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
    /// The serve config in force.
    pub served: watch::Receiver<Option<Arc<ServeContent>>>,
    /// The L3 ingress config in force.
    pub ingress: watch::Receiver<Option<Arc<IngressConfig>>>,
    /// What the kernel holds.
    pub programmed: watch::Receiver<Programmed>,
    /// How the listeners of the sites stand.
    pub in_place: watch::Receiver<Arc<BTreeMap<String, InPlace>>>,
    pub serving: watch::Receiver<ServeStatus>,
    /// The ways to peers, if they are tried: before that nothing is advertised.
    pub paths: Option<watch::Receiver<WarmupProgress>>,
    /// How far the replica is with leaving.
    pub leaving: watch::Receiver<WithdrawalProgress>,
}

/// What of it is ours to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdvertiseMode {
    /// tailscaled's serve config is ours to write.
    pub serves: bool,
    /// Sites are served on the node's own addresses: the control plane has no Tailscale Services.
    pub on_node: bool,
    /// What the serve config serves is advertised though tailscaled's config does not name it.
    pub unasked: bool,
}

/// What it tells.
#[derive(Debug)]
pub struct AdvertiseOutputs {
    pub wanted: watch::Sender<Option<Arc<ServeConfig>>>,
    pub advertised: watch::Sender<Advertised>,
    pub standing: watch::Sender<AdvertiseStatus>,
}

/// How the services stand that this replica should serve.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdvertiseStatus {
    /// Those that are not advertised and approved, and why.
    pub waiting: BTreeMap<String, String>,
    pub approved: BTreeSet<String>,
    pub leading: BTreeSet<String>,
    /// The sites that are to be reached from the internet and are not; none while that is not known.
    pub barred: Option<BTreeMap<String, FunnelError>>,
    /// For which start of tailscaled all of them were approved at some time, or were waited for long enough.
    pub settled: Option<u64>,
    /// tailscaled lets nobody new in.
    pub shut: bool,
}

/// Decides anew whenever an input changes; ends when the sender of one is gone.
pub async fn run(mut inputs: Inputs, how: AdvertiseMode, outputs: AdvertiseOutputs) {
    let mut deadline = None;
    loop {
        let view = inputs.view(how);
        if let Some(wanted) = view.wanted() {
            put(&outputs.wanted, Some(Arc::new(wanted)));
        }
        let facts = view.facts();
        if view.heard() && view.tried {
            put(&outputs.advertised, facts.advertised());
        }
        let start = (view.daemon.phase == DaemonPhase::Running).then_some(view.daemon.restarts);
        if start.is_none() {
            deadline = None;
        }
        let due = start.map(|_| *deadline.get_or_insert_with(|| Instant::now() + BOUND));
        let late = due.is_some_and(|due| Instant::now() >= due);
        let mut standing = view.standing(&facts);
        let done = view.heard() && (standing.waiting.is_empty() || late);
        standing.follow(&outputs.standing.borrow(), start, done, late);
        put(&outputs.standing, standing);
        let wake = due.filter(|_| !late);
        tokio::select! {
            changed = inputs.changed() => if changed.is_err() { return },
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
        }
    }
}

impl AdvertiseStatus {
    /// Takes over for which start of tailscaled all was settled, and says what is new since `told`.
    fn follow(&mut self, before: &Self, start: Option<u64>, done: bool, late: bool) {
        self.settled = start.filter(|start| done || before.settled == Some(*start));
        if late && self.settled.is_some() && before.settled != self.settled && !self.waiting.is_empty() {
            tracing::warn!(waiting = ?self.waiting, "services are not advertised and approved; no longer waiting for them");
        }
        let unavailable = |service: &String| before.barred.as_ref().and_then(|barred| barred.get(service));
        for (service, why) in self.barred.iter().flatten().filter(|(service, why)| unavailable(service) != Some(*why)) {
            tracing::warn!(service, reason = why.reason(), "not reachable from the internet: {why}");
        }
    }
}

/// Everything at one moment.
struct AdvertiseView {
    daemon: DaemonState,
    netmap: Option<Arc<NetMap>>,
    served: Option<Arc<ServeContent>>,
    ingress: Option<Arc<IngressConfig>>,
    programmed: Programmed,
    in_place: Arc<BTreeMap<String, InPlace>>,
    serving: ServeStatus,
    /// The ways to peers were tried once, or need not be.
    tried: bool,
    leaving: WithdrawalProgress,
    how: AdvertiseMode,
}

impl Inputs {
    fn view(&mut self, how: AdvertiseMode) -> AdvertiseView {
        AdvertiseView {
            daemon: self.daemon.borrow_and_update().clone(),
            netmap: self.netmap.borrow_and_update().clone(),
            served: self.served.borrow_and_update().clone(),
            ingress: self.ingress.borrow_and_update().clone(),
            programmed: self.programmed.borrow_and_update().clone(),
            in_place: self.in_place.borrow_and_update().clone(),
            serving: self.serving.borrow_and_update().clone(),
            tried: self.paths.as_mut().is_none_or(|paths| paths.borrow_and_update().start.is_some()),
            leaving: *self.leaving.borrow_and_update(),
            how,
        }
    }

    async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        tokio::select! {
            changed = self.daemon.changed() => changed,
            changed = self.netmap.changed() => changed,
            Ok(()) = self.served.changed() => Ok(()),
            Ok(()) = self.ingress.changed() => Ok(()),
            Ok(()) = self.programmed.changed() => Ok(()),
            Ok(()) = self.in_place.changed() => Ok(()),
            Ok(()) = self.serving.changed() => Ok(()),
            Ok(()) = changed(&mut self.paths) => Ok(()),
            changed = self.leaving.changed() => changed,
        }
    }
}

impl AdvertiseView {
    /// Whether every config has been heard: before that, nothing that is advertised already is taken back.
    fn heard(&self) -> bool {
        self.served.is_some() && self.ingress.is_some()
    }

    /// The serve config that tailscaled is to have; nothing while it is not known or not ours.
    fn wanted(&self) -> Option<ServeConfig> {
        let (served, ingress) = (self.served.as_ref()?, self.ingress.as_ref()?);
        if !self.how.serves {
            return None;
        }
        let kernel = ingress.services.iter().map(|(name, service)| (name.to_string(), serve_config::announced(service))).collect();
        let mut wanted = serve_config::ServeInputs { kernel, ..serve_config::ServeInputs::default() };
        if self.how.on_node {
            wanted.kernel.clear();
            wanted.node = self.ports(&node::merged(&served.sites).0, node::NAME).unwrap_or_default();
        } else {
            let listened = |(name, site): (&String, &Arc<Vhost>)| Some((name.clone(), self.ports(site, name).ok()?));
            wanted.sites = served.sites.iter().filter_map(listened).collect();
        }
        for (name, site) in served.sites.iter().filter(|(_, site)| site.funnel) {
            let ports = if self.how.on_node { wanted.node.clone() } else { wanted.sites.get(name).cloned().unwrap_or_default() };
            serve_config::to_internet(&mut wanted, site, &ports);
        }
        let mut config = serve_config::config(&wanted);
        serve_config::pass(&mut config, &served.config, self.netmap.as_deref().and_then(|netmap| netmap.cert_domains.first()));
        serve_config::leave(&mut config, self.leaving);
        // What is still advertised keeps what answers for it.
        for (name, service) in self.serving.config.iter().flat_map(|config| &config.services) {
            if self.daemon.advertised.contains(name) && !config.services.contains_key(name) {
                config.services.insert(name.clone(), service.clone());
            }
        }
        Some(config)
    }

    /// Where the ports of a site are listened on, or why it is not to be reached. One of whose names none has a certificate yet is
    /// reached where it is to be served without; a name that lacks its own holds nobody else's back.
    fn ports(&self, site: &Vhost, name: &str) -> Result<SitePorts, String> {
        let place = self.in_place.get(name).ok_or("it is not listened on yet")?;
        let plain = |port: &u16| site.listeners.get(port) == Some(&Listener::Http);
        let ports: SitePorts =
            place.ports.iter().filter(|(port, _)| place.certified || plain(port)).map(|(port, at)| (*port, *at)).collect();
        if !ports.is_empty() {
            return Ok(ports);
        }
        let missing: Vec<_> = place.missing.iter().map(|host| format!("no certificate for {host} yet")).collect();
        let faults = place.faults.values().cloned();
        Err(missing.into_iter().chain(faults).collect::<Vec<_>>().join("; "))
    }

    fn facts(&self) -> AdvertiseInputs {
        let mut facts = AdvertiseInputs {
            configured: self.daemon.configured.as_deref().cloned().unwrap_or_default(),
            leaving: self.leaving,
            ..AdvertiseInputs::default()
        };
        if self.how.unasked && !self.how.on_node {
            facts
                .configured
                .extend(self.served.iter().flat_map(|served| served.config.services.keys().chain(served.sites.keys())).cloned());
        }
        for name in self.served.iter().flat_map(|served| served.config.services.keys()) {
            facts.placed.insert(name.clone(), self.handled(name));
        }
        for (name, site) in self.served.iter().flat_map(|served| served.sites.iter()) {
            facts.placed.insert(name.clone(), self.ports(site, name).and_then(|_| self.handled(name)));
        }
        let kernel = self.ingress.iter().flat_map(|ingress| ingress.services.keys().chain(ingress.malformed.keys()));
        for name in kernel {
            let place = self.forwarded(name);
            for address in self.addresses(name) {
                facts.addresses.insert(address, place.is_ok());
            }
            let place = if self.how.serves && !self.how.on_node { place.and_then(|()| self.handled(name)) } else { place };
            facts.placed.insert(name.to_string(), place);
        }
        facts
    }

    /// Whether tailscaled handles what comes for a service.
    fn handled(&self, name: &str) -> Placement {
        let has = self.serving.config.as_ref().is_some_and(|config| config.services.contains_key(name));
        if has { Ok(()) } else { Err("tailscaled has not taken its serve config yet".to_owned()) }
    }

    /// Whether the kernel forwards a service as it is configured now.
    fn forwarded(&self, name: &str) -> Placement {
        let configured = self.ingress.as_ref().and_then(|ingress| ingress.services.get(name));
        let programmed = &self.programmed;
        let Some(planned) = programmed.planned.as_ref().filter(|_| programmed.at.is_some()) else {
            return Err("the kernel holds no rules yet".to_owned());
        };
        if let Some((fault, _)) = programmed.fault.as_ref().filter(|_| programmed.damaged) {
            return Err(format!("another program changed the ruleset and it cannot be repaired: {}", fault.message));
        }
        let in_force = planned.world.ingress.services.get(name);
        if in_force.is_none() || in_force != configured {
            let why = programmed.fault.as_ref().map(|(fault, _)| format!(": {}", fault.message)).unwrap_or_default();
            return Err(format!("the kernel does not hold its mapping yet{why}"));
        }
        if planned.plan.ingress.get(name).is_some_and(|hosts| !hosts.is_empty()) {
            return Ok(());
        }
        let reasons = planned.plan.rejected.get(name).into_iter().flatten().map(ToString::to_string).collect::<Vec<_>>();
        Err(if reasons.is_empty() { "its mapping has no two addresses of one family".to_owned() } else { reasons.join("; ") })
    }

    /// The tailnet's addresses of a service that the kernel forwards.
    fn addresses(&self, name: &str) -> Vec<IpAddr> {
        let service = self.ingress.as_ref().and_then(|ingress| ingress.services.get(name));
        let mappings = service.iter().flat_map(|service| [&service.ipv4, &service.ipv6]).flatten();
        mappings.filter_map(|mapping| mapping.tailscale_service_ip.parse().ok()).collect()
    }

    fn standing(&self, facts: &AdvertiseInputs) -> AdvertiseStatus {
        let mut standing =
            AdvertiseStatus { waiting: facts.withheld(), barred: self.barred(), shut: self.daemon.shut, ..AdvertiseStatus::default() };
        if self.daemon.phase != DaemonPhase::Running {
            // Nothing comes by way of a tailscaled that is away, and nobody can be told.
            return standing;
        }
        let node = self.netmap.as_ref().and_then(|netmap| netmap.node.as_ref());
        for name in facts.configured.iter().filter(|name| !standing.waiting.contains_key(*name)).collect::<Vec<_>>() {
            if !self.daemon.advertised.contains(name) {
                // Without a config file nobody tells tailscaled what to advertise.
                let why = if self.daemon.configured.is_some() { "tailscaled does not advertise it yet" } else { UNTOLD };
                standing.waiting.insert(name.clone(), why.to_owned());
            } else if !node.is_some_and(|node| node.services.contains_key(name)) {
                standing.waiting.insert(name.clone(), "the control server has not approved this node for it".to_owned());
            } else {
                standing.approved.insert(name.clone());
            }
        }
        let is_routed =
            |addresses: &BTreeSet<IpAddr>| node.is_some_and(|node| addresses.iter().any(|ip| node.routes.contains(&(*ip).into())));
        let granted = node.iter().flat_map(|node| &node.services);
        standing.leading = self.daemon.advertised.iter().cloned().collect();
        standing.leading.extend(granted.filter(|(_, addresses)| is_routed(addresses)).map(|(name, _)| name.clone()));
        // Whatever way leads here by an address that the kernel forwards: as a Tailscale Service, or as a route of this node.
        let forwarded = self.ingress.iter().flat_map(|ingress| ingress.services.keys());
        let has_route = |name: &&Arc<str>| is_routed(&self.addresses(name).into_iter().collect());
        standing.leading.extend(forwarded.filter(has_route).map(ToString::to_string));
        standing
    }

    /// The sites that are to be reached from the internet and are not; none while the tailnet has not told.
    fn barred(&self) -> Option<BTreeMap<String, FunnelError>> {
        let served = self.served.as_ref().filter(|_| self.how.serves)?;
        let node = self.netmap.as_ref()?.node.as_ref()?;
        Some(serve_config::barred(&served.sites, &served.config, node.funnel, self.how.on_node))
    }
}

/// Lets nobody new in (`shut`), or somebody again, and waits until tailscaled says so, at most for `within`. Whether it does.
pub async fn shut(
    leaving: &watch::Sender<WithdrawalProgress>,
    standing: &mut watch::Receiver<AdvertiseStatus>,
    shut: bool,
    within: Duration,
) -> bool {
    leaving.send_modify(|leaving| leaving.shut = shut);
    timeout(within, standing.wait_for(|standing| standing.shut == shut)).await.is_ok()
}

/// Takes everything back that is advertised, and waits until the control server leads nothing here any more, at most for `within`.
/// Whether that is so.
pub async fn withdraw(
    leaving: &watch::Sender<WithdrawalProgress>,
    standing: &mut watch::Receiver<AdvertiseStatus>,
    within: Duration,
) -> bool {
    let before = standing.borrow().leading.len();
    leaving.send_modify(|leaving| leaving.withdrawn = true);
    let began = Instant::now();
    let done = timeout(within, standing.wait_for(|standing| standing.leading.is_empty())).await.is_ok();
    if !done {
        let services = &standing.borrow().leading;
        tracing::warn!(?services, "the control plane may still route services to this replica: it has not confirmed their withdrawal");
    } else if before > 0 {
        tracing::info!(services = before, took = ?began.elapsed(), "no service is routed to this replica any more");
    }
    done
}
