//! What a user's object requests of its workload, whatever its kind.

use std::borrow::Cow;

use crate::api::proxygroup::{ApiServerMode, Impersonation, Tailyard, Tenant};
use crate::model::controller::workload::admitted_tags::AdmittedTags;
use crate::model::controller::workload::role::Role;
use crate::model::controller::workload::settings::GroupSettings;

/// Request for a workload. Invalid parts are reported by the kind of the object.
#[derive(Debug, Clone)]
pub struct WorkloadSpec<'a> {
    pub role: Role,
    pub replicas: u32,
    /// Requested tags of the devices; the default ones if empty.
    pub tags: Cow<'a, [String]>,
    /// Tags of new auth keys; the default ones if empty.
    pub admitted: AdmittedTags,
    pub hostname: HostnamePattern<'a>,
    /// Host name of the only device while another workload has the requested one.
    pub temporary_hostname: Option<String>,
    /// Name of the Tailnet; `None`: the default one.
    pub tailnet: Option<&'a str>,
    /// Tenants; none if every namespace may use the workload.
    pub tenants: &'a [Tenant],
    /// Whether the replicas share the ACME account of their tailnet, if set.
    pub shares_account: Option<bool>,
    /// Whether a second Pod waits to take over. Only our image can.
    pub standby: bool,
    /// Whether virtual hosts are also served to the cluster, on the Pod's addresses.
    pub serves_on_pod: bool,
    /// The Kubernetes API that the workload publishes.
    pub api_server: Option<ApiServerRequest<'a>>,
    /// Options that only Tailyard has.
    pub options: Option<&'a Tailyard>,
}

/// Request to publish the Kubernetes API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiServerRequest<'a> {
    /// First label of its name in the tailnet.
    pub hostname: &'a str,
    pub mode: &'a ApiServerMode,
    /// Limit of the users and groups that clients may be; `None`: all permitted ones.
    pub impersonation: Option<&'a Impersonation>,
    /// Users and groups that the settings permit, if these are others than those of `ProxyGroup`s.
    pub permitted: Option<&'a Impersonation>,
    /// Secret of its own certificate, in place of one of the control plane.
    pub certificate: Option<&'a str>,
    /// Whether it is served by HTTP.
    pub is_http: bool,
}

impl ApiServerRequest<'_> {
    /// Whether the Pods impersonate their clients: else these have credentials of their own.
    pub fn impersonates(&self) -> bool {
        self.mode.impersonates()
    }
}

/// Host names of the devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostnamePattern<'a> {
    /// That of the first device, followed by the ordinal of another one.
    Single(String),
    /// A prefix, followed by the ordinal.
    Numbered(&'a str),
}

impl WorkloadSpec<'_> {
    /// Requested tags: of a standalone object perhaps not permitted.
    pub fn tags<'b>(&'b self, settings: &'b GroupSettings) -> &'b [String] {
        if self.tags.is_empty() { &settings.tags } else { &self.tags }
    }

    /// Host name in the config of a replica.
    pub fn config_hostname(&self, ordinal: u32) -> String {
        self.temporary_hostname.clone().unwrap_or_else(|| self.hostname(ordinal))
    }

    /// Requested host name of a replica's device.
    pub fn hostname(&self, ordinal: u32) -> String {
        match &self.hostname {
            HostnamePattern::Single(name) if ordinal == 0 => name.clone(),
            HostnamePattern::Single(prefix) => format!("{prefix}-{ordinal}"),
            HostnamePattern::Numbered(prefix) => format!("{prefix}-{ordinal}"),
        }
    }
}
