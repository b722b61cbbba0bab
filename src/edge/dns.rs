//! DNS client: resolves names with the servers of a `resolv.conf`. [`crate::model::tailnet::resolve`] decides when to resolve again and how
//! to use the result; nothing is cached here.
//!
//! The file is reloaded when its content changes, as tailscaled and others rewrite it during a Pod's life. Names are absolute, as in
//! `spec.externalName` of Kubernetes: the search list is not used, as it would resolve a short name to a Service of the cluster.

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

use crate::model::tailnet::resolve::{FamilyRecords, LookupFailure, LookupOutcome, MAX_INTERVAL};

/// Timeout of a lookup, regardless of the timeouts and attempts in the file.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum DnsError {
    #[error("cannot read {path}, which names the DNS servers: {source}")]
    ResolvConfUnreadable { path: PathBuf, source: io::Error },
    /// The file has no server, or one that is not an IP address.
    #[error("no DNS servers in {path}: {source}")]
    NoServers { path: PathBuf, source: Box<NetError> },
}

impl DnsError {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

/// DNS servers of a `resolv.conf`, reloaded when the file changes. The last good ones stay in use.
pub struct Dns {
    path: PathBuf,
    loaded: Option<(Vec<u8>, Arc<Client>)>,
}

pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Server addresses in a file; empty if it is unreadable. Blocks.
pub fn servers(resolv_conf: &Path) -> BTreeSet<IpAddr> {
    let parsed = std::fs::read(resolv_conf).ok().and_then(|text| parse_resolv_conf(text).ok());
    parsed.iter().flat_map(|(config, _)| config.name_servers()).map(|server| server.ip).collect()
}

pub struct Client {
    resolver: TokioResolver,
}

impl Dns {
    /// Uses the servers of this file, which the first call of [`Self::client`] reads.
    pub fn new(resolv_conf: &Path) -> Self {
        Self { path: resolv_conf.to_owned(), loaded: None }
    }

    /// Returns a client for the servers of the file. While it has none, for those that it had last; fails if it never had any.
    pub async fn client(&mut self) -> Result<Arc<Client>, DnsError> {
        match (self.load().await, &self.loaded) {
            (Err(error), Some((_, client))) => {
                tracing::warn!(reason = error.reason(), "the last DNS servers stay in use: {error}");
                Ok(Arc::clone(client))
            }
            (loaded, _) => loaded,
        }
    }

    async fn load(&mut self) -> Result<Arc<Client>, DnsError> {
        let read = tokio::fs::read(&self.path).await;
        let text = read.map_err(|source| DnsError::ResolvConfUnreadable { path: self.path.clone(), source })?;
        if let Some((loaded_text, client)) = &self.loaded
            && *loaded_text == text
        {
            return Ok(Arc::clone(client));
        }
        let made = Client::new(&text).map_err(|source| DnsError::NoServers { path: self.path.clone(), source: Box::new(source) })?;
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
        // The caller bounds concurrent lookups; a connection must not refuse any of them.
        options.max_active_requests = 1024;
        let config = ResolverConfig::from_parts(None, Vec::new(), config.name_servers().to_vec());
        let resolver = Resolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options).build()?;
        Ok(Self { resolver })
    }

    /// Looks up the addresses of a name, in both families. Takes [`LOOKUP_TIMEOUT`] at most.
    pub async fn lookup(&self, name: &str) -> LookupOutcome {
        if let Ok(ip) = name.parse() {
            return literal(ip);
        }
        let Ok(mut name) = Name::from_str_relaxed(name) else { return failed(LookupFailure::Name) };
        name.set_fqdn(true);
        // Prevents answers from the cache of an earlier lookup.
        self.resolver.clear_cache();
        let both = async { tokio::join!(self.family(name.clone(), RecordType::A), self.family(name.clone(), RecordType::AAAA)) };
        timeout(LOOKUP_TIMEOUT, both).await.map_or_else(|_| failed(LookupFailure::Timeout), |(v4, v6)| LookupOutcome { v4, v6 })
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

/// Converts a lookup error: an empty result, or the cause of the failure.
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

/// Result for an IP address literal: the address itself.
fn literal(ip: IpAddr) -> LookupOutcome {
    let own = FamilyRecords { addresses: std::iter::once(ip).collect(), ttl: MAX_INTERVAL };
    let none = FamilyRecords::default();
    if ip.is_ipv4() { LookupOutcome { v4: Ok(own), v6: Ok(none) } } else { LookupOutcome { v4: Ok(none), v6: Ok(own) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn last_good_servers_stay_in_use_while_the_file_has_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("resolv.conf");
        let write = |text: Option<&str>| match text {
            Some(text) => std::fs::write(&path, text).expect("written"),
            None => drop(std::fs::remove_file(&path)),
        };
        let mut dns = Dns::new(&path);
        let faults = [(None, "ResolvConfUnreadable"), (Some(""), "NoServers"), (Some("nameserver nowhere\n"), "NoServers")];
        for (text, reason) in faults {
            write(text);
            assert_eq!(dns.client().await.map(drop).expect_err("no servers yet").reason(), reason);
        }
        let mut former: Option<Arc<Client>> = None;
        for server in ["127.0.0.1", "127.0.0.2"] {
            write(Some(&format!("nameserver {server}\n")));
            let client = dns.client().await.expect("servers");
            assert!(former.replace(Arc::clone(&client)).is_none_or(|former| !Arc::ptr_eq(&former, &client)), "{server}: other servers");
            for (text, reason) in faults {
                write(text);
                assert!(Arc::ptr_eq(&dns.client().await.expect("the last servers"), &client), "{reason}");
            }
        }
    }
}
