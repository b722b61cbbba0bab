//! `NodePort` Service of one replica's tailscaled, so that peers can reach it directly.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::api::names;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, Owner};

/// The Service of one replica.
pub fn node_port(owner: &Owner, ordinal: u32, wireguard: u16, node_port: u16) -> Manifest {
    let port = ServicePort {
        name: Some("static-endpoint-port".to_owned()),
        port: wireguard.into(),
        target_port: Some(IntOrString::Int(wireguard.into())),
        node_port: Some(node_port.into()),
        protocol: Some("UDP".to_owned()),
        ..ServicePort::default()
    };
    let pod = ("statefulset.kubernetes.io/pod-name".to_owned(), names::replica(&owner.name, ordinal));
    let spec =
        ServiceSpec { type_: Some("NodePort".to_owned()), selector: Some([pod].into()), ports: Some(vec![port]), ..ServiceSpec::default() };
    let mut metadata = owner.metadata(name(&owner.name, ordinal), None);
    if owner.key.group().is_none() {
        metadata.labels = Some(owner.own_labels());
    }
    Manifest::of(Kind::Service, &Service { metadata, spec: Some(spec), ..Service::default() })
}

pub fn node_port_ref(owner: &Owner, ordinal: u32) -> ObjectRef {
    ObjectRef::new(Kind::Service, &owner.namespace, name(&owner.name, ordinal))
}

/// Port of tailscaled and node port of such a Service.
pub fn held_ports(service: &Value) -> Option<(u16, u16)> {
    let port = service.get("spec")?.get("ports")?.get(0)?;
    let number = |key: &str| port.get(key).and_then(Value::as_u64).and_then(|number| u16::try_from(number).ok());
    Some((number("targetPort")?, number("nodePort")?))
}

fn name(workload: &str, ordinal: u32) -> String {
    format!("{workload}-{ordinal}-nodeport")
}
