//! The table of watched kinds, and the keys of the work queue. Each kind has a type of its own: it names the watch, the type that an object
//! is decoded into, the work keys of a change and the indices. Objects that the reconciler creates are apart: they are JSON, as manifests are.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::networking::v1::{Ingress, IngressClass, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::indices::Indices;
use super::{ClusterCache, Id};
use crate::api::connector::Connector;
use crate::api::dnsconfig::DNSConfig;
use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::proxygrouppolicy::ProxyGroupPolicy;
use crate::api::tailnet::Tailnet;
use crate::edge::kube::{Cluster, Follow, Resource, WatchChange, WatchedObject};
use crate::model::controller::key::{Publisher, WorkloadKey};
use crate::model::controller::policy::tenancy::Labels;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::certificate::CertificateRecord;
use crate::model::controller::workload::objects::slice::ChildSlice;
use crate::model::controller::workload::observed::backend_service::BackendService;
use crate::model::controller::workload::observed::replica::{ReplicaConfig, ReplicaState};
use crate::model::controller::workload::pod_fault::CreateFailure;
use crate::runtime::queue::QueueKey;

use users::BackendSlice;

pub use delivered::{Delivered, ParsedObject};

mod cluster;
pub(super) mod delivered;
mod group_policy;
mod nameserver;
mod owned;
mod tailscale;
mod users;

/// Key of the work queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKey {
    /// A workload with all its objects, whether or not the object that requests it exists.
    Workload(WorkloadKey),
    Class(String),
    Tailnet(String),
    /// Policies of a namespace.
    GroupPolicies(String),
    /// The nameserver of the `DNSConfigs`.
    Nameserver,
    /// Control plane of groups without Tailnet.
    DefaultControlPlane,
    /// A user's object with annotations that have no effect.
    Annotations(Publisher),
}

impl WorkKey {
    /// Kind, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Workload(key) => key.kind(),
            Self::Class(_) => "ProxyClass",
            Self::Tailnet(_) => "Tailnet",
            Self::GroupPolicies(_) => "ProxyGroupPolicy",
            Self::Nameserver => "DNSConfig",
            Self::DefaultControlPlane => "ControlPlane",
            Self::Annotations(publisher) => publisher.source.kind(),
        }
    }

    /// Name, with the namespace of a namespaced object; empty if it has none.
    pub fn name(&self) -> String {
        match self {
            Self::Workload(key) if key.namespace().is_empty() => key.name().to_owned(),
            Self::Workload(key) => format!("{}/{}", key.namespace(), key.name()),
            Self::Class(name) | Self::Tailnet(name) | Self::GroupPolicies(name) => name.clone(),
            Self::Nameserver | Self::DefaultControlPlane => String::new(),
            Self::Annotations(publisher) => publisher.name.clone(),
        }
    }
}

/// Objects of a namespace have one share, each cluster-scoped object has its own: a namespace, or a name.
impl QueueKey for WorkKey {
    type Share = (String, String);

    fn share(&self) -> Self::Share {
        let namespace = match self {
            Self::Workload(key) => key.namespace(),
            Self::Annotations(publisher) => &publisher.namespace,
            // Policies do not wait for the work of the namespace that they limit.
            Self::Class(_) | Self::Tailnet(_) | Self::GroupPolicies(_) | Self::Nameserver | Self::DefaultControlPlane => "",
        };
        if namespace.is_empty() { (String::new(), self.name()) } else { (namespace.to_owned(), String::new()) }
    }
}

/// Label of objects that the reconciler creates.
pub const MANAGED: &str = "tailscale.com/managed=true";
/// Selector of objects that others create.
const NOT_OURS: &str = "!tailscale.com/managed";

/// Objects of a kind that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchScope {
    Everywhere,
    /// Those in the proxies' namespace with these labels.
    Proxies(&'static str),
    /// Those in the proxies' namespace with these fields.
    Selected(&'static str),
    /// Those in the namespaces that may request proxies.
    Users,
    /// All, unless the reconciler is restricted to some namespaces.
    Unrestricted,
}

/// A kind that is watched with its own type; `Self` is what is stored of an object.
pub(super) trait WatchedKind: CachedKind {
    /// Type that an object is decoded into. Of a metadata type only metadata is requested.
    type Object: WatchedObject;

    /// Prunes an object to the fields that passes read; `None` if there are none.
    fn prune(object: Self::Object) -> Option<Self>;

    /// Work keys of a change, besides those of its owners and of published names.
    fn keys(&self, _cache: &ClusterCache, _id: &Id) -> BTreeSet<WorkKey> {
        BTreeSet::new()
    }

    /// Its own work key, if it is reconciled by itself.
    fn own_key(_id: &Id) -> Option<WorkKey> {
        None
    }

    /// Version as the API server returned it, if it is reconciled by itself.
    fn version(&self) -> Option<&str> {
        None
    }

    /// Adds an object to its own indices, or removes it.
    fn index(self: &Arc<Self>, _indices: &mut Indices, _id: &Id, _came: bool) {}
}

/// A kind as a variant of [`CachedObject`].
pub(super) trait CachedKind: Sized {
    const ROLE: WatchRole;

    fn of(object: &CachedObject) -> Option<&Arc<Self>>;
    fn cached(self) -> CachedObject;
}

/// Defines role, cached variant and dispatch of each kind.
macro_rules! watched_kinds {
    ($($(#[$doc:meta])* $role:ident($kind:ty) $label:literal $resource:expr, $scope:expr;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum WatchRole {
            $($(#[$doc])* $role,)*
            /// Objects that the reconciler creates.
            Owned(Kind),
        }

        /// A cached object. Equal ones do not differ in any field that passes read.
        #[derive(Debug, Clone, PartialEq)]
        pub(super) enum CachedObject {
            /// No field is read.
            None,
            $($(#[$doc])* $role(Arc<$kind>),)*
            /// A user's Service that concerns no group: what a backend reads.
            Backend(Arc<BackendService>),
            /// Objects that the reconciler creates are compared with manifests, so they stay JSON.
            Owned(Arc<Value>),
            /// A replica's state Secret.
            State(Arc<Value>, Arc<ReplicaState>),
            /// The Secret of a certificate, without its content.
            Certificate(Arc<Value>, CertificateRecord),
            /// A replica's config Secret.
            Config(Arc<Value>, Arc<ReplicaConfig>),
            /// An EndpointSlice of Kubernetes' controller for a child.
            ChildSlice(Arc<ChildSlice>),
        }

        $(impl CachedKind for $kind {
            const ROLE: WatchRole = WatchRole::$role;

            fn of(object: &CachedObject) -> Option<&Arc<Self>> {
                if let CachedObject::$role(object) = object { Some(object) } else { None }
            }

            fn cached(self) -> CachedObject {
                CachedObject::$role(Arc::new(self))
            }
        })*

        impl WatchRole {
            /// Roles of the kinds with types.
            pub const TYPED: &[Self] = &[$(Self::$role,)*];

            /// What is watched; the labels of objects that the reconciler creates depend on the kind.
            pub(in crate::reconciler) fn scope(self) -> WatchScope {
                match self {
                    $(Self::$role => $scope,)*
                    Self::Owned(_) => WatchScope::Proxies(MANAGED),
                }
            }

            pub(in crate::reconciler) fn resource(self) -> Resource {
                match self {
                    $(Self::$role => $resource,)*
                    Self::Owned(kind) => kind.into(),
                }
            }

            /// Metric label.
            pub(in crate::reconciler) fn label(self) -> &'static str {
                match self {
                    $(Self::$role => $label,)*
                    Self::Owned(kind) => kind.name(),
                }
            }

            /// Watches its objects; the stream never ends.
            pub(in crate::reconciler) fn follow(self, cluster: &Cluster, what: &Follow) -> BoxStream<'static, WatchChange<Delivered>> {
                match self {
                    $(Self::$role => cluster.follow_as(what, Delivered::typed::<$kind>),)*
                    Self::Owned(_) => cluster.follow_json(what, move |item| Delivered::owned(self, item)),
                }
            }

            /// Work key of an object of a kind that is reconciled by itself.
            pub(super) fn own_key(self, id: &Id) -> Option<WorkKey> {
                match self {
                    $(Self::$role => <$kind as WatchedKind>::own_key(id),)*
                    Self::Owned(kind) => group_policy::admission_key(kind, id),
                }
            }

            /// Decodes the response to a write.
            pub fn decode(self, value: Value) -> Delivered {
                match self {
                    $(Self::$role => Delivered::response::<$kind>(value),)*
                    Self::Owned(_) => Delivered::json(self, value),
                }
            }
        }

        impl CachedObject {
            /// Work keys of a change of an object with a type; `None` for others.
            pub(super) fn typed_keys(&self, cache: &ClusterCache, id: &Id) -> Option<BTreeSet<WorkKey>> {
                match self {
                    $(Self::$role(object) => Some(<$kind as WatchedKind>::keys(object, cache, id)),)*
                    _ => None,
                }
            }

            /// Version of an object of a kind that is reconciled by itself.
            pub(super) fn version(&self) -> Option<&str> {
                match self {
                    $(Self::$role(object) => <$kind as WatchedKind>::version(object),)*
                    _ => None,
                }
            }

            /// Updates the indices of a kind with a type.
            pub(super) fn index(&self, indices: &mut Indices, id: &Id, came: bool) {
                match self {
                    $(Self::$role(object) => WatchedKind::index(object, indices, id, came),)*
                    _ => {}
                }
            }
        }
    };
}

// Role, stored type, metric label, resource, and what is watched.
watched_kinds! {
    Group(ProxyGroup) "ProxyGroup" Resource::PROXY_GROUP, WatchScope::Everywhere;
    Class(ProxyClass) "ProxyClass" Resource::PROXY_CLASS, WatchScope::Everywhere;
    Connector(Connector) "Connector" Resource::CONNECTOR, WatchScope::Everywhere;
    DnsConfig(DNSConfig) "DNSConfig" Resource::DNS_CONFIG, WatchScope::Everywhere;
    GroupPolicy(ProxyGroupPolicy) "ProxyGroupPolicy" Resource::PROXY_GROUP_POLICY, WatchScope::Everywhere;
    Tailnet(Tailnet) "Tailnet" Resource::TAILNET, WatchScope::Everywhere;
    /// Users' Services, pruned unless they concern a group.
    Service(Service) "Service of users" Resource::SERVICE, WatchScope::Users;
    Pod(Pod) "Pod" Resource::POD, WatchScope::Proxies(MANAGED);
    /// Nodes, for static endpoints and the target policy.
    Node(Node) "Node" Resource::NODE, WatchScope::Unrestricted;
    /// Ranges of Services, for the target policy.
    ServiceRange(ServiceCIDR) "ServiceCIDR" Resource::SERVICE_RANGE, WatchScope::Everywhere;
    Namespace(Labels) "Namespace" Resource::NAMESPACE, WatchScope::Everywhere;
    /// Users' Ingresses.
    Ingress(Ingress) "Ingress" Resource::INGRESS, WatchScope::Users;
    /// `IngressClass`es.
    IngressClass(IngressClass) "IngressClass" Resource::INGRESS_CLASS, WatchScope::Everywhere;
    /// EndpointSlices of users' Services.
    BackendSlice(BackendSlice) "EndpointSlice of users" Resource::ENDPOINT_SLICE, WatchScope::Users;
    /// Metadata of other Secrets: some are credentials of Tailnets.
    Credentials(ObjectMeta) "Secret of others" Resource::SECRET, WatchScope::Proxies(NOT_OURS);
    /// Events about Pods that `StatefulSet`s cannot create.
    CreateFailure(CreateFailure) "Event of StatefulSets" Resource::EVENT, WatchScope::Selected(Resource::CREATE_FAILURES);
}

impl WatchRole {
    /// Whether tenants or Pods may write its objects, at any rate.
    fn has_other_writers(self) -> bool {
        match self {
            // Tenants; Pods, which may remove the label of a Secret, and write Events with the Tailscale operator's image.
            Self::Service
            | Self::Ingress
            | Self::BackendSlice
            | Self::Owned(Kind::RoleBinding | Kind::Secret)
            | Self::Credentials
            | Self::CreateFailure
            // Administrators, who may delegate a namespace.
            | Self::GroupPolicy => true,
            // Administrators; the cluster, which reports readiness, also in the status of the reconciler's objects.
            Self::Group
            | Self::Class
            | Self::Connector
            | Self::DnsConfig
            | Self::Tailnet
            | Self::IngressClass
            | Self::Namespace
            | Self::Pod
            | Self::Node
            | Self::ServiceRange
            | Self::Owned(
                Kind::ServiceAccount
                | Kind::ClusterRole
                | Kind::ClusterRoleBinding
                | Kind::Role
                | Kind::ConfigMap
                | Kind::Service
                | Kind::EndpointSlice
                | Kind::PodDisruptionBudget
                | Kind::StatefulSet
                | Kind::ServiceMonitor
                | Kind::Deployment
                | Kind::AdmissionPolicy
                | Kind::AdmissionBinding,
            ) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::controller::key::PublishSource;

    #[test]
    fn namespace_has_one_share_of_the_work_and_a_group_its_own() {
        let service =
            |namespace: &str, name: &str| Publisher { source: PublishSource::Service, namespace: namespace.into(), name: name.into() };
        let workload = |publisher: Publisher| WorkKey::Workload(WorkloadKey::from(&publisher));
        let group = |name: &str| WorkKey::Workload(WorkloadKey::of_group(name));
        let (one, other) = (workload(service("a", "one")), workload(service("a", "two")));
        assert_eq!(one.share(), other.share());
        assert_eq!(one.share(), WorkKey::Annotations(service("a", "three")).share());
        for other in [workload(service("b", "one")), group("a"), group(""), WorkKey::Class("a/one".into()), WorkKey::DefaultControlPlane] {
            assert_ne!(one.share(), other.share(), "{other:?}");
        }
        assert_ne!(group("a").share(), group("b").share());
    }
}
