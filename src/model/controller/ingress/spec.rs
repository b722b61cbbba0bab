//! Parses Ingresses and Services that request a name in a tailnet.
//!
//! Each object is parsed alone, so that an invalid one does not affect others. Only the object and its backends are read; conflicts of
//! names and states are decided in [`crate::model::controller::ingress`].

pub mod api_server;
pub mod backend;
pub mod ingress;
pub mod serve;
pub mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;

use crate::api::condition::{INGRESS_SVC_CONFIGURED, INGRESS_SVC_VALID};
use crate::api::routes::Site;
use crate::api::{names, vip};
use crate::model::base::conditions;
use crate::model::controller::policy::annotations::{Annotations, annotation, dns_label, is_tag};
use crate::model::controller::policy::fault_list::FaultList;
use crate::model::controller::policy::tenancy::Patterns;
use crate::model::controller::workload::observed::UserCertificate;
use crate::model::controller::workload::observed::backend_service::BackendService;

/// Content of a valid request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishSpec {
    /// First DNS label of its name in the tailnet.
    pub label: String,
    /// Tags of its Tailscale Service; empty for the default tags.
    pub tags: Vec<String>,
    /// Ports of its Tailscale Service, in the control plane's notation.
    pub ports: Vec<String>,
    /// Target of its traffic.
    pub target: PublishTarget,
    /// Parts that are not served, each with an action.
    pub notes: FaultList,
    /// Faults of user-provided certificates, by host.
    pub flaws: BTreeMap<String, CertificateIssue>,
    /// Expiry of certificates that are overdue for renewal, each with an action.
    pub warnings: FaultList,
}

/// Fault of a certificate that an Ingress names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateIssue {
    /// No usable certificate exists for the host.
    Lacking,
    /// It is not valid now.
    Invalid,
    Ending,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishTarget {
    /// Backends, by host and path.
    Site(Site),
    Whole(L4Service),
}

/// A Service with all its ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct L4Service {
    /// Its ClusterIPs, at most one for each family; empty for an `ExternalName` Service.
    pub addresses: Vec<IpAddr>,
    /// Its `externalName`; empty where it has addresses.
    pub external_name: String,
    /// TCP ports whose backends get a PROXY protocol header.
    pub proxy_protocol: BTreeSet<u16>,
}

/// What an object is parsed against.
#[derive(Clone, Copy)]
pub struct SpecContext<'a> {
    /// Domain of the tailnet; empty while it is unknown, before the device of a proxy of its own has joined.
    pub suffix: &'a str,
    /// Whether the control plane issues the certificates of all names in the domain. Then only the object with a name has one.
    pub issues: bool,
    /// Whole name of the device whose name it gets, which may differ from label and domain; else it gets that of a Tailscale Service.
    pub device: Option<&'a str>,
    pub services: &'a dyn Fn(&str, &str) -> Option<&'a BackendService>,
    pub namespace: &'a str,
    /// Existing Secrets that Ingresses name as certificates.
    pub certificates: &'a BTreeMap<String, UserCertificate>,
    /// Namespaces that may use a certificate, for those that are restricted.
    pub reserved: &'a BTreeMap<String, Patterns>,
    pub now: Timestamp,
}

impl SpecContext<'_> {
    /// Whether a host may be the whole name of this label: the domain is unknown.
    pub fn may_be_name_of(&self, label: &str, host: &str) -> bool {
        self.suffix.is_empty() && host.split_once('.').is_some_and(|(first, _)| first == label)
    }

    /// Whether a host is in the domain of the tailnet, where the control plane issues all certificates.
    pub fn is_issued(&self, host: &str) -> bool {
        let label = host.to_ascii_lowercase();
        self.issues && !self.suffix.is_empty() && label.strip_suffix(self.suffix).is_some_and(|label| label.ends_with('.'))
    }
}

impl std::fmt::Debug for SpecContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("suffix", &self.suffix).finish_non_exhaustive()
    }
}

/// Name of a Tailscale Service, from its label.
pub fn service_name(label: &str) -> String {
    format!("{}{label}", vip::PREFIX)
}

pub fn has_conditions(service: &Service) -> bool {
    [INGRESS_SVC_VALID, INGRESS_SVC_CONFIGURED].iter().any(|kind| conditions::of_service(service, kind).is_some())
}

/// Tags of the Tailscale Service, for both kinds; appends faults to `wrong`.
pub fn common(annotations: Option<&Annotations>, label: &str, wrong: &mut FaultList) -> Vec<String> {
    if !dns_label(label) {
        wrong.add(|| format!("{label:?} cannot be its name in the tailnet: it must be a DNS label of at most 63 characters."));
    }
    let tags: Vec<String> =
        annotation(annotations, names::TAGS).into_iter().flat_map(|tags| tags.split(',')).map(|tag| tag.trim().to_owned()).collect();
    for tag in tags.iter().filter(|tag| !is_tag(tag)) {
        wrong.add(|| format!("{}: {tag:?} is not a tag such as tag:web.", names::TAGS));
    }
    tags
}

#[cfg(test)]
mod tests;
