//! Annotations of users' objects that have no effect, also of those that concern no group and are pruned.

use super::{CachedObject, ClusterCache, Id, WatchRole, WorkKey};
use crate::model::controller::key::{PublishSource, Publisher};
use crate::model::controller::policy::ineffective::ineffective;

/// Message about the annotations of an object that have no effect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AnnotationNotice {
    uid: Option<String>,
    message: String,
    is_reported: bool,
}

impl ClusterCache {
    /// Follows a change of an object before it is pruned, or of its group; `None` if it is gone. Returns its key if the message is new.
    pub(super) fn follow_annotations(&mut self, role: WatchRole, (namespace, name): &Id, object: Option<&CachedObject>) -> Option<WorkKey> {
        let source = match role {
            WatchRole::Service => PublishSource::Service,
            WatchRole::Ingress => PublishSource::Ingress,
            _ => return None,
        };
        let parent = object.and_then(CachedObject::parent);
        let found = parent.and_then(|parent| Some((parent.metadata().uid.clone(), ineffective(parent, &self.assignment)?)));
        if found.is_none() && self.annotations.is_empty() {
            return None;
        }
        let publisher = Publisher { source, namespace: namespace.clone(), name: name.clone() };
        let Some((uid, message)) = found else {
            self.annotations.remove(&publisher);
            return None;
        };
        if self.annotations.get(&publisher).is_some_and(|before| before.uid == uid && before.message == message) {
            return None;
        }
        self.annotations.insert(publisher.clone(), AnnotationNotice { uid, message, is_reported: false });
        Some(WorkKey::Annotations(publisher))
    }

    /// Keys of all objects with annotations that have no effect.
    pub(super) fn annotation_keys(&self) -> impl Iterator<Item = WorkKey> {
        self.annotations.keys().cloned().map(WorkKey::Annotations)
    }

    /// UID of an object and message about its annotations, once.
    pub fn report_annotations(&mut self, publisher: &Publisher) -> Option<(Option<String>, String)> {
        let notice = self.annotations.get_mut(publisher).filter(|notice| !notice.is_reported)?;
        notice.is_reported = true;
        Some((notice.uid.clone(), notice.message.clone()))
    }

    /// Reports the annotations of an object once more: the Event about them was not written.
    pub fn repeat_annotations(&mut self, publisher: &Publisher) {
        if let Some(notice) = self.annotations.get_mut(publisher) {
            notice.is_reported = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(version: u64, annotations: &Value) -> Value {
        json!({"metadata": {"name": "s", "namespace": "u", "uid": "1", "resourceVersion": version.to_string(), "annotations": annotations}})
    }

    #[test]
    fn unknown_annotation_is_reported_once_for_each_content_and_the_service_is_pruned() {
        let mut cache = ClusterCache::new(None, [WatchRole::Service]);
        let publisher = Publisher { source: PublishSource::Service, namespace: "u".into(), name: "s".into() };
        let key = WorkKey::Annotations(publisher.clone());
        let (wrong, other) = (json!({"tailscale.com/exposed": "true"}), json!({"tailscale.com/funel": "true"}));
        // version, annotations → whether there is news
        let steps = [
            (1, json!({}), false),
            (2, wrong.clone(), true),
            (3, wrong.clone(), false),
            (4, other, true),
            (5, json!({}), false),
            (6, wrong, true),
        ];
        for (version, annotations, changed) in steps {
            assert_eq!(cache.put_json(WatchRole::Service, service(version, &annotations)).contains(&key), changed, "{version}");
            for is_dropped in [true, false] {
                assert_eq!(cache.report_annotations(&publisher).is_some(), changed, "{version}");
                if is_dropped && changed {
                    cache.repeat_annotations(&publisher);
                }
            }
            assert_eq!(cache.report_annotations(&publisher), None, "{version}");
            assert_eq!((cache.stored(WatchRole::Service), cache.count(WatchRole::Service)), (1, 0), "it is not stored whole");
        }
        assert!(cache.all().contains(&key));
        cache.gone_json(WatchRole::Service, &service(7, &json!({})));
        assert!(!cache.all().contains(&key));
    }
}
