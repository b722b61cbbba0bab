//! Finalizers: whether an object has one of ours, and the list with it or without it. Those of others stay, in their order.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub fn has(metadata: &ObjectMeta, own: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|name| name == own)
}

/// The whole list, if it is to change so that it names `own` exactly if it is wanted.
pub fn change(metadata: &ObjectMeta, own: &str, wanted: bool) -> Option<Vec<String>> {
    let others = metadata.finalizers.iter().flatten().filter(|name| *name != own).cloned();
    (has(metadata, own) != wanted).then(|| others.chain(wanted.then(|| own.to_owned())).collect())
}
