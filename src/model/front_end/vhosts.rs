//! Virtual hosts: host names, ports and routes of each Tailscale Service, and routing of requests.
//!
//! A virtual host is read from our own routes or from a serve config in the Tailscale operator's format ([`read()`]), and routes requests
//! by port, host name and path ([`Vhost::decide`]). A fault in one virtual host or route does not affect the others. Does no I/O, and does
//! not select endpoints.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::api::routes::{ApiServerSite, Backend, Host, Listener};

pub mod headers;
pub mod identity;
pub mod listener_addr;
pub mod min_rate;
pub mod path;
mod read;
pub mod shared_host;
pub mod shares;

pub use read::{ReadVhosts, SitesError, read};

/// Virtual hosts, by Tailscale Service.
pub type Vhosts = BTreeMap<String, Arc<Vhost>>;

/// A virtual host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vhost {
    /// Host names, in lower case without trailing dot.
    pub hosts: BTreeMap<String, Host>,
    pub listeners: BTreeMap<u16, Listener>,
    /// Routes, most specific first.
    pub routes: Vec<VhostRoute>,
    /// The upstream of all paths is the Kubernetes API server, as the backend of the only route.
    pub api_server: Option<Arc<ApiServerSite>>,
    /// Whether it is reachable from the internet (Funnel).
    pub funnel: bool,
    /// Addresses of its Tailscale Service, if known before it is advertised.
    pub addresses: BTreeSet<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostRoute {
    pub host: Option<String>,
    pub port: Option<u16>,
    /// Path in the normal form of [`path::normal`]; without trailing slash unless the route is exact or the path is `/`.
    pub path: String,
    /// Matches only this path, not those below it.
    pub exact: bool,
    pub target: RouteTarget,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteTarget {
    /// A Service of the cluster.
    Backend(Arc<Proxied>),
    /// HTTP redirect to a URL with the variables `${HOST}` and `${REQUEST_URI}`.
    Redirect { status: u16, to: String },
    /// A text as the response.
    Text(String),
    /// Invalid route, with the reason. Paths below it do not fall through to a less specific route.
    Nowhere(String),
}

/// A backend and the requests it receives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxied {
    pub backend: Arc<Backend>,
    /// Path rewrite; `None` forwards the path unchanged.
    pub rewrite: Option<Rewrite>,
    /// Application capabilities that are forwarded to the backend.
    pub app_caps: Vec<String>,
}

/// Rewrite that replaces the first segments of a path, however the client encoded them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Number of segments of the route's path.
    pub segments: usize,
    /// Path of the backend, without trailing slash.
    pub base: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteDecision<'a> {
    /// Forward to this backend, with this path and query; borrowed if unchanged.
    Proxy(&'a Arc<Proxied>, Cow<'a, str>),
    /// Redirect with this status and location.
    Redirect(u16, String),
    Text(&'a str),
    /// Unknown host name.
    Misdirected,
    /// Path that servers resolve differently.
    Ambiguous,
    NotFound,
    Broken(&'a str),
}

impl Vhost {
    /// Host name that a `Host` header or TLS client refers to. A name without dot matches the host name that begins with it, as users of a
    /// tailnet write it.
    pub fn host(&self, named: &str) -> Option<&str> {
        let named = bare(named);
        if let Some((host, _)) = self.hosts.get_key_value(named.as_str()) {
            return Some(host);
        }
        let under = |host: &&String| match host.strip_prefix("*.") {
            Some(domain) => named.split_once('.').is_some_and(|(first, rest)| is_label(first) && rest == domain),
            None => !named.contains('.') && host.split('.').next() == Some(named.as_str()),
        };
        self.hosts.keys().find(under).map(String::as_str)
    }

    /// Routes a request by the port of the listener, the host name (`Host` or `:authority`), and path and query; `*` refers to the server
    /// as a whole.
    pub fn decide<'a>(&'a self, port: u16, named: &str, target: &'a str) -> RouteDecision<'a> {
        let Some(host) = self.host(named) else { return RouteDecision::Misdirected };
        let (raw, query) = match target.split_once('?') {
            _ if target == "*" => ("/", None),
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let shown = if target == "*" { "/" } else { target };
        if self.listeners.get(&port) == Some(&Listener::Redirect) {
            return RouteDecision::Redirect(301, format!("https://{}{}{shown}", full(host, named), self.https_port()));
        }
        let Some(sent) = path::resolved(raw) else { return RouteDecision::Ambiguous };
        let path = path::normal(&sent);
        let fits = |route: &&VhostRoute| {
            route.port.is_none_or(|only| only == port)
                && route.host.as_deref().is_none_or(|only| only == host)
                && if route.exact { route.path == path } else { path::is_below(&path, &route.path) }
        };
        let Some(route) = self.routes.iter().find(fits) else { return RouteDecision::NotFound };
        match &route.target {
            RouteTarget::Backend(proxied) if target == "*" => RouteDecision::Proxy(proxied, Cow::Borrowed(target)),
            RouteTarget::Backend(proxied) => RouteDecision::Proxy(
                proxied,
                proxied.path(&sent, matches!(sent, Cow::Borrowed(_)), query).map_or(Cow::Borrowed(target), Cow::Owned),
            ),
            RouteTarget::Redirect { status, to } => {
                let to = to.replace("${HOST}", &full(host, named)).replace("${REQUEST_URI}", shown);
                RouteDecision::Redirect(*status, to)
            }
            RouteTarget::Text(text) => RouteDecision::Text(text),
            RouteTarget::Nowhere(why) => RouteDecision::Broken(why),
        }
    }

    pub fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.routes.iter().filter_map(|route| match &route.target {
            RouteTarget::Backend(proxied) => Some(&proxied.backend),
            _ => None,
        })
    }

    /// Whether it needs a certificate.
    pub fn is_over_tls(&self) -> bool {
        self.listeners.values().any(|listener| *listener == Listener::Https)
    }

    /// Sorts routes by precedence: with host name before without, longest path first, exact before prefix.
    fn sort(&mut self) {
        self.routes.sort_by(|a, b| {
            let rank = |route: &VhostRoute| (route.host.is_some(), route.path.len(), route.exact, route.port.is_some());
            rank(b).cmp(&rank(a))
        });
    }

    fn https_port(&self) -> String {
        let port = self.listeners.iter().find(|(_, listener)| **listener == Listener::Https).map_or(443, |(port, _)| *port);
        if port == 443 { String::new() } else { format!(":{port}") }
    }
}

impl Proxied {
    /// Path and query to send; `None` if equal to the received ones, that is, if the path is `unchanged` and not rewritten.
    fn path(&self, sent: &str, unchanged: bool, query: Option<&str>) -> Option<String> {
        let mut path = match &self.rewrite {
            None if unchanged => return None,
            None => sent.to_owned(),
            Some(rewrite) => format!("{}{}", rewrite.base, path::after(sent, rewrite.segments)),
        };
        if !path.starts_with('/') {
            path.insert(0, '/');
        }
        if let Some(query) = query {
            path.push('?');
            path.push_str(query);
        }
        Some(path)
    }
}

/// Whether the text is a valid label of a DNS name.
fn is_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Normalized host name: lower case, without port and trailing dot.
pub fn bare(named: &str) -> String {
    let name = match named.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => named,
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Host name for redirects: for a wildcard, the name that the client requested.
fn full(host: &str, named: &str) -> String {
    if host.starts_with("*.") { bare(named) } else { host.to_owned() }
}

#[cfg(test)]
mod tests;
