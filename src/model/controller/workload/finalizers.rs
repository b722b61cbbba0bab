//! Finalizers: whether an object has one of ours, and the list with or without it. Others stay, in their order. Changes of an object that
//! has a finalizer and is only validated.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::names::FINALIZER;

/// Changes of a validated object: a class or a Tailnet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Validation<Status> {
    /// Complete list of finalizers, if changed.
    pub finalizers: Option<Vec<String>>,
    /// Complete status, if changed.
    pub status: Option<Status>,
    /// Warning Events: reason and message.
    pub warnings: Vec<(&'static str, String)>,
}

impl<Status: Default> Validation<Status> {
    /// The only change of an uninstall: the object has no finalizer of ours.
    pub fn released(metadata: &ObjectMeta) -> Self {
        Self { finalizers: change(metadata, FINALIZER, false), ..Self::default() }
    }
}

pub fn has(metadata: &ObjectMeta, own: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|name| name == own)
}

/// Complete list that has `own` exactly if `wanted`; `None` if unchanged.
pub fn change(metadata: &ObjectMeta, own: &str, wanted: bool) -> Option<Vec<String>> {
    let others = metadata.finalizers.iter().flatten().filter(|name| *name != own).cloned();
    (has(metadata, own) != wanted).then(|| others.chain(wanted.then(|| own.to_owned())).collect())
}
