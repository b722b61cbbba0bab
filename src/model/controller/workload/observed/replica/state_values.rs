//! Values of a state Secret, within one budget: a Pod writes them, and the reconciler stores what it reads.
//!
//! An element of three bytes of JSON can take a hundred in memory, so the size of the text is no bound. A value beyond the budget counts as
//! absent. What no pass reads is not stored.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::api::{egress, ingress, state};
use crate::model::base::bounded::{clean, is_clean};
use crate::model::base::gzip;
use crate::model::controller::workload::identity::DeviceAddresses;

/// Maximum uncompressed size of an egress status in bytes: 10,000 services take about 3 MB.
const MAX_STATUS_SIZE: u64 = 5 << 20;
/// Maximum JSON elements of all values of a state: 10,000 services take about 120,000, and 140,000 with a rejected port each.
const MAX_ELEMENTS: usize = 200_000;
/// Maximum JSON elements of an ingress status: 5,000 Services, more than a config has room for, take about 40,000.
const MAX_INGRESS_ELEMENTS: usize = 50_000;
/// Maximum JSON elements of a list of names, and of tailscaled's profile.
const MAX_NAMES: usize = 20_000;
/// Maximum JSON elements of the device's addresses.
const MAX_ADDRESSES: usize = 64;

/// A value whose texts a Pod writes. They are bounded where it is parsed; names that nothing can have are removed.
pub(super) trait PodTexts {
    fn bound(&mut self);
}

impl PodTexts for String {
    fn bound(&mut self) {
        if !is_clean(self) {
            *self = clean(std::mem::take(self));
        }
    }
}

impl<T: PodTexts> PodTexts for Option<T> {
    fn bound(&mut self) {
        self.iter_mut().for_each(T::bound);
    }
}

impl<T: PodTexts> PodTexts for Vec<T> {
    fn bound(&mut self) {
        self.iter_mut().for_each(T::bound);
    }
}

impl PodTexts for BTreeSet<String> {
    fn bound(&mut self) {
        self.retain(|name| is_clean(name));
    }
}

impl<T: PodTexts> PodTexts for BTreeMap<String, T> {
    fn bound(&mut self) {
        self.retain(|name, value| {
            value.bound();
            is_clean(name)
        });
    }
}

/// Implements [`PodTexts`] for a type with texts in these fields and with others.
macro_rules! bounded_fields {
    ($($type:ty { $($text:ident),* $(; $($other:ident),*)? })*) => {$(
        impl PodTexts for $type {
            fn bound(&mut self) {
                let Self { $($text,)* $($($other: _,)*)? } = self;
                $($text.bound();)*
            }
        }
    )*};
}

bounded_fields! {
    egress::EgressStatus { pod_ipv4, pod_ipv6, services, fingerprint, rejected }
    ReportedEgress { pod_ipv4, pod_ipv6, services, fingerprint, rejected }
    egress::ServiceStatus { ports, tailnet_target_ips, tailnet_target }
    egress::EgressTarget { ip, fqdn }
    egress::PortMap { protocol; match_port, target_port }
    ingress::IngressStatus { configs, pod_ipv4, pod_ipv6, fingerprint, rejected }
    ingress::IngressService { ipv4, ipv6, external_name; proxy_protocol }
    ingress::Mapping { tailscale_service_ip, cluster_ip }
    Profile { advertise_services, advertise_routes }
}

/// Without texts.
impl PodTexts for IgnoredAny {
    fn bound(&mut self) {}
}

/// Without texts.
impl PodTexts for BTreeMap<IpNet, IpAddr> {
    fn bound(&mut self) {}
}

/// Values of a state Secret, and how many elements are left for those that are not parsed yet.
pub(super) struct StateValues<'a> {
    secret: &'a Secret,
    /// Whether the reasons of rejected egress services are read.
    reasons: bool,
    budget: usize,
}

/// An egress status without the reasons of rejections.
#[derive(Deserialize)]
#[allow(clippy::zero_sized_map_values, reason = "a JSON object, of which only the names are stored")]
struct ReportedEgress {
    #[serde(rename = "podIPv4", default)]
    pod_ipv4: String,
    #[serde(rename = "podIPv6", default)]
    pod_ipv6: String,
    #[serde(default)]
    services: Option<BTreeMap<String, egress::ServiceStatus>>,
    #[serde(default)]
    fingerprint: Option<String>,
    #[serde(default)]
    rejected: BTreeMap<String, IgnoredAny>,
}

/// Part of tailscaled's current profile: advertised services and routes.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Profile {
    advertise_services: Option<BTreeSet<String>>,
    advertise_routes: Option<BTreeSet<String>>,
}

impl<'a> StateValues<'a> {
    pub(super) fn new(secret: &'a Secret, reasons: bool) -> Self {
        Self { secret, reasons, budget: MAX_ELEMENTS }
    }

    fn bytes(&self, key: &str) -> Option<&'a [u8]> {
        self.secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice())
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.bytes(key).map(|value| clean(String::from_utf8_lossy(value).trim()))
    }

    /// A text that is not empty.
    pub(super) fn filled(&self, key: &str) -> Option<String> {
        self.text(key).filter(|text| !text.is_empty())
    }

    pub(super) fn egress(&mut self) -> Option<egress::EgressStatus> {
        if self.reasons { self.egress_status() } else { self.egress_status().map(ReportedEgress::stored) }
    }

    /// The complete egress status, else the shorter one.
    fn egress_status<T: DeserializeOwned + PodTexts>(&mut self) -> Option<T> {
        let unpacked = self.bytes(egress::KEY_COMPRESSED).and_then(|packed| gzip::unpack(packed, MAX_STATUS_SIZE).ok());
        let whole = unpacked.and_then(|text| self.parse(&text, MAX_ELEMENTS));
        whole.or_else(|| self.value(egress::KEY, MAX_ELEMENTS))
    }

    pub(super) fn ingress(&mut self) -> Option<ingress::IngressStatus> {
        let status: ingress::IngressStatus = self.value(ingress::KEY, MAX_INGRESS_ELEMENTS)?;
        Some(ingress::IngressStatus { configs: packed(status.configs), rejected: packed(status.rejected), ..status })
    }

    /// Services and routes that tailscaled's current profile advertises.
    pub(super) fn profile(&mut self) -> (BTreeSet<String>, BTreeSet<String>) {
        let current = self.text(state::CURRENT_PROFILE);
        let profile: Profile = current.and_then(|name| self.value(&name, MAX_NAMES)).unwrap_or_default();
        (profile.advertise_services.unwrap_or_default(), profile.advertise_routes.unwrap_or_default())
    }

    pub(super) fn addresses(&mut self, key: &str) -> DeviceAddresses {
        self.value::<Vec<String>>(key, MAX_ADDRESSES).map(DeviceAddresses::from).unwrap_or_default()
    }

    /// Accepted routes that cover addresses of the cluster.
    pub(super) fn overlaps(&mut self) -> BTreeMap<IpNet, IpAddr> {
        self.value(state::ROUTE_OVERLAPS, state::MAX_ROUTE_OVERLAPS).unwrap_or_default()
    }

    /// A list or map of names.
    pub(super) fn names<T: DeserializeOwned + Default + PodTexts>(&mut self, key: &str) -> T {
        self.value(key, MAX_NAMES).unwrap_or_default()
    }

    fn value<T: DeserializeOwned + PodTexts>(&mut self, key: &str, max: usize) -> Option<T> {
        self.bytes(key).and_then(|text| self.parse(text, max))
    }

    /// Parses JSON; `None` if malformed, or with more elements than `max` or are left.
    fn parse<T: DeserializeOwned + PodTexts>(&mut self, text: &[u8], max: usize) -> Option<T> {
        let elements = text.iter().filter(|byte| matches!(byte, b'{' | b'[' | b',')).count();
        if elements > max.min(self.budget) {
            return None;
        }
        let mut parsed: T = serde_json::from_slice(text).ok()?;
        parsed.bound();
        self.budget -= elements;
        Some(parsed)
    }
}

impl ReportedEgress {
    fn stored(self) -> egress::EgressStatus {
        let Self { pod_ipv4, pod_ipv6, services, fingerprint, rejected } = self;
        let fitted = |(name, mut service): (String, egress::ServiceStatus)| {
            service.ports.shrink_to_fit();
            service.tailnet_target_ips.iter_mut().for_each(Vec::shrink_to_fit);
            (name, service)
        };
        egress::EgressStatus {
            pod_ipv4,
            pod_ipv6,
            services: services.map(|services| services.into_iter().map(fitted).collect()),
            fingerprint,
            rejected: rejected.into_keys().map(|name| (name, Vec::new())).collect(),
        }
    }
}

/// The same map in full nodes: one that grew in order is half empty.
fn packed<V>(map: BTreeMap<String, V>) -> BTreeMap<String, V> {
    map.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;
    use crate::model::controller::workload::observed::replica::ReplicaState;

    #[test]
    fn compressed_full_status_is_preferred_to_the_short_one() {
        let short = br#"{"podIPv4":"10.0.0.1","services":null}"#;
        let whole = br#"{"podIPv4":"10.0.0.1","services":{"default-db":{"ports":[],"tailnetTargetIPs":null,"tailnetTarget":{}}}}"#;
        let served = |packed: Vec<u8>| {
            let data = [(egress::KEY.to_owned(), ByteString(short.to_vec())), (egress::KEY_COMPRESSED.to_owned(), ByteString(packed))];
            let state = ReplicaState::read(&Secret { data: Some(data.into()), ..Secret::default() });
            state.egress.expect("a status").services.is_some()
        };
        assert!(served(gzip::pack(whole).expect("packed")));
        assert!(!served(b"broken".to_vec()), "the shorter one is better than none");
        let padded = |size: usize| [vec![b' '; size - whole.len()], whole.to_vec()].concat();
        assert!(served(gzip::pack(&padded(5 << 20)).expect("packed")), "as large as may be");
        assert!(!served(gzip::pack(&padded((5 << 20) + 1)).expect("packed")), "a byte more");
        let ports = |count: usize| {
            let text = format!(
                r#"{{"services":{{"a":{{"ports":[{}],"tailnetTargetIPs":null,"tailnetTarget":{{}}}}}}}}"#,
                vec!["{}"; count].join(",")
            );
            gzip::pack(text.as_bytes()).expect("packed")
        };
        assert!(served(ports(99_000)));
        assert!(!served(ports(100_000)), "300 kB of text, 4 MB in memory");
    }

    fn read(data: &[(&str, Vec<u8>)]) -> ReplicaState {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.clone())));
        ReplicaState::read(&Secret { data: Some(data.collect()), ..Secret::default() })
    }

    /// Object or list of as many of these entries as may be.
    fn most(entry: impl Fn(usize) -> String, elements: usize, [begin, end]: [&str; 2]) -> Vec<u8> {
        let each = entry(0).bytes().filter(|byte| matches!(byte, b'{' | b'[' | b',')).count() + 1;
        let entries: Vec<_> = (0..(elements - 8) / each).map(entry).collect();
        [begin, &entries.join(","), end].concat().into_bytes()
    }

    /// Bytes of a text with those of the allocator.
    fn of_text(text: &str) -> usize {
        if text.is_empty() { 0 } else { ((text.len() + 23) & !15).max(32) }
    }

    fn of_list<T>(list: &[T], capacity: usize, of: impl Fn(&T) -> usize) -> usize {
        capacity * size_of::<T>() + 16 * usize::from(capacity > 0) + list.iter().map(of).sum::<usize>()
    }

    /// Bytes of a map, of which only `half` are used in each node.
    fn of_map<'a, V: 'a>(map: impl IntoIterator<Item = (&'a String, V)>, size: usize, half: usize, of: impl Fn(V) -> usize) -> usize {
        map.into_iter().map(|(name, value)| (size_of::<String>() + size) * half + 8 + of_text(name) + of(value)).sum()
    }

    /// Estimated bytes of a state in memory.
    fn memory(state: &ReplicaState) -> usize {
        let texts = |list: &Vec<String>| of_list(list, list.capacity(), |text| of_text(text));
        let service = |service: &egress::ServiceStatus| {
            let target = of_text(&service.tailnet_target.ip) + of_text(&service.tailnet_target.fqdn);
            let ports = of_list(&service.ports, service.ports.capacity(), |port| of_text(&port.protocol));
            ports + target + service.tailnet_target_ips.as_ref().map_or(0, texts)
        };
        let egress = state.egress.as_ref().map_or(0, |status| {
            let own = of_text(&status.pod_ipv4) + of_text(&status.pod_ipv6) + of_text(status.fingerprint.as_deref().unwrap_or_default());
            let rejected = of_map(&status.rejected, size_of::<Vec<String>>(), 1, texts);
            own + rejected + of_map(status.services.iter().flatten(), size_of::<egress::ServiceStatus>(), 1, service)
        });
        let ingress = state.ingress.as_ref().map_or(0, |status| {
            let mapping = |mapping: &ingress::Mapping| of_text(&mapping.tailscale_service_ip) + of_text(&mapping.cluster_ip);
            let config = |config: &ingress::IngressService| {
                let mappings = config.ipv4.iter().chain(&config.ipv6).map(mapping).sum::<usize>();
                mappings + of_text(&config.external_name) + config.proxy_protocol.len() * 32
            };
            let configs = of_map(&status.configs, size_of::<ingress::IngressService>(), 1, config);
            configs + of_map(&status.rejected, size_of::<Vec<String>>(), 1, texts) + of_text(&status.pod_ipv4)
        });
        let sets = [&state.unapproved, &state.advertises, &state.routes];
        let sets: usize = sets.into_iter().map(|set| of_map(set.iter().map(|name| (name, ())), 0, 2, |()| 0)).sum();
        let short = [&state.pod_uid, &state.reissue, &state.rejected_target].into_iter().flatten().map(|text| of_text(text)).sum::<usize>();
        egress + ingress + sets + short + of_map(&state.funnel_errors, size_of::<String>(), 2, |text| of_text(text))
    }

    #[test]
    fn no_state_takes_more_than_25_megabytes() {
        const SECRET: usize = 1 << 20;
        let services = [r#"{"services":{"#, "}}"];
        let rejected = [r#"{"rejected":{"#, "}}"];
        let service = |parts: &str| {
            let parts = parts.to_owned();
            move |number: usize| format!(r#""{number:05}":{{"ports":[],"tailnetTarget":{{}}{parts}}}"#)
        };
        let full = |number| {
            format!(r#""{number:05}":{{"ports":[{{"protocol":"x"}}],"tailnetTargetIPs":["x"],"tailnetTarget":{{"ip":"x","fqdn":"y"}}}}"#)
        };
        let egress = |budget: usize| {
            [
                most(service(""), budget, services),
                most(service(r#","tailnetTargetIPs":["x"]"#), budget, services),
                most(full, budget, services),
                most(|number| format!(r#""{number:032}":["x"]"#), budget, rejected),
                most(|number| format!(r#""{number:05}":0"#), budget, rejected),
                most(|_| r#""x""#.to_owned(), budget, [r#"{"services":{"a":{"ports":[],"tailnetTarget":{},"tailnetTargetIPs":["#, "]}}}"]),
                most(|_| "{}".to_owned(), budget, [r#"{"services":{"a":{"tailnetTarget":{},"ports":["#, "]}}}"]),
            ]
        };
        let ingress = [
            most(|number| format!(r#""{number:05x}":{{}}"#), MAX_INGRESS_ELEMENTS, [r#"{"configs":{"#, "}}"]),
            most(|number| format!(r#""{number:05x}":["x"]"#), MAX_INGRESS_ELEMENTS, rejected),
            most(|number| format!(r#""{number:05x}":{{"proxyProtocol":[1]}}"#), MAX_INGRESS_ELEMENTS, [r#"{"configs":{"#, "}}"]),
        ];
        let names = || most(|number| format!(r#""{number:05}""#), MAX_NAMES, ["[", "]"]);
        let errors = || most(|number| format!(r#""{number:05}":"x""#), MAX_NAMES, ["{", "}"]);
        let routes = || most(|number| format!(r#""{number:05}""#), MAX_NAMES, [r#"{"AdvertiseRoutes":["#, "]}"]);
        for budget in [MAX_ELEMENTS, MAX_ELEMENTS - MAX_INGRESS_ELEMENTS, MAX_ELEMENTS - MAX_INGRESS_ELEMENTS - 3 * MAX_NAMES] {
            for (number, text) in egress(budget).into_iter().enumerate() {
                // The rest of the text is one long name.
                let long = "x".repeat(usize::try_from(MAX_STATUS_SIZE).expect("small").saturating_sub(text.len() + 20));
                let text = [br#"{"fingerprint":""#.to_vec(), long.into_bytes(), br#"","#.to_vec(), text[1..].to_vec()].concat();
                for (beside, status) in ingress.iter().enumerate() {
                    let state = read(&[
                        (egress::KEY_COMPRESSED, gzip::pack(&text).expect("packed")),
                        (ingress::KEY, status.clone()),
                        (state::CURRENT_PROFILE, b"p".to_vec()),
                        ("p", routes()),
                        (state::UNAPPROVED, names()),
                        (state::FUNNEL_ERRORS, errors()),
                        (state::REISSUE_AUTHKEY, vec![b'x'; SECRET / 4]),
                    ]);
                    let size = memory(&state);
                    assert!(state.egress.is_some(), "{budget} {number}: it is read");
                    assert!(size <= 25_000_000, "{budget} {number} {beside}: {size} bytes");
                    assert!(size >= 4_000_000, "{budget} {number} {beside}: {size} bytes are not the worst");
                }
            }
        }
    }

    /// All texts of a value, with the names of its maps.
    fn texts(value: &serde_json::Value) -> Vec<String> {
        match value {
            serde_json::Value::String(text) => vec![text.clone()],
            serde_json::Value::Array(list) => list.iter().flat_map(texts).collect(),
            serde_json::Value::Object(fields) => {
                fields.iter().flat_map(|(name, field)| [vec![name.clone()], texts(field)].concat()).collect()
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn every_text_of_a_state_is_bounded_and_has_no_control_characters() {
        let long = format!("\u{1b}[2J{}", "x".repeat(2_000));
        let [name, list] = [serde_json::json!({"svc:a": long, &long: "b"}), serde_json::json!(["svc:a", long])];
        let reasons = serde_json::json!({"a": [long], &long: ["b"]});
        let target = serde_json::json!({"ip": long, "fqdn": long});
        let service = serde_json::json!({"ports": [{"protocol": long}], "tailnetTargetIPs": [long], "tailnetTarget": target});
        let served = serde_json::json!({"podIPv4": long, "podIPv6": long, "services": {"a": service, &long: service}, "fingerprint": long,
            "rejected": reasons});
        let mapping = serde_json::json!({"TailscaleServiceIP": long, "ClusterIP": long});
        let config = serde_json::json!({"IPv4Mapping": mapping, "IPv6Mapping": mapping, "externalName": long});
        let published = serde_json::json!({"configs": {"svc:a": config, &long: config}, "podIPv4": long, "podIPv6": long,
            "fingerprint": long, "rejected": reasons});
        let json = |value: &serde_json::Value| value.to_string().into_bytes();
        let data = [
            (state::DEVICE_ID, long.clone().into_bytes()),
            (state::DEVICE_FQDN, long.clone().into_bytes()),
            (state::DEVICE_IPS, json(&list)),
            (state::POD_UID, long.clone().into_bytes()),
            (state::REISSUE_AUTHKEY, long.clone().into_bytes()),
            (state::REJECTED_TARGET, long.clone().into_bytes()),
            (egress::KEY, json(&served)),
            (ingress::KEY, json(&published)),
            (state::FUNNEL_ERRORS, json(&name)),
            (state::UNAPPROVED, json(&list)),
            (state::CURRENT_PROFILE, b"p".to_vec()),
            ("p", json(&serde_json::json!({"AdvertiseServices": list, "AdvertiseRoutes": list}))),
        ];
        let data: BTreeMap<_, _> = data.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value))).collect();
        let secret = Secret { data: Some(data), ..Secret::default() };
        for (state, expected) in [(ReplicaState::read(&secret), 53), (ReplicaState::read_with_reasons(&secret), 54)] {
            let ReplicaState { device_id, device_name, device_ips, pod_uid, reissue, rejected_target, egress, ingress, .. } = &state;
            let ReplicaState { overlaps, funnel_errors, unapproved, no_https, advertises, routes, .. } = &state;
            assert!(device_id.is_none() && device_name.is_none() && device_ips.is_empty() && overlaps.is_empty() && !no_https);
            let values =
                serde_json::json!([pod_uid, reissue, rejected_target, egress, ingress, funnel_errors, unapproved, advertises, routes]);
            let found = texts(&values);
            assert!(found.iter().all(|text| is_clean(text)), "{found:#?}");
            assert_eq!(found.len(), expected, "{found:#?}");
        }
    }

    #[test]
    fn values_of_a_state_have_one_budget() {
        let egress = |budget| most(|number| format!(r#""{number:05}":0"#), budget, [r#"{"rejected":{"#, "}}"]);
        let status = most(|number| format!(r#""{number:05x}":{{}}"#), MAX_INGRESS_ELEMENTS, [r#"{"configs":{"#, "}}"]);
        let both = |budget| {
            let state = read(&[(egress::KEY_COMPRESSED, gzip::pack(&egress(budget)).expect("packed")), (ingress::KEY, status.clone())]);
            (state.egress.is_some(), state.ingress.is_some())
        };
        assert_eq!((both(MAX_ELEMENTS - MAX_INGRESS_ELEMENTS), both(MAX_ELEMENTS)), ((true, true), (true, false)));
        let more = most(|number| format!(r#""{number:05x}":{{}}"#), MAX_INGRESS_ELEMENTS + 20, [r#"{"configs":{"#, "}}"]);
        assert!(read(&[(ingress::KEY, more)]).ingress.is_none());
        let listed =
            |elements| read(&[(state::UNAPPROVED, most(|number| format!(r#""{number}""#), elements, ["[", "]"]))]).unapproved.len();
        assert_eq!((listed(MAX_NAMES), listed(MAX_NAMES + 20)), (MAX_NAMES - 8, 0));
    }

    #[test]
    fn largest_states_of_a_group_are_read() {
        let service = |number: usize| {
            let port = egress::PortMap { protocol: "TCP".into(), match_port: 10_000, target_port: 443 };
            let target = egress::EgressTarget { ip: String::new(), fqdn: format!("{number:063}.tail1234.ts.net") };
            let ips = vec!["100.100.100.100".to_owned(), "fd7a:115c:a1e0:ffff:ffff:ffff:ffff:ffff".to_owned()];
            (
                format!("namespace-{number:052}"),
                egress::ServiceStatus { ports: vec![port], tailnet_target_ips: Some(ips), tailnet_target: target },
            )
        };
        let services: BTreeMap<_, _> = (0..10_000).map(service).collect();
        let why = "port 443/TCP is refused, as another port of this service has the same match port".to_owned();
        let rejected: BTreeMap<_, _> = services.keys().map(|name| (name.clone(), vec![why.clone()])).collect();
        let whole = egress::EgressStatus { services: Some(services.clone()), rejected, ..egress::EgressStatus::default() };
        let text = serde_json::to_vec(&whole).expect("JSON");
        let state = read(&[(egress::KEY_COMPRESSED, gzip::pack(&text).expect("packed"))]);
        let read_egress = state.egress.expect("an egress status");
        assert_eq!((read_egress.services, read_egress.rejected.len()), (Some(services), 10_000));
        assert!(read_egress.rejected.values().all(Vec::is_empty), "passes read only the names");

        let mapping = || Some(ingress::Mapping { tailscale_service_ip: "100.100.100.100".into(), cluster_ip: "10.100.100.100".into() });
        let config = || ingress::IngressService { ipv4: mapping(), ipv6: mapping(), ..ingress::IngressService::default() };
        let names: BTreeSet<_> = (0..4_000).map(|number| format!("svc:namespace-{number:040}")).collect();
        let configs = names.iter().map(|name| (name.clone(), config())).collect();
        let status = ingress::IngressStatus { configs, ..ingress::IngressStatus::default() };
        let errors: BTreeMap<_, _> = names.iter().map(|name| (name, &why)).collect();
        let profile = serde_json::json!({"AdvertiseServices": &names, "AdvertiseRoutes": &names, "Config": {"UserProfile": {}}});
        let json = |value: serde_json::Value| value.to_string().into_bytes();
        let state = read(&[
            (ingress::KEY, serde_json::to_vec(&status).expect("JSON")),
            (state::CURRENT_PROFILE, b"p".to_vec()),
            ("p", json(profile)),
            (state::UNAPPROVED, json(serde_json::json!(names))),
            (state::FUNNEL_ERRORS, json(serde_json::json!(errors))),
        ]);
        assert_eq!(state.ingress, Some(status));
        assert_eq!([state.advertises.len(), state.routes.len(), state.unapproved.len(), state.funnel_errors.len()], [4_000; 4]);
    }
}
