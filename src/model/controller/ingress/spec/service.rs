//! Parses a Service that is advertised with all ports of its address or external name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort};

use crate::api::names;
use crate::api::vip::ANY_PORT;
use crate::model::base::bounded::service_excess;
use crate::model::controller::ingress::spec::{L4Service, PublishSpec, PublishTarget, common};
use crate::model::controller::policy::annotations::{annotation, is_true};
use crate::model::controller::policy::fault_list::FaultList;
use crate::model::controller::policy::requests::service_label;

/// Parses a Service. The error lists the first faults, each with an action.
pub fn service(service: &Service) -> Result<PublishSpec, Vec<String>> {
    let mut wrong = FaultList::default();
    if let Some(excess) = service_excess(service) {
        wrong.add(|| excess);
    }
    let label = service_label(service);
    let tags = common(service.metadata.annotations.as_ref(), &label, &mut wrong);
    let kind = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()).unwrap_or("ClusterIP");
    let mut whole = L4Service { proxy_protocol: announced(service, &mut wrong), ..L4Service::default() };
    if kind == "ExternalName" {
        whole.external_name = external_name(service, &mut wrong);
        if annotation(service.metadata.annotations.as_ref(), names::PROXY_PROTOCOL).is_some() {
            wrong.add(|| format!("{} is for Services with a spec.clusterIP: remove one of the two.", names::PROXY_PROTOCOL));
        }
    } else {
        whole.addresses = addresses(service);
        if whole.addresses.is_empty() {
            wrong.add(|| {
                format!(
                    "It has no address in the cluster (spec.type {kind}, headless or not yet given): use one that has a spec.clusterIP."
                )
            });
        }
    }
    if !wrong.is_empty() {
        return Err(wrong.texts());
    }
    let ports = vec![ANY_PORT.to_owned()];
    let (notes, warnings) = (FaultList::default(), FaultList::default());
    Ok(PublishSpec { label, tags, ports, target: PublishTarget::Whole(whole), notes, flaws: [].into(), warnings })
}

/// ClusterIPs of a Service, the first of each family.
fn addresses(service: &Service) -> Vec<IpAddr> {
    let Some(spec) = service.spec.as_ref() else { return Vec::new() };
    let all = spec.cluster_ips.iter().flatten().chain(spec.cluster_ip.iter()).filter_map(|ip| ip.parse::<IpAddr>().ok());
    let mut found: Vec<IpAddr> = Vec::new();
    for ip in all {
        if !found.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
            found.push(ip);
        }
    }
    found
}

fn external_name(service: &Service, wrong: &mut FaultList) -> String {
    let named = service.spec.as_ref().and_then(|spec| spec.external_name.as_deref()).unwrap_or_default().trim_end_matches('.');
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let labels = || named.split('.').all(|label| (1..=63).contains(&label.len()) && label.bytes().all(inner));
    if named.parse::<IpAddr>().is_ok() || named.len() > 253 || !labels() {
        wrong.add(|| format!("spec.externalName {named:?} is no DNS name: give it one, or give the Service a spec.clusterIP."));
    }
    named.to_ascii_lowercase()
}

/// TCP ports that get a PROXY protocol header.
fn announced(service: &Service, wrong: &mut FaultList) -> BTreeSet<u16> {
    let Some(setting) = annotation(service.metadata.annotations.as_ref(), names::PROXY_PROTOCOL).filter(|requested| !is_false(requested))
    else {
        return BTreeSet::new();
    };
    let spec = service.spec.as_ref();
    let is_tcp = |port: &&ServicePort| port.protocol.as_deref().unwrap_or("TCP") == "TCP";
    let ports: Vec<&ServicePort> = spec.and_then(|spec| spec.ports.as_ref()).into_iter().flatten().filter(is_tcp).collect();
    let number = |port: &ServicePort| u16::try_from(port.port).ok();
    if is_true(names::PROXY_PROTOCOL, setting) {
        if ports.is_empty() {
            wrong.add(|| format!("{}: it has no TCP port, and other protocols have no such header.", names::PROXY_PROTOCOL));
        }
        return ports.into_iter().filter_map(number).collect();
    }
    let mut by_text: BTreeMap<String, Option<u16>> = BTreeMap::new();
    for port in &ports {
        for text in port.name.iter().cloned().chain([port.port.to_string()]) {
            by_text.entry(text).or_insert_with(|| number(port));
        }
    }
    let mut chosen = BTreeSet::new();
    for wanted in setting.split(',').map(str::trim) {
        match by_text.get(wanted).copied().flatten() {
            Some(port) => chosen.extend([port]),
            None => {
                wrong.add(|| format!("{}: {wanted:?} is neither true nor one of its TCP ports, by number or name.", names::PROXY_PROTOCOL));
            }
        }
    }
    chosen
}

fn is_false(text: &str) -> bool {
    matches!(text, "false" | "False" | "FALSE" | "f" | "F")
}
