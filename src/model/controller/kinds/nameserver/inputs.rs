//! Names of a nameserver's objects, and what they are built from.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::model::controller::kinds::nameserver::records::{RecordsPlan, records};
use crate::model::controller::kinds::nameserver::served::ServingProxies;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::nameserver::records::{CONFIG_MAP, FIELD, Records};

/// Name of the nameserver's objects.
pub const NAME: &str = "nameserver";
/// Kinds of its objects, in the order of creation.
pub const KINDS: [Kind; 7] =
    [Kind::ServiceAccount, Kind::Role, Kind::RoleBinding, Kind::ConfigMap, Kind::Service, Kind::PodDisruptionBudget, Kind::Deployment];

/// What the objects are built from, beside the `DNSConfig`.
#[derive(Debug, Clone, Default)]
pub struct NameserverInputs {
    pub namespace: String,
    /// Image of the proxies, and its pull Secrets.
    pub image: String,
    pub pull_secrets: Vec<String>,
    pub records: RecordsPlan,
    /// Existing objects of its names, whatever owns them.
    pub existing: BTreeMap<ObjectRef, Arc<Value>>,
}

impl NameserverInputs {
    /// Sets the records of what proxies serve now, from those in the existing `ConfigMap`.
    #[must_use]
    pub fn serving(self, proxies: &ServingProxies) -> Self {
        let existing = self.existing.get(&object(Kind::ConfigMap, &self.namespace));
        let document = existing.and_then(|map| map["data"][FIELD].as_str()).unwrap_or_default();
        // An unreadable one is replaced.
        let before = Records::parse(document.as_bytes()).unwrap_or_default();
        Self { records: records(proxies.names(), &before), ..self }
    }
}

/// Reference to its object of a kind.
pub fn object(kind: Kind, namespace: &str) -> ObjectRef {
    ObjectRef::new(kind, namespace, if kind == Kind::ConfigMap { CONFIG_MAP } else { NAME })
}

/// Whether an object of the reconciler has a name of the nameserver's.
pub fn is_named(kind: Kind, name: &str) -> bool {
    KINDS.contains(&kind) && object(kind, "").name == name
}
