//! Endpoints of a Service's ports, from its EndpointSlices.
//!
//! Source: `discovery.k8s.io/v1`. Unreadable slices are ignored; the others remain.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::Value;

use crate::model::base::bounded::MAX_PORTS;

/// Label with the name of a slice's Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// Maximum stored endpoints of a namespace, and maximum published ones.
const MAX_ENDPOINTS: usize = 20_000;
/// Maximum hints of an endpoint, as in the API.
const MAX_HINTS: usize = 8;

/// A port of a Service, by the name in its slices.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePort {
    pub namespace: String,
    pub service: String,
    pub port: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    pub address: SocketAddr,
    /// Zone of the endpoint, if reported.
    pub zone: Option<String>,
    /// Node of the endpoint, if reported.
    pub node: Option<String>,
    /// Zones whose clients should use it (`hints.forZones`); empty without hints.
    pub hints: Vec<String>,
}

impl Endpoint {
    /// Whether clients of this zone prefer it.
    pub fn is_near(&self, zone: &str) -> bool {
        if self.hints.is_empty() { self.zone.as_deref() == Some(zone) } else { self.hints.iter().any(|hint| hint == zone) }
    }
}

/// Port names of backends, by namespace and Service.
pub type WantedPorts = BTreeMap<(String, String), BTreeSet<String>>;

/// All known slices, by namespace and name. Users write them: a namespace has room for [`MAX_ENDPOINTS`].
#[derive(Debug, Clone, Default)]
pub struct Slices {
    by_name: BTreeMap<(String, String), Slice>,
    /// Number of stored endpoints of each namespace.
    stored: BTreeMap<String, usize>,
}

/// A slice of at most [`MAX_PORTS`] ports. Its endpoints are stored once, not for each port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slice {
    service: String,
    /// Name and number of each TCP port.
    ports: Vec<(String, u16)>,
    /// Ready ones, with the port 0.
    endpoints: Vec<Endpoint>,
}

/// Endpoints of the wanted ports, and the namespaces that have more than [`MAX_ENDPOINTS`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Sorted by address, without duplicates.
    pub by_port: BTreeMap<ServicePort, Vec<Endpoint>>,
    pub too_many: BTreeSet<String>,
}

impl Slices {
    /// Adds or updates a slice. Returns whether anything changed.
    pub fn put(&mut self, slice: Value) -> bool {
        let Some((name, mut slice)) = read(slice) else { return false };
        let before = self.remove(&name);
        let stored = self.stored.entry(name.0.clone()).or_default();
        // One more shows that there are too many.
        slice.endpoints.truncate((MAX_ENDPOINTS + 1).saturating_sub(*stored));
        *stored += slice.endpoints.len();
        let is_change = before.as_ref() != Some(&slice);
        self.by_name.insert(name, slice);
        is_change
    }

    /// Removes a slice. Returns whether anything changed.
    pub fn gone(&mut self, slice: &Value) -> bool {
        let text = |field: &str| slice.pointer(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        self.remove(&(text("/metadata/namespace"), text("/metadata/name"))).is_some()
    }

    fn remove(&mut self, name: &(String, String)) -> Option<Slice> {
        let slice = self.by_name.remove(name)?;
        if let Some(stored) = self.stored.get_mut(&name.0) {
            *stored -= slice.endpoints.len();
        }
        Some(slice)
    }

    /// Removes the namespace's slices that are not in `listed`.
    pub fn retain(&mut self, namespace: &str, listed: &Self) {
        let of_namespace = self.by_name.range((namespace.to_owned(), String::new())..).take_while(|(name, _)| name.0 == namespace);
        let gone: Vec<_> = of_namespace.map(|(name, _)| name.clone()).filter(|name| !listed.by_name.contains_key(name)).collect();
        for name in &gone {
            self.remove(name);
        }
    }

    /// Removes all slices of a namespace.
    pub fn forget(&mut self, namespace: &str) {
        self.retain(namespace, &Self::default());
    }

    /// Ready endpoints of these ports.
    pub fn endpoints(&self, wanted: &WantedPorts) -> Endpoints {
        let mut found = Endpoints::default();
        let mut rooms: BTreeMap<&str, usize> = BTreeMap::new();
        for ((namespace, _), slice) in &self.by_name {
            let Some(names) = wanted.get(&(namespace.clone(), slice.service.clone())) else { continue };
            let room = rooms.entry(namespace).or_insert(MAX_ENDPOINTS);
            for (name, number) in slice.ports.iter().filter(|(name, _)| names.contains(name)) {
                if slice.endpoints.len() > *room {
                    found.too_many.insert(namespace.clone());
                }
                let endpoints = slice.endpoints.iter().take(*room);
                *room = room.saturating_sub(slice.endpoints.len());
                let port = ServicePort { namespace: namespace.clone(), service: slice.service.clone(), port: name.clone() };
                let at_port =
                    |endpoint: &Endpoint| Endpoint { address: SocketAddr::new(endpoint.address.ip(), *number), ..endpoint.clone() };
                found.by_port.entry(port).or_default().extend(endpoints.map(at_port));
            }
        }
        for endpoints in found.by_port.values_mut() {
            endpoints.sort();
            endpoints.dedup_by_key(|endpoint| endpoint.address);
        }
        found
    }
}

/// Parses a slice with its key; `None` if invalid or without Service.
fn read(slice: Value) -> Option<((String, String), Slice)> {
    let slice: EndpointSlice = serde_json::from_value(slice).ok()?;
    let (namespace, name) = (slice.metadata.namespace?, slice.metadata.name?);
    let service = slice.metadata.labels?.remove(SERVICE)?;
    let ports = slice.ports.into_iter().flatten().filter(|port| matches!(port.protocol.as_deref(), Some("TCP" | "") | None));
    let ports = ports.filter_map(|port| Some((port.name.unwrap_or_default(), u16::try_from(port.port?).ok()?)));
    // Slices of type FQDN have no addresses.
    let ready = slice.endpoints.into_iter().flatten().filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
    });
    let endpoints = ready.filter_map(|endpoint| {
        let ip: IpAddr = endpoint.addresses.first()?.parse().ok()?;
        let hints = endpoint.hints.and_then(|hints| hints.for_zones).into_iter().flatten().map(|zone| zone.name).take(MAX_HINTS);
        Some(Endpoint { address: SocketAddr::new(ip, 0), zone: endpoint.zone, node: endpoint.node_name, hints: hints.collect() })
    });
    let slice = Slice { service, ports: ports.take(MAX_PORTS).collect(), endpoints: endpoints.take(MAX_ENDPOINTS + 1).collect() };
    Some(((namespace, name), slice))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, pods: &[(&str, bool)]) -> Value {
        let endpoint = |ip, ready| json!({"addresses": [ip], "conditions": {"ready": ready}, "zone": "a", "nodeName": "n1"});
        let endpoints: Vec<_> = pods.iter().map(|(ip, ready)| endpoint(*ip, *ready)).collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": "shop", "labels": {SERVICE: "web"}},
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}],
            "endpoints": endpoints,
        })
    }

    fn wanted(ports: &[&str]) -> WantedPorts {
        [(("shop".into(), "web".into()), ports.iter().map(|port| (*port).to_owned()).collect())].into()
    }

    fn addresses(slices: &Slices) -> Vec<String> {
        let found = slices.endpoints(&wanted(&["http", "dns"])).by_port;
        assert!(found.keys().all(|port| port.port == "http"), "UDP is no way for requests");
        found.into_values().flatten().map(|endpoint| endpoint.address.to_string()).collect()
    }

    #[test]
    fn topology_hints_decide_whether_an_endpoint_is_near() {
        let mut hinted = slice("web-1", &[("10.0.0.1", true), ("10.0.0.2", true)]);
        hinted["endpoints"][0]["hints"] = json!({"forZones": [{"name": "b"}]});
        let mut slices = Slices::default();
        slices.put(hinted);
        let endpoints: Vec<_> = slices.endpoints(&wanted(&["http"])).by_port.into_values().flatten().collect();
        let near = |zone: &str| endpoints.iter().map(|endpoint| endpoint.is_near(zone)).collect::<Vec<_>>();
        assert_eq!([near("a"), near("b")], [[false, true], [true, false]]);
    }

    #[test]
    fn ready_endpoints_of_all_slices_are_unique() {
        let mut slices = Slices::default();
        assert!(slices.put(slice("web-1", &[("10.0.0.2", true), ("10.0.0.1", true), ("10.0.0.3", false)])));
        assert!(slices.put(slice("web-2", &[("10.0.0.2", true), ("10.0.0.4", true)])));
        assert!(!slices.put(slice("web-2", &[("10.0.0.2", true), ("10.0.0.4", true)])), "nothing changed");
        assert_eq!(addresses(&slices), ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.4:8080"]);
        assert!(slices.gone(&slice("web-1", &[])));
        assert_eq!(addresses(&slices), ["10.0.0.2:8080", "10.0.0.4:8080"]);
    }

    #[test]
    fn complete_list_removes_absent_slices_of_its_namespace_only() {
        let mut slices = Slices::default();
        slices.put(slice("web-1", &[("10.0.0.1", true)]));
        slices.retain("other", &Slices::default());
        assert_eq!(addresses(&slices), ["10.0.0.1:8080"]);
        slices.forget("shop");
        assert!(addresses(&slices).is_empty());
    }

    #[test]
    fn malformed_endpoint_slices_are_ignored() {
        let mut slices = Slices::default();
        assert!(!slices.put(json!({"metadata": {"name": "x"}})));
        assert!(!slices.put(json!("text")));
        assert!(slices.by_name.is_empty());
    }

    /// What the API server accepts as one slice, but for 1,000 of 20,000 ports.
    fn wide(name: &str) -> Value {
        let mut slice = slice(name, &[]);
        let endpoint =
            |number: usize| json!({"addresses": [format!("10.1.{}.{}", number / 250, number % 250)], "nodeName": "n".repeat(200)});
        slice["endpoints"] = (0..1_000).map(endpoint).collect();
        slice["ports"] = (1..=1_000).map(|number| json!({"name": format!("p{number}"), "port": number, "protocol": "TCP"})).collect();
        slice
    }

    #[test]
    fn endpoints_are_stored_once_for_all_ports_and_published_for_wanted_ones() {
        let mut slices = Slices::default();
        let stored = allocation_counter::measure(|| assert!(slices.put(wide("wide")))).bytes_current;
        assert!(stored < 1_000_000, "{stored} bytes");
        let found = slices.endpoints(&wanted(&["p1", "p2"]));
        assert_eq!(found.by_port.values().map(Vec::len).collect::<Vec<_>>(), [1_000, 1_000]);
        assert!(slices.endpoints(&WantedPorts::new()).by_port.is_empty() && found.too_many.is_empty());
    }

    #[test]
    fn endpoints_of_a_namespace_are_bounded_and_named() {
        let mut slices = Slices::default();
        for number in 0..30 {
            slices.put(wide(&format!("wide-{number}")));
        }
        let mut other = slice("other-1", &[("10.0.0.1", true)]);
        other["metadata"]["namespace"] = json!("other");
        slices.put(other);
        let stored: usize = slices.by_name.values().map(|slice| slice.endpoints.len()).sum();
        assert_eq!(stored, MAX_ENDPOINTS + 2);
        let mut wanted = wanted(&["p1", "p2", "p3"]);
        wanted.insert(("other".into(), "web".into()), BTreeSet::from(["http".to_owned()]));
        let found = slices.endpoints(&wanted);
        assert!(found.by_port.values().map(Vec::len).sum::<usize>() <= MAX_ENDPOINTS + 1);
        assert_eq!(found.too_many, BTreeSet::from(["shop".to_owned()]));
        assert!(found.by_port.keys().any(|port| port.namespace == "other"));
    }
}
