//! The Secret of a certificate: created empty, filled by a replica, then never overwritten.
//!
//! Its name is the DNS name; its labels let our replicas and those of the Tailscale operator find it. It has no owner reference: orders
//! per name and week are limited, so a certificate outlives objects that can be recreated.

use std::sync::Arc;

use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::secret_name::SecretName;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;

use crate::api::names;
use crate::model::controller::key::{PublishSource, Publisher};
use crate::model::controller::workload::objects::metrics::label_value;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, Owner, digest};
use crate::model::ingress::certificate::Pair;

/// The type of the Secret.
const TLS: &str = "kubernetes.io/tls";
const FIELDS: [&str; 2] = ["tls.crt", "tls.key"];
/// Maximum size of a certificate chain whose expiry is read, in bytes: Pods write it. One of Let's Encrypt has 4 kB.
const MAX_CHAIN_SIZE: usize = 64 << 10;

/// Content of a certificate's Secret: the key is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateRecord {
    /// Whether a replica has filled it.
    pub filled: bool,
    /// Expiry, if the certificate can be read and is no longer than [`MAX_CHAIN_SIZE`].
    pub valid_until: Option<Timestamp>,
}

impl CertificateRecord {
    pub fn read(secret: &Value) -> Self {
        let pair = pair(secret);
        let leaf = if pair.chain.len() > MAX_CHAIN_SIZE { None } else { pair.leaf().ok() };
        let valid_until = leaf.map(|leaf| leaf.certificate.until);
        Self { filled: !pair.chain.is_empty() && !pair.key.is_empty(), valid_until }
    }
}

/// Certificate and key of a Secret; empty if absent.
pub fn pair(secret: &Value) -> Pair {
    let bytes = |key: &str| -> Arc<[u8]> { ByteString::deserialize(&secret["data"][key]).unwrap_or_default().0.into() };
    let [chain, key] = FIELDS.map(bytes);
    Pair { chain, key }
}

/// The Secret of a name's certificate; `existing` is the current one, with its content.
pub fn certificate(owner: &Owner, dns: &str, claimant: &Publisher, existing: Option<(&Value, CertificateRecord)>) -> Manifest {
    let labels = [
        (names::MANAGED, "true".to_owned()),
        (names::PARENT_TYPE, parent_type(claimant).to_owned()),
        (names::PARENT, label_value(&claimant.name)),
        (names::PARENT_NAMESPACE, claimant.namespace.clone()),
        (names::PROXY_GROUP, owner.name.clone()),
        (names::SECRET_TYPE, names::CERTS.to_owned()),
        (names::DOMAIN, label_value(dns)),
    ];
    let labels = match &owner.key {
        WorkloadKey::ProxyGroup(_) => labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        WorkloadKey::Connector(_) | WorkloadKey::Service(..) | WorkloadKey::Ingress(..) => {
            owner.secret_labels(names::CERTS).into_iter().chain([(names::DOMAIN.to_owned(), label_value(dns))]).collect()
        }
    };
    let mut metadata =
        ObjectMeta { name: Some(dns.to_owned()), namespace: Some(owner.namespace.clone()), labels: Some(labels), ..ObjectMeta::default() };
    let hash = digest(serde_json::to_string(&metadata).unwrap_or_default().as_bytes());
    // If a replica fills it meanwhile, the write is rejected with a conflict and retried.
    metadata.resource_version = existing.and_then(|(found, _)| found["metadata"]["resourceVersion"].as_str().map(str::to_owned));
    let empty = || FIELDS.map(|field| (field.to_owned(), ByteString(Vec::new()))).into();
    let filled = existing.is_some_and(|(_, content)| content.filled);
    let data = (!filled).then(empty);
    let secret = Secret { metadata, type_: Some(TLS.to_owned()), data, ..Secret::default() };
    let value = serde_json::to_value(&secret).unwrap_or_default();
    Manifest { yields: !filled, ..Manifest::with_hash(Kind::Secret, value, hash) }
}

/// [`names::PARENT_TYPE`] of a certificate.
fn parent_type(claimant: &Publisher) -> &'static str {
    if claimant.source == PublishSource::ProxyGroup { names::PARENT_GROUP } else { names::PARENT_INGRESS }
}

/// DNS name of a certificate's Secret; `None` for other Secrets.
pub fn domain_of(secret: &Value) -> Option<&str> {
    secret["metadata"]["name"].as_str().filter(|name| SecretName::parse(name) == SecretName::Certificate)
}

/// Whether a certificate's Secret was created for this Ingress, by a group or by a proxy of its own, or for the Kubernetes API of this group.
pub fn is_certificate_of(secret: &Value, claimant: &Publisher) -> bool {
    let Publisher { namespace, name, .. } = claimant;
    let has = |label: &str, value: &str| secret["metadata"]["labels"][label] == value;
    let by_group = has(names::PARENT_TYPE, parent_type(claimant)) && has(names::PARENT, &label_value(name));
    let by_proxy = has(names::CONFIG_PARENT_INGRESS, name) && has(names::CONFIG_PARENT_NAMESPACE, namespace);
    let is_in_namespace = namespace.is_empty() || has(names::PARENT_NAMESPACE, namespace);
    domain_of(secret).is_some() && ((by_group && is_in_namespace) || by_proxy)
}

pub fn certificate_ref(owner: &Owner, dns: &str) -> ObjectRef {
    ObjectRef::new(Kind::Secret, &owner.namespace, dns)
}

/// Secret with a group's ACME account keys: written by its replicas, deleted with the group.
pub fn account(owner: &Owner) -> Manifest {
    let metadata = owner.metadata(names::account(&owner.name), None);
    Manifest::of(Kind::Secret, &Secret { metadata, ..Secret::default() })
}

/// Secret with shared ACME account keys: written by the replicas, protected by a finalizer.
pub fn accounts(namespace: &str) -> Manifest {
    let metadata = ObjectMeta {
        name: Some(names::ACCOUNTS.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some([(names::MANAGED.to_owned(), "true".to_owned())].into()),
        finalizers: Some(vec![names::ACCOUNTS_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    Manifest::of(Kind::Secret, &Secret { metadata, ..Secret::default() })
}

pub fn accounts_ref(namespace: &str) -> ObjectRef {
    ObjectRef::new(Kind::Secret, namespace, names::ACCOUNTS)
}
