//! What users ask to have published in a tailnet: Ingresses and Services, read one by one.
//!
//! Each is read alone, so that what is wrong with one concerns no other. Which group publishes it, who else wants its name and
//! what has become of it is decided in [`crate::model::controller::proxygroup`]; nothing observed but the object and its backends is looked at here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::jiff::Timestamp;

use crate::api::condition::{INGRESS_SVC_CONFIGURED, INGRESS_SVC_VALID};
use crate::api::names;
use crate::api::routes::Site;
use crate::api::vip;
use crate::model::controller::tenancy::Patterns;
use crate::model::ingress::certificate::Leaf;

mod backend;
mod ingress;
mod owner;
mod serve;
mod service;

pub use backend::backends;
pub use ingress::{certificates, ingress};
pub use owner::{DesiredVipService, OwnershipRefusal, OwnershipVerdict, Release, ServiceOwner, of_group, others, release, verify_owner};
pub use serve::{serve, tun};
pub use service::service;

/// The kinds of objects that are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PublishSource {
    /// An Ingress: HTTP, with a certificate.
    Ingress,
    /// A Service: every port of its address.
    Service,
}

/// An object that asks to be published.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Publisher {
    pub source: PublishSource,
    pub namespace: String,
    pub name: String,
}

/// What a valid one asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishSpec {
    /// The first label of its name in the tailnet.
    pub label: String,
    /// The tags of its Tailscale Service; empty for the usual ones.
    pub tags: Vec<String>,
    /// The ports of its Tailscale Service, in the words of the control plane.
    pub ports: Vec<String>,
    /// Where its traffic goes.
    pub target: PublishTarget,
    /// What of it is not served, and what to do.
    pub notes: Vec<String>,
    /// What is wrong with the certificates of hosts of its own.
    pub flaws: BTreeMap<String, CertificateIssue>,
    /// Until when certificates are valid that should have been renewed by now, and what to do.
    pub warnings: Vec<String>,
}

/// What is wrong with a certificate that an Ingress names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateIssue {
    /// There is none that can be shown for the host.
    Lacking,
    /// It is not valid now.
    Invalid,
    Ending,
}

/// Where traffic goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishTarget {
    /// To backends, by host and path.
    Site(Site),
    Whole(L4Service),
}

/// A Service whose every port is published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct L4Service {
    /// Its addresses in the cluster, one of each family at most; none where a name stands for it.
    pub addresses: Vec<IpAddr>,
    /// The DNS name that stands for it; empty where it has addresses.
    pub external_name: String,
    /// The TCP ports whose connections begin with the client's address.
    pub proxy_protocol: BTreeSet<u16>,
}

/// A Secret in the namespace of the proxies that an Ingress names as the certificate of hosts of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserCertificate {
    /// It lacks the label by which it may be named.
    Unlabelled,
    /// Nobody has looked at it yet.
    Unread,
    /// It holds no certificate that can be shown, and why.
    Unusable(String),
    Leaf(Leaf),
}

/// What an object is read against.
#[derive(Clone, Copy)]
pub struct SpecContext<'a> {
    /// The tailnet's domain.
    pub suffix: &'a str,
    pub services: &'a dyn Fn(&str, &str) -> Option<&'a Service>,
    pub namespace: &'a str,
    /// Those of its Secrets that are named as certificates and are there.
    pub certificates: &'a BTreeMap<String, UserCertificate>,
    /// Of these those that only Ingresses of some namespaces may name: which.
    pub reserved: &'a BTreeMap<String, Patterns>,
    pub now: Timestamp,
}

impl std::fmt::Debug for SpecContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("suffix", &self.suffix).finish_non_exhaustive()
    }
}

impl PublishSource {
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Service => "Service",
        }
    }

    /// The finalizer that keeps what is published.
    #[must_use]
    pub fn finalizer(self) -> &'static str {
        match self {
            Self::Ingress => names::INGRESS_FINALIZER,
            Self::Service => names::SERVICE_FINALIZER,
        }
    }
}

impl std::fmt::Display for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.source.kind(), self.namespace, self.name)
    }
}

/// The name of a Tailscale Service of this label.
#[must_use]
pub fn service_name(label: &str) -> String {
    format!("{}{label}", vip::PREFIX)
}

/// The group that an Ingress asks to be published by; none if it is no business of ours. `class` is the name of the class.
#[must_use]
pub fn ingress_group<'a>(ingress: &'a Ingress, class: &str) -> Option<&'a str> {
    let named = ingress.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_deref()) == Some(class);
    annotation(ingress.metadata.annotations.as_ref(), names::PROXY_GROUP).filter(|_| named)
}

/// The group that a Service asks to be published by.
#[must_use]
pub fn service_group(service: &Service) -> Option<&str> {
    let annotations = service.metadata.annotations.as_ref();
    let spec = service.spec.as_ref()?;
    let balanced = spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.as_deref() == Some(names::LOAD_BALANCER_CLASS);
    let exposed = || annotation(annotations, names::EXPOSE).is_some_and(truth);
    // Of many Services most are of the other direction: they are to cost little.
    if !balanced && !exposed() {
        return None;
    }
    let egress = [names::TAILNET_FQDN, names::TAILNET_IP].iter().any(|key| annotation(annotations, key).is_some());
    annotation(annotations, names::PROXY_GROUP).filter(|_| !egress)
}

/// Whether a Service was told how it is published.
#[must_use]
pub fn has_conditions(service: &Service) -> bool {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| [INGRESS_SVC_VALID, INGRESS_SVC_CONFIGURED].contains(&condition.type_.as_str()))
}

/// The label that an Ingress asks for, whether or not it can be one.
#[must_use]
pub fn ingress_label(ingress: &Ingress) -> String {
    let tls = ingress.spec.as_ref().and_then(|spec| spec.tls.as_ref()?.first()?.hosts.as_ref()?.first());
    match tls.and_then(|host| host.split('.').next()).filter(|label| !label.is_empty()) {
        Some(label) => label.to_owned(),
        None => format!("{}-{}-ingress", text(ingress.metadata.namespace.as_ref()), text(ingress.metadata.name.as_ref())),
    }
}

/// The label that a Service asks for.
#[must_use]
pub fn service_label(service: &Service) -> String {
    let metadata = &service.metadata;
    let named = annotation(metadata.annotations.as_ref(), names::HOSTNAME).map(str::to_owned);
    named.unwrap_or_else(|| format!("{}-{}", text(metadata.namespace.as_ref()), text(metadata.name.as_ref())))
}

type Annotations = BTreeMap<String, String>;

fn text(text: Option<&String>) -> &str {
    text.map_or("", String::as_str)
}

fn annotation<'a>(annotations: Option<&'a Annotations>, key: &str) -> Option<&'a str> {
    annotations?.get(key).map(|value| value.trim()).filter(|value| !value.is_empty())
}

/// Whether an annotation says yes, in the spellings that the Tailscale operator takes.
fn truth(text: &str) -> bool {
    matches!(text, "true" | "True" | "TRUE" | "t" | "T" | "1")
}

/// What an object says of its Tailscale Service, whatever its kind; what is wrong is added.
fn common(annotations: Option<&Annotations>, label: &str, wrong: &mut Vec<String>) -> Vec<String> {
    if !dns_label(label) {
        wrong.push(format!("{label:?} cannot be its name in the tailnet: it must be a DNS label of at most 63 characters."));
    }
    let tags: Vec<String> =
        annotation(annotations, names::TAGS).into_iter().flat_map(|tags| tags.split(',')).map(|tag| tag.trim().to_owned()).collect();
    for tag in tags.iter().filter(|tag| !is_tag(tag)) {
        wrong.push(format!("{}: {tag:?} is not a tag such as tag:web.", names::TAGS));
    }
    tags
}

#[must_use]
pub fn dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether a text is a tag such as `tag:web`.
#[must_use]
pub fn is_tag(text: &str) -> bool {
    text.strip_prefix("tag:").is_some_and(|name| {
        name.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

#[cfg(test)]
mod tests;
