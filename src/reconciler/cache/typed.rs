//! Objects as the code reads them, beside their JSON.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::Ingress;
use serde::Deserialize;
use serde_json::Value;

use super::{WatchRole, id, published};
use crate::api::names;
use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::tailnet::Tailnet;
use crate::model::controller::objects::{Kind, domain_of};
use crate::model::controller::proxygroup::{ReplicaConfig, ReplicaState};
use crate::model::controller::tenancy::Labels;

/// An object as the code reads it, beside its JSON.
#[derive(Debug, Clone)]
pub(super) enum Typed {
    None,
    Group(Arc<ProxyGroup>),
    Class(Arc<ProxyClass>),
    Tailnet(Arc<Tailnet>),
    Service(Arc<Service>),
    Pod(Arc<Pod>),
    State(Arc<ReplicaState>),
    Config(Arc<ReplicaConfig>),
    Node(Arc<Node>),
    Ingress(Arc<Ingress>),
    Namespace(Arc<Labels>),
    /// A Service that concerns no group: what a backend is known by.
    Plain(Box<[u8]>),
    /// A slice of endpoints: its Service, and whether any gets traffic.
    Slice(Box<str>, bool),
}

/// Reads an object of a role.
pub(super) fn typed(role: WatchRole, value: &Value) -> Typed {
    fn read<'de, T: Deserialize<'de>>(value: &'de Value, typed: impl FnOnce(T) -> Typed) -> Typed {
        T::deserialize(value).map_or_else(
            |error| {
                let (namespace, name) = id(value);
                tracing::warn!(namespace, name, %error, "ignored an object that cannot be decoded");
                Typed::None
            },
            typed,
        )
    }
    match role {
        WatchRole::Group => read(value, |group| Typed::Group(Arc::new(group))),
        WatchRole::Class => read(value, |class| Typed::Class(Arc::new(class))),
        WatchRole::Tailnet => read(value, |tailnet| Typed::Tailnet(Arc::new(tailnet))),
        WatchRole::Service => read(value, |service| Typed::Service(Arc::new(service))),
        WatchRole::Pod => read(value, |pod| Typed::Pod(Arc::new(pod))),
        WatchRole::Node => read(value, |node| Typed::Node(Arc::new(node))),
        WatchRole::Ingress => read(value, |ingress| Typed::Ingress(Arc::new(ingress))),
        WatchRole::Namespace => {
            let labels = &value["metadata"]["labels"];
            Typed::Namespace(Arc::new(Labels::deserialize(labels).unwrap_or_default()))
        }
        WatchRole::BackendSlice => {
            let (service, ready) = published::slice(value);
            service.map_or(Typed::None, |service| Typed::Slice(service.into(), ready))
        }
        WatchRole::Owned(Kind::Secret) if domain_of(value).is_some() => Typed::None,
        WatchRole::Owned(Kind::Secret) => read(value, |secret: Secret| {
            if id(value).1.ends_with(names::CONFIG_SECRET_SUFFIX) {
                Typed::Config(Arc::new(ReplicaConfig::read(&secret)))
            } else {
                Typed::State(Arc::new(ReplicaState::read(&secret)))
            }
        }),
        WatchRole::Owned(_) | WatchRole::Credentials | WatchRole::IngressClass => Typed::None,
    }
}

/// Whether a change is none to us.
pub(super) fn unchanged(old: &Typed, new: &Typed) -> bool {
    match (old, new) {
        (Typed::Plain(old), Typed::Plain(new)) => old == new,
        (Typed::Slice(service, ready), Typed::Slice(of, now)) => (service, ready) == (of, now),
        (Typed::Namespace(old), Typed::Namespace(new)) => old == new,
        _ => false,
    }
}
