//! Config of everything that a group advertises, including names being withdrawn.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::api::ingress::{IngressService, Mapping};
use crate::api::routes::Site;
use crate::model::controller::ingress::claims::origin;
use crate::model::controller::ingress::items::{IngressPlan, Item, ServiceState};
use crate::model::controller::ingress::spec::ingress::HTTPS;
use crate::model::controller::ingress::spec::serve::{serve, tun};
use crate::model::controller::ingress::spec::{L4Service, PublishTarget};
use crate::model::controller::workload::objects::ingress::IngressConfigMap;

/// The config, without the names in `gone`.
pub(crate) fn config(plan: &IngressPlan<'_>, gone: &BTreeSet<String>) -> IngressConfigMap {
    let mut config = IngressConfigMap::default();
    for name in plan.unchanged.iter().chain(plan.leaving.difference(gone)) {
        config.keep(name, &plan.before);
    }
    for (name, item) in &plan.items {
        match &item.state {
            // Advertised names are served until withdrawn.
            ServiceState::Conflict(_) if plan.advertised.contains(name) => config.keep(name, &plan.before),
            ServiceState::Conflict(_) => {}
            // It may belong to another owner.
            ServiceState::Unknown if !plan.recorded(name) => {}
            ServiceState::Unsupported | ServiceState::Device => put_node(&mut config, name, item),
            ServiceState::Unknown | ServiceState::Creating | ServiceState::Owned(_) | ServiceState::ByRoute(_) => {
                put(&mut config, &plan.before, name, item);
            }
        }
    }
    config
}

pub(crate) fn put(config: &mut IngressConfigMap, before: &IngressConfigMap, name: &str, item: &Item) {
    config.origins.insert(name.to_owned(), origin(&item.claimant));
    match &item.spec.target {
        PublishTarget::Site(site) => {
            config.serve.insert(name.to_owned(), serve(site, &item.dns));
            let addresses = match &item.state {
                ServiceState::Owned(own) if !own.is_empty() => own.iter().filter_map(|ip| ip.parse().ok()).collect(),
                _ => before.routes.get(name).map(|site| site.addresses.clone()).unwrap_or_default(),
            };
            config.routes.insert(name.to_owned(), Site { addresses, ..site.clone() });
        }
        PublishTarget::Whole(whole) => {
            // Traffic of routes does not pass tailscaled's serve config.
            if !matches!(item.state, ServiceState::ByRoute(_)) {
                config.serve.insert(name.to_owned(), tun());
            }
            let existing = before.mappings.get(name).cloned();
            let mapping = match &item.state {
                ServiceState::Owned(own) | ServiceState::ByRoute(own) => mapping(own, whole),
                _ => existing,
            };
            config.mappings.extend(mapping.map(|mapping| (name.to_owned(), mapping)));
        }
    }
}

/// Adds a virtual host on the replicas' own addresses, never advertised.
fn put_node(config: &mut IngressConfigMap, name: &str, item: &Item) {
    if let Some(site) = node_site(item) {
        config.origins.insert(name.to_owned(), origin(&item.claimant));
        config.routes.insert(name.to_owned(), site);
    }
}

/// The part of a virtual host that works on the replicas' own addresses: without certificates of the control plane, unless the name is the
/// device's.
pub(crate) fn node_site(item: &Item) -> Option<Site> {
    let PublishTarget::Site(site) = &item.spec.target else { return None };
    let mut site = site.clone();
    if matches!(item.state, ServiceState::Device) {
        return Some(site);
    }
    site.hosts.retain(|_, host| !host.issue);
    // Virtual hosts share the replicas' addresses and are selected by host name. The Kubernetes API is alone there.
    if site.hosts.is_empty() && (site.api_server.is_none() || site.listeners.contains_key(&HTTPS)) {
        return None;
    }
    // A rule for the Tailscale Service's name applies to every host.
    for route in site.routes.iter_mut().filter(|route| route.host == item.dns) {
        route.host = String::new();
    }
    (!site.listeners.is_empty()).then_some(site)
}

/// Address pairs of a service, `None` without any. An external name is the target of all addresses.
pub(crate) fn mapping(own: &[String], whole: &L4Service) -> Option<IngressService> {
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
