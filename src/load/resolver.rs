//! Target addresses of the load: host names are resolved every second, as by clients with a short DNS cache.
//!
//! While a lookup fails the last addresses stay: a load measures connections, not DNS.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Interval of lookups of a name.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    pub host: String,
    port: u16,
}

#[derive(Debug, thiserror::Error)]
#[error("must be HOST:PORT or [IPV6]:PORT")]
pub struct NotAnAim;

#[derive(Debug, thiserror::Error)]
pub enum NameError {
    #[error("cannot look up {aim}: {source}; is it the name of a Service, as Pods see it?")]
    Lookup { aim: HostPort, source: io::Error },
    #[error("{0} has no address")]
    NoAddress(HostPort),
}

/// Resolves all aims once; then a task for each repeats its lookup.
pub async fn find(aims: &[HostPort], tasks: &mut JoinSet<()>) -> Result<Vec<Arc<FoundAddresses>>, NameError> {
    let mut found = Vec::new();
    for aim in aims {
        let aim = Arc::new(FoundAddresses::now(aim.clone()).await?);
        tasks.spawn(Arc::clone(&aim).follow());
        found.push(aim);
    }
    Ok(found)
}

/// Addresses of an aim from the last successful lookup; IPv4 and IPv6 alternate.
#[derive(Debug)]
pub struct FoundAddresses {
    aim: HostPort,
    addresses: Mutex<Arc<[SocketAddr]>>,
}

impl FromStr for HostPort {
    type Err = NotAnAim;

    fn from_str(text: &str) -> Result<Self, NotAnAim> {
        let (host, port) = text.rsplit_once(':').ok_or(NotAnAim)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let port: u16 = port.parse().map_err(|_| NotAnAim)?;
        let host = bare.unwrap_or(host);
        if host.is_empty() || port == 0 || (bare.is_none() && host.contains(':')) {
            return Err(NotAnAim);
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') { write!(f, "[{}]:{}", self.host, self.port) } else { write!(f, "{}:{}", self.host, self.port) }
    }
}

impl HostPort {
    /// The same port of another host.
    #[must_use]
    pub fn at(&self, ip: IpAddr) -> Self {
        Self { host: ip.to_string(), port: self.port }
    }
}

impl FoundAddresses {
    pub async fn now(aim: HostPort) -> Result<Self, NameError> {
        let addresses = look_up(&aim).await?;
        Ok(Self { aim, addresses: Mutex::new(addresses) })
    }

    /// Address for the attempt with this number, round robin.
    pub fn address(&self, number: u64) -> Option<SocketAddr> {
        let addresses = Arc::clone(&self.addresses.lock().unwrap_or_else(PoisonError::into_inner));
        let turn = number.checked_rem(u64::try_from(addresses.len()).ok()?)?;
        addresses.get(usize::try_from(turn).ok()?).copied()
    }

    pub async fn follow(self: Arc<Self>) {
        loop {
            sleep(RETRY_INTERVAL).await;
            if let Ok(addresses) = look_up(&self.aim).await {
                *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
            }
        }
    }
}

async fn look_up(aim: &HostPort) -> Result<Arc<[SocketAddr]>, NameError> {
    let fault = |source| NameError::Lookup { aim: aim.clone(), source };
    let found: BTreeSet<SocketAddr> = lookup_host((aim.host.as_str(), aim.port)).await.map_err(fault)?.collect();
    if found.is_empty() {
        return Err(NameError::NoAddress(aim.clone()));
    }
    Ok(in_turn(found).into())
}

/// Alternates IPv4 and IPv6 addresses while both remain.
fn in_turn(found: BTreeSet<SocketAddr>) -> Vec<SocketAddr> {
    let (four, six): (Vec<_>, Vec<_>) = found.into_iter().partition(SocketAddr::is_ipv4);
    let (mut four, mut six) = (four.into_iter(), six.into_iter());
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(four.next());
        all.extend(six.next());
        if all.len() == before {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_target_is_a_host_and_a_port() {
        for (text, shown) in [("db:7000", "db:7000"), ("10.0.0.1:80", "10.0.0.1:80"), ("[fd00::1]:80", "[fd00::1]:80")] {
            assert_eq!(text.parse::<HostPort>().expect(text).to_string(), shown);
        }
        for text in ["db", ":80", "db:0", "db:http", "fd00::1:80", "[]:80", ""] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn address_families_alternate() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let found = [at("10.0.0.1:1"), at("10.0.0.2:1"), at("[fd00::1]:1")].into();
        assert_eq!(in_turn(found), [at("10.0.0.1:1"), at("[fd00::1]:1"), at("10.0.0.2:1")]);
        let local = FoundAddresses::now("127.0.0.1:9".parse().expect("an aim")).await.expect("an address");
        assert_eq!(local.address(7), Some(at("127.0.0.1:9")));
    }
}
