//! Names of workloads that do not have the name of their object: all but groups.
//!
//! A name that exists stays; the Tailscale operator generates names at random. A new one has 64 bits of hash over the whole key and the UID,
//! so that no tenant can compute a name of another one's workload.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::api::names;
use crate::model::base::hash::sha256;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::objects::{Kind, ObjectRef};

/// Names that a new workload tries.
pub const MAX_NAMES: u32 = 16;
/// Maximum length of a workload's name: a Pod has a label of that name and eleven bytes.
const MAX_LENGTH: usize = 52;
/// Length of the suffix of a new name: 64 bits.
pub const SUFFIX: usize = 16;
/// Longest part of an object's name in a new name.
const LONGEST_PART: usize = MAX_LENGTH - "ts--".len() - SUFFIX;

/// Kinds whose objects have the name of their workload. No Pod may write them. Secrets decide nothing: under the Tailscale operator each
/// proxy Pod may create them, with any labels.
const NAMED: [Kind; 3] = [Kind::StatefulSet, Kind::Service, Kind::Role];

/// Name of the workload of an object, of which there is one unless the Tailscale operator left several: the one with a device, else the first by
/// name.
///
/// `owned`: what has the labels of the object.
pub fn workload<'a>(
    key: &WorkloadKey,
    owned: impl Iterator<Item = (&'a ObjectRef, &'a Arc<Value>)>,
    has_device: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    let is_named = |(object, value): &(&ObjectRef, &Arc<Value>)| {
        let labels = &value["metadata"]["labels"];
        NAMED.contains(&object.kind) && labels[names::PARENT] == *key.name() && labels[names::STANDBY].is_null()
    };
    let all: BTreeSet<&str> = owned.filter(is_named).map(|(object, _)| object.name.as_str()).collect();
    all.iter().copied().find(|name| has_device(name)).or_else(|| all.first().copied())
}

/// Suffix of a new name: 64 bits of hash.
pub(crate) fn suffix(text: &str) -> String {
    let mut hash = sha256(text.as_bytes());
    #[cfg(test)]
    hash.truncate(SUFFIX_LENGTH.get());
    hash.truncate(SUFFIX);
    hash
}

#[cfg(test)]
thread_local! {
    /// Length of suffixes in hex digits: short ones are equal for many objects.
    pub(crate) static SUFFIX_LENGTH: std::cell::Cell<usize> = const { std::cell::Cell::new(SUFFIX) };
}

/// Name of a new workload: a prefix of the object's name, without dots, and a hash. `attempt`: number of names that others have.
pub fn new_name(key: &WorkloadKey, uid: &str, attempt: u32) -> String {
    let name = key.name();
    let part = name.get(..name.len().min(LONGEST_PART)).unwrap_or(name).trim_end_matches(['-', '.']);
    let part = part.replace('.', "-");
    format!("ts-{part}-{}", suffix(&format!("{key}/{uid}/{attempt}")))
}

/// Name of the `StatefulSet` of a workload's second Pod: as long as the workload's, so that labels with it have room.
pub fn standby_name(workload: &str) -> String {
    let (stem, suffix) = workload.rsplit_once('-').unwrap_or((workload, ""));
    let length = if suffix.len() == SUFFIX { SUFFIX } else { FORMER_SUFFIX };
    format!("{stem}-{}", &sha256(format!("{workload}/standby").as_bytes())[..length])
}

/// Length of the suffix of names that former versions and the Tailscale operator gave.
const FORMER_SUFFIX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::controller::workload::objects::labels_of;

    #[test]
    fn workload_names_have_at_most_fifty_two_characters() {
        let name = |name: &str, uid: &str| new_name(&WorkloadKey::Service("u".into(), name.into()), uid, 0);
        for length in [1, 31, 32, 33, 63] {
            let name = name(&"a".repeat(length), "uid");
            assert_eq!(name.len(), "ts--".len() + length.min(LONGEST_PART) + SUFFIX);
            assert_eq!(standby_name(&name).len(), name.len());
            assert!(name.len() <= MAX_LENGTH);
        }
        assert_ne!(name("web", "1"), name("web", "2"), "a Service that is created again gets another name");
        assert_ne!(name("web", "1"), new_name(&WorkloadKey::Ingress("u".into(), "web".into()), "1", 0));
        assert_eq!(name(&format!("{}-b", "a".repeat(31)), "1").matches("--").count(), 0);
        assert_eq!(standby_name("ts-web-abcde").len(), "ts-web-abcde".len(), "a name of a former version");
    }

    fn named(objects: &[(Kind, &str)], device: &str) -> Option<String> {
        let key = WorkloadKey::Service("default".into(), "web".into());
        let value = Arc::new(serde_json::json!({"metadata": {"labels": labels_of(&key)}}));
        let objects: Vec<_> = objects.iter().map(|(kind, name)| ObjectRef::new(*kind, "ts", *name)).collect();
        workload(&key, objects.iter().map(|object| (object, &value)), |name| name == device).map(str::to_owned)
    }

    #[test]
    fn workload_with_a_device_keeps_its_name() {
        let sets = ["ts-web-ccccc", "ts-web-aaaaa", "ts-web-bbbbb"].map(|name| (Kind::StatefulSet, name));
        assert_eq!(named(&sets, "ts-web-ccccc").as_deref(), Some("ts-web-ccccc"));
        assert_eq!(named(&sets, "").as_deref(), Some("ts-web-aaaaa"));
        assert_eq!(named(&[], ""), None);
    }

    #[test]
    fn objects_that_pods_may_create_name_no_workload() {
        for kind in Kind::ALL {
            let is_named = matches!(kind, Kind::StatefulSet | Kind::Service | Kind::Role);
            for name in ["x", "x-0-config"] {
                assert_eq!(named(&[(kind, name)], "").as_deref(), is_named.then_some(name), "{kind:?}");
                let beside = named(&[(kind, name), (Kind::StatefulSet, "y")], name);
                assert_eq!(beside.as_deref(), Some(if is_named { name } else { "y" }), "{kind:?}");
            }
        }
    }
}
