//! Objects on their way into the cache: delivered by a watch or a write, then parsed before the cache is locked.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::Value;

use super::{CachedObject, WatchRole, WatchedKind, owned};
use crate::edge::kube::WatchedItem;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::secret_name::SecretName;
use crate::reconciler::cache::Id;

/// An object as a watch or a write delivers it. Kinds with types are decoded; those that the reconciler creates are JSON until they are
/// parsed.
#[derive(Debug)]
pub struct Delivered {
    pub(in crate::reconciler::cache) role: WatchRole,
    pub(in crate::reconciler::cache) id: Id,
    pub(in crate::reconciler::cache) version: u64,
    content: DeliveredContent,
}

#[derive(Debug)]
enum DeliveredContent {
    Decoded(CachedObject),
    Json(Value),
}

/// An object that is parsed and pruned, before the cache is locked.
#[derive(Debug)]
pub struct ParsedObject {
    pub(in crate::reconciler::cache) role: WatchRole,
    pub(in crate::reconciler::cache) id: Id,
    pub(in crate::reconciler::cache) version: u64,
    pub(in crate::reconciler::cache) object: CachedObject,
}

impl Delivered {
    /// An object of a kind with a type.
    pub(super) fn typed<K: WatchedKind>(item: WatchedItem<K::Object>) -> Self {
        let (id, version) = identity(item.metadata());
        let object =
            item.decoded().map_or_else(|error| ignored(&id, &error), |object| K::prune(object).map_or(CachedObject::None, K::cached));
        Self { role: K::ROLE, id, version, content: DeliveredContent::Decoded(object) }
    }

    /// The response to a write of an object of a kind with a type.
    pub(super) fn response<K: WatchedKind>(value: Value) -> Self {
        let metadata = Box::new(ObjectMeta::deserialize(&value["metadata"]).unwrap_or_default());
        let undecodable = |error: serde_json::Error| WatchedItem::Undecodable { metadata, error: error.to_string() };
        Self::typed::<K>(serde_json::from_value(value).map_or_else(undecodable, WatchedItem::of))
    }

    /// An object that the reconciler creates.
    pub(super) fn owned(role: WatchRole, item: WatchedItem<Value>) -> Self {
        match item {
            WatchedItem::Decoded(value) => Self::json(role, value),
            WatchedItem::Undecodable { metadata, error } => {
                let (id, version) = identity(&metadata);
                let content = DeliveredContent::Decoded(ignored(&id, &error));
                Self { role, id, version, content }
            }
        }
    }

    pub(super) fn json(role: WatchRole, value: Value) -> Self {
        let text = |key: &str| value["metadata"][key].as_str().unwrap_or_default().to_owned();
        let (id, version) = ((text("namespace"), text("name")), version(value["metadata"]["resourceVersion"].as_str()));
        Self { role, id, version, content: DeliveredContent::Json(value) }
    }

    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Whether it is a Secret that Pods may write: it may be large.
    pub fn is_large(&self) -> bool {
        let name = SecretName::parse(&self.id.1);
        self.role == WatchRole::Owned(Kind::Secret) && (name.is_written_by_pods() || name == SecretName::SharedAccounts)
    }

    /// Whether its changes have a rate: those of Secrets that Pods do not write have none.
    pub fn is_paced(&self) -> bool {
        if self.role == WatchRole::Owned(Kind::Secret) { self.is_large() } else { self.role.has_other_writers() }
    }

    /// What has the rate: the object, or the set that an Event is about, as each Event may have another name. No object has that of a set: it
    /// has a slash.
    pub fn pace_key(&self) -> Id {
        match &self.content {
            DeliveredContent::Decoded(CachedObject::CreateFailure(failure)) => (self.id.0.clone(), format!("/{}", failure.set)),
            _ => self.id.clone(),
        }
    }

    pub fn parse(self) -> ParsedObject {
        let Self { role, id, version, content } = self;
        let object = match (content, role) {
            (DeliveredContent::Decoded(object), _) => object,
            (DeliveredContent::Json(value), WatchRole::Owned(kind)) => owned::prune(kind, &id.1, value),
            (DeliveredContent::Json(_), _) => CachedObject::None,
        };
        ParsedObject { role, id, version, object }
    }
}

/// Namespace and name of an object, and its version.
fn identity(metadata: &ObjectMeta) -> (Id, u64) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    ((text(&metadata.namespace), text(&metadata.name)), version(metadata.resource_version.as_deref()))
}

fn ignored((namespace, name): &Id, error: &str) -> CachedObject {
    tracing::warn!(namespace, name, error, "ignored an object that cannot be decoded");
    CachedObject::None
}

/// Version as a number that increases with each write. The API defines it as an opaque string; one that is not a number counts as the
/// newest.
pub(in crate::reconciler::cache) fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}
