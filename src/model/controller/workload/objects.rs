//! Builders of the Kubernetes objects of a workload, and the check whether an object already has its desired content.
//!
//! Pure: the same group, class and settings yield the same bytes. A [`Manifest`] is what is compared and applied; which objects a
//! workload has is decided in [`crate::model::controller::workload::provision`].

pub mod adopt;
pub mod certificate;
pub mod child;
pub mod compare;
pub mod disruption;
pub mod env;
pub mod ingress;
pub mod metrics;
pub mod nodeport;
pub mod operator_service;
pub mod overlay;
pub mod rbac;
pub mod secrets;
pub mod services;
pub mod shape;
pub mod slice;
pub mod standalone_service;
pub mod statefulset;
pub mod unreachable_note;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Serialize;
use serde_json::Value;

use crate::api::names;
use crate::model::base::hash::sha256;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::objects::compare::covers;

/// The proxy's container.
const PROXY: &str = "tailscale";
/// Label of the Pods of another workload than a group: the UID of its Connector, Service or Ingress.
const APP: &str = "app";
/// The init container that enables IP forwarding.
const SYSCTLER: &str = "sysctler";

/// Annotation with the hash of the last applied [`Manifest`]. It distinguishes a field that we no longer set from one that another
/// writer set.
pub const APPLIED: &str = "tailyard.io/last-applied-hash";
/// Annotation of the egress config: the port from which the next search starts.
pub const NEXT_PORT: &str = "tailyard.io/next-port";

/// Kinds that the reconciler writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    ServiceAccount,
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
    Secret,
    ConfigMap,
    Service,
    EndpointSlice,
    PodDisruptionBudget,
    StatefulSet,
    ServiceMonitor,
    Deployment,
    AdmissionPolicy,
    AdmissionBinding,
}

/// Reference to an object; the namespace of a cluster-wide one is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

/// Desired content of one object, for a forced server-side apply as [`names::RECONCILER_FIELD_MANAGER`].
///
/// A server may normalize an applied object. So an object that still has the `resourceVersion` of the apply is not applied again for the
/// same manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub object: ObjectRef,
    /// The whole object, with `apiVersion`, `kind` and the annotation [`APPLIED`].
    pub value: Value,
    /// The object exists and was never applied by us (the Tailscale operator created it). Before the apply its `managedFields` are
    /// rewritten with [`adopt::adopted`], so that the apply removes fields that we do not set.
    pub adopt: bool,
    /// Apply without force: rejected where another manager has set a field to another value.
    pub yields: bool,
}

/// The workload that owns the objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub key: WorkloadKey,
    /// Name of the workload: of a group its own, of others that of the `StatefulSet`.
    pub name: String,
    /// UID of the parent.
    pub uid: String,
    pub namespace: String,
    /// Label of the Pods of another workload than a group: the UID of the parent for which its `StatefulSet` was created.
    pub app: String,
}

impl Owner {
    /// Labels of the workload's objects.
    pub fn labels(&self) -> BTreeMap<String, String> {
        labels_of(&self.key)
    }

    /// Labels that select its Pods.
    pub fn selector(&self) -> BTreeMap<String, String> {
        if self.key.group().is_none() { [(APP.to_owned(), self.app.clone())].into() } else { self.labels() }
    }

    pub fn pod_labels(&self) -> BTreeMap<String, String> {
        self.labels().into_iter().chain(self.selector()).collect()
    }

    /// Our labels of an object of another workload than a group, in place of those by which the Tailscale operator finds the only Service of a
    /// parent, and takes every Secret for a state Secret.
    pub fn own_labels(&self) -> BTreeMap<String, String> {
        let parent = match &self.key {
            WorkloadKey::ProxyGroup(_) => None,
            WorkloadKey::Connector(_) => Some(names::CONFIG_PARENT_CONNECTOR),
            WorkloadKey::Service(..) => Some(names::CONFIG_PARENT),
            WorkloadKey::Ingress(..) => Some(names::CONFIG_PARENT_INGRESS),
        };
        let parent = parent.map(|label| (label, self.key.name()));
        let namespace = Some((names::CONFIG_PARENT_NAMESPACE, self.key.namespace())).filter(|(_, namespace)| !namespace.is_empty());
        let labels = [(names::MANAGED, "true")].into_iter().chain(parent).chain(namespace);
        labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Such labels of a Secret besides the state Secret.
    pub fn secret_labels(&self, secret_type: &str) -> BTreeMap<String, String> {
        self.own_labels().into_iter().chain([(names::SECRET_TYPE.to_owned(), secret_type.to_owned())]).collect()
    }

    /// Metadata of one of the workload's objects. Only those of a group have an owner reference: a Service or Ingress is in another namespace, and
    /// objects of a Connector are those of a standalone proxy, also under the Tailscale operator.
    pub fn metadata(&self, name: String, secret_type: Option<&str>) -> ObjectMeta {
        let mut labels = self.labels();
        if self.key.group().is_none() {
            let (name, namespace) = (Some(name), Some(self.namespace.clone()));
            return ObjectMeta { name, namespace, labels: Some(labels), ..ObjectMeta::default() };
        }
        labels.extend(secret_type.map(|secret| (names::SECRET_TYPE.to_owned(), secret.to_owned())));
        let owner = OwnerReference {
            api_version: "tailscale.com/v1alpha1".to_owned(),
            kind: "ProxyGroup".to_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let (name, namespace, labels) = (Some(name), Some(self.namespace.clone()), Some(labels));
        ObjectMeta { name, namespace, labels, owner_references: Some(vec![owner]), ..ObjectMeta::default() }
    }
}

impl Manifest {
    pub fn of(kind: Kind, object: &impl Serialize) -> Self {
        Self::of_value(kind, serde_json::to_value(object).unwrap_or_default())
    }

    /// Manifest of an object given as JSON.
    pub fn of_value(kind: Kind, value: Value) -> Self {
        let hash = digest(value.to_string().as_bytes());
        Self::with_hash(kind, value, hash)
    }

    /// Manifest with a hash of the builder's inputs, for builders that compare before they build.
    pub(crate) fn with_hash(kind: Kind, mut value: Value, hash: String) -> Self {
        let text = |value: &Value, key: &str| value["metadata"][key].as_str().unwrap_or_default().to_owned();
        let object = ObjectRef { kind, namespace: text(&value, "namespace"), name: text(&value, "name") };
        value["metadata"]["annotations"][APPLIED] = hash.into();
        Self { object, value, adopt: false, yields: false }
    }

    /// The manifest for this existing object only: the API server rejects it for another one of its name.
    #[must_use]
    pub fn replacing(mut self, existing: &Value) -> Self {
        self.value["metadata"]["uid"] = existing["metadata"]["uid"].clone();
        self
    }

    /// Whether it is planned for an existing object, by UID or version. Another one only creates.
    pub fn replaces(&self) -> bool {
        let metadata = &self.value["metadata"];
        metadata["uid"].is_string() || metadata["resourceVersion"].is_string()
    }

    /// Whether the object already has the desired content.
    pub fn holds(&self, observed: &Value) -> bool {
        applied(observed) == applied(&self.value) && covers(observed, &self.value)
    }
}

/// Hash of the manifest last applied to an object, if any.
pub fn applied(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(APPLIED)?.as_str()
}

/// Labels of the objects of a workload.
pub fn labels_of(key: &WorkloadKey) -> BTreeMap<String, String> {
    let mut labels = vec![(names::MANAGED, "true")];
    let kind = match key {
        WorkloadKey::ProxyGroup(_) => names::PARENT_GROUP,
        WorkloadKey::Service(..) => names::PARENT_SERVICE,
        WorkloadKey::Ingress(..) => names::PARENT_INGRESS,
        WorkloadKey::Connector(_) => names::PARENT_CONNECTOR,
    };
    labels.extend([(names::PARENT_TYPE, kind), (names::PARENT, key.name())]);
    // The Tailscale operator finds the objects of a Connector by all labels, that of the namespace with an empty value.
    labels.extend(key.group().is_none().then(|| (names::PARENT_NAMESPACE, key.namespace())));
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The workload of a labelled object.
pub fn workload_of(labels: &BTreeMap<String, String>) -> Option<WorkloadKey> {
    WorkloadKey::of_labels(|key| labels.get(key).map(String::as_str))
}

/// Half of a SHA-256, in hex.
pub fn digest(bytes: &[u8]) -> String {
    let mut hash = sha256(bytes);
    hash.truncate(32);
    hash
}

impl Kind {
    /// All kinds, in the order of creation.
    pub const ALL: [Self; 15] = [
        Self::ServiceAccount,
        Self::ClusterRole,
        Self::ClusterRoleBinding,
        Self::Role,
        Self::RoleBinding,
        Self::Secret,
        Self::ConfigMap,
        Self::Service,
        Self::EndpointSlice,
        Self::PodDisruptionBudget,
        Self::StatefulSet,
        Self::ServiceMonitor,
        Self::Deployment,
        Self::AdmissionPolicy,
        Self::AdmissionBinding,
    ];
    /// Kinds by which the API server enforces `ProxyGroupPolicies`.
    pub const ADMISSION: [Self; 2] = [Self::AdmissionPolicy, Self::AdmissionBinding];

    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Whether its objects have no namespace.
    pub fn is_cluster_wide(self) -> bool {
        matches!(self, Self::ClusterRole | Self::ClusterRoleBinding) || Self::ADMISSION.contains(&self)
    }

    /// The group and version, as in `apiVersion`.
    pub fn api_version(self) -> &'static str {
        self.row().1
    }

    /// The name in URLs.
    pub fn plural(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::ServiceAccount => ("ServiceAccount", "v1", "serviceaccounts"),
            Self::ClusterRole => ("ClusterRole", "rbac.authorization.k8s.io/v1", "clusterroles"),
            Self::ClusterRoleBinding => ("ClusterRoleBinding", "rbac.authorization.k8s.io/v1", "clusterrolebindings"),
            Self::Role => ("Role", "rbac.authorization.k8s.io/v1", "roles"),
            Self::RoleBinding => ("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings"),
            Self::Secret => ("Secret", "v1", "secrets"),
            Self::ConfigMap => ("ConfigMap", "v1", "configmaps"),
            Self::Service => ("Service", "v1", "services"),
            Self::EndpointSlice => ("EndpointSlice", "discovery.k8s.io/v1", "endpointslices"),
            Self::PodDisruptionBudget => ("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
            Self::StatefulSet => ("StatefulSet", "apps/v1", "statefulsets"),
            Self::ServiceMonitor => ("ServiceMonitor", "monitoring.coreos.com/v1", "servicemonitors"),
            Self::Deployment => ("Deployment", "apps/v1", "deployments"),
            Self::AdmissionPolicy => ("ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
            Self::AdmissionBinding => {
                ("ValidatingAdmissionPolicyBinding", "admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings")
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ObjectRef {
    pub fn new(kind: Kind, namespace: &str, name: impl Into<String>) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.into() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.namespace.is_empty() { "" } else { "/" };
        write!(f, "{} {}{separator}{}", self.kind, self.namespace, self.name)
    }
}
