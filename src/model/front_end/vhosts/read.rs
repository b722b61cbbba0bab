//! Parsing of virtual hosts from our own routes or from a serve config.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::{Proxied, Rewrite, RouteTarget, Vhost, VhostRoute, Vhosts, bare, path};
use crate::api::proxygroup::ApiServerMode;
use crate::api::routes::{self, ApiServerSite, Backend, BackendProtocol, Host, Listener};
use crate::api::serve::{HttpHandler, ServeConfig, ServiceConfig};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadVhosts {
    pub sites: Vhosts,
    /// Faults by Tailscale Service; a virtual host with faults is still served, except for the faulty parts.
    pub faults: BTreeMap<String, Vec<String>>,
}

/// Error of an unreadable text.
#[derive(Debug, thiserror::Error)]
#[error("{key} is not readable: {source}")]
pub struct SitesError {
    key: &'static str,
    source: serde_json::Error,
}

impl From<SitesError> for serde_json::Error {
    fn from(error: SitesError) -> Self {
        error.source
    }
}

/// Reads the virtual hosts from our own routes if present, else from the serve config; without either there are none. Fails if the selected
/// text is not valid JSON of its type.
pub fn read(routes: Option<&[u8]>, serve: Option<&[u8]>) -> Result<ReadVhosts, SitesError> {
    match (routes, serve) {
        (Some(text), _) => {
            let sites: BTreeMap<String, Value> = serde_json::from_slice(text).map_err(|source| SitesError { key: routes::KEY, source })?;
            Ok(of_routes(sites))
        }
        (None, Some(text)) => {
            let config: Option<ServeConfig> =
                serde_json::from_slice(text).map_err(|source| SitesError { key: crate::api::serve::KEY, source })?;
            Ok(of_serve(config.unwrap_or_default()))
        }
        (None, None) => Ok(ReadVhosts::default()),
    }
}

fn of_routes(texts: BTreeMap<String, Value>) -> ReadVhosts {
    let mut read = ReadVhosts::default();
    for (name, text) in texts {
        let mut faults = Vec::new();
        match serde_json::from_value::<routes::Site>(text) {
            Ok(routes::Site { api_server: Some(ApiServerSite { mode: ApiServerMode::Other(mode), .. }), .. }) => {
                faults.push(format!("the mode {mode:?} of the API server proxy is unknown; use a newer image"));
            }
            Ok(reported) => {
                let routes::Site { listeners, funnel, addresses, api_server, .. } = reported;
                let mut site = Vhost { listeners, funnel, addresses, api_server: api_server.map(Arc::new), ..Vhost::default() };
                site.hosts = reported.hosts.into_iter().map(|(host, how)| (bare(&host), how)).collect();
                site.routes = reported.routes.into_iter().map(|route| of_route(route, &mut faults)).collect();
                read.enter(name.clone(), site);
            }
            Err(error) => faults.push(format!("the site cannot be read: {error}")),
        }
        read.fault(name, faults);
    }
    read
}

fn of_route(route: routes::Route, faults: &mut Vec<String>) -> VhostRoute {
    let backend = route.backend;
    let target = if has_port(&backend.address) {
        RouteTarget::Backend(Proxied { backend: Arc::new(backend), ..Proxied::default() }.into())
    } else {
        let why = format!("{}: {:?} is not address:port", route.path, backend.address);
        faults.push(why.clone());
        RouteTarget::Nowhere(why)
    };
    let host = (!route.host.is_empty()).then(|| bare(&route.host));
    VhostRoute { host, port: None, path: mount(&route.path, route.exact), exact: route.exact, target }
}

fn of_serve(config: ServeConfig) -> ReadVhosts {
    let mut read = ReadVhosts::default();
    for (name, service) in config.services {
        if service.tun || service.web.is_empty() {
            continue;
        }
        let mut faults = Vec::new();
        let mut site = of_service(service, &mut faults);
        site.funnel = config.allow_funnel.iter().any(|(at, on)| *on && site.hosts.contains_key(&bare(at)));
        read.enter(name.clone(), site);
        read.fault(name, faults);
    }
    read
}

fn of_service(service: ServiceConfig, faults: &mut Vec<String>) -> Vhost {
    let mut site = Vhost::default();
    for (port, handler) in &service.tcp {
        match (handler.https, handler.http) {
            (true, _) => drop(site.listeners.insert(*port, Listener::Https)),
            (false, true) => drop(site.listeners.insert(*port, Listener::Http)),
            (false, false) => {}
        }
    }
    for (at, web) in service.web {
        let Some((host, port)) = at.rsplit_once(':').and_then(|(host, port)| Some((bare(host), port.parse::<u16>().ok()?))) else {
            faults.push(format!("{at:?} is not host:port"));
            continue;
        };
        let over_tls = site.listeners.get(&port) == Some(&Listener::Https);
        let routes_of_host = site.hosts.entry(host.clone()).or_default();
        if over_tls {
            *routes_of_host = Host { secret: host.clone(), issue: true };
        }
        for (path, handler) in web.handlers {
            let target = of_handler(&path, handler).unwrap_or_else(|why| {
                faults.push(why.clone());
                RouteTarget::Nowhere(why)
            });
            site.routes.push(VhostRoute { host: Some(host.clone()), port: Some(port), path: mount(&path, false), exact: false, target });
        }
    }
    site
}

fn of_handler(path: &str, handler: HttpHandler) -> Result<RouteTarget, String> {
    if !handler.proxy.is_empty() {
        return of_proxy(path, &handler.proxy, handler.accept_app_caps).map(|proxied| RouteTarget::Backend(proxied.into()));
    }
    if !handler.redirect.is_empty() {
        let redirect = handler.redirect.split_once(':').and_then(|(status, to)| Some((status.parse::<u16>().ok()?, to)));
        let (status, to) = redirect.unwrap_or((302, handler.redirect.as_str()));
        let is_one = matches!(status, 301..=303 | 307 | 308);
        return if is_one {
            Ok(RouteTarget::Redirect { status, to: to.to_owned() })
        } else {
            Err(format!("{path}: {status} is no redirect"))
        };
    }
    if handler.text.is_empty() { Err(format!("{path}: no handler")) } else { Ok(RouteTarget::Text(handler.text)) }
}

/// Parses the URL of a backend.
fn of_proxy(path: &str, url: &str, app_caps: Vec<String>) -> Result<Proxied, String> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let (protocol, default) = match scheme {
        "http" => (BackendProtocol::Http, 80),
        "https+insecure" => (BackendProtocol::Https, 443),
        other => return Err(format!("{path}: the backend {url:?} is of {other}, and only http and https+insecure can be asked")),
    };
    let (authority, base) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let address = match authority.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) if has_port(authority) => authority.to_owned(),
        Err(_) => format!("{authority}:{default}"),
    };
    if !has_port(&address) {
        return Err(format!("{path}: the backend {url:?} has no address that can be asked"));
    }
    // The mount point is replaced by the backend's own path: mostly they are equal.
    let (mount, base) = (mount(path, false), base.trim_end_matches('/'));
    let rewrite = (mount.trim_end_matches('/') != base).then(|| Rewrite { segments: path::segments(&mount), base: base.to_owned() });
    Ok(Proxied { backend: Arc::new(Backend { address, protocol, ..Backend::default() }), rewrite, app_caps })
}

fn mount(path: &str, exact: bool) -> String {
    let path = path::normal(path).into_owned();
    if exact || path.len() == 1 { path } else { path.trim_end_matches('/').to_owned() }
}

fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| {
        let whole = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
        !host.is_empty() && whole && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

impl ReadVhosts {
    fn enter(&mut self, name: String, mut site: Vhost) {
        site.sort();
        self.sites.insert(name, Arc::new(site));
    }

    fn fault(&mut self, name: String, faults: Vec<String>) {
        if !faults.is_empty() {
            self.faults.insert(name, faults);
        }
    }
}
