//! Authoritative DNS server over UDP and TCP. [`crate::model::nameserver::answer`] decides each answer; this file only converts messages.
//!
//! An answer that does not fit into a UDP message is truncated, so that the client repeats the query over TCP. Malformed messages, other
//! operations than queries and zone transfers change nothing. Nothing is recursive.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::net::xfer::Protocol;
use hickory_server::proto::op::{Edns, Header, HeaderCounts, Metadata, OpCode, ResponseCode};
use hickory_server::proto::rr::rdata::{A, AAAA, PTR, SOA};
use hickory_server::proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use tokio::net::{TcpListener, UdpSocket};

use crate::model::nameserver::answer::{AnswerCode, AnswerData, DnsAnswer, QueryType, TTL, answer};
use crate::model::nameserver::name::query_name;
use crate::model::nameserver::records::Records;
use crate::runtime::snapshot::SnapshotCell;

/// Maximum size of a UDP message with EDNS: larger ones may be fragmented, and fragments lost.
const MAX_UDP: u16 = 1232;
/// Idle timeout of a TCP connection.
const TCP_TIMEOUT: Duration = Duration::from_secs(5);
/// Answers of a TCP connection that wait for the client to read.
const TCP_ANSWERS: usize = 32;
/// Interval at which a secondary server would refresh; there is none.
const REFRESH: i32 = 3_600;

/// Called for each answer with the transport and the response code.
pub type AnswerObserver = Arc<dyn Fn(&'static str, &'static str) + Send + Sync>;

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; is another process using it?")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// A server that answers queries as long as it exists.
pub struct DnsServer {
    server: Server<QueryHandler>,
    address: SocketAddr,
}

struct QueryHandler {
    records: SnapshotCell<Records>,
    observe: AnswerObserver,
}

impl DnsServer {
    /// Serves an address. On a node without IPv6 the unspecified address is that of IPv4.
    pub async fn start(address: SocketAddr, records: SnapshotCell<Records>, observe: AnswerObserver) -> Result<Self, ListenError> {
        let of_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        let bound = match bind(address).await {
            Err(_) if address.ip() == IpAddr::from([0_u16; 8]) => bind(of_v4).await,
            bound => bound,
        };
        let (udp, tcp) = bound.map_err(|source| ListenError { address, source })?;
        let address = tcp.local_addr().map_err(|source| ListenError { address, source })?;
        let mut server = Server::new(QueryHandler { records, observe });
        server.register_socket(udp);
        server.register_listener(tcp, TCP_TIMEOUT, TCP_ANSWERS);
        Ok(Self { server, address })
    }

    /// Bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs until `stop` is ready, then answers what has arrived. Ends early only if a socket fails.
    pub async fn serve(mut self, stop: impl Future<Output = ()>) -> Result<(), String> {
        let ended = tokio::select! {
            ended = self.server.block_until_done() => ended,
            () = stop => self.server.shutdown_gracefully().await,
        };
        ended.map_err(|error| error.to_string())
    }
}

/// Binds the same port for UDP and TCP.
async fn bind(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let tcp = TcpListener::bind(address).await?;
    let udp = UdpSocket::bind(SocketAddr::new(address.ip(), tcp.local_addr()?.port())).await?;
    Ok((udp, tcp))
}

/// An answer in the form of the library.
struct Converted {
    code: ResponseCode,
    is_authoritative: bool,
    answers: Vec<Record>,
    authority: Option<Record>,
}

#[async_trait]
impl RequestHandler for QueryHandler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut response: R) -> ResponseInfo {
        let edns = request.edns.as_ref().map(|requested| {
            let mut edns = Edns::new();
            edns.set_max_payload(requested.max_payload().min(MAX_UDP)).set_version(0);
            edns
        });
        let converted = self.converted(request);
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.response_code = converted.code;
        metadata.authoritative = converted.is_authoritative;
        metadata.recursion_available = false;
        let transport = if request.protocol() == Protocol::Udp { "udp" } else { "tcp" };
        (self.observe)(transport, label(converted.code));
        let mut builder = MessageResponseBuilder::from_message_request(request);
        if let Some(edns) = &edns {
            builder.edns(edns);
        }
        let message = builder.build(metadata, &converted.answers, [], &converted.authority, []);
        match response.send_response(message).await {
            Ok(info) => info,
            Err(error) => {
                tracing::debug!(%error, "an answer was not sent");
                ResponseInfo::from(Header { metadata, counts: HeaderCounts::default() })
            }
        }
    }
}

impl QueryHandler {
    fn converted(&self, request: &Request) -> Converted {
        let failed = |code| Converted { code, is_authoritative: false, answers: Vec::new(), authority: None };
        if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            return failed(ResponseCode::BADVERS);
        }
        if request.metadata.op_code != OpCode::Query {
            return failed(ResponseCode::NotImp);
        }
        let [query] = request.queries.queries() else { return failed(ResponseCode::FormErr) };
        if !matches!(query.query_class(), DNSClass::IN | DNSClass::ANY) {
            return failed(ResponseCode::Refused);
        }
        let kind = match query.query_type() {
            RecordType::A => QueryType::A,
            RecordType::AAAA => QueryType::Aaaa,
            RecordType::PTR => QueryType::Ptr,
            RecordType::SOA => QueryType::Soa,
            RecordType::ANY => QueryType::Any,
            RecordType::AXFR | RecordType::IXFR => return failed(ResponseCode::Refused),
            _ => QueryType::Other,
        };
        let owner: Name = query.name().into();
        let name = query_name(owner.iter());
        let records = Arc::clone(&self.records.read());
        convert(&answer(&records, &name, kind), &owner)
    }
}

fn convert(answer: &DnsAnswer<'_>, owner: &Name) -> Converted {
    let authority = answer.zone.and_then(authority);
    let record = |data: &AnswerData<'_>| match data {
        AnswerData::Address(IpAddr::V4(ip)) => Some(Record::from_rdata(owner.clone(), TTL, RData::A(A(*ip)))),
        AnswerData::Address(IpAddr::V6(ip)) => Some(Record::from_rdata(owner.clone(), TTL, RData::AAAA(AAAA(*ip)))),
        AnswerData::Pointer(name) => Some(Record::from_rdata(owner.clone(), TTL, RData::PTR(PTR(absolute(name.as_str())?)))),
        AnswerData::Authority => authority.clone(),
    };
    Converted {
        code: match answer.code {
            AnswerCode::NoError => ResponseCode::NoError,
            AnswerCode::NxDomain => ResponseCode::NXDomain,
            AnswerCode::Refused => ResponseCode::Refused,
        },
        is_authoritative: answer.zone.is_some(),
        answers: answer.data.iter().filter_map(record).collect(),
        authority: authority.clone().filter(|_| answer.is_negative()),
    }
}

/// SOA record of a zone.
fn authority(zone: &str) -> Option<Record> {
    let server = absolute(&format!("nameserver.{zone}"))?;
    let owner = absolute(zone)?;
    let soa = SOA::new(server, absolute(&format!("hostmaster.{zone}"))?, 1, REFRESH, REFRESH, REFRESH, TTL);
    Some(Record::from_rdata(owner, TTL, RData::SOA(soa)))
}

fn absolute(name: &str) -> Option<Name> {
    let mut name = Name::from_ascii(name).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// Metric label of a response code; closed set.
fn label(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::NotImp => "NOTIMP",
        _ => "OTHER",
    }
}
