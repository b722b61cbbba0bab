//! Validation of a group's spec and of users' Services; each fault is a message with an action.
//!
//! Only faults that the CRD schema does not reject.

use ipnet::IpNet;

use crate::api::names;
use crate::api::proxygroup::ProxyGroup;
use crate::model::base::net::Family;
use crate::model::base::netmap::tailnet_range;
use crate::model::controller::ingress::api_server::request_fault;
use crate::model::controller::policy::annotations::dns_label;
use crate::model::controller::workload::match_ports::MatchPortRange;
use crate::model::controller::workload::objects::shape::RenderContext;

/// Maximum length of a group's name: Pods have a label of the name and eleven bytes.
const LONGEST_GROUP: usize = 52;

/// First fault of a group.
pub(crate) fn group(group: &ProxyGroup, shape: &RenderContext<'_>) -> Option<String> {
    let name = &shape.owner.name;
    if name == names::API_SERVER_ACCOUNT {
        return Some(format!("The name {name} is reserved for the Tailscale operator: give the ProxyGroup another name."));
    }
    if name.len() > LONGEST_GROUP || !dns_label(name) {
        return Some(format!("The name must be a DNS label of at most {LONGEST_GROUP} characters: give the ProxyGroup another name."));
    }
    if let Some(request) = shape.spec.api_server {
        if let Some(fault) = request_fault(request, shape) {
            return Some(fault);
        }
    } else if shape.is_k8s_proxy() {
        return Some("The image of spec.proxyClass is for groups of type kube-apiserver: name one of a proxy.".into());
    }
    if let Some(fault) = shape.userspace_fault() {
        return Some(fault.to_owned());
    }
    let own = group.spec.tailyard.as_ref();
    if let Some(ports) = own.and_then(|own| own.match_port_range) {
        let range = MatchPortRange::new(ports.start.try_into().unwrap_or(0), ports.end.try_into().unwrap_or(0));
        if range.is_none() {
            return Some(
                "spec.tailyard.matchPortRange must be a range of ports between 1 and 65535 whose start is not above its end.".into(),
            );
        }
    }
    if let Some(text) = own.and_then(|own| own.service_cidrs.iter().find(|text| !free_prefix(text))) {
        return Some(format!(
            "spec.tailyard.serviceCIDRs: {text:?} is not a prefix such as 10.9.0.0/24, or one of the tailnet's own addresses (100.64.0.0/10, \
             fd7a:115c:a1e0::/48): use a free one."
        ));
    }
    if own.and_then(|own| own.drain_timeout_seconds).is_some_and(|grace| grace < 0) {
        return Some("spec.tailyard.drainTimeoutSeconds must not be negative.".into());
    }
    None
}

/// Fault of a name that new groups may not have; an existing group continues to run.
pub(crate) fn reserved_account(shape: &RenderContext<'_>) -> Option<String> {
    shape.has_reserved_account().then(|| {
        format!(
            "The name {} is reserved for groups of type ingress: Secret {} has the ACME accounts that other proxies share. Create a ProxyGroup \
             with another name, and move its Services and Ingresses.",
            shape.owner.name,
            names::ACCOUNTS
        )
    })
}

/// Whether a text is a prefix outside of the tailnet's ranges, and not IPv4 mapped into IPv6, which API servers reject in a status.
fn free_prefix(text: &str) -> bool {
    let own = Family::ALL.map(|family| tailnet_range(family).parse::<IpNet>());
    let apart = |net: &IpNet| own.iter().flatten().all(|own| !own.contains(net) && !net.contains(own));
    text.parse::<IpNet>().is_ok_and(|net| apart(&net) && net.addr().to_canonical() == net.addr())
}
