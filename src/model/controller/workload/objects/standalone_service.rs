//! The headless Service of a standalone proxy: the name to which an egress Service points.
//!
//! It has no ports, so all ports of the target are reached, and its name resolves to the Pod only while that is ready.

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use serde_json::Value;

use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{APP, Kind, Manifest};

pub fn headless_service(shape: &RenderContext<'_>) -> Manifest {
    let owner = &shape.owner;
    let spec = ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        ip_family_policy: Some("PreferDualStack".to_owned()),
        selector: Some(owner.selector()),
        ..ServiceSpec::default()
    };
    let service = Service { metadata: owner.metadata(owner.name.clone(), None), spec: Some(spec), ..Service::default() };
    Manifest::of(Kind::Service, &service)
}

/// Value of the label that an existing `StatefulSet` selects. It is immutable, and differs from the UID of a Service that was restored from
/// a backup.
pub fn selected_app(set: &Value) -> Option<&str> {
    set["spec"]["selector"]["matchLabels"][APP].as_str()
}
