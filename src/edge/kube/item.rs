//! An object of a list or watch, decoded by itself: one that cannot be decoded neither fails the list nor ends the watch. Its lists are cut
//! at once, so that a page of large objects is in memory as text only. Whole kinds are followed in this way alone.

use std::borrow::Cow;
use std::fmt::Debug;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass, ServiceCIDR};
use kube::Resource;
use kube::api::DynamicObject;
use kube::core::{DynamicResourceScope, ObjectMeta, PartialObjectMeta};
use kube::discovery::ApiResource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::api::connector::Connector;
use crate::api::dnsconfig::DNSConfig;
use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::proxygrouppolicy::ProxyGroupPolicy;
use crate::api::tailnet::Tailnet;
use crate::model::base::bounded;

/// A type whose objects can be watched.
pub trait WatchedObject: Resource + Clone + DeserializeOwned + Debug + Send + 'static {
    /// Cuts the lists that tenants or Pods write, besides those of its metadata.
    fn cut(&mut self) {}
}

impl WatchedObject for Service {
    fn cut(&mut self) {
        bounded::service(self);
    }
}

impl WatchedObject for Ingress {
    fn cut(&mut self) {
        bounded::ingress(self);
    }
}

impl WatchedObject for EndpointSlice {
    fn cut(&mut self) {
        bounded::slice(self);
    }
}

impl WatchedObject for ProxyGroupPolicy {
    fn cut(&mut self) {
        bounded::group_names(&mut self.spec.ingress);
        bounded::group_names(&mut self.spec.egress);
    }
}

impl WatchedObject for DynamicObject {
    fn cut(&mut self) {
        bounded::json(&mut self.data);
    }
}

// Written by administrators, the cluster or the reconciler, or not stored.
impl WatchedObject for Connector {}
impl WatchedObject for DNSConfig {}
impl WatchedObject for ProxyGroup {}
impl WatchedObject for ProxyClass {}
impl WatchedObject for Tailnet {}
impl WatchedObject for IngressClass {}
impl WatchedObject for ServiceCIDR {}
impl WatchedObject for Node {}
impl WatchedObject for Pod {}
impl WatchedObject for Event {}
impl WatchedObject for Lease {}
impl WatchedObject for ConfigMap {}
impl WatchedObject for Secret {}
impl<K: WatchedObject> WatchedObject for WatchedItem<K> {}
impl<K: Clone + Debug + Send + 'static> WatchedObject for MetadataOnly<K> where Self: Resource + DeserializeOwned {}

/// An object of which only metadata is requested.
pub type MetadataOnly<K> = PartialObjectMeta<K>;

#[derive(Debug, Clone)]
pub enum WatchedItem<K> {
    Decoded(K),
    /// Only its name and version are known, and why it cannot be decoded.
    Undecodable {
        metadata: Box<ObjectMeta>,
        error: String,
    },
}

impl<K> WatchedItem<K> {
    /// Converts the object.
    pub fn map<T>(self, convert: impl FnOnce(K) -> T) -> WatchedItem<T> {
        match self {
            Self::Decoded(object) => WatchedItem::Decoded(convert(object)),
            Self::Undecodable { metadata, error } => WatchedItem::Undecodable { metadata, error },
        }
    }
}

impl<K: WatchedObject> WatchedItem<K> {
    /// An object without managed fields, its lists cut.
    pub fn of(mut object: K) -> Self {
        bounded::metadata(object.meta_mut());
        object.cut();
        Self::Decoded(object)
    }

    pub fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }

    /// The object; the error says why it cannot be decoded.
    pub fn decoded(self) -> Result<K, String> {
        match self {
            Self::Decoded(object) => Ok(object),
            Self::Undecodable { error, .. } => Err(error),
        }
    }
}

impl WatchedItem<DynamicObject> {
    /// The object as JSON, without managed fields.
    pub(super) fn into_json(self) -> WatchedItem<Value> {
        self.map(plain)
    }
}

impl WatchedItem<Value> {
    /// The object; only its metadata if it cannot be decoded.
    pub fn into_value(self) -> Value {
        match self {
            Self::Decoded(object) => object,
            Self::Undecodable { metadata, .. } => json!({"metadata": metadata}),
        }
    }
}

/// Fields that every stored object has.
#[derive(Deserialize)]
struct Identity {
    metadata: IdentityMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityMetadata {
    name: String,
    namespace: Option<String>,
    resource_version: Option<String>,
}

impl<'de, K: WatchedObject> Deserialize<'de> for WatchedItem<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?.get();
        serde_json::from_str(text).map(Self::of).or_else(|error| {
            let IdentityMetadata { name, namespace, resource_version } =
                serde_json::from_str::<Identity>(text).map_err(D::Error::custom)?.metadata;
            let metadata = Box::new(ObjectMeta { name: Some(name), namespace, resource_version, ..ObjectMeta::default() });
            Ok(Self::Undecodable { metadata, error: error.to_string() })
        })
    }
}

impl<K: Resource> Resource for WatchedItem<K> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        kind.group.as_str().into()
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        kind.version.as_str().into()
    }

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        kind.kind.as_str().into()
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        kind.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Decoded(object) => object.meta(),
            Self::Undecodable { metadata, .. } => metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Decoded(object) => object.meta_mut(),
            Self::Undecodable { metadata, .. } => metadata,
        }
    }
}

/// Converts an object to JSON, without managed fields. Objects of a list or watch become a [`WatchedItem`] first, which cuts them.
pub(super) fn plain(mut object: DynamicObject) -> Value {
    object.metadata.managed_fields = None;
    serde_json::to_value(object).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use kube::ResourceExt as _;
    use kube::core::{ObjectList, PartialObjectMeta, WatchEvent};

    use super::*;

    const BAD: &str = r#"{"metadata": {"name": "bad", "namespace": "u", "resourceVersion": "2"}, "spec": {"ports": 7}}"#;
    const GOOD: &str = r#"{"metadata": {"name": "good", "namespace": "u", "resourceVersion": "3"}, "spec": {"type": "ClusterIP"}}"#;

    fn name<K: Resource>(item: &WatchedItem<K>) -> (String, bool) {
        let id = format!("{}/{}@{}", item.namespace().unwrap_or_default(), item.name_any(), item.resource_version().unwrap_or_default());
        (id, matches!(item, WatchedItem::Decoded(_)))
    }

    #[test]
    fn undecodable_object_of_a_list_hides_no_other_and_keeps_its_name() {
        let text = format!(r#"{{"kind": "ServiceList", "metadata": {{"resourceVersion": "9"}}, "items": [{BAD}, {GOOD}]}}"#);
        let list: ObjectList<WatchedItem<Service>> = serde_json::from_str(&text).expect("a list");
        assert_eq!(list.items.iter().map(name).collect::<Vec<_>>(), [("u/bad@2".to_owned(), false), ("u/good@3".to_owned(), true)]);
    }

    #[test]
    fn undecodable_object_of_an_event_keeps_its_name_and_one_without_name_is_an_error() {
        let event = |object: &str| {
            let event = serde_json::from_str::<WatchEvent<WatchedItem<Service>>>(&format!(r#"{{"type": "MODIFIED", "object": {object}}}"#));
            event.map(|event| if let WatchEvent::Modified(item) = event { name(&item) } else { Default::default() })
        };
        assert_eq!(event(BAD).expect("an event"), ("u/bad@2".to_owned(), false));
        assert_eq!(event(GOOD).expect("an event"), ("u/good@3".to_owned(), true));
        assert!(event("7").is_err() && event(r#"{"spec": 7}"#).is_err());
    }

    #[test]
    fn metadata_is_requested_for_an_item_with_metadata_only() {
        assert!(WatchedItem::<PartialObjectMeta<Service>>::metadata_api() && !WatchedItem::<Service>::metadata_api());
    }

    #[test]
    fn lists_of_an_item_are_cut_when_it_is_decoded() {
        let text = |field: &str| format!(r#"{{"metadata": {{"name": "x"}}, {field}: [{}]}}"#, vec!["{}"; 100_000].join(","));
        let binding: WatchedItem<DynamicObject> = serde_json::from_str(&text(r#""subjects""#)).expect("an item");
        assert!(binding.decoded().expect("an object").data["subjects"].as_array().is_some_and(|all| all.len() == 50));
        let ingress = format!("{}}}", text(r#""spec": {"tls""#));
        let ingress: WatchedItem<Ingress> = serde_json::from_str(&ingress).expect("an item");
        let tls = ingress.decoded().expect("an object").spec.and_then(|spec| spec.tls);
        assert_eq!(tls.map(|all| all.len()), Some(bounded::MAX_HOSTS + 1));
    }
}
