//! Watch cache of `status`: the newest state of each object, and for each part whether its list is complete.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, select_all};
use serde_json::Value;

use super::{OF_USERS, PROXIES, gap};
use crate::edge::kube::{Cluster, Follow, Resource, WatchChange, WatchedItem};
use crate::model::diagnostics::overview::{ClusterView, Gap, StatusPart};

/// Label selector of a group's own objects.
const OF_A_GROUP: &str = "tailscale.com/managed=true,tailscale.com/parent-resource-type=proxygroup";
/// Label selector of state Secrets. Config Secrets hold auth keys and are never read.
const STATES: &str = "tailscale.com/managed=true,tailscale.com/parent-resource-type=proxygroup,tailscale.com/secret-type=state";

/// Label selector of the Secrets of certificates that proxies order.
const CERTIFICATES: &str = "tailscale.com/managed=true,tailscale.com/secret-type=certs";
/// Key of a private key in a Secret of a certificate.
const PRIVATE_KEY: &str = "tls.key";

/// Cached objects by part.
#[derive(Debug)]
pub(super) struct InspectCache {
    namespace: String,
    parts: BTreeMap<StatusPart, BTreeMap<(String, String), Value>>,
    /// Objects of a list in progress.
    listed: BTreeMap<StatusPart, BTreeMap<(String, String), Value>>,
    heard: BTreeSet<StatusPart>,
    gaps: BTreeMap<StatusPart, Gap>,
}

pub(super) fn changes(cluster: &Cluster) -> BoxStream<'static, (StatusPart, WatchChange)> {
    let namespace = || Some(cluster.namespace().to_owned());
    let changes = |part: StatusPart| {
        let fields = (part == StatusPart::Events).then_some(Resource::INGRESS_WARNINGS);
        let (resource, namespace, labels) = match part {
            StatusPart::Groups => (Resource::PROXY_GROUP, None, None),
            StatusPart::Connectors => (Resource::CONNECTOR, None, None),
            StatusPart::Pods | StatusPart::Pages => (Resource::POD, namespace(), Some(PROXIES)),
            StatusPart::States => (Resource::SECRET, namespace(), Some(STATES)),
            StatusPart::Certificates => (Resource::SECRET, namespace(), Some(CERTIFICATES)),
            StatusPart::Configs => (Resource::CONFIG_MAP, namespace(), Some(OF_A_GROUP)),
            StatusPart::Services => (Resource::SERVICE, None, Some(OF_USERS)),
            StatusPart::Ingresses => (Resource::INGRESS, None, None),
            StatusPart::Events => (Resource::EVENT, None, None),
        };
        let changes = cluster.follow_json(&Follow { resource, namespace, labels, fields }, WatchedItem::into_value);
        changes.map(move |change| without_key(part, change)).boxed()
    };
    select_all(StatusPart::OBJECTS.map(|part| changes(part).map(move |change| (part, change)).boxed())).boxed()
}

/// A change of a certificate's Secret without its private key.
fn without_key(part: StatusPart, mut change: WatchChange) -> WatchChange {
    if let (StatusPart::Certificates, WatchChange::Listed(secret) | WatchChange::Put(secret) | WatchChange::Gone(secret)) =
        (part, &mut change)
        && let Some(data) = secret["data"].as_object_mut()
    {
        data.remove(PRIVATE_KEY);
    }
    change
}

impl InspectCache {
    pub(super) fn new(namespace: &str) -> Self {
        let (parts, listed) = (BTreeMap::new(), BTreeMap::new());
        Self { namespace: namespace.to_owned(), parts, listed, heard: BTreeSet::new(), gaps: BTreeMap::new() }
    }

    /// Whether every part is listed or known to be unreadable.
    pub(super) fn whole(&self) -> bool {
        StatusPart::OBJECTS.iter().all(|part| self.heard.contains(part))
    }

    /// Records a gap for every part without a response.
    pub(super) fn give_up(&mut self) {
        for part in StatusPart::OBJECTS.into_iter().filter(|part| !self.heard.contains(part)) {
            self.gaps.insert(part, Gap::Failed("the API server does not answer".to_owned()));
        }
    }

    /// Why a part cannot be read; `None` if it can.
    pub(super) fn gap(&self, part: StatusPart) -> Option<&Gap> {
        self.gaps.get(&part)
    }

    /// Applies a change. Returns whether the view changed.
    pub(super) fn take(&mut self, part: StatusPart, change: WatchChange) -> bool {
        match change {
            WatchChange::Begin => {
                self.listed.insert(part, BTreeMap::new());
                false
            }
            WatchChange::Listed(object) => {
                self.listed.entry(part).or_default().insert(key(&object), object);
                false
            }
            WatchChange::Complete => {
                let listed = self.listed.remove(&part).unwrap_or_default();
                let changed = self.gaps.remove(&part).is_some() | self.heard.insert(part) | (self.parts.get(&part) != Some(&listed));
                self.parts.insert(part, listed);
                changed
            }
            WatchChange::Live => false,
            WatchChange::Put(object) => self.parts.entry(part).or_default().insert(key(&object), object.clone()) != Some(object),
            WatchChange::Gone(object) => self.parts.entry(part).or_default().remove(&key(&object)).is_some(),
            WatchChange::Unknown if part.is_optional() => self.parts.remove(&part).is_some() | self.heard.insert(part),
            WatchChange::Unknown => self.miss(part, Gap::Unknown),
            WatchChange::Lost(error) => {
                // Cached objects stay while the watch is restarted, unless it is forbidden now.
                let gap = gap(&error);
                if self.parts.contains_key(&part) && gap != Gap::Forbidden { false } else { self.miss(part, gap) }
            }
        }
    }

    fn miss(&mut self, part: StatusPart, gap: Gap) -> bool {
        self.parts.remove(&part);
        self.heard.insert(part);
        self.gaps.insert(part, gap.clone()) != Some(gap)
    }

    /// The cached view, without the replicas' own status.
    pub(super) fn view(&self) -> ClusterView {
        let mut view = ClusterView::new(&self.namespace);
        view.gaps.clone_from(&self.gaps);
        for (part, objects) in &self.parts {
            view.take(*part, objects.values());
        }
        view
    }
}

fn key(object: &Value) -> (String, String) {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::edge::kube::{ApiCall, CallFault, KubeError, Verb};

    fn lost(code: u16) -> WatchChange {
        let call = ApiCall { verb: Verb::List, kind: "Secret", namespace: "ts".into(), name: String::new() };
        WatchChange::Lost(KubeError::Call { call, fault: CallFault::Refused { code, message: "no".into() } })
    }

    fn group(replicas: u32) -> Value {
        json!({"metadata": {"name": "eg"}, "spec": {"type": "egress", "replicas": replicas}})
    }

    #[test]
    fn list_is_applied_when_complete_and_survives_a_lost_watch() {
        let mut gathered = InspectCache::new("ts");
        for (change, changed) in [
            (WatchChange::Begin, false),
            (WatchChange::Listed(group(2)), false),
            (WatchChange::Complete, true),
            (WatchChange::Put(group(2)), false),
            (WatchChange::Put(group(3)), true),
            (lost(500), false),
            (WatchChange::Begin, false),
            (WatchChange::Listed(group(3)), false),
            (WatchChange::Complete, false),
        ] {
            let label = format!("{change:?}");
            assert_eq!(gathered.take(StatusPart::Groups, change), changed, "{label}");
        }
        assert_eq!(gathered.view().groups[0].spec.replicas, Some(3));
        assert!(gathered.take(StatusPart::Groups, WatchChange::Gone(group(3))) && gathered.view().groups.is_empty());
    }

    #[test]
    fn private_key_of_a_certificate_is_dropped() {
        let secret = |data: Value| WatchChange::Listed(json!({"metadata": {"name": "a.ts.net"}, "data": data}));
        let read = without_key(StatusPart::Certificates, secret(json!({"tls.crt": "YQ==", "tls.key": "Yg=="})));
        assert_eq!(format!("{read:?}"), format!("{:?}", secret(json!({"tls.crt": "YQ=="}))));
    }

    #[test]
    fn forbidden_kind_is_a_gap_until_it_is_listed() {
        let mut gathered = InspectCache::new("ts");
        assert!(gathered.take(StatusPart::States, lost(403)));
        assert!(!gathered.take(StatusPart::States, lost(403)), "reported once");
        assert_eq!(gathered.view().gaps, [(StatusPart::States, Gap::Forbidden)].into());
        assert!(gathered.take(StatusPart::States, WatchChange::Complete));
        assert!(gathered.view().gaps.is_empty() && !gathered.whole());
        gathered.take(StatusPart::Connectors, WatchChange::Unknown);
        assert_eq!(gathered.gap(StatusPart::Connectors), None, "clusters without the kind have none");
        gathered.take(StatusPart::Groups, WatchChange::Unknown);
        gathered.give_up();
        assert_eq!(gathered.gap(StatusPart::Groups), Some(&Gap::Unknown));
        assert!(matches!(gathered.gap(StatusPart::Services), Some(Gap::Failed(_))));
    }
}
