//! Finalizers: whether an object has one of ours, and the list with or without it. Others stay, in their order.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub fn has(metadata: &ObjectMeta, own: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|name| name == own)
}

/// Complete list that has `own` exactly if `wanted`; `None` if unchanged.
pub fn change(metadata: &ObjectMeta, own: &str, wanted: bool) -> Option<Vec<String>> {
    let others = metadata.finalizers.iter().flatten().filter(|name| *name != own).cloned();
    (has(metadata, own) != wanted).then(|| others.chain(wanted.then(|| own.to_owned())).collect())
}
