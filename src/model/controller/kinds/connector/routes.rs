//! Routes of a Connector: at most [`MAX_ROUTES`] prefixes without host bits.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::api::connector::ConnectorSpec;
use crate::model::base::netmap::VIA_PREFIX;
use crate::model::controller::policy::fault_list::FaultList;

/// Maximum number of routes: each device has all of them in its config.
pub(crate) const MAX_ROUTES: usize = 1_000;
/// Length of a 4via6 prefix up to the IPv4 prefix: after [`VIA_PREFIX`] comes the site's number, of 32 bits.
const VIA_LENGTH: u8 = 96;

/// Default routes of both families.
const EXIT: [IpNet; 2] =
    [IpNet::V4(Ipv4Net::new_assert(std::net::Ipv4Addr::UNSPECIFIED, 0)), IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0))];

/// Routes that each device of a Connector advertises.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AdvertisedRoutes(BTreeSet<IpNet>);

impl AdvertisedRoutes {
    /// The routes of a spec. Faults, each with field and action, are added to `wrong`.
    pub(crate) fn parse(spec: &ConnectorSpec, wrong: &mut FaultList) -> Self {
        let subnets = spec.subnet_router.as_ref().map(|router| ("spec.subnetRouter.advertiseRoutes", &router.advertise_routes));
        let apps = spec.app_connector.as_ref().map(|connector| ("spec.appConnector.routes", &connector.routes));
        let mut routes = BTreeSet::new();
        for (field, texts) in subnets.into_iter().chain(apps) {
            if texts.len() > MAX_ROUTES {
                wrong.add(|| format!("{field} has {} routes: name at most {MAX_ROUTES}, and others in another Connector.", texts.len()));
                continue;
            }
            let parsed: BTreeSet<IpNet> = texts.iter().filter_map(|text| parsed(field, text, wrong)).collect();
            if let [Some(default), None] | [None, Some(default)] = EXIT.map(|route| parsed.get(&route)) {
                wrong.add(|| {
                    format!("{field} has {default} without the default route of the other family: set spec.exitNode in its place.")
                });
            }
            routes.extend(parsed);
        }
        routes.extend(EXIT.into_iter().filter(|_| spec.exit_node));
        Self(routes)
    }

    /// Whether the devices are exit nodes.
    pub(crate) fn has_exit(&self) -> bool {
        EXIT.iter().all(|route| self.0.contains(route))
    }

    /// Number of routes.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn texts(&self) -> BTreeSet<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

fn parsed(field: &str, text: &str, wrong: &mut FaultList) -> Option<IpNet> {
    let Ok(net) = text.parse::<IpNet>() else {
        wrong.add(|| format!("{field}: {text:?} is not a prefix such as 10.40.0.0/14: correct or remove it."));
        return None;
    };
    if net.trunc() != net {
        wrong.add(|| format!("{field}: {net} has bits after its prefix: write {}.", net.trunc()));
        return None;
    }
    if let IpNet::V6(net) = net
        && net.addr().to_ipv4_mapped().is_some()
    {
        wrong.add(|| format!("{field}: {net} is an IPv4 prefix in IPv6: write the IPv4 prefix."));
        return None;
    }
    if let Some(why) = via_fault(net) {
        wrong.add(|| format!("{field}: {net} is no 4via6 prefix: {why}."));
        return None;
    }
    Some(net)
}

/// Why a prefix in the range of 4via6 prefixes is none.
fn via_fault(net: IpNet) -> Option<&'static str> {
    let IpNet::V6(net) = net else { return None };
    let segments = net.addr().segments();
    if !segments.starts_with(&VIA_PREFIX) {
        return None;
    }
    let is_short = net.prefix_len() < VIA_LENGTH;
    let site_fault = (segments[4] != 0).then_some("take a site number of at most 65535");
    is_short.then_some("write one of at least 96 bits, as tailscale debug via prints").or(site_fault)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: &Value) -> Result<Vec<String>, String> {
        let spec: ConnectorSpec = serde_json::from_value(spec.clone()).expect("a spec");
        let mut wrong = FaultList::default();
        let routes = AdvertisedRoutes::parse(&spec, &mut wrong);
        if wrong.is_empty() { Ok(routes.texts().into_iter().collect()) } else { Err(wrong.texts().join(" ")) }
    }

    fn subnets(routes: &[&str]) -> Value {
        json!({"subnetRouter": {"advertiseRoutes": routes}})
    }

    #[test]
    fn valid_routes_are_advertised_once_and_those_of_an_exit_node_beside_them() {
        for (spec, wanted) in [
            (subnets(&["10.40.0.0/14", "fd00::/8", "10.40.0.0/14"]), &["10.40.0.0/14", "fd00::/8"][..]),
            (subnets(&["192.0.2.7/32"]), &["192.0.2.7/32"]),
            (subnets(&["0.0.0.0/0", "::/0"]), &["0.0.0.0/0", "::/0"]),
            (json!({"exitNode": true}), &["0.0.0.0/0", "::/0"]),
            (json!({"exitNode": true, "subnetRouter": {"advertiseRoutes": ["10.0.0.0/8"]}}), &["0.0.0.0/0", "10.0.0.0/8", "::/0"]),
            (json!({"appConnector": {}}), &[]),
            (json!({"appConnector": {"routes": ["198.51.100.0/24"]}}), &["198.51.100.0/24"]),
            (subnets(&["fd7a:115c:a1e0:b1a:0:1:a2c:0/116"]), &["fd7a:115c:a1e0:b1a:0:1:a2c:0/116"]),
        ] {
            assert_eq!(read(&spec), Ok(wanted.iter().map(|route| (*route).to_owned()).collect()), "{spec}");
        }
    }

    #[test]
    fn each_route_fault_names_field_and_fix() {
        for (spec, wanted) in [
            (subnets(&["10.0.0.0"]), &["advertiseRoutes", "\"10.0.0.0\"", "correct or remove it"][..]),
            (subnets(&["1.2.3.4/5"]), &["1.2.3.4/5", "write 0.0.0.0/5"]),
            (subnets(&["0.0.0.0/0"]), &["0.0.0.0/0", "set spec.exitNode"]),
            (subnets(&["::/0", "10.0.0.0/8"]), &["::/0", "set spec.exitNode"]),
            (subnets(&["::ffff:10.0.0.0/104"]), &["write the IPv4 prefix"]),
            (subnets(&["fd7a:115c:a1e0:b1a:1:0:a2c:0/116"]), &["at most 65535"]),
            (subnets(&["fd7a:115c:a1e0:b1a::/64"]), &["at least 96 bits"]),
            (json!({"appConnector": {"routes": ["x/8"]}}), &["spec.appConnector.routes", "x/8"]),
            (json!({"subnetRouter": {"advertiseRoutes": vec!["10.0.0.0/8"; MAX_ROUTES + 1]}}), &["1001 routes", "another Connector"]),
        ] {
            let fault = read(&spec).expect_err("a fault");
            assert!(wanted.iter().all(|text| fault.contains(text)), "{spec}: {fault}");
        }
    }
}
