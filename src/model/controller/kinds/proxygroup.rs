//! `ProxyGroup`s: objects in the order of creation, deletion, validation and status.

pub mod provision;
pub mod status;
pub mod unmanaged;
pub mod validate;

use std::borrow::Cow;

use crate::api::names;
use crate::api::proxygroup::{ApiServerMode, ProxyGroup, ProxyGroupType};
use crate::model::controller::workload::admitted_tags::AdmittedTags;
use crate::model::controller::workload::role::Role;
use crate::model::controller::workload::spec::{ApiServerRequest, HostnamePattern, WorkloadSpec};

/// The workload that a group requests; `None` for a type without a role.
pub(crate) fn spec(group: &ProxyGroup) -> Option<WorkloadSpec<'_>> {
    let (metadata, spec) = (&group.metadata, &group.spec);
    let role = match spec.type_ {
        ProxyGroupType::Egress => Role::EgressGroup,
        ProxyGroupType::Ingress => Role::IngressGroup,
        ProxyGroupType::KubeApiServer => Role::ApiServerGroup,
        ProxyGroupType::Other(_) => return None,
    };
    let options = spec.tailyard.as_ref();
    Some(WorkloadSpec {
        role,
        replicas: spec.desired_replicas(),
        tags: Cow::Borrowed(&spec.tags),
        admitted: AdmittedTags::configured(&spec.tags),
        hostname: HostnamePattern::Numbered(group.hostname_prefix()),
        temporary_hostname: None,
        tailnet: spec.tailnet.as_deref(),
        tenants: options.map(|options| options.tenants.as_slice()).unwrap_or_default(),
        shares_account: metadata.annotations.as_ref().and_then(|all| all.get(names::SHARE_ACCOUNT)).map(|text| text == "true"),
        standby: false,
        serves_on_pod: false,
        api_server: api_server(group),
        options,
    })
}

fn api_server(group: &ProxyGroup) -> Option<ApiServerRequest<'_>> {
    let hostname = group.api_server_hostname()?;
    let mode = group.spec.kube_api_server.as_ref().and_then(|server| server.mode.as_ref()).unwrap_or(&ApiServerMode::Auth);
    let impersonation = group.spec.tailyard.as_ref().and_then(|own| own.impersonation.as_ref());
    let is_http = group.api_server_endpoint().and_then(|endpoint| endpoint.http).unwrap_or_default();
    Some(ApiServerRequest { hostname, mode, impersonation, permitted: None, certificate: group.api_server_certificate(), is_http })
}
