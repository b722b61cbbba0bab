//! Address of an API server proxy, from the forms that a user has: full or short DNS name, or URL.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};

/// Scheme, host and port. The host is a DNS name in lower case, or an IP address with plain HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    is_https: bool,
    host: String,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressFault {
    #[error("{0:?} is neither a DNS name nor an http or https URL without a path")]
    Malformed(String),
    #[error("{0} is an IP address: give the DNS name, which the certificate has, or http://{0} for plain HTTP")]
    Ip(IpAddr),
}

impl Address {
    pub fn parse(text: &str) -> Result<Self, AddressFault> {
        let malformed = || AddressFault::Malformed(text.to_owned());
        let trimmed = text.trim();
        let (is_https, rest) = match trimmed.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return Err(malformed()),
            None => (true, trimmed),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if let Ok(ip) = rest.parse::<Ipv6Addr>() {
            return Self::of_ip(is_https, ip.into(), None);
        }
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().map_err(|_| malformed())?)),
            _ => (rest, None),
        };
        // The scheme's own port is written without a number.
        let port = port.filter(|port| *port != if is_https { 443 } else { 80 });
        if let Ok(ip) = host.trim_start_matches('[').trim_end_matches(']').parse() {
            return Self::of_ip(is_https, ip, port);
        }
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let is_label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
                && !label.starts_with('-')
        };
        if !host.split('.').all(is_label) || host.len() > 253 {
            return Err(malformed());
        }
        Ok(Self { is_https, host, port })
    }

    fn of_ip(is_https: bool, ip: IpAddr, port: Option<u16>) -> Result<Self, AddressFault> {
        if is_https {
            return Err(AddressFault::Ip(ip));
        }
        Ok(Self { is_https, host: if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }, port })
    }

    /// Whether the host lacks the tailnet's domain.
    pub fn is_short(&self) -> bool {
        !self.host.contains('.') && !self.host.starts_with('[')
    }

    /// This address in the domain of a node's full DNS name.
    #[must_use]
    pub fn in_domain_of(self, node: &str) -> Self {
        let domain = node.trim_end_matches('.').split_once('.').map(|(_, domain)| domain);
        match domain {
            Some(domain) => Self { host: format!("{}.{}", self.host, domain.to_ascii_lowercase()), ..self },
            None => self,
        }
    }

    /// Name of the entries: the host, and the port if it is not the scheme's.
    pub fn name(&self) -> String {
        let mut name = self.host.clone();
        if let Some(port) = self.port {
            // Writing to a string cannot fail.
            let _ = write!(name, ":{port}");
        }
        name
    }

    pub fn url(&self) -> String {
        format!("{}://{}", if self.is_https { "https" } else { "http" }, self.name())
    }
}
