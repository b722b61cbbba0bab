//! A real DNS server whose zone can be edited and which can be made to fail, on an address of the namespace it is started in.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::proto::op::{Header, HeaderCounts, ResponseCode};
use hickory_server::proto::rr::rdata::{A, AAAA, CNAME, SOA};
use hickory_server::proto::rr::{LowerName, Name, RData, Record, RrKey};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::store::in_memory::InMemoryZoneHandler;
use hickory_server::zone_handler::{AxfrPolicy, Catalog, MessageResponseBuilder, ZoneType};
use tokio::net::{TcpListener, UdpSocket};
use tokio::time::sleep;

/// An injected fault of a name, which overrides the zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// With SERVFAIL.
    ServFail,
    /// Not at all.
    Silent,
}

/// A running server with the zone `test.`.
#[derive(Clone)]
pub struct Dns {
    zone: Arc<InMemoryZoneHandler>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    faults: Mutex<BTreeMap<String, Fault>>,
    queries: Mutex<BTreeMap<String, usize>>,
    latency: Mutex<Duration>,
    now: AtomicUsize,
    most: AtomicUsize,
}

struct Handler {
    catalog: Catalog,
    state: Arc<State>,
}

impl Dns {
    /// Starts a server on port 53 of an address, UDP and TCP; it lives as long as the runtime.
    pub async fn start(ip: &str) -> Self {
        let origin = name("test");
        let zone = InMemoryZoneHandler::empty(origin.clone(), ZoneType::Primary, AxfrPolicy::Deny);
        let soa = SOA::new(name("ns.test"), name("admin.test"), 1, 60, 60, 60, 60);
        assert!(zone.upsert(Record::from_rdata(origin.clone(), 60, RData::SOA(soa)), 0).await);
        let (zone, state) = (Arc::new(zone), Arc::<State>::default());
        let mut catalog = Catalog::new();
        let shared: Arc<dyn hickory_server::zone_handler::ZoneHandler> = zone.clone();
        catalog.upsert(LowerName::new(&origin), vec![shared]);
        let mut server = Server::new(Handler { catalog, state: Arc::clone(&state) });
        let address = SocketAddr::new(ip.parse().expect("an address"), 53);
        server.register_socket(UdpSocket::bind(address).await.expect("a free UDP port"));
        server.register_listener(TcpListener::bind(address).await.expect("a free TCP port"), Duration::from_secs(5), 4096);
        tokio::spawn(async move { server.block_until_done().await });
        Self { zone, state }
    }

    /// Sets the addresses of a name; an empty list leaves the name without any.
    pub async fn set(&self, host: &str, ttl: u32, addresses: &[&str]) {
        self.clear(host).await;
        for ip in addresses {
            let data = match ip.parse().expect("an address") {
                IpAddr::V4(ip) => RData::A(A(ip)),
                IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
            };
            assert!(self.zone.upsert(Record::from_rdata(name(host), ttl, data), 0).await, "{host} {ip}");
        }
        if addresses.is_empty() {
            let text = hickory_server::proto::rr::rdata::TXT::new(vec!["no addresses here".to_owned()]);
            assert!(self.zone.upsert(Record::from_rdata(name(host), ttl, RData::TXT(text)), 0).await, "{host}");
        }
    }

    /// Makes a name an alias of another.
    pub async fn alias(&self, host: &str, ttl: u32, target: &str) {
        self.clear(host).await;
        let data = RData::CNAME(CNAME(name(target)));
        assert!(self.zone.upsert(Record::from_rdata(name(host), ttl, data), 0).await, "{host}");
    }

    /// Removes a name.
    pub async fn clear(&self, host: &str) {
        let host = LowerName::new(&name(host));
        self.zone.records_mut().await.retain(|key: &RrKey, _| *key.name() != host);
    }

    /// Makes a name fail, or work again.
    pub fn fault(&self, host: &str, fault: Option<Fault>) {
        let mut faults = self.state.faults.lock().expect("not poisoned");
        match fault {
            Some(fault) => drop(faults.insert(name(host).to_string(), fault)),
            None => drop(faults.remove(&name(host).to_string())),
        }
    }

    /// Delays every answer.
    pub fn latency(&self, latency: Duration) {
        *self.state.latency.lock().expect("not poisoned") = latency;
    }

    /// How many queries for a name have come.
    pub fn queries(&self, host: &str) -> usize {
        self.state.queries.lock().expect("not poisoned").get(&name(host).to_string()).copied().unwrap_or_default()
    }

    /// The most queries that were open at one time.
    pub fn most_at_once(&self) -> usize {
        self.state.most.load(Ordering::SeqCst)
    }
}

fn name(host: &str) -> Name {
    let mut name = Name::from_ascii(host).expect("a name");
    name.set_fqdn(true);
    name
}

#[async_trait::async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut response: R) -> ResponseInfo {
        let host = request.queries.queries().first().map(|query| query.name().to_string()).unwrap_or_default();
        *self.state.queries.lock().expect("not poisoned").entry(host.clone()).or_default() += 1;
        let open = self.state.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.state.most.fetch_max(open, Ordering::SeqCst);
        let latency = *self.state.latency.lock().expect("not poisoned");
        sleep(latency).await;
        let fault = self.state.faults.lock().expect("not poisoned").get(&host).copied();
        let info = match fault {
            None => self.catalog.handle_request::<R, T>(request, response).await,
            Some(fault) => {
                let builder = MessageResponseBuilder::from_message_request(request);
                let reply = builder.error_msg(&request.metadata, ResponseCode::ServFail);
                let info = ResponseInfo::from(Header { metadata: *reply.metadata(), counts: HeaderCounts::default() });
                if fault == Fault::ServFail {
                    response.send_response(reply).await.expect("sent");
                }
                info
            }
        };
        self.state.now.fetch_sub(1, Ordering::SeqCst);
        info
    }
}
