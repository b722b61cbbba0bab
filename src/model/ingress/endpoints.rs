//! Endpoints of a Service's ports, from its EndpointSlices.
//!
//! Source: `discovery.k8s.io/v1`. Unreadable slices are ignored; the others remain.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::Value;

/// Label with the name of a slice's Service.
const SERVICE: &str = "kubernetes.io/service-name";

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

/// All known slices, by namespace and name.
#[derive(Debug, Clone, Default)]
pub struct Slices {
    by_service: BTreeMap<(String, String), BTreeMap<ServicePort, Vec<Endpoint>>>,
}

impl Slices {
    /// Adds or updates a slice. Returns whether anything changed.
    pub fn put(&mut self, slice: Value) -> bool {
        let Some((name, ports)) = read(slice) else { return false };
        self.by_service.insert(name, ports.clone()) != Some(ports)
    }

    /// Removes a slice. Returns whether anything changed.
    pub fn gone(&mut self, slice: &Value) -> bool {
        let text = |field: &str| slice.pointer(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        self.by_service.remove(&(text("/metadata/namespace"), text("/metadata/name"))).is_some()
    }

    /// Removes the namespace's slices that are not in `listed`.
    pub fn retain(&mut self, namespace: &str, listed: &Self) {
        self.by_service.retain(|name, _| name.0 != namespace || listed.by_service.contains_key(name));
    }

    /// Removes all slices of a namespace.
    pub fn forget(&mut self, namespace: &str) {
        self.retain(namespace, &Self::default());
    }

    /// Ready endpoints by port, sorted by address, without duplicates.
    pub fn endpoints(&self) -> BTreeMap<ServicePort, Vec<Endpoint>> {
        let mut all: BTreeMap<ServicePort, Vec<Endpoint>> = BTreeMap::new();
        for (port, endpoints) in self.by_service.values().flatten() {
            all.entry(port.clone()).or_default().extend_from_slice(endpoints);
        }
        for endpoints in all.values_mut() {
            endpoints.sort();
            endpoints.dedup_by_key(|endpoint| endpoint.address);
        }
        all
    }
}

type Named = ((String, String), BTreeMap<ServicePort, Vec<Endpoint>>);

/// Parses a slice with its key; `None` if invalid or without Service.
fn read(slice: Value) -> Option<Named> {
    let slice: EndpointSlice = serde_json::from_value(slice).ok()?;
    let namespace = slice.metadata.namespace?;
    let service = slice.metadata.labels?.remove(SERVICE)?;
    let mut ports = BTreeMap::new();
    for port in slice.ports.unwrap_or_default() {
        let (name, protocol) = (port.name.unwrap_or_default(), port.protocol.unwrap_or_default());
        let Some(number) = port.port.and_then(|number| u16::try_from(number).ok()) else { continue };
        if !matches!(protocol.as_str(), "TCP" | "") {
            continue;
        }
        // Slices of type FQDN have no addresses.
        let ready = slice.endpoints.iter().flatten().filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
        });
        let endpoints = ready.filter_map(|endpoint| {
            let ip: IpAddr = endpoint.addresses.first()?.parse().ok()?;
            let hints = endpoint.hints.as_ref().and_then(|hints| hints.for_zones.as_ref()).into_iter().flatten();
            Some(Endpoint {
                address: SocketAddr::new(ip, number),
                zone: endpoint.zone.clone(),
                node: endpoint.node_name.clone(),
                hints: hints.map(|zone| zone.name.clone()).collect(),
            })
        });
        let port = ServicePort { namespace: namespace.clone(), service: service.clone(), port: name };
        ports.entry(port).or_insert_with(Vec::new).extend(endpoints);
    }
    Some(((namespace, slice.metadata.name?), ports))
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

    fn addresses(slices: &Slices) -> Vec<String> {
        let port = ServicePort { namespace: "shop".into(), service: "web".into(), port: "http".into() };
        slices.endpoints().get(&port).into_iter().flatten().map(|endpoint| endpoint.address.to_string()).collect()
    }

    #[test]
    fn topology_hints_decide_whether_an_endpoint_is_near() {
        let mut hinted = slice("web-1", &[("10.0.0.1", true), ("10.0.0.2", true)]);
        hinted["endpoints"][0]["hints"] = json!({"forZones": [{"name": "b"}]});
        let mut slices = Slices::default();
        slices.put(hinted);
        let endpoints: Vec<_> = slices.endpoints().into_values().flatten().collect();
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
        let ports: Vec<_> = slices.endpoints().into_keys().map(|port| port.port).collect();
        assert_eq!(ports, ["http"], "UDP is no way for requests");
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
        assert!(slices.endpoints().is_empty());
    }
}
