//! Validation of users' egress Services; each fault is a message with an action.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;

use crate::api::names;
use crate::model::base::bounded::service_excess;
use crate::model::controller::policy::annotations::{dns_label, is_tag};
use crate::model::controller::policy::fault_list::FaultList;

/// Value of a nonempty annotation.
pub(crate) fn annotation<'a>(service: &'a Service, key: &str) -> Option<&'a str> {
    service.metadata.annotations.as_ref()?.get(key).map(|value| value.trim()).filter(|value| !value.is_empty())
}

/// Faults of a user's Service.
pub(crate) fn service(service: &Service) -> Vec<String> {
    let mut wrong = FaultList::default();
    let spec = service.spec.as_ref();
    let kind = spec.and_then(|spec| spec.type_.as_deref()).unwrap_or("ClusterIP");
    if kind != "ExternalName" {
        wrong.add(|| format!("spec.type is {kind}: set it to ExternalName, with any spec.externalName."));
    }
    target(annotation(service, names::TAILNET_FQDN), annotation(service, names::TAILNET_IP), &mut wrong);
    let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    if ports.is_empty() {
        wrong.add(|| "spec.ports is empty: list each port of the target.".into());
    }
    if let Some(excess) = service_excess(service) {
        wrong.add(|| excess);
        return wrong.texts();
    }
    for port in ports {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        if protocol != "TCP" && protocol != "UDP" {
            wrong.add(|| format!("port {} is of protocol {protocol}: only TCP and UDP are forwarded.", port.port));
        }
        if !(1..=65_535).contains(&port.port) {
            wrong.add(|| format!("port {} is not between 1 and 65535.", port.port));
        }
        if port.name.as_deref() == Some(crate::model::controller::workload::objects::child::HEALTH_PORT) {
            wrong.add(|| {
                format!(
                    "the port name {} is reserved for the health check: rename it.",
                    crate::model::controller::workload::objects::child::HEALTH_PORT
                )
            });
        }
    }
    if let Some(hostname) = annotation(service, names::HOSTNAME).filter(|hostname| !dns_label(&hostname.to_ascii_lowercase())) {
        wrong.add(|| format!("{}: {hostname:?} is not a DNS label of at most 63 characters.", names::HOSTNAME));
    }
    for tag in annotation(service, names::TAGS).into_iter().flat_map(|tags| tags.split(',')).map(str::trim) {
        if !is_tag(tag) {
            wrong.add(|| format!("{}: {tag:?} is not a tag such as tag:web.", names::TAGS));
        }
    }
    wrong.texts()
}

/// Faults of an egress Service's target, by its annotations.
pub(crate) fn target(fqdn: Option<&str>, ip: Option<&str>, wrong: &mut FaultList) {
    match (fqdn, ip) {
        (Some(_), Some(_)) => {
            wrong.add(|| format!("both {} and {} are set: remove one of the annotations.", names::TAILNET_FQDN, names::TAILNET_IP));
        }
        (None, None) => wrong.add(|| format!("set one of the annotations {} and {}.", names::TAILNET_FQDN, names::TAILNET_IP)),
        (Some(fqdn), None) if !name(fqdn) => {
            wrong.add(|| format!("{}: {fqdn:?} is not a full name such as db.tail1234.ts.net.", names::TAILNET_FQDN));
        }
        (None, Some(ip)) if ip.parse::<IpAddr>().is_err() => {
            wrong.add(|| format!("{}: {ip:?} is not an IP address.", names::TAILNET_IP));
        }
        _ => {}
    }
}

/// Whether a text is a DNS name of at least two labels; self-hosted tailnets have their own domains.
fn name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    text.len() <= 253 && text.contains('.') && text.split('.').all(|label| (1..=63).contains(&label.len()) && label.bytes().all(inner))
}

/// Whether the API accepts a text as `spec.externalName`.
pub(crate) fn dns_name(text: &str) -> bool {
    text.len() <= 253 && text.strip_suffix('.').unwrap_or(text).split('.').all(dns_label)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A valid Service with one field replaced.
    fn with(path: &str, value: Value) -> Service {
        let mut service = json!({
            "metadata": {"name": "db", "namespace": "default", "annotations": {"tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"}},
            "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": [{"port": 5432, "protocol": "TCP"}]},
        });
        *service.pointer_mut(path).expect("a field") = value;
        serde_json::from_value(service).expect("a Service")
    }

    #[test]
    fn valid_services_have_no_violations() {
        let annotations = [
            json!({"tailscale.com/tailnet-fqdn": "db.tail1234.ts.net."}),
            json!({"tailscale.com/tailnet-fqdn": "db.users.example.com"}),
            json!({"tailscale.com/tailnet-ip": "100.64.0.9"}),
            json!({"tailscale.com/tailnet-ip": "fd7a:115c:a1e0::9", "tailscale.com/tags": "tag:a, tag:b-1", "tailscale.com/hostname": "db"}),
        ];
        for annotations in annotations {
            assert_eq!(service(&with("/metadata/annotations", annotations.clone())), [""; 0], "{annotations}");
        }
        assert_eq!(service(&with("/spec/ports", json!([{"port": 53, "protocol": "UDP"}, {"port": 53}]))), [""; 0]);
    }

    #[test]
    fn each_violation_message_names_the_fix() {
        let both = json!({"tailscale.com/tailnet-fqdn": "a.b.ts.net", "tailscale.com/tailnet-ip": "100.64.0.1"});
        let bad = [
            ("/metadata/annotations", json!({}), "set one of the annotations"),
            ("/metadata/annotations", both, "remove one of the annotations"),
            ("/metadata/annotations", json!({"tailscale.com/tailnet-fqdn": "db"}), "is not a full name such as"),
            ("/metadata/annotations", json!({"tailscale.com/tailnet-fqdn": "a..ts.net"}), "is not a full name such as"),
            ("/metadata/annotations", json!({"tailscale.com/tailnet-ip": "100.64.0.1/32"}), "is not an IP address"),
            ("/metadata/annotations", json!({"tailscale.com/tailnet-ip": "1.2.3.4", "tailscale.com/tags": "web"}), "is not a tag such as"),
            ("/metadata/annotations", json!({"tailscale.com/tailnet-ip": "1.2.3.4", "tailscale.com/hostname": "A_"}), "is not a DNS label"),
            ("/spec/type", json!("ClusterIP"), "set it to ExternalName"),
            ("/spec/ports", json!([]), "list each port of the target"),
            ("/spec/ports", json!([{"port": 80, "protocol": "SCTP"}]), "only TCP and UDP"),
            ("/spec/ports", json!([{"port": 0}]), "not between 1 and 65535"),
            ("/spec/ports", json!([{"port": 80, "name": "tailscale-health-check"}]), "rename it"),
        ];
        for (path, value, says) in bad {
            let wrong = service(&with(path, value.clone()));
            assert!(wrong.len() == 1 && wrong[0].contains(says), "{path} {value}: {wrong:?}");
        }
    }

    #[test]
    fn faults_are_few_and_short_whatever_their_number_and_length() {
        let tags = |tags: String| json!({"tailscale.com/tailnet-ip": "1.2.3.4", "tailscale.com/tags": tags});
        let ports = |port: Value| json!(vec![port; 1_000]);
        let cases = [
            ("/metadata/annotations", tags("a,".repeat(100_000)), 21),
            ("/metadata/annotations", tags("é".repeat(100_000)), 1),
            ("/metadata/annotations", json!({"tailscale.com/tailnet-fqdn": "a.".repeat(100_000)}), 1),
            ("/spec/ports", ports(json!({"port": 80, "protocol": "SCTP"})), 21),
            ("/spec/ports", ports(json!({"port": 0})), 21),
        ];
        for (path, value, count) in cases {
            let wrong = service(&with(path, value));
            let bytes = wrong.iter().map(String::len).sum::<usize>();
            assert!(wrong.len() == count && bytes < 32 * 1024, "{path}: {} faults of {bytes} bytes", wrong.len());
        }
    }
}
