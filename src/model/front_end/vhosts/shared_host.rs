//! Host names that several virtual hosts name, and the shared virtual host of a node whose control plane has no Tailscale Services.
//!
//! Certificates are by host name, so each has one owner: the virtual host that orders its certificate, else the first by name. On the shared
//! virtual host all have the same addresses and ports: each route is limited to the host names of its own virtual host, and on conflicting
//! ports the first by name has precedence.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Vhost, VhostRoute, Vhosts};
use crate::api::routes::Host;

/// Name of the shared virtual host.
pub const NAME: &str = "node";

/// Certificates of the host names with TLS.
pub fn certificates(sites: &Vhosts) -> BTreeMap<String, Host> {
    let owners = owners(sites.iter().filter(|(_, site)| site.is_over_tls()));
    owners.into_iter().map(|(host, (_, how))| (host.clone(), how.clone())).collect()
}

/// The virtual host that has each host name, with its certificate.
fn owners<'a>(sites: impl Iterator<Item = (&'a String, &'a Arc<Vhost>)>) -> BTreeMap<&'a String, (&'a String, &'a Host)> {
    let mut owners = BTreeMap::new();
    for (name, (host, how)) in sites.flat_map(|(name, site)| site.hosts.iter().map(move |host| (name, host))) {
        let owner = owners.entry(host).or_insert((name, how));
        if how.issue && !owner.1.issue {
            *owner = (name, how);
        }
    }
    owners
}

/// Merges virtual hosts. Also returns the omitted parts with reasons, by virtual host.
pub fn merged(sites: &Vhosts) -> (Vhost, BTreeMap<String, Vec<String>>) {
    let mut node = Vhost::default();
    let mut faults: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let owners = owners(sites.iter());
    for (name, site) in sites {
        let mut fault = |what: String| faults.entry(name.clone()).or_default().push(what);
        if site.api_server.is_some() && sites.len() > 1 {
            fault("the API server needs the addresses of a node for itself".to_owned());
            continue;
        }
        for (port, listener) in &site.listeners {
            if node.listeners.entry(*port).or_insert(*listener) != listener {
                fault(format!("port {port} is served in another way by another site of this node"));
            }
        }
        for (host, how) in &site.hosts {
            if owners[host].0 != name {
                fault(format!("{host} is another site's name"));
                continue;
            }
            node.hosts.insert(host.clone(), how.clone());
            let own = site.routes.iter().filter(|route| route.host.as_ref().is_none_or(|only| only == host));
            node.routes.extend(own.map(|route| VhostRoute { host: Some(host.clone()), ..route.clone() }));
        }
        node.api_server.clone_from(&site.api_server);
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
    use proptest::prelude::*;

    use super::*;
    use crate::api::routes::Listener;
    use crate::model::front_end::vhosts::{RouteDecision, read};

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

    /// A virtual host: host names with their certificates, and whether it has TLS.
    type Named = (BTreeMap<u8, (u8, bool)>, bool);

    fn vhosts(named: &BTreeMap<u8, Named>) -> Vhosts {
        let vhost = |(hosts, over_tls): &Named| Vhost {
            hosts: hosts
                .iter()
                .map(|(host, (secret, issue))| (host.to_string(), Host { secret: secret.to_string(), issue: *issue }))
                .collect(),
            listeners: [(443, if *over_tls { Listener::Https } else { Listener::Http })].into(),
            ..Vhost::default()
        };
        named.iter().map(|(name, named)| (name.to_string(), Arc::new(vhost(named)))).collect()
    }

    fn named() -> impl Strategy<Value = Named> {
        (prop::collection::btree_map(0_u8..4, (0_u8..2, any::<bool>()), 0..4), any::<bool>())
    }

    proptest! {
        /// A site loses no certificate and no host name by another one, but to one that orders it, or to one that is first by name.
        #[test]
        fn another_site_changes_the_names_of_none(all in prop::collection::btree_map(0_u8..9, named(), 1..4), other in 0_u8..9) {
            let mut fewer = all.clone();
            let Some((other_hosts, _)) = fewer.remove(&other) else { return Ok(()) };
            let (with, without) = (certificates(&vhosts(&all)), certificates(&vhosts(&fewer)));
            let (merged_with, merged_without) = (merged(&vhosts(&all)).0.hosts, merged(&vhosts(&fewer)).0.hosts);
            for (name, (hosts, over_tls)) in &fewer {
                for (host, (_, orders)) in hosts {
                    let precedes = other_hosts.get(host).is_some_and(|(_, other_orders)| (!other_orders, other) < (!orders, *name));
                    let host = host.to_string();
                    if !precedes {
                        prop_assert!(!over_tls || with.get(&host) == without.get(&host), "{}", host);
                        prop_assert_eq!(merged_with.get(&host), merged_without.get(&host), "{}", host);
                    }
                }
            }
        }
    }
}
