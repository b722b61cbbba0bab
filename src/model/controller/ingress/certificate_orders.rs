//! Record of the certificates that standalone Ingresses of a namespace ordered: whose a Secret is, and how many orders a week has.
//!
//! A proxy may write the Secret of its certificate, labels included, and a tenant chooses names. Neither can write this `ConfigMap`, one for
//! each namespace, beside the proxies. So a certificate that stays when its Ingress goes is used again only by the Ingress that the record
//! names, and only if its UID is the recorded one.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::names;
use crate::model::controller::workload::objects::services::ROOM as CONFIG_ROOM;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, digest};

/// Period for counting orders: Let's Encrypt's limits are per week. A certificate stays as long after its order.
pub const ORDER_PERIOD: Duration = Duration::from_hours(7 * 24);
/// The key in the `ConfigMap`.
const KEY: &str = "orders.json";

/// An order of a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateOrder {
    /// Name of the Ingress.
    pub ingress: String,
    /// DNS name of the certificate, and name of its Secret.
    pub host: String,
    /// Unix time in seconds.
    pub ordered: i64,
    /// Times of earlier orders of this host by this Ingress, within the week before the last one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<i64>,
    /// UID of the Secret; empty before it was seen.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub secret: String,
}

/// Orders of the Ingresses of one namespace: one entry for each Ingress and host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderRecord(Vec<CertificateOrder>);

impl CertificateOrder {
    /// Time until the order no longer counts and its certificate no longer stays.
    pub fn rest(&self, now: Timestamp) -> Duration {
        rest(self.ordered, now)
    }

    pub fn is_recent(&self, now: Timestamp) -> bool {
        !self.rest(now).is_zero()
    }

    /// A further order of the same host: its Secret was given up.
    #[must_use]
    pub fn again(&self, now: Timestamp) -> Self {
        let former = self.earlier.iter().copied().chain([self.ordered]).filter(|at| !rest(*at, now).is_zero());
        Self { ordered: now.as_second(), earlier: former.collect(), secret: String::new(), ..self.clone() }
    }
}

fn rest(ordered: i64, now: Timestamp) -> Duration {
    let age = u64::try_from(now.as_second().saturating_sub(ordered)).unwrap_or(0);
    ORDER_PERIOD.saturating_sub(Duration::from_secs(age))
}

impl OrderRecord {
    /// Parses a `ConfigMap`. An unreadable one counts as empty.
    pub fn read(config_map: &Value) -> Self {
        let text = config_map["data"][KEY].as_str();
        Self(text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
    }

    pub fn orders(&self) -> &[CertificateOrder] {
        &self.0
    }

    pub fn find(&self, ingress: &str, host: &str) -> Option<&CertificateOrder> {
        self.0.iter().find(|order| order.ingress == ingress && order.host == host)
    }

    /// Adds an order, or replaces that of the same Ingress and host.
    pub fn put(&mut self, order: CertificateOrder) {
        self.0.retain(|other| (&other.ingress, &other.host) != (&order.ingress, &order.host));
        self.0.push(order);
        self.0.sort();
    }

    pub fn retain(&mut self, keep: impl Fn(&CertificateOrder) -> bool) {
        self.0.retain(keep);
    }

    /// Orders within a week, and the time until the first of them no longer counts.
    pub fn recent(&self, now: Timestamp) -> (usize, Duration) {
        let orders = self.0.iter().flat_map(|order| order.earlier.iter().chain([&order.ordered]));
        let rests: Vec<_> = orders.map(|at| rest(*at, now)).filter(|rest| !rest.is_zero()).collect();
        (rests.len(), rests.iter().min().copied().unwrap_or(ORDER_PERIOD))
    }

    /// Whether the `ConfigMap` has room for it.
    pub fn fits(&self) -> bool {
        self.text().len() <= CONFIG_ROOM
    }

    /// The `ConfigMap` of a namespace. The version of `existing` is a precondition: other Ingresses of the namespace have their own passes.
    pub fn manifest(&self, proxies: &str, namespace: &str, existing: Option<&Value>) -> Manifest {
        let labels = [(names::MANAGED, "true"), (names::CERTIFICATE_ORDERS, namespace)];
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let name = Some(names::certificate_orders(namespace));
        let mut metadata = ObjectMeta { name, namespace: Some(proxies.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
        let text = self.text();
        let hash = digest(text.as_bytes());
        metadata.resource_version = existing.and_then(|found| found["metadata"]["resourceVersion"].as_str().map(str::to_owned));
        let config_map = ConfigMap { metadata, data: Some([(KEY.to_owned(), text)].into()), ..ConfigMap::default() };
        Manifest::with_hash(Kind::ConfigMap, serde_json::to_value(&config_map).unwrap_or_default(), hash)
    }

    fn text(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }
}

pub fn orders_ref(proxies: &str, namespace: &str) -> ObjectRef {
    ObjectRef::new(Kind::ConfigMap, proxies, names::certificate_orders(namespace))
}

/// Namespace whose record a `ConfigMap` is.
pub fn namespace_of(config_map: &Value) -> Option<&str> {
    config_map["metadata"]["labels"][names::CERTIFICATE_ORDERS].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(ingress: &str, host: &str, ordered: i64) -> CertificateOrder {
        CertificateOrder { ingress: ingress.to_owned(), host: host.to_owned(), ordered, ..CertificateOrder::default() }
    }

    #[test]
    fn record_round_trips_and_counts_a_week() {
        let mut record = OrderRecord::default();
        for (ingress, host, ordered) in [("a", "a.ts.net", 0), ("a", "b.ts.net", 1_000), ("b", "a.ts.net", 2_000)] {
            record.put(order(ingress, host, ordered));
        }
        record.put(CertificateOrder { secret: "uid".to_owned(), ..order("a", "b.ts.net", 1_000) });
        let manifest = record.manifest("tailscale", "shop", None);
        assert_eq!((OrderRecord::read(&manifest.value), namespace_of(&manifest.value)), (record.clone(), Some("shop")));
        assert_eq!(manifest.object, orders_ref("tailscale", "shop"));
        assert_eq!(record.find("a", "b.ts.net").map(|order| order.secret.as_str()), Some("uid"));
        let week = i64::try_from(ORDER_PERIOD.as_secs()).expect("small");
        let recent = |second| record.recent(Timestamp::from_second(second).expect("a time"));
        assert_eq!(recent(2_000), (3, ORDER_PERIOD.saturating_sub(Duration::from_secs(2_000))));
        assert_eq!(recent(week), (2, Duration::from_secs(1_000)));
        assert_eq!(recent(week + 2_000), (0, ORDER_PERIOD));
        let again = |order: &CertificateOrder, second| order.again(Timestamp::from_second(second).expect("a time"));
        let third = again(&again(&order("a", "a.ts.net", 0), 500), week + 100);
        assert_eq!((third.ordered, &*third.earlier), (week + 100, &[500][..]), "within a week");
    }
}
