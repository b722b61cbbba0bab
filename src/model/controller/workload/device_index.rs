//! Devices and joining host names of all replicas, by their config Secrets: the facts that a check of one replica's device needs of the
//! others.
//!
//! Persistent maps with logarithmic lookups: a pass gets a copy that shares everything. Entries are grouped by login server, as two
//! headscale servers give out the same IDs. IDs of a server are unique; host names are so in a tailnet only.

use std::collections::BTreeSet;

use imbl::{OrdMap, OrdSet};
use k8s_openapi::jiff::Timestamp;

use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::identity::{DeviceId, DeviceRecord, KeyMint};

/// Facts of one config Secret.
#[derive(Debug, Clone, Copy)]
pub struct DeviceEntry<'a> {
    /// Login server.
    pub server: &'a str,
    pub hostname: &'a str,
    pub record: Option<&'a DeviceRecord>,
    pub mint: Option<&'a KeyMint>,
    /// The workload of the config Secret.
    pub workload: Option<&'a WorkloadKey>,
}

/// Workloads in other tailnets than one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherTailnets {
    /// Groups and Connectors.
    pub workloads: BTreeSet<WorkloadKey>,
    /// Whether standalone proxies are in another one.
    pub standalone: bool,
}

impl OtherTailnets {
    fn has(&self, workload: &WorkloadKey) -> bool {
        if workload.is_standalone() { self.standalone } else { self.workloads.contains(workload) }
    }
}

/// A config Secret whose key may be in use.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JoiningReplica {
    /// In seconds.
    until: i64,
    workload: Option<WorkloadKey>,
}

#[derive(Debug, Clone, Default)]
pub struct DeviceIndex {
    /// Config Secrets that record a device.
    recorded: OrdMap<(String, DeviceId), OrdSet<String>>,
    /// Config Secrets whose key may be in use under a host name.
    joining: OrdMap<(String, String), OrdMap<String, JoiningReplica>>,
    /// Number of records with a domain.
    domains: OrdMap<(String, String), usize>,
}

/// URL of Tailscale's login server.
pub const TAILSCALE: &str = "https://controlplane.tailscale.com";
/// Another URL of it.
const TAILSCALE_LOGIN: &str = "https://login.tailscale.com";

/// One text for all URLs of a login server: in lower case, without user, default port, and dots and slashes at the end.
pub fn login_server(url: &str) -> String {
    let url = url.trim().to_ascii_lowercase();
    let at = url.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = url.split_at(at);
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let (host, port) = authority.rsplit_once(':').filter(|(_, port)| is_port(port)).unwrap_or((authority, ""));
    let (host, port, path) = (host.trim_end_matches('.'), port.trim_start_matches('0'), path.trim_end_matches('/'));
    let is_default = port.is_empty() || port == if scheme == "https://" { "443" } else { "80" };
    let url = if is_default { format!("{scheme}{host}{path}") } else { format!("{scheme}{host}:{port}{path}") };
    if url == TAILSCALE_LOGIN { TAILSCALE.to_owned() } else { url }
}

impl DeviceIndex {
    /// Adds or removes a config Secret.
    pub fn follow(&mut self, config: &str, entry: &DeviceEntry<'_>, came: bool) {
        let server = login_server(entry.server);
        let key = |text: &str| (server.clone(), text.to_owned());
        if let Some(record) = entry.record {
            let id = (server.clone(), record.id.clone());
            let mut configs = self.recorded.remove(&id).unwrap_or_default();
            if came {
                configs.insert(config.to_owned());
            } else {
                configs.remove(config);
            }
            if !configs.is_empty() {
                self.recorded.insert(id, configs);
            }
            if let Some(domain) = &record.domain {
                let count = self.domains.remove(&key(domain)).unwrap_or_default();
                let count = if came { count + 1 } else { count.saturating_sub(1) };
                if count > 0 {
                    self.domains.insert(key(domain), count);
                }
            }
        }
        if let Some(mint) = entry.mint.filter(|_| entry.record.is_none()) {
            for hostname in [&*mint.hostname, entry.hostname] {
                let hostname = key(&hostname.to_ascii_lowercase());
                let mut configs = self.joining.remove(&hostname).unwrap_or_default();
                if came {
                    configs.insert(config.to_owned(), JoiningReplica { until: mint.end(), workload: entry.workload.cloned() });
                } else {
                    configs.remove(config);
                }
                if !configs.is_empty() {
                    self.joining.insert(hostname, configs);
                }
            }
        }
    }

    /// Number of recorded devices.
    pub fn count(&self) -> usize {
        self.recorded.len()
    }

    /// Another config Secret that records a device.
    pub fn recorded_elsewhere(&self, server: &str, id: &DeviceId, config: &str) -> Option<&str> {
        let configs = self.recorded.get(&(login_server(server), id.clone()))?;
        configs.iter().map(String::as_str).find(|other| *other != config)
    }

    /// Another config Secret of the tailnet with an auth key under a host name that is valid and has no recorded device yet.
    pub fn joining_elsewhere(
        &self,
        (server, others): (&str, &OtherTailnets),
        hostname: &str,
        config: &str,
        now: Timestamp,
    ) -> Option<&str> {
        let configs = self.joining.get(&(login_server(server), hostname.to_ascii_lowercase()))?;
        let is_in_tailnet = |replica: &JoiningReplica| !replica.workload.as_ref().is_some_and(|workload| others.has(workload));
        let mut joining = configs.iter().filter(|(_, replica)| replica.until >= now.as_second() && is_in_tailnet(replica));
        joining.find(|(other, _)| *other != config).map(|(other, _)| other.as_str())
    }

    /// Domain of the tailnet, for a control plane that reports none: a recorded one, preferably the claimed one, else the most frequent. Only
    /// the first replica of a control plane sets it.
    pub fn domain(&self, server: &str, claimed: Option<&str>) -> Option<String> {
        let server = login_server(server);
        let recorded = self.domains.range((server.clone(), String::new())..).take_while(|((of, _), _)| *of == server);
        let recorded: Vec<_> = recorded.map(|((_, domain), count)| (domain, *count)).collect();
        if recorded.is_empty() || recorded.iter().any(|(domain, _)| Some(domain.as_str()) == claimed) {
            return claimed.map(str::to_owned);
        }
        recorded.into_iter().rev().max_by_key(|(_, count)| *count).map(|(domain, _)| domain.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::controller::workload::identity::KeyId;

    const SERVER: &str = "https://hs.lab";

    fn id(text: &str) -> DeviceId {
        DeviceId::parse(text).expect("an ID")
    }

    fn record(device: &str, domain: &str) -> DeviceRecord {
        serde_json::from_value(serde_json::json!({"id": device, "domain": domain})).expect("a record")
    }

    fn mint(hostname: &str) -> KeyMint {
        KeyMint {
            id: KeyId::parse("k1").expect("an ID"),
            created: 0,
            tags: Vec::new(),
            hostname: hostname.into(),
            previous: None,
            previous_created: None,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn device_is_recorded_elsewhere_until_the_other_record_goes() {
        let (record, mut index) = (record("1", "hs.lab"), DeviceIndex::default());
        let entry = DeviceEntry { server: SERVER, hostname: "a", record: Some(&record), mint: None, workload: None };
        index.follow("a-config", &entry, true);
        assert_eq!(index.recorded_elsewhere(SERVER, &id("1"), "b-config"), Some("a-config"));
        assert_eq!(index.recorded_elsewhere(SERVER, &id("1"), "a-config"), None, "its own record");
        assert_eq!(index.recorded_elsewhere("https://other.lab", &id("1"), "b-config"), None, "another server's ID");
        index.follow("a-config", &entry, false);
        assert_eq!(index.recorded_elsewhere(SERVER, &id("1"), "b-config"), None);
        assert!(index.recorded.is_empty() && index.domains.is_empty(), "nothing is left of it");
    }

    #[test]
    fn host_name_joins_until_the_device_is_recorded_or_the_key_ends() {
        let (record, mint, mut index) = (record("1", "hs.lab"), mint("Shop"), DeviceIndex::default());
        let key = WorkloadKey::of_group("a");
        let joining = DeviceEntry { server: SERVER, hostname: "renamed", record: None, mint: Some(&mint), workload: Some(&key) };
        index.follow("a-config", &joining, true);
        let (none, others) = (OtherTailnets::default(), OtherTailnets { workloads: [key.clone()].into(), standalone: false });
        assert_eq!(index.joining_elsewhere((SERVER, &others), "shop", "b-config", at(0)), None, "in another tailnet");
        for hostname in ["shop", "SHOP", "renamed"] {
            assert_eq!(index.joining_elsewhere((SERVER, &none), hostname, "b-config", at(mint.end())), Some("a-config"), "{hostname}");
            assert_eq!(index.joining_elsewhere((SERVER, &none), hostname, "a-config", at(0)), None);
            assert_eq!(index.joining_elsewhere((SERVER, &none), hostname, "b-config", at(mint.end() + 1)), None, "the key has ended");
        }
        index.follow("a-config", &joining, false);
        index.follow("a-config", &DeviceEntry { record: Some(&record), ..joining }, true);
        assert_eq!(index.joining_elsewhere((SERVER, &none), "shop", "b-config", at(0)), None, "it has joined");
        assert!(index.joining.is_empty());
    }

    #[test]
    fn domain_of_a_server_is_that_of_its_records() {
        let mut index = DeviceIndex::default();
        assert_eq!(index.domain(SERVER, Some("first.lab")).as_deref(), Some("first.lab"), "the first replica sets it");
        for (config, domain) in [("a", "hs.lab"), ("b", "hs.lab"), ("c", "bank.example")] {
            let record = record(config, domain);
            index.follow(
                config,
                &DeviceEntry { server: SERVER, hostname: config, record: Some(&record), mint: None, workload: None },
                true,
            );
        }
        assert_eq!(
            index.domain(SERVER, Some("mail.example")).as_deref(),
            Some("hs.lab"),
            "an invented one is replaced by the most frequent"
        );
        assert_eq!(index.domain(SERVER, None).as_deref(), Some("hs.lab"));
        assert_eq!(index.domain(SERVER, Some("bank.example")).as_deref(), Some("bank.example"));
        assert_eq!(index.domain("https://other.lab", None), None);
    }

    #[test]
    fn device_is_recorded_elsewhere_whatever_the_url_of_its_login_server() {
        for (one, other) in [
            ("https://hs.lab", "https://hs.lab/"),
            ("https://hs.lab", "https://HS.lab:443"),
            ("http://hs.lab:80/", "http://hs.lab"),
            ("https://hs.lab", "https://hs.lab./"),
            ("https://hs.lab", "https://user:password@hs.lab:0443/"),
            ("https://hs.lab:8443/headscale", "https://user@hs.lab.:08443/headscale//"),
            ("https://[fd00::1]", "https://[FD00::1]:443"),
            ("hs.lab", "HS.lab:"),
            ("https://controlplane.tailscale.com", "https://login.tailscale.com/"),
            ("https://controlplane.tailscale.com", "https://login.tailscale.com.:443"),
        ] {
            let (record, mint, mut index) = (record("1", "hs.lab"), mint("shop"), DeviceIndex::default());
            let entry = DeviceEntry { server: one, hostname: "a", record: Some(&record), mint: None, workload: None };
            index.follow("a-config", &entry, true);
            assert_eq!(index.recorded_elsewhere(other, &id("1"), "b-config"), Some("a-config"), "{one} {other}");
            assert_eq!(index.domain(other, None).as_deref(), Some("hs.lab"), "{one} {other}");
            index.follow("a-config", &entry, false);
            index.follow("a-config", &DeviceEntry { record: None, mint: Some(&mint), ..entry }, true);
            let none = OtherTailnets::default();
            assert_eq!(index.joining_elsewhere((other, &none), "shop", "b-config", at(0)), Some("a-config"), "{one} {other}");
        }
        let others =
            ["https://hs.lab", "https://hs.lab:444", "https://hs.lab:80", "http://hs.lab", "https://hs.lab/a", "https://hs.lab.a", ""];
        let distinct: BTreeSet<_> = others.iter().map(|url| login_server(url)).collect();
        assert_eq!(distinct.len(), others.len(), "{distinct:?}");
    }
}
