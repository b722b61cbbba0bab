//! The file in a replica's Pod with the note that the replica is unreachable ([`crate::api::failover`]).
//!
//! The kubelet follows annotations within seconds, and needs no Pod network for that.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, DownwardAPIVolumeSource, ObjectFieldSelector, Volume};
use serde_json::Value;

use crate::api::names;
use crate::model::controller::workload::objects::PROXY;

/// Variable with the path of the file.
pub(crate) const VARIABLE: &str = "TAILYARD_UNREACHABLE_NOTE";
pub(crate) const VOLUME: &str = "failover";
/// Mount path of the volume.
pub(crate) const DIRECTORY: &str = "/etc/tailyard-failover";
/// Name of the file.
pub(crate) const FILE: &str = "unreachable";

pub(crate) fn volume() -> Volume {
    let field_path = format!("metadata.annotations['{}']", names::UNREACHABLE);
    let field_ref = Some(ObjectFieldSelector { api_version: Some("v1".to_owned()), field_path });
    let file = DownwardAPIVolumeFile { path: FILE.to_owned(), field_ref, ..DownwardAPIVolumeFile::default() };
    let downward_api = Some(DownwardAPIVolumeSource { items: Some(vec![file]), ..DownwardAPIVolumeSource::default() });
    Volume { name: VOLUME.to_owned(), downward_api, ..Volume::default() }
}

/// Whether a former version rendered this `StatefulSet` for the same image. It stays without the file, so that no Pod restarts before its
/// image changes.
pub(crate) fn is_missing(observed: &Value, image: &str) -> bool {
    let pod = &observed["spec"]["template"]["spec"];
    let items = |list: &str| pod[list].as_array().into_iter().flatten();
    let has_image = items("containers").any(|container| container["name"] == PROXY && container["image"] == image);
    has_image && !items("volumes").any(|volume| volume["name"] == VOLUME)
}

pub(crate) fn remove(set: &mut StatefulSet) {
    let Some(pod) = set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()) else { return };
    pod.volumes.iter_mut().for_each(|volumes| volumes.retain(|volume| volume.name != VOLUME));
    for container in &mut pod.containers {
        container.volume_mounts.iter_mut().for_each(|mounts| mounts.retain(|mount| mount.name != VOLUME));
        container.env.iter_mut().for_each(|env| env.retain(|variable| variable.name != VARIABLE));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn former_template_stays_without_the_file_until_its_image_changes() {
        let observed = |volumes: Value| {
            let containers = json!([{"name": "other", "image": "tailyard:2"}, {"name": PROXY, "image": "tailyard:1"}]);
            json!({"spec": {"template": {"spec": {"containers": containers, "volumes": volumes}}}})
        };
        assert!(is_missing(&observed(json!([{"name": "config"}])), "tailyard:1"));
        assert!(!is_missing(&observed(json!([{"name": "config"}])), "tailyard:2"));
        assert!(!is_missing(&observed(json!([{"name": "config"}, {"name": VOLUME}])), "tailyard:1"));
    }
}
