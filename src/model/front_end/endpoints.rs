//! Endpoints of a Service's ports, from its EndpointSlices.
//!
//! Source: `discovery.k8s.io/v1`. Tenants write it, so everything stored has a budget in bytes: one for each namespace and one for the
//! process. Only slices of wanted ports are stored; an invalid slice is ignored, and the others remain.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::model::front_end::vhosts::Vhosts;

/// Label with the name of a slice's Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// Maximum bytes of a namespace, stored and published: some 18,000 endpoints.
const NAMESPACE_BYTES: usize = 16 << 20;
/// Maximum bytes of all namespaces, besides the reserved ones.
const SHARED_BYTES: usize = 48 << 20;
/// Bytes that are reserved for each of the first [`RESERVED_NAMESPACES`], so that others cannot use up all.
const RESERVED_BYTES: usize = 32 << 10;
const RESERVED_NAMESPACES: usize = 512;

/// Bytes of a stored slice, besides texts, ports and endpoints.
const SLICE_BYTES: usize = 512;
/// Bytes of a stored and published port, besides its texts.
const PORT_BYTES: usize = 384;
/// Bytes of a stored endpoint, besides its texts.
const ENDPOINT_BYTES: usize = 192;
/// Bytes of a stored text, besides its length.
const TEXT_BYTES: usize = 64;
/// Bytes of an endpoint that is published at a port, with the state of its connections.
const PUBLISHED_BYTES: usize = 512;

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
    /// Shared by the endpoint's ports.
    pub topology: Arc<EndpointTopology>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointTopology {
    /// Zone of the endpoint, if reported.
    pub zone: Option<String>,
    /// Node of the endpoint, if reported.
    pub node: Option<String>,
    /// Zones whose clients should use it (`hints.forZones`); empty without hints.
    pub hints: Vec<String>,
}

impl EndpointTopology {
    /// Whether clients of this zone prefer the endpoint.
    pub fn is_near(&self, zone: &str) -> bool {
        if self.hints.is_empty() { self.zone.as_deref() == Some(zone) } else { self.hints.iter().any(|hint| hint == zone) }
    }

    fn bytes(&self) -> usize {
        self.zone.iter().chain(&self.node).chain(&self.hints).map(|text| TEXT_BYTES + text.len()).sum()
    }
}

/// Port names of backends, by namespace and Service.
pub type WantedPorts = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Slices of the wanted ports, by namespace and name.
#[derive(Debug, Default)]
pub struct Slices {
    by_namespace: BTreeMap<String, NamespaceSlices>,
}

#[derive(Debug, Default)]
struct NamespaceSlices {
    wanted: BTreeMap<String, BTreeSet<String>>,
    slices: BTreeMap<String, ServiceSlice>,
    /// Bytes of the slices.
    bytes: usize,
    reserved: usize,
    /// Number of the list that was begun last.
    list: u64,
    /// Whether endpoints are missing for lack of room, until a whole list has room.
    is_cut: bool,
    /// Whether that is so in the last list.
    is_list_cut: bool,
}

/// A slice with its ready endpoints, which are stored once and not for each port.
#[derive(Debug, Clone)]
pub struct ServiceSlice {
    service: String,
    /// Name and number of each TCP port.
    ports: Vec<(String, u16)>,
    /// With the port 0.
    endpoints: Vec<Endpoint>,
    /// Number of the list or watch that delivered it.
    list: u64,
}

/// Addresses that requests are sent to: endpoints, and the `ClusterIP` of each backend.
pub fn dialed(sites: &Vhosts, endpoints: &BTreeMap<ServicePort, Vec<Endpoint>>) -> BTreeSet<IpAddr> {
    let services = sites.values().flat_map(|site| site.backends()).filter_map(|backend| backend.address.parse().ok());
    let endpoints = endpoints.values().flatten().map(|endpoint| endpoint.address);
    services.chain(endpoints).map(|address: SocketAddr| address.ip()).collect()
}

impl Slices {
    /// Sets the wanted ports and drops other slices. Returns the namespaces with ports that were not wanted before, to be listed again.
    pub fn want(&mut self, wanted: WantedPorts) -> BTreeSet<String> {
        self.by_namespace.retain(|namespace, _| wanted.contains_key(namespace));
        let mut unreserved = RESERVED_NAMESPACES - self.by_namespace.values().filter(|namespace| namespace.reserved > 0).count();
        let mut added = BTreeSet::new();
        for (name, wanted) in wanted {
            let namespace = self.by_namespace.entry(name.clone()).or_default();
            if namespace.reserved == 0 && unreserved > 0 {
                namespace.reserved = RESERVED_BYTES;
                unreserved -= 1;
            }
            let had = |(service, ports): (&String, &BTreeSet<String>)| {
                namespace.wanted.get(service).is_some_and(|before| before.is_superset(ports))
            };
            if !wanted.iter().all(had) {
                added.insert(name);
            }
            namespace.want(wanted);
        }
        added
    }

    /// Begins a list of a namespace.
    pub fn begin(&mut self, namespace: &str) {
        if let Some(namespace) = self.by_namespace.get_mut(namespace) {
            namespace.list += 1;
            namespace.is_list_cut = false;
        }
    }

    /// Ends a list of a namespace: removes slices that are not in it.
    pub fn complete(&mut self, namespace: &str) {
        if let Some(namespace) = self.by_namespace.get_mut(namespace) {
            let list = namespace.list;
            namespace.slices.retain(|_, slice| slice.list == list);
            namespace.count();
            namespace.is_cut = namespace.is_list_cut;
        }
    }

    /// Adds, updates or removes a slice. Returns whether anything changed.
    pub fn put(&mut self, namespace: &str, name: &str, slice: Option<ServiceSlice>) -> bool {
        let Some(before) = self.by_namespace.get_mut(namespace).map(|namespace| namespace.remove(name)) else { return false };
        let shared: usize = self.by_namespace.values().map(|namespace| namespace.bytes.saturating_sub(namespace.reserved)).sum();
        let Some(namespace) = self.by_namespace.get_mut(namespace) else { return false };
        let most = namespace.bytes.max(namespace.reserved) + SHARED_BYTES.saturating_sub(shared);
        let room = most.min(NAMESPACE_BYTES).saturating_sub(namespace.bytes);
        let after = slice.and_then(|slice| namespace.insert(name, slice, room));
        match (before, after) {
            (Some(before), Some(after)) => !before.has_content_of(after),
            (before, after) => before.is_some() || after.is_some(),
        }
    }

    /// Whether endpoints of a namespace are missing for lack of room.
    pub fn is_cut(&self, namespace: &str) -> bool {
        self.by_namespace.get(namespace).is_some_and(|namespace| namespace.is_cut)
    }

    /// Ready endpoints of the wanted ports, sorted by address and without duplicates.
    pub fn endpoints(&self) -> BTreeMap<ServicePort, Vec<Endpoint>> {
        let mut found: BTreeMap<_, Vec<Endpoint>> = BTreeMap::new();
        for (namespace, slices) in &self.by_namespace {
            for slice in slices.slices.values() {
                for (port, number) in &slice.ports {
                    let at = ServicePort { namespace: namespace.clone(), service: slice.service.clone(), port: port.clone() };
                    let at_port = |Endpoint { address, topology }: &Endpoint| Endpoint {
                        address: SocketAddr::new(address.ip(), *number),
                        topology: Arc::clone(topology),
                    };
                    found.entry(at).or_default().extend(slice.endpoints.iter().map(at_port));
                }
            }
        }
        for endpoints in found.values_mut() {
            endpoints.sort();
            endpoints.dedup_by_key(|endpoint| endpoint.address);
            endpoints.shrink_to_fit();
        }
        found
    }
}

impl NamespaceSlices {
    fn want(&mut self, wanted: BTreeMap<String, BTreeSet<String>>) {
        self.wanted = wanted;
        let wanted = &self.wanted;
        self.slices.retain(|_, slice| slice.limit_ports(wanted));
        self.count();
    }

    fn count(&mut self) {
        self.bytes = self.slices.iter().map(|(name, slice)| slice.bytes(name)).sum();
    }

    fn remove(&mut self, name: &str) -> Option<ServiceSlice> {
        let slice = self.slices.remove(name)?;
        self.bytes -= slice.bytes(name);
        Some(slice)
    }

    /// Stores a slice with as many endpoints as have room.
    fn insert(&mut self, name: &str, mut slice: ServiceSlice, room: usize) -> Option<&ServiceSlice> {
        if !slice.limit_ports(&self.wanted) || slice.endpoints.is_empty() {
            return None;
        }
        slice.list = self.list;
        if slice.limit_bytes(name, room) {
            (self.is_cut, self.is_list_cut) = (true, true);
        }
        if slice.endpoints.is_empty() {
            return None;
        }
        self.bytes += slice.bytes(name);
        Some(self.slices.entry(name.to_owned()).or_insert(slice))
    }
}

impl ServiceSlice {
    /// Reads a slice that was [cut](crate::model::base::bounded::slice); `None` without Service.
    pub fn read(slice: EndpointSlice) -> Option<Self> {
        let service = slice.metadata.labels?.remove(SERVICE)?;
        let ports = slice.ports.into_iter().flatten().filter(|port| matches!(port.protocol.as_deref(), Some("TCP" | "") | None));
        let ports = ports.filter_map(|port| Some((port.name.unwrap_or_default(), u16::try_from(port.port?).ok()?)));
        let ready = slice.endpoints.into_iter().flatten().filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
        });
        // Slices of type FQDN have no addresses.
        let endpoints = ready.filter_map(|endpoint| {
            let ip: IpAddr = endpoint.addresses.first()?.parse().ok()?;
            let hints = endpoint.hints.and_then(|hints| hints.for_zones).into_iter().flatten().map(|zone| zone.name).collect();
            let topology = EndpointTopology { zone: endpoint.zone, node: endpoint.node_name, hints };
            Some(Endpoint { address: SocketAddr::new(ip, 0), topology: Arc::new(topology) })
        });
        Some(Self { service, ports: ports.collect(), endpoints: endpoints.collect(), list: 0 })
    }

    /// Removes ports that are not wanted. Returns whether one remains.
    fn limit_ports(&mut self, wanted: &BTreeMap<String, BTreeSet<String>>) -> bool {
        let names = wanted.get(&self.service);
        self.ports.retain(|(name, _)| names.is_some_and(|names| names.contains(name)));
        self.ports.shrink_to_fit();
        !self.ports.is_empty()
    }

    /// Removes endpoints without room. Returns whether there are any.
    fn limit_bytes(&mut self, name: &str, room: usize) -> bool {
        let mut used = self.fixed_bytes(name);
        let fits = |endpoint: &&Endpoint| {
            used += self.endpoint_bytes(endpoint);
            used <= room
        };
        let count = self.endpoints.iter().take_while(fits).count();
        let is_cut = count < self.endpoints.len();
        self.endpoints.truncate(count);
        self.endpoints.shrink_to_fit();
        is_cut
    }

    fn bytes(&self, name: &str) -> usize {
        self.fixed_bytes(name) + self.endpoints.iter().map(|endpoint| self.endpoint_bytes(endpoint)).sum::<usize>()
    }

    fn fixed_bytes(&self, name: &str) -> usize {
        let ports = self.ports.iter().map(|(port, _)| PORT_BYTES + 2 * port.len() + self.service.len());
        SLICE_BYTES + name.len() + self.service.len() + ports.sum::<usize>()
    }

    fn endpoint_bytes(&self, endpoint: &Endpoint) -> usize {
        ENDPOINT_BYTES + endpoint.topology.bytes() + self.ports.len() * PUBLISHED_BYTES
    }

    fn has_content_of(&self, other: &Self) -> bool {
        (&self.service, &self.ports, &self.endpoints) == (&other.service, &other.ports, &other.endpoints)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::model::base::bounded;

    fn slice(pods: &[(&str, bool)]) -> Value {
        let endpoint = |ip, ready| json!({"addresses": [ip], "conditions": {"ready": ready}, "zone": "a", "nodeName": "n1"});
        let endpoints: Vec<_> = pods.iter().map(|(ip, ready)| endpoint(*ip, *ready)).collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"labels": {SERVICE: "web"}},
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}],
            "endpoints": endpoints,
        })
    }

    /// As it is read of the API.
    fn read(slice: Value) -> Option<ServiceSlice> {
        let mut slice: EndpointSlice = serde_json::from_value(slice).expect("a slice");
        bounded::slice(&mut slice);
        ServiceSlice::read(slice)
    }

    fn wanted(namespaces: &[&str], ports: &[&str]) -> WantedPorts {
        let ports = || [("web".to_owned(), ports.iter().map(|port| (*port).to_owned()).collect())].into();
        namespaces.iter().map(|namespace| ((*namespace).to_owned(), ports())).collect()
    }

    fn slices(namespaces: &[&str], ports: &[&str]) -> Slices {
        let mut slices = Slices::default();
        slices.want(wanted(namespaces, ports));
        slices
    }

    fn addresses(slices: &Slices) -> Vec<String> {
        let found = slices.endpoints();
        assert!(found.keys().all(|port| port.port == "http"), "UDP is no way for requests");
        found.into_values().flatten().map(|endpoint| endpoint.address.to_string()).collect()
    }

    #[test]
    fn topology_hints_decide_whether_an_endpoint_is_near() {
        let mut hinted = slice(&[("10.0.0.1", true), ("10.0.0.2", true)]);
        hinted["endpoints"][0]["hints"] = json!({"forZones": [{"name": "b"}]});
        let mut slices = slices(&["shop"], &["http"]);
        slices.put("shop", "web-1", read(hinted));
        let endpoints: Vec<_> = slices.endpoints().into_values().flatten().collect();
        let near = |zone: &str| endpoints.iter().map(|endpoint| endpoint.topology.is_near(zone)).collect::<Vec<_>>();
        assert_eq!([near("a"), near("b")], [[false, true], [true, false]]);
    }

    #[test]
    fn ready_endpoints_of_all_slices_are_unique() {
        let mut slices = slices(&["shop"], &["http", "dns"]);
        assert!(slices.put("shop", "web-1", read(slice(&[("10.0.0.2", true), ("10.0.0.1", true), ("10.0.0.3", false)]))));
        assert!(slices.put("shop", "web-2", read(slice(&[("10.0.0.2", true), ("10.0.0.4", true)]))));
        assert!(!slices.put("shop", "web-2", read(slice(&[("10.0.0.2", true), ("10.0.0.4", true)]))), "nothing changed");
        assert_eq!(addresses(&slices), ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.4:8080"]);
        assert!(slices.put("shop", "web-1", None) && !slices.put("shop", "web-1", None));
        assert_eq!(addresses(&slices), ["10.0.0.2:8080", "10.0.0.4:8080"]);
    }

    #[test]
    fn complete_list_removes_absent_slices_of_its_namespace_only() {
        let mut slices = slices(&["shop", "other"], &["http"]);
        slices.put("shop", "web-1", read(slice(&[("10.0.0.1", true)])));
        slices.begin("other");
        slices.complete("other");
        slices.begin("shop");
        slices.put("shop", "web-2", read(slice(&[("10.0.0.2", true)])));
        assert_eq!(addresses(&slices), ["10.0.0.1:8080", "10.0.0.2:8080"], "known until the list is complete");
        slices.complete("shop");
        assert_eq!(addresses(&slices), ["10.0.0.2:8080"]);
        assert!(!slices.put("elsewhere", "web-1", read(slice(&[("10.0.0.1", true)]))), "not wanted");
        slices.want(wanted(&["other"], &["http"]));
        assert!(addresses(&slices).is_empty());
    }

    #[test]
    fn slice_without_service_or_of_another_one_is_not_stored_and_replaces_the_former() {
        let mut slices = slices(&["shop"], &["http"]);
        for label in [json!({}), json!({SERVICE: "other"})] {
            assert!(slices.put("shop", "web-1", read(slice(&[("10.0.0.1", true)]))));
            let mut moved = slice(&[("10.0.0.1", true)]);
            moved["metadata"]["labels"] = label;
            assert!(slices.put("shop", "web-1", read(moved)));
            assert!(slices.by_namespace["shop"].slices.is_empty());
        }
    }

    #[test]
    fn only_new_ports_need_another_list() {
        let mut slices = Slices::default();
        let names = |added: BTreeSet<String>| added.into_iter().collect::<Vec<_>>();
        assert_eq!(names(slices.want(wanted(&["a", "b"], &["http"]))), ["a", "b"]);
        assert!(slices.want(wanted(&["a", "b"], &["http"])).is_empty());
        assert_eq!(names(slices.want(wanted(&["b", "c"], &["http"]))), ["c"]);
        assert_eq!(names(slices.want(wanted(&["b"], &["http", "dns"]))), ["b"]);
        slices.put("b", "web-1", read(slice(&[("10.0.0.1", true)])));
        assert!(slices.want(wanted(&["b"], &["dns"])).is_empty() && slices.endpoints().is_empty());
        assert_eq!((names(slices.want(wanted(&["b"], &["http"]))), slices.by_namespace["b"].bytes), (vec!["b".to_owned()], 0));
    }

    /// A slice with so many ports and endpoints, whose texts have this length.
    fn wide(first: usize, ports: usize, endpoints: usize, text: usize) -> Value {
        let mut slice = slice(&[]);
        let endpoint = |at: usize| {
            let (text, at) = ("n".repeat(text), first * 1_000 + at);
            json!({"addresses": [format!("10.{}.{}.{}", at >> 16, at >> 8 & 255, at & 255)], "nodeName": text, "zone": text,
                "hostname": text, "targetRef": {"name": text}, "hints": {"forZones": vec![json!({"name": text}); 10]}})
        };
        slice["endpoints"] = (0..endpoints).map(endpoint).collect();
        slice["ports"] = (1..=ports).map(|number| json!({"name": format!("p{number}"), "port": number, "protocol": "TCP"})).collect();
        slice
    }

    /// Zones and nodes may have any length in the API.
    #[test]
    fn texts_longer_than_valid_ones_are_unknown() {
        let topology = |length| {
            let endpoints = read(wide(0, 1, 1, length)).expect("a slice").endpoints;
            let EndpointTopology { zone, node, hints } = &*endpoints[0].topology;
            (zone.is_some(), node.is_some(), hints.len())
        };
        assert_eq!([63, 64, 253, 254].map(topology), [(true, true, 8), (false, true, 0), (false, true, 0), (false, false, 0)]);
    }

    #[test]
    fn endpoints_are_stored_once_for_all_ports_and_published_for_wanted_ones() {
        let mut slices = slices(&["shop"], &["p1", "p2"]);
        let wide = wide(0, 1_000, 1_000, 60);
        let stored = allocation_counter::measure(|| assert!(slices.put("shop", "wide", read(wide.clone())))).bytes_current;
        assert!(stored < 1_300_000, "{stored} bytes");
        let found = slices.endpoints();
        assert_eq!(found.values().map(Vec::len).collect::<Vec<_>>(), [1_000, 1_000]);
        assert!(found.values().flatten().all(|endpoint| Arc::strong_count(&endpoint.topology) >= 3), "one topology for all ports");
        assert!(!slices.is_cut("shop"));
    }

    #[test]
    fn missing_endpoints_are_reported_until_a_list_has_room_for_all() {
        let all: Vec<_> = (0..30).map(|number| (format!("wide-{number:02}"), read(wide(number, 1, 1_000, 200)))).collect();
        let list = |slices: &mut Slices, count: usize| {
            slices.begin("shop");
            for (name, slice) in &all[..count] {
                slices.put("shop", name, slice.clone());
            }
            slices.complete("shop");
        };
        let count = |slices: &Slices| slices.endpoints().values().map(Vec::len).sum::<usize>();
        let mut slices = slices(&["other", "shop"], &["p1", "http"]);
        list(&mut slices, 30);
        let first = count(&slices);
        assert!(first < 30_000 && slices.is_cut("shop"), "{first}");
        slices.put("other", "web-1", read(slice(&[("10.9.0.1", true)])));
        assert!(slices.endpoints().keys().any(|port| port.namespace == "other"));
        for (name, _) in &all[..25] {
            slices.put("shop", name, None);
        }
        assert!(slices.is_cut("shop"), "slices that had no room are unknown");
        list(&mut slices, 30);
        assert!(slices.is_cut("shop"));
        list(&mut slices, 10);
        assert_eq!((count(&slices), slices.is_cut("shop")), (10_001, false));
    }

    /// Namespaces that come first use up the shared room.
    #[test]
    fn every_namespace_has_reserved_room() {
        let names: Vec<_> = (0..20).map(|number| format!("n{number:02}")).collect();
        let mut slices = slices(&names.iter().map(String::as_str).collect::<Vec<_>>(), &["p1", "http"]);
        let all: Vec<_> = (0..25).map(|number| read(wide(number, 1, 1_000, 200))).collect();
        for name in &names[..10] {
            for (number, slice) in all.iter().enumerate() {
                slices.put(name, &format!("wide-{number}"), slice.clone());
            }
        }
        assert!(slices.is_cut("n09"));
        for name in &names[10..] {
            slices.put(name, "web-1", read(slice(&[("10.0.0.1", true)])));
        }
        let found: BTreeSet<_> = slices.endpoints().into_keys().map(|port| port.namespace).collect();
        assert!(names[10..].iter().all(|name| found.contains(name)), "{found:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

        /// Whatever tenants write: stored and published, with a transient copy while it is sorted.
        #[test]
        fn slices_of_tenants_take_bounded_bytes(
            namespaces in 1_usize..9,
            rows in prop::collection::vec((0_usize..9, 1_usize..1_500, 1_usize..1_200, 0_usize..300, 1_usize..60), 1..6),
            named in 1_usize..1_000,
        ) {
            let names: Vec<_> = (0..namespaces).map(|number| format!("n{number}")).collect();
            let ports: Vec<_> = (1..=named).map(|number| format!("p{number}")).collect();
            let wanted = wanted(&names.iter().map(String::as_str).collect::<Vec<_>>(), &ports.iter().map(String::as_str).collect::<Vec<_>>());
            let mut slices = Slices::default();
            slices.want(wanted);
            let mut published = BTreeMap::new();
            let rows: Vec<_> = rows.iter().map(|(at, ports, endpoints, text, copies)| (at, read(wide(*at, *ports, *endpoints, *text)), copies)).collect();
            let size = allocation_counter::measure(|| {
                for (at, slice, copies) in &rows {
                    for copy in 0..**copies {
                        let copied = slice.clone().map(|slice| ServiceSlice { endpoints: unshared(&slice), ..slice });
                        slices.put(&names[**at % namespaces], &format!("{at}-{copy}"), copied);
                    }
                }
                published = slices.endpoints();
            });
            let most = i64::try_from(SHARED_BYTES + RESERVED_BYTES * namespaces).expect("a small number");
            prop_assert!(size.bytes_current < most, "{} of {most}", size.bytes_current);
            for slices in slices.by_namespace.values() {
                prop_assert!(slices.bytes <= NAMESPACE_BYTES);
                prop_assert_eq!(slices.bytes, slices.slices.iter().map(|(name, slice)| slice.bytes(name)).sum::<usize>());
            }
        }
    }

    /// Endpoints with topologies of their own, as of other slices.
    fn unshared(slice: &ServiceSlice) -> Vec<Endpoint> {
        let own = |endpoint: &Endpoint| Endpoint { topology: Arc::new(endpoint.topology.as_ref().clone()), ..*endpoint };
        slice.endpoints.iter().map(own).collect()
    }
}
