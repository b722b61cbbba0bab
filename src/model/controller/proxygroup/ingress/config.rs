//! The config of everything that a group publishes, with what is still being let go.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::claims::origin;
use super::{IngressPlan, Item, ServiceState};
use crate::api::ingress::{IngressService, Mapping};
use crate::api::routes::Site;
use crate::model::controller::ingress_spec::{L4Service, PublishTarget, serve, tun};
use crate::model::controller::objects::IngressConfigMap;

/// The config; `gone` are the names of which nothing is left.
pub(super) fn config(plan: &IngressPlan<'_>, gone: &BTreeSet<String>) -> IngressConfigMap {
    let mut config = IngressConfigMap::default();
    for name in plan.unchanged.iter().chain(plan.leaving.difference(gone)) {
        config.keep(name, &plan.before);
    }
    for (name, item) in &plan.items {
        match &item.standing {
            // What is advertised is served until it is not.
            ServiceState::Conflict(_) if plan.advertised.contains(name) => config.keep(name, &plan.before),
            ServiceState::Conflict(_) => {}
            // What is somebody else's would be served as if it were not.
            ServiceState::Unknown if !plan.recorded(name) => {}
            ServiceState::Unsupported => put_node(&mut config, name, item),
            ServiceState::Unknown | ServiceState::Creating | ServiceState::Owned(_) | ServiceState::ByRoute(_) => {
                put(&mut config, &plan.before, name, item);
            }
        }
    }
    config
}

pub(super) fn put(config: &mut IngressConfigMap, before: &IngressConfigMap, name: &str, item: &Item) {
    config.origins.insert(name.to_owned(), origin(&item.claimant));
    match &item.wish.target {
        PublishTarget::Site(site) => {
            config.serve.insert(name.to_owned(), serve(site, &item.dns));
            config.routes.insert(name.to_owned(), site.clone());
        }
        PublishTarget::Whole(whole) => {
            // tailscaled knows nothing of what comes by a route.
            if !matches!(item.standing, ServiceState::ByRoute(_)) {
                config.serve.insert(name.to_owned(), tun());
            }
            let existing = before.mappings.get(name).cloned();
            let mapping = match &item.standing {
                ServiceState::Owned(own) | ServiceState::ByRoute(own) => mapping(own, whole),
                _ => existing,
            };
            config.mappings.extend(mapping.map(|mapping| (name.to_owned(), mapping)));
        }
    }
}

/// A site on the replicas' own addresses: it has the names for which there is a certificate, and is never advertised.
fn put_node(config: &mut IngressConfigMap, name: &str, item: &Item) {
    if let Some(site) = node_site(item) {
        config.origins.insert(name.to_owned(), origin(&item.claimant));
        config.routes.insert(name.to_owned(), site);
    }
}

/// What of a site can be served where the control plane has neither Tailscale Services nor certificates; none if nothing.
pub(super) fn node_site(item: &Item) -> Option<Site> {
    let PublishTarget::Site(site) = &item.wish.target else { return None };
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
pub(super) fn mapping(own: &[String], whole: &L4Service) -> Option<IngressService> {
    let pair = |v4: bool| {
        let service = own.iter().find(|ip| ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4() == v4))?;
        let cluster_ip =
            if whole.external_name.is_empty() { whole.addresses.iter().find(|ip| ip.is_ipv4() == v4)?.to_string() } else { String::new() };
        Some(Mapping { tailscale_service_ip: service.clone(), cluster_ip })
    };
    let (ipv4, ipv6) = (pair(true), pair(false));
    let (external_name, proxy_protocol) = (whole.external_name.clone(), whole.proxy_protocol.clone());
    (ipv4.is_some() || ipv6.is_some()).then_some(IngressService { ipv4, ipv6, external_name, proxy_protocol })
}
