//! The listeners: for each port of each site one, opened and closed as the sites say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::api::routes::Listener;
use crate::model::sites::loopback;
use crate::model::sites::{Site, Sites};
use crate::runtime::accept::accept;

use super::connection::serve;
use super::parting::part;
use super::{InPlace, Loopback, Port, Served, Shared};

/// The listeners of all sites.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    addresses: BTreeMap<String, Ipv4Addr>,
    sites: BTreeMap<String, Opened>,
    tasks: JoinSet<()>,
}

/// What is open for one site.
#[derive(Debug)]
struct Opened {
    served: watch::Sender<Served>,
    ports: BTreeMap<u16, (Listener, SocketAddr, watch::Sender<bool>)>,
    faults: BTreeMap<u16, String>,
}

impl Listeners {
    /// Opens what is missing and closes what is not wanted; what stays is not touched. Returns whether something could not be
    /// opened and is to be tried again.
    pub(super) async fn follow(&mut self, sites: &Sites, shared: &Arc<Shared>) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.sites.retain(|name, opened| {
            let stays = sites.contains_key(name);
            if !stays {
                opened.close();
                shared.stats.forget(name);
            }
            stays
        });
        loopback::assign(&mut self.addresses, &sites.keys().map(String::as_str).collect());
        let mut failed = false;
        for (name, site) in sites {
            let served = Served::new(site, &shared.certificates);
            let opened = self.sites.entry(name.clone()).or_insert_with(|| Opened::new(served.clone()));
            if opened.served.borrow().site != served.site {
                opened.served.send_replace(served);
            }
            let address = self.addresses.get(name).copied();
            opened.open(name, site, address, shared, &mut self.tasks).await;
            failed |= !opened.faults.is_empty();
        }
        failed
    }

    /// Takes no new connections and no new requests; those that there are go on.
    pub(super) fn close(&mut self) {
        self.sites.values().for_each(Opened::close);
    }

    /// Waits until the last connection has ended.
    pub(super) async fn closed(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// What is open, by site.
    pub(super) fn in_place(&self, shared: &Shared) -> BTreeMap<String, InPlace> {
        let place = |(name, opened): (&String, &Opened)| {
            let site = Arc::clone(&opened.served.borrow().site);
            let over_tls = site.is_over_tls();
            let missing: BTreeSet<_> = site.hosts.keys().filter(|host| over_tls && !shared.certificates.has(host)).cloned().collect();
            let certified = missing.is_empty() || missing.len() < site.hosts.len();
            let ports = opened.ports.iter().map(|(port, (_, address, _))| (*port, *address)).collect();
            (name.clone(), InPlace { ports, missing, certified, faults: opened.faults.clone() })
        };
        self.sites.iter().map(place).collect()
    }
}

impl Opened {
    fn new(served: Served) -> Self {
        Self { served: watch::Sender::new(served), ports: BTreeMap::new(), faults: BTreeMap::new() }
    }

    fn close(&self) {
        for (.., closing) in self.ports.values() {
            closing.send_replace(true);
        }
    }

    async fn open(&mut self, name: &str, site: &Site, address: Option<Ipv4Addr>, shared: &Arc<Shared>, tasks: &mut JoinSet<()>) {
        self.faults.clear();
        self.ports.retain(|port, (kind, _, closing)| {
            let stays = site.listeners.get(port).is_some_and(|wanted| is_over_tls(*wanted) == is_over_tls(*kind));
            if !stays {
                closing.send_replace(true);
            }
            stays
        });
        let missing: Vec<_> = site.listeners.iter().filter(|(port, _)| !self.ports.contains_key(port)).collect();
        for (&port, &kind) in missing {
            match bind(shared.loopback, address, port).await {
                Ok((listener, at)) => {
                    let (closing, closed) = watch::channel(false);
                    let port_of = Port {
                        service: name.to_owned(),
                        number: port,
                        over_tls: is_over_tls(kind),
                        site: self.served.subscribe(),
                        counts: shared.stats.site(name),
                        shared: Arc::clone(shared),
                        tunnels: watch::Sender::new(()),
                    };
                    self.ports.insert(port, (kind, at, closing));
                    tasks.spawn(listen(listener, Arc::new(port_of), closed));
                }
                Err(error) => {
                    let at = address.map_or_else(|| "the loopback network".to_owned(), |address| loopback::at(address, port).to_string());
                    let why = format!("port {port} cannot be listened on at {at}: {error}");
                    tracing::error!(service = name, "{why}");
                    self.faults.insert(port, why);
                }
            }
        }
    }
}

fn is_over_tls(listener: Listener) -> bool {
    listener == Listener::Https
}

async fn bind(loopback: Loopback, address: Option<Ipv4Addr>, port: u16) -> std::io::Result<(TcpListener, SocketAddr)> {
    let at = match (loopback, address) {
        (Loopback::Any, _) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        (Loopback::Named, Some(address)) => loopback::at(address, port),
        (Loopback::Named, None) => return Err(std::io::Error::other("there are more services than addresses")),
    };
    let listener = TcpListener::bind(at).await?;
    let at = listener.local_addr()?;
    Ok((listener, at))
}

/// Takes connections until told to close, then waits for those that there are, and for those that became something else.
async fn listen(listener: TcpListener, port: Arc<Port>, mut closing: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(port.shared.limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => break,
            accepted = accept(&listener, &slots) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        if let Some((stream, slot)) = accepted {
            let open = port.shared.stats.opened(&port.counts);
            let (work, limit, closing) = (serve(stream, Arc::clone(&port), closing.clone()), port.shared.limits.parting, closing.clone());
            connections.spawn(async move {
                let left = work.await;
                drop(open);
                if let Some(stream) = left {
                    part(stream, limit, closing).await;
                }
                drop(slot);
            });
        }
    }
    drop(listener);
    let all = async {
        while connections.join_next().await.is_some() {}
        port.tunnels.closed().await;
    };
    if timeout(port.shared.limits.grace, all).await.is_err() {
        tracing::info!(service = port.service, port = port.number, "connections that outlived their grace are cut");
    }
    port.tunnels.send_replace(());
}
