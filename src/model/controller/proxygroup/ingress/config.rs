//! The config of everything that a group publishes, with what is still being let go.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::claims::origin;
use super::{Item, Plan, Standing};
use crate::api::ingress::{Mapping, Service};
use crate::api::routes::Site;
use crate::model::controller::ingress_spec::{Target, Whole, serve, tun};
use crate::model::controller::objects::IngressConfig;

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
            // What is somebody else's would be served as if it were not.
            Standing::Unknown if !plan.recorded(name) => {}
            Standing::Never => put_node(&mut config, name, item),
            Standing::Unknown | Standing::Made | Standing::Ours(_) | Standing::Routed(_) => put(&mut config, &plan.before, name, item),
        }
    }
    config
}

pub(super) fn put(config: &mut IngressConfig, before: &IngressConfig, name: &str, item: &Item) {
    config.origins.insert(name.to_owned(), origin(&item.claimant));
    match &item.wish.target {
        Target::Site(site) => {
            config.serve.insert(name.to_owned(), serve(site, &item.dns));
            config.routes.insert(name.to_owned(), site.clone());
        }
        Target::Whole(whole) => {
            // tailscaled knows nothing of what comes by a route.
            if !matches!(item.standing, Standing::Routed(_)) {
                config.serve.insert(name.to_owned(), tun());
            }
            let held = before.mappings.get(name).cloned();
            let mapping = match &item.standing {
                Standing::Ours(own) | Standing::Routed(own) => mapping(own, whole),
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
    // Sites share the addresses of the replicas and are told apart by their names.
    if site.hosts.is_empty() {
        return None;
    }
    // A rule for the name that nobody has is one for every name.
    for route in site.routes.iter_mut().filter(|route| route.host == item.dns) {
        route.host = String::new();
    }
    (!site.listeners.is_empty()).then_some(site)
}

/// The pairs of addresses of a service; none without one. Where a name stands for it, every address of its own leads there.
pub(super) fn mapping(own: &[String], whole: &Whole) -> Option<Service> {
    let pair = |v4: bool| {
        let service = own.iter().find(|ip| ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4() == v4))?;
        let cluster_ip =
            if whole.external_name.is_empty() { whole.addresses.iter().find(|ip| ip.is_ipv4() == v4)?.to_string() } else { String::new() };
        Some(Mapping { tailscale_service_ip: service.clone(), cluster_ip })
    };
    let (ipv4, ipv6) = (pair(true), pair(false));
    let (external_name, proxy_protocol) = (whole.external_name.clone(), whole.proxy_protocol.clone());
    (ipv4.is_some() || ipv6.is_some()).then_some(Service { ipv4, ipv6, external_name, proxy_protocol })
}
