//! Tags of auth keys: those of an administrator, those that the tenancy permits, or those that the replica's device or its last key had.
//!
//! [`AdmittedTags`] are created here only, and every auth key needs some: a tag that an object merely requests is in no key.

use std::sync::Arc;

use imbl::OrdMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::model::controller::policy::requests;
use crate::model::controller::policy::tenancy::{Labels, Tenancy, TenancyScope, restricted_tags};
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::settings::GroupSettings;

/// Tags that an auth key may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdmittedTags(Vec<String>);

impl AdmittedTags {
    /// Those that an administrator sets for a workload; none: the default ones.
    pub(crate) fn configured(tags: &[String]) -> Self {
        Self(tags.to_vec())
    }

    /// Those that a standalone object requests, if the tenancy permits them. Else those of its recorded device, else those of its last auth
    /// key. What its Pod claims decides nothing.
    pub(crate) fn of_object(
        (settings, namespaces): (&GroupSettings, &OrdMap<String, Arc<Labels>>),
        replica: Option<&ObservedReplica>,
        metadata: &ObjectMeta,
    ) -> Self {
        let extra = extra_tags(metadata, settings, had_tags(replica));
        let tenancy = Tenancy::of(&settings.standalone_tenants, settings.tenancy, namespaces);
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let quota = tenancy.allowance(namespace, TenancyScope::Standalone);
        if quota.is_ok_and(|quota| quota.permits(&extra)) {
            return Self(requests::tags(metadata));
        }
        let mint = || replica?.config.as_ref()?.mint.as_ref();
        let had = Some(had_tags(replica)).filter(|had| !had.is_empty());
        Self(had.or_else(|| Some(&mint()?.tags)).map(<[String]>::to_vec).unwrap_or_default())
    }

    /// These, or the default ones if there are none.
    pub(crate) fn or_default(&self, settings: &GroupSettings) -> Self {
        if self.0.is_empty() { Self(settings.tags.clone()) } else { self.clone() }
    }

    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

/// Tags that the recorded device of a replica has.
pub(crate) fn had_tags(replica: Option<&ObservedReplica>) -> &[String] {
    replica.and_then(ObservedReplica::device).map(|record| record.tags.as_slice()).unwrap_or_default()
}

/// Requested tags besides the default ones, those that the device has, and the permitted ones. Tenants permit tags by namespace.
pub(crate) fn extra_tags(metadata: &ObjectMeta, settings: &GroupSettings, had: &[String]) -> Vec<String> {
    restricted_tags(requests::tags(metadata), &[&settings.tags, had], &settings.standalone_tenants, &settings.permitted_tags)
}
