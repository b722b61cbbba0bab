//! The config of everything that a group publishes, with what is still being let go.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::claims::origin;
use super::{Item, Plan, Standing};
use crate::api::ingress::{Mapping, Service};
use crate::api::routes::{Listener, Site};
use crate::model::objects::IngressConfig;
use crate::model::publish::{Target, serve, tun};

/// The config; `gone` are the names of which nothing is left.
pub(super) fn config(plan: &Plan<'_>, gone: &BTreeSet<String>) -> IngressConfig {
    let mut config = IngressConfig::default();
    for name in plan.held.iter().chain(plan.leaving.difference(gone)) {
        config.keep(name, &plan.before);
    }
    for (name, item) in &plan.items {
        match &item.standing {
            // What is advertised is served until it is not.
            Standing::Theirs(_) if plan.told.contains(name) => config.keep(name, &plan.before),
            Standing::Theirs(_) => {}
            Standing::Never => put_node(&mut config, name, item),
            Standing::Unknown | Standing::Made | Standing::Ours(_) => put(&mut config, &plan.before, name, item),
        }
    }
    config
}

fn put(config: &mut IngressConfig, before: &IngressConfig, name: &str, item: &Item) {
    config.origins.insert(name.to_owned(), origin(&item.claimant));
    match &item.wish.target {
        Target::Site(site) => {
            config.serve.insert(name.to_owned(), serve(site, &item.dns));
            config.routes.insert(name.to_owned(), site.clone());
        }
        Target::Addresses(addresses) => {
            config.serve.insert(name.to_owned(), tun());
            let held = before.mappings.get(name).cloned();
            let mapping = match &item.standing {
                Standing::Ours(own) => mapping(own, addresses),
                _ => held,
            };
            config.mappings.extend(mapping.map(|mapping| (name.to_owned(), mapping)));
        }
    }
}

/// A site on the replicas' own addresses: it has the names for which there is a certificate, and is never advertised.
fn put_node(config: &mut IngressConfig, name: &str, item: &Item) {
    if let Some(site) = node_site(item) {
        config.origins.insert(name.to_owned(), origin(&item.claimant));
        config.routes.insert(name.to_owned(), site);
    }
}

/// What of a site can be served where the control plane has neither Tailscale Services nor certificates; none if nothing.
pub(super) fn node_site(item: &Item) -> Option<Site> {
    let Target::Site(site) = &item.wish.target else { return None };
    let mut site = site.clone();
    site.hosts.retain(|_, host| !host.issue);
    if site.hosts.is_empty() {
        site.listeners.retain(|_, listener| *listener == Listener::Http);
    }
    // A rule for the name that nobody has is one for every name.
    for route in site.routes.iter_mut().filter(|route| route.host == item.dns) {
        route.host = String::new();
    }
    (!site.listeners.is_empty()).then_some(site)
}

/// The pairs of addresses of a service; none without one.
pub(super) fn mapping(own: &[String], addresses: &[IpAddr]) -> Option<Service> {
    let pair = |v4: bool| {
        let service = own.iter().find(|ip| ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4() == v4))?;
        let cluster = addresses.iter().find(|ip| ip.is_ipv4() == v4)?;
        Some(Mapping { tailscale_service_ip: service.clone(), cluster_ip: cluster.to_string() })
    };
    let (ipv4, ipv6) = (pair(true), pair(false));
    (ipv4.is_some() || ipv6.is_some()).then_some(Service { ipv4, ipv6, ..Service::default() })
}
