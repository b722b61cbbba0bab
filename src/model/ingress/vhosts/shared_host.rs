//! Shared virtual host of a node whose control plane has no Tailscale Services: all virtual hosts share its addresses and ports.
//!
//! Host names distinguish them, so each route is limited to the host names of its own virtual host. On conflicting ports or host names, the
//! first virtual host by name has precedence.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Vhost, VhostRoute, Vhosts};

/// Name of the shared virtual host.
pub const NAME: &str = "node";

/// Merges virtual hosts. Also returns the omitted parts with reasons, by virtual host.
pub fn merged(sites: &Vhosts) -> (Vhost, BTreeMap<String, Vec<String>>) {
    let mut node = Vhost::default();
    let mut faults: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, site) in sites {
        let mut fault = |what: String| faults.entry(name.clone()).or_default().push(what);
        for (port, listener) in &site.listeners {
            if node.listeners.entry(*port).or_insert(*listener) != listener {
                fault(format!("port {port} is served in another way by another site of this node"));
            }
        }
        for (host, how) in &site.hosts {
            if node.hosts.contains_key(host) {
                fault(format!("{host} is another site's name"));
                continue;
            }
            node.hosts.insert(host.clone(), how.clone());
            let own = site.routes.iter().filter(|route| route.host.as_ref().is_none_or(|only| only == host));
            node.routes.extend(own.map(|route| VhostRoute { host: Some(host.clone()), ..route.clone() }));
        }
        node.funnel |= site.funnel;
    }
    node.sort();
    (node, faults)
}

pub fn listened(sites: &Arc<Vhosts>, on_node: bool) -> Arc<Vhosts> {
    if !on_node || sites.is_empty() {
        return Arc::clone(sites);
    }
    Arc::new([(NAME.to_owned(), Arc::new(merged(sites).0))].into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ingress::vhosts::{RouteDecision, read};

    #[test]
    fn sites_of_a_node_are_selected_by_host_name() {
        let backend = |address: &str| format!(r#"{{"namespace":"ns","service":"web","address":"{address}","protocol":"http"}}"#);
        let site = |host: &str, address: &str| {
            format!(
                r#"{{"hosts":{{"{host}":{{"secret":"{host}","issue":true}}}},"listeners":{{"443":"https"}},"routes":[{{"path":"/","backend":{}}}]}}"#,
                backend(address)
            )
        };
        let text = format!(
            r#"{{"svc:a":{},"svc:b":{},"svc:c":{}}}"#,
            site("a.tail.lab", "10.0.0.1:80"),
            site("b.tail.lab", "10.0.0.2:80"),
            site("a.tail.lab", "10.0.0.3:80")
        );
        let sites = read(Some(text.as_bytes()), None).expect("readable").sites;
        let (node, faults) = merged(&sites);
        let target = |name: &str| match node.decide(443, name, "/x") {
            RouteDecision::Proxy(proxied, _) => proxied.backend.address.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!((target("a.tail.lab"), target("b.tail.lab")), ("10.0.0.1:80".to_owned(), "10.0.0.2:80".to_owned()));
        assert_eq!(node.decide(443, "c.tail.lab", "/"), RouteDecision::Misdirected);
        assert_eq!(faults.into_iter().collect::<Vec<_>>(), [("svc:c".to_owned(), vec!["a.tail.lab is another site's name".to_owned()])]);
    }
}
