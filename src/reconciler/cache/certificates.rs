//! User certificates: Secrets named by Ingresses, whether they exist and may be used, and their DNS names.
//!
//! Watches deliver only the metadata of these Secrets. If a Secret may be used, its DNS names are read once per version; its key is not
//! stored.

use crate::model::controller::key::WorkloadKey;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::kinds::CachedKind as _;
use super::kinds::delivered::version;
use super::{ClusterCache, WatchRole};
use crate::api::names;
use crate::api::proxygroup::ProxyGroup;
use crate::model::controller::ingress::spec::ingress::certificates;
use crate::model::controller::policy::operator_device::OperatorDevice;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::policy::tenancy::Patterns;
use crate::model::controller::workload::objects::certificate::pair;
use crate::model::controller::workload::observed::UserCertificate;
use crate::model::controller::workload::secret_name::SecretName;

impl ClusterCache {
    /// Existing Secrets that a group or its Ingresses name.
    pub(super) fn own_certificates(&self, key: &WorkloadKey) -> BTreeMap<String, UserCertificate> {
        let validated = self.named_secrets(key).map(|(name, metadata, version)| {
            let labelled =
                metadata.labels.as_ref().is_some_and(|labels| labels.get(names::OWN_CERTIFICATE).is_some_and(|may| may == "true"));
            let read = self.certificates.get(name).filter(|(of, _)| *of >= version).map(|(_, own)| own.clone());
            // A Pod may label its own Secrets.
            let own = if labelled && SecretName::is_of_users(name) {
                read.unwrap_or(UserCertificate::Unread)
            } else {
                UserCertificate::Unlabelled
            };
            (name.clone(), own)
        });
        validated.collect()
    }

    /// Of these, the Secrets that are reserved for some namespaces, with these namespaces.
    pub(super) fn reserved_certificates(&self, key: &WorkloadKey) -> BTreeMap<String, Patterns> {
        let reserved = self.named_secrets(key).filter_map(|(name, metadata, _)| {
            let namespaces = metadata.annotations.as_ref()?.get(names::CERTIFICATE_NAMESPACES)?;
            Some((name.clone(), Patterns::parse(namespaces)))
        });
        reserved.collect()
    }

    /// Of these, the Secrets that must be read.
    pub fn unread_certificates(&self, key: &WorkloadKey) -> Vec<String> {
        self.own_certificates(key).into_iter().filter(|(_, own)| *own == UserCertificate::Unread).map(|(name, _)| name).collect()
    }

    pub fn read_certificate(&mut self, secret: &Value) {
        let metadata = &secret["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        self.certificates.insert(name, (version(metadata["resourceVersion"].as_str()), read(secret)));
    }

    /// The Secret that a group, or the settings of the operator's device, name as the certificate of the Kubernetes API.
    pub(super) fn api_server_certificate(&self, key: &WorkloadKey) -> Option<&str> {
        match key.group() {
            Some(group) => self.get::<ProxyGroup>(group)?.api_server_certificate(),
            None => self.operator_device(key)?.certificate.as_deref(),
        }
    }

    /// The operator's device, if a workload is that.
    pub(super) fn operator_device(&self, key: &WorkloadKey) -> Option<&OperatorDevice> {
        match self.standalone_parent(key)? {
            Parent::Service(service) => self.assignment.device_of(service),
            Parent::Ingress(_) => None,
        }
    }

    /// Existing Secrets that a group or its Ingresses name, with metadata and version. All are in the namespace of the proxies.
    fn named_secrets(&self, key: &WorkloadKey) -> impl Iterator<Item = (&String, &ObjectMeta, u64)> {
        let ingresses = self.indices.workloads.get(key).into_iter().flat_map(|members| members.ingresses.values());
        let named = ingresses.flat_map(|ingress| certificates(ingress)).chain(self.api_server_certificate(key));
        let named: BTreeSet<&str> = named.collect();
        let secrets = self.stores.get(&WatchRole::Credentials).into_iter().flat_map(|store| &store.objects);
        secrets
            .filter(move |((_, name), _)| named.contains(name.as_str()))
            .filter_map(|((_, name), stored)| Some((name, &**ObjectMeta::of(&stored.object)?, stored.version)))
    }
}

fn read(secret: &Value) -> UserCertificate {
    match pair(secret).leaf() {
        Ok(leaf) => UserCertificate::Leaf(leaf),
        Err(error) => UserCertificate::Unusable(error.to_string()),
    }
}
