//! Records of certificates of standalone Ingresses: the recorded owner of each Secret.

use std::sync::Arc;

use imbl::OrdMap;
use serde_json::Value;

use super::{ClusterCache, WatchRole, WorkKey};
use crate::model::controller::ingress::certificate_orders::{OrderRecord, namespace_of, orders_ref};
use crate::model::controller::ingress::standalone_certificate::grants;
use crate::model::controller::key::{PublishSource, Publisher, WorkloadKey};
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::observed::RecordedCertificate;

impl ClusterCache {
    /// Updates the index of recorded Secrets.
    pub(super) fn index_certificates(&mut self, config_map: &Value, came: bool) {
        let Some(namespace) = namespace_of(config_map) else { return };
        for order in OrderRecord::read(config_map).orders().iter().filter(|order| !order.secret.is_empty()) {
            let ingress = Publisher { source: PublishSource::Ingress, namespace: namespace.to_owned(), name: order.ingress.clone() };
            if came {
                self.indices.certificates.insert(order.secret.clone(), ingress);
            } else {
                self.indices.certificates.remove(&order.secret);
            }
        }
    }

    /// Recorded owners of the certificates among a group's objects.
    pub(super) fn recorded_certificates(&self, owned: &OrdMap<ObjectRef, Arc<Value>>) -> OrdMap<String, RecordedCertificate> {
        if self.indices.certificates.is_empty() {
            return OrdMap::new();
        }
        let secrets = owned.range(ObjectRef::new(Kind::Secret, "", "")..).take_while(|(object, _)| object.kind == Kind::Secret);
        secrets.filter_map(|(object, value)| self.recorded_certificate(object, value)).collect()
    }

    fn recorded_certificate(&self, secret: &ObjectRef, value: &Value) -> Option<(String, RecordedCertificate)> {
        let uid = value["metadata"]["uid"].as_str()?;
        let ingress = self.indices.certificates.get(uid)?.clone();
        let owned = self.indices.workloads.get(&WorkloadKey::from(&ingress)).map(|members| &members.owned);
        let mut roles = owned.into_iter().flatten().filter(|(object, _)| object.kind == Kind::Role);
        let in_use = roles.any(|(_, role)| grants(role, &secret.name));
        Some((uid.to_owned(), RecordedCertificate { ingress, in_use }))
    }

    /// The record of a standalone Ingress, and the Secrets that it names.
    pub(super) fn recorded_objects(&self, key: &WorkloadKey, proxies: &str) -> Vec<ObjectRef> {
        let WorkloadKey::Ingress(namespace, name) = key else { return Vec::new() };
        let record = orders_ref(proxies, namespace);
        let orders = self.owned_object(&record).map(|stored| OrderRecord::read(stored)).unwrap_or_default();
        let own = orders.orders().iter().filter(|order| order.ingress == *name);
        own.map(|order| ObjectRef::new(Kind::Secret, proxies, order.host.clone())).chain([record]).collect()
    }

    /// Keys of Ingresses with recorded Secrets: these outlive the Ingress.
    pub(super) fn recorded_keys(&self) -> impl Iterator<Item = WorkKey> {
        let records = self.objects(WatchRole::Owned(Kind::ConfigMap)).filter_map(|(_, object)| object.owned());
        let records = records.filter_map(|stored| Some((namespace_of(stored)?, OrderRecord::read(stored))));
        records.flat_map(|(namespace, record)| {
            let key = |name: &str| WorkKey::Workload(WorkloadKey::of_object(PublishSource::Ingress, namespace, name));
            record.orders().iter().map(|order| key(&order.ingress)).collect::<Vec<_>>()
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::controller::ingress::certificate_orders::CertificateOrder;

    fn order(secret: &str) -> CertificateOrder {
        CertificateOrder {
            ingress: "shop".into(),
            host: "shop.ts.net".into(),
            ordered: 1,
            secret: secret.into(),
            ..CertificateOrder::default()
        }
    }

    fn record(version: &str, secret: &str) -> Value {
        let mut record = OrderRecord::default();
        record.put(order(secret));
        let mut value = record.manifest("tailscale", "default", None).value;
        value["metadata"]["resourceVersion"] = json!(version);
        value
    }

    #[test]
    fn recorded_secret_is_seen_by_its_ingress_whatever_its_labels() {
        let roles = [Kind::ConfigMap, Kind::Secret, Kind::Role].map(WatchRole::Owned);
        let mut cache = ClusterCache::new(None, roles);
        cache.put_json(roles[0], record("1", "uid"));
        let labels = json!({"tailscale.com/managed": "true", "tailscale.com/secret-type": "certs",
            "tailyard.io/parent-ingress": "mine", "tailyard.io/parent-namespace": "other"});
        let metadata = json!({"name": "shop.ts.net", "namespace": "tailscale", "uid": "uid", "resourceVersion": "2", "labels": labels});
        cache.put_json(roles[1], json!({"metadata": metadata, "data": {}}));
        let key = WorkloadKey::of_object(PublishSource::Ingress, "default", "shop");
        assert_eq!(cache.recorded_keys().collect::<Vec<_>>(), [WorkKey::Workload(key.clone())]);
        let owned = |cache: &ClusterCache| cache.with_secrets(cache.owned(&key), &key, "", "tailscale");
        let secret = ObjectRef::new(Kind::Secret, "tailscale", "shop.ts.net");
        assert!(owned(&cache).contains_key(&secret) && owned(&cache).contains_key(&orders_ref("tailscale", "default")));
        let of_other = owned(&cache);
        let ingress = Publisher { source: PublishSource::Ingress, namespace: "default".into(), name: "shop".into() };
        let recorded = |cache: &ClusterCache| cache.recorded_certificates(&of_other).get("uid").cloned();
        assert_eq!(recorded(&cache), Some(RecordedCertificate { ingress: ingress.clone(), in_use: false }));
        let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "ingress",
            "tailscale.com/parent-resource": "shop", "tailscale.com/parent-resource-ns": "default"});
        let metadata = json!({"name": "ts-shop", "namespace": "tailscale", "resourceVersion": "3", "labels": labels});
        cache.put_json(roles[2], json!({"metadata": metadata, "rules": [{"resourceNames": ["shop.ts.net"]}]}));
        assert_eq!(recorded(&cache), Some(RecordedCertificate { ingress, in_use: true }));
        cache.put_json(roles[0], record("4", "another"));
        assert_eq!(recorded(&cache), None, "the Secret was created again");
    }
}
