//! DNS: asks the servers of a `resolv.conf` for the addresses of a name. When to ask again, and what an answer is good for,
//! is [`crate::model::tailnet::resolve`]'s business; nothing is cached here.
//!
//! The file is read again whenever it has changed, for tailscaled and others rewrite it while a Pod lives. Names are absolute, as
//! Kubernetes has them in `spec.externalName`: its search list, with which a short name would mean a Service of the cluster, is not used.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError as Said, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Resolver, TokioResolver};
use tokio::time::timeout;

use crate::model::tailnet::resolve::{CEILING, FamilyRecords, LookupFailure, LookupOutcome};

/// The longest that one lookup takes, whatever the file says about timeouts and attempts.
pub const DEADLINE: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    #[error("cannot read {path}, which names the DNS servers: {source}")]
    Read { path: PathBuf, source: io::Error },
    /// The file does not name a server, or names one that is not an address.
    #[error("no DNS servers in {path}: {source}")]
    Servers { path: PathBuf, source: Box<NetError> },
}

impl DnsError {
    /// A closed set of words for metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } => "ResolvConfUnreadable",
            Self::Servers { .. } => "NoServers",
        }
    }
}

/// The servers of a `resolv.conf`, read again when the file changes.
pub struct Dns {
    path: PathBuf,
    loaded: Option<(Vec<u8>, Arc<Client>)>,
}

pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The addresses of the servers that a file names; none where it cannot be read. Blocks.
pub fn servers(resolv_conf: &Path) -> BTreeSet<IpAddr> {
    let parsed = std::fs::read(resolv_conf).ok().and_then(|text| parse_resolv_conf(text).ok());
    parsed.iter().flat_map(|(config, _)| config.name_servers()).map(|server| server.ip).collect()
}

pub struct Client {
    resolver: TokioResolver,
}

impl Dns {
    /// Servers named by this file. It is first read by [`Self::client`].
    pub fn new(resolv_conf: &Path) -> Self {
        Self { path: resolv_conf.to_owned(), loaded: None }
    }

    /// What asks the servers that the file names now. Fails if the file names none; an older client stays good.
    pub async fn client(&mut self) -> Result<Arc<Client>, DnsError> {
        let read = tokio::fs::read(&self.path).await;
        let text = read.map_err(|source| DnsError::Read { path: self.path.clone(), source })?;
        if let Some((loaded_text, client)) = &self.loaded
            && *loaded_text == text
        {
            return Ok(Arc::clone(client));
        }
        let made = Client::new(&text).map_err(|source| DnsError::Servers { path: self.path.clone(), source: Box::new(source) })?;
        let client = Arc::new(made);
        self.loaded = Some((text, Arc::clone(&client)));
        Ok(client)
    }
}

impl Client {
    fn new(resolv_conf: &[u8]) -> Result<Self, NetError> {
        let (config, file) = parse_resolv_conf(resolv_conf)?;
        let mut options = ResolverOpts::default();
        (options.timeout, options.attempts, options.edns0) = (file.timeout, file.attempts, file.edns0);
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Auto;
        // The number of lookups at a time is bounded by who asks; a connection must not refuse any of them.
        options.max_active_requests = 1024;
        let config = ResolverConfig::from_parts(None, Vec::new(), config.name_servers().to_vec());
        let resolver = Resolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options).build()?;
        Ok(Self { resolver })
    }

    /// The addresses of a name, in both families. Takes [`DEADLINE`] at most.
    pub async fn lookup(&self, name: &str) -> LookupOutcome {
        if let Ok(ip) = name.parse() {
            return literal(ip);
        }
        let Ok(mut name) = Name::from_str_relaxed(name) else { return failed(LookupFailure::Name) };
        name.set_fqdn(true);
        // Keeps the answers of an earlier lookup from standing in for this one's.
        self.resolver.clear_cache();
        let both = async { tokio::join!(self.family(name.clone(), RecordType::A), self.family(name.clone(), RecordType::AAAA)) };
        timeout(DEADLINE, both).await.map_or_else(|_| failed(LookupFailure::Timeout), |(v4, v6)| LookupOutcome { v4, v6 })
    }

    async fn family(&self, name: Name, kind: RecordType) -> Result<FamilyRecords, LookupFailure> {
        match self.resolver.lookup(name, kind).await {
            Ok(found) => {
                let addresses = found.answers().iter().filter_map(|record| match &record.data {
                    RData::A(ip) => Some(IpAddr::V4(ip.0)),
                    RData::AAAA(ip) => Some(IpAddr::V6(ip.0)),
                    _ => None,
                });
                let ttl = found.answers().iter().map(|record| record.ttl).min().unwrap_or_default();
                Ok(FamilyRecords { addresses: addresses.collect(), ttl: Duration::from_secs(ttl.into()) })
            }
            Err(error) => refusal(&error),
        }
    }
}

/// An answer without records, or why there is none.
fn refusal(error: &NetError) -> Result<FamilyRecords, LookupFailure> {
    Err(match error {
        NetError::Dns(Said::NoRecordsFound(none)) => match none.response_code {
            ResponseCode::NoError => return Ok(FamilyRecords::default()),
            ResponseCode::NXDomain => LookupFailure::NoName,
            _ => LookupFailure::Server,
        },
        NetError::Dns(Said::ResponseCode(ResponseCode::NXDomain)) => LookupFailure::NoName,
        NetError::Dns(_) => LookupFailure::Server,
        NetError::Timeout => LookupFailure::Timeout,
        _ => LookupFailure::Network,
    })
}

fn failed(failure: LookupFailure) -> LookupOutcome {
    LookupOutcome { v4: Err(failure), v6: Err(failure) }
}

/// An address in place of a name stands for itself.
fn literal(ip: IpAddr) -> LookupOutcome {
    let own = FamilyRecords { addresses: std::iter::once(ip).collect(), ttl: CEILING };
    let none = FamilyRecords::default();
    if ip.is_ipv4() { LookupOutcome { v4: Ok(own), v6: Ok(none) } } else { LookupOutcome { v4: Ok(none), v6: Ok(own) } }
}
