//! Renders a virtual host into a serve config for the Tailscale operator's proxy: one name, path prefixes only, cluster addresses of
//! backends.

use crate::api::routes::{BackendProtocol, Listener, Route, Site};
use crate::api::serve::{HttpHandler, ServiceConfig, TcpHandler, WebServer};

/// Serve config of a virtual host with the tailnet name `dns`.
pub fn serve(site: &Site, dns: &str) -> ServiceConfig {
    let mut config = ServiceConfig::default();
    let routes = || site.routes.iter().filter(|route| (route.host.is_empty() || route.host == dns) && !route.backend.address.is_empty());
    for (port, listener) in &site.listeners {
        let tls = *listener == Listener::Https;
        config.tcp.insert(*port, TcpHandler { https: tls, http: !tls, ..TcpHandler::default() });
        let handler = |route: &Route| match listener {
            Listener::Redirect => HttpHandler { redirect: "301:https://${HOST}${REQUEST_URI}".to_owned(), ..HttpHandler::default() },
            Listener::Https | Listener::Http => HttpHandler { proxy: proxy(route), ..HttpHandler::default() },
        };
        let mut web = WebServer::default();
        // An exact path becomes a prefix; the name's own route replaces one for every name.
        for of_name in [true, false] {
            for route in routes().filter(|route| route.host.is_empty() != of_name) {
                web.handlers.entry(route.path.clone()).or_insert_with(|| handler(route));
            }
        }
        config.web.insert(format!("{dns}:{port}"), web);
    }
    config
}

/// Serve config of a service whose packets all go to the kernel.
pub fn tun() -> ServiceConfig {
    ServiceConfig { tun: true, ..ServiceConfig::default() }
}

fn proxy(route: &Route) -> String {
    let scheme = match route.backend.protocol {
        BackendProtocol::Https => "https+insecure",
        BackendProtocol::Http | BackendProtocol::H2c => "http",
    };
    format!("{scheme}://{}{}", route.backend.address, route.path)
}
