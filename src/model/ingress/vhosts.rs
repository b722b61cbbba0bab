//! What a replica serves over HTTP: sites, each of names, ports and routes, and what becomes of a request.
//!
//! A site is what one Tailscale Service leads to. It is read from our own routes or from a serve config as the Tailscale operator
//! writes it ([`read()`]), and decides by port, name and path ([`Vhost::decide`]). What is wrong with one site, or one route of it,
//! is that one's fault alone. Never touches a socket, and never says who is behind a Service: that is told by its endpoints.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::routes::{Backend, Host, Listener};

pub mod headers;
pub mod identity;
pub mod listener_addr;
pub mod min_rate;
pub mod path;
mod read;
pub mod shared_host;
pub mod shares;

pub use read::{ReadVhosts, SitesError, read};

/// The sites, by the name of the Tailscale Service.
pub type Vhosts = BTreeMap<String, Arc<Vhost>>;

/// One site.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vhost {
    /// The names by which it is reached, in small letters, without a final dot.
    pub hosts: BTreeMap<String, Host>,
    /// What is served, by port.
    pub listeners: BTreeMap<u16, Listener>,
    /// The routes, the most particular first.
    pub routes: Vec<VhostRoute>,
    /// Reached from the internet too.
    pub funnel: bool,
}

/// What answers a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostRoute {
    pub host: Option<String>,
    pub port: Option<u16>,
    /// The path, in the normal form of [`path::normal`]; without a final slash unless it is exact or all there is.
    pub path: String,
    /// That path alone, not those below it.
    pub exact: bool,
    pub target: RouteTarget,
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteTarget {
    /// A cluster service.
    Backend(Proxied),
    /// Nobody here: the client is sent elsewhere.
    Redirect {
        status: u16,
        /// A URL with `${HOST}` and `${REQUEST_URI}`.
        to: String,
    },
    Text(String),
    /// Nobody can: the route is wrong, and says how. Paths below it do not fall to a wider route.
    Nowhere(String),
}

/// A backend and what it is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxied {
    pub backend: Arc<Backend>,
    /// How the path is rewritten; nothing leaves it as it came.
    pub rewrite: Option<Rewrite>,
    /// The application capabilities that are told to the backend.
    pub app_caps: Vec<String>,
}

/// The first segments of a path are replaced, however the client wrote them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// How many segments the route's path has.
    pub segments: usize,
    /// The backend's own path, without a final slash.
    pub base: String,
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteDecision<'a> {
    /// It goes to this backend, with this path and query; borrowed if they are those that came.
    Proxy(&'a Proxied, Cow<'a, str>),
    /// The client is sent elsewhere.
    Redirect(u16, String),
    Text(&'a str),
    /// The site has no such name.
    Misdirected,
    /// Servers resolve the path in different ways.
    Ambiguous,
    NotFound,
    Broken(&'a str),
}

impl Vhost {
    /// The site's name that a `Host` header or a TLS client means. A name without a dot means the one that begins with it, as
    /// people of a tailnet write it.
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

    /// What becomes of a request that came in on this port, for this name (`Host` or `:authority`), with this path and query; `*` is
    /// the server as a whole.
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

    /// The backends that its routes lead to.
    pub fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.routes.iter().filter_map(|route| match &route.target {
            RouteTarget::Backend(proxied) => Some(&proxied.backend),
            _ => None,
        })
    }

    /// Whether anything of it needs a certificate.
    pub fn is_over_tls(&self) -> bool {
        self.listeners.values().any(|listener| *listener == Listener::Https)
    }

    /// Puts the routes into the order in which they are tried: one name's before all names', the longest path first, an exact
    /// one before a prefix.
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
    /// The path and query to send; nothing if they are those that came, as the path is if it is `unchanged` and not rewritten.
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

/// Whether that can be a label of a DNS name.
fn is_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// A name as sites have it: without port and final dot, in small letters.
fn bare(named: &str) -> String {
    let name = match named.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => named,
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The name under which a client finds the site again: a wildcard is what it was asked as.
fn full(host: &str, named: &str) -> String {
    if host.starts_with("*.") { bare(named) } else { host.to_owned() }
}

#[cfg(test)]
mod tests;
