//! A Service as it is published whole: every port of its address.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;

use super::{Target, Wish, common, service_label};
use crate::api::vip::ANY_PORT;

/// Reads a Service. The error is everything that is wrong with it, each a sentence that says what to do.
pub fn service(service: &Service) -> Result<Wish, Vec<String>> {
    let mut wrong = Vec::new();
    let label = service_label(service);
    let (tags, share, adopt) = common(service.metadata.annotations.as_ref(), &label, &mut wrong);
    let addresses = addresses(service);
    if addresses.is_empty() {
        let kind = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()).unwrap_or("ClusterIP");
        wrong.push(format!(
            "It has no address in the cluster (spec.type {kind}, headless or not yet given): use one that has a spec.clusterIP."
        ));
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let ports = vec![ANY_PORT.to_owned()];
    Ok(Wish { label, tags, ports, share, adopt, target: Target::Addresses(addresses), notes: Vec::new() })
}

/// The addresses of a Service in the cluster, the first of each family.
fn addresses(service: &Service) -> Vec<IpAddr> {
    let Some(spec) = service.spec.as_ref() else { return Vec::new() };
    let all = spec.cluster_ips.iter().flatten().chain(spec.cluster_ip.iter()).filter_map(|ip| ip.parse::<IpAddr>().ok());
    let mut found: Vec<IpAddr> = Vec::new();
    for ip in all {
        if !found.iter().any(|held| held.is_ipv4() == ip.is_ipv4()) {
            found.push(ip);
        }
    }
    found
}
