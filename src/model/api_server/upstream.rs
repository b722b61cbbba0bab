//! The API server as the upstream of virtual hosts.

use std::sync::Arc;

use crate::api::routes::{Backend, BackendProtocol};
use crate::model::front_end::vhosts::{Proxied, RouteTarget, Vhost, VhostRoute, Vhosts};

use super::base_path::BasePath;

/// Port of an address without one.
const PORT: u16 = 443;
/// Maximum length of a URL, in bytes.
const MAX_URL: usize = 2048;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiServerUpstream {
    /// Without a Service: its `EndpointSlices` are not followed, so that no right to read them is needed.
    pub backend: Arc<Backend>,
    pub base: BasePath,
}

impl ApiServerUpstream {
    /// Reads the URL of the API server, in the form of `server` of a kubeconfig: `https`, host, and on request port and base path. `None` if it
    /// is none, has a user, query or dot segments, or is longer than 2,048 bytes.
    pub fn read(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("https://").filter(|_| url.len() <= MAX_URL)?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let uri: http::uri::Authority = authority.parse().ok().filter(|_| !authority.contains('@'))?;
        let port = match authority.strip_prefix(uri.host())? {
            "" => PORT,
            port => port.strip_prefix(':')?.parse::<u16>().ok().filter(|port| *port > 0)?,
        };
        if uri.host().is_empty() {
            return None;
        }
        let address = format!("{}:{port}", uri.host());
        let backend = Arc::new(Backend { address, protocol: BackendProtocol::Https, ..Backend::default() });
        Some(Self { backend, base: BasePath::read(path)? })
    }

    /// The URL, with port and without slash at its end.
    pub fn url(&self) -> String {
        format!("https://{}{}", self.backend.address, self.base.as_str())
    }
}

/// `Host` of requests to an API server at this address: as in a URL, without the port that it has by default.
pub fn authority(address: &str) -> &str {
    address.strip_suffix(":443").unwrap_or(address)
}

/// Gives each virtual host of the API server this upstream as its only route; without one it has none: its routes of the config would get the
/// requests of clients and the proxy's token.
pub fn routed(upstream: Option<&ApiServerUpstream>, sites: &Arc<Vhosts>) -> Arc<Vhosts> {
    if sites.values().all(|site| site.api_server.is_none()) {
        return Arc::clone(sites);
    }
    let route = |upstream: &ApiServerUpstream| {
        let target = RouteTarget::Backend(Arc::new(Proxied { backend: Arc::clone(&upstream.backend), ..Proxied::default() }));
        VhostRoute { host: None, port: None, path: "/".to_owned(), exact: false, target }
    };
    let routes: Vec<VhostRoute> = upstream.map(route).into_iter().collect();
    let with_route = |site: &Arc<Vhost>| match site.api_server {
        Some(_) => Arc::new(Vhost { routes: routes.clone(), ..Vhost::clone(site) }),
        None => Arc::clone(site),
    };
    Arc::new(sites.iter().map(|(name, site)| (name.clone(), with_route(site))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::front_end::vhosts::read;

    #[test]
    fn upstream_is_address_and_path_of_the_url() {
        let cases = [
            ("https://10.96.0.1:6443", Some(("10.96.0.1:6443", ""))),
            ("https://kubernetes.default.svc", Some(("kubernetes.default.svc:443", ""))),
            ("https://[fd00:96::1]:443/", Some(("[fd00:96::1]:443", ""))),
            ("https://rancher.example/k8s/clusters/c-1", Some(("rancher.example:443", "/k8s/clusters/c-1"))),
            ("http://10.96.0.1:8080", None),
            ("https://user@10.96.0.1", None),
            ("https://10.96.0.1/a/../b", None),
            ("https://", None),
            ("https://:443", None),
            ("https:///k8s", None),
            ("https://10.96.0.1:", None),
            ("https://10.96.0.1:0", None),
            ("https://10.96.0.1:65536/k8s", None),
            ("https://10.96.0.1?watch", None),
            ("https://10.96.0.1/k8s?watch", None),
            ("https://10.96.0.1/k8s/%2e%2e/b", None),
            ("10.96.0.1:443", None),
        ];
        for (url, expected) in cases {
            let expected = expected.map(|(address, base)| {
                let backend = Backend { address: address.to_owned(), protocol: BackendProtocol::Https, ..Backend::default() };
                ApiServerUpstream { backend: Arc::new(backend), base: BasePath::read(base).expect("a path") }
            });
            let upstream = ApiServerUpstream::read(url);
            assert_eq!(upstream, expected, "{url}");
            assert_eq!(upstream.as_ref().and_then(|upstream| ApiServerUpstream::read(&upstream.url())), upstream, "{url}");
        }
        let longest = format!("https://10.96.0.1/{}", "a".repeat(MAX_URL - 18));
        assert!(ApiServerUpstream::read(&longest).is_some() && ApiServerUpstream::read(&format!("{longest}a")).is_none());
    }

    #[test]
    fn authority_has_no_default_port() {
        let cases =
            [("rancher.example:443", "rancher.example"), ("[fd00:96::1]:443", "[fd00:96::1]"), ("10.96.0.1:6443", "10.96.0.1:6443")];
        for (address, expected) in cases {
            assert_eq!(authority(address), expected);
        }
    }

    #[test]
    fn virtual_hosts_of_the_api_server_alone_get_the_upstream_and_no_other_route() {
        let text = r#"{"svc:kube": {"hosts": {"kube.tail.ts.net": {}}, "listeners": {"443": "https"}, "apiServer": {"mode": "noauth"},
            "routes": [{"path": "/", "backend": {"address": "192.0.2.1:443", "protocol": "https"}}]},
            "svc:web": {"hosts": {"web.tail.ts.net": {}}, "listeners": {"443": "https"}}}"#;
        let sites = Arc::new(read(Some(text.as_bytes()), None).expect("readable").sites);
        let upstream = ApiServerUpstream::read("https://10.96.0.1:443").expect("a URL");
        for (upstream, expected) in [(Some(&upstream), vec![&upstream.backend]), (None, vec![])] {
            let routed = routed(upstream, &sites);
            assert_eq!(routed["svc:kube"].backends().collect::<Vec<_>>(), expected);
            assert_eq!(routed["svc:web"], sites["svc:web"]);
        }
        let others = Arc::new(Vhosts::from([("svc:web".to_owned(), Arc::clone(&sites["svc:web"]))]));
        assert!(Arc::ptr_eq(&routed(Some(&upstream), &others), &others));
    }
}
