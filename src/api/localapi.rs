//! The LocalAPI of tailscaled, as far as the data plane reads and writes it: JSON over HTTP on a unix socket.
//!
//! Source of the format: `ipn.Notify`, `ipnstate.Status`, `tailcfg.Node`, `ipn.Prefs` and `ipn.Options` of tailscaled 1.96 to 1.102.
//! Unknown fields are ignored, absent and `null` mean the same: newer daemons add fields, older ones leave some out.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

pub type NodeId = i64;

/// Reads `null` as the default, as Go writes empty lists and maps.
pub(super) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// Whether a field is there, whatever is in it.
fn named<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(from).map(|_| true)
}

/// Tells `null`, which is an empty list, from a field that is not there.
fn present_or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    nullable(from).map(Some)
}

/// One message of the bus. What is absent has not changed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Notify {
    /// Something the user should know; among it that this reader was too slow and the stream ends.
    pub err_message: Option<String>,
    /// `ipn.State` as a number.
    pub state: Option<i64>,
    pub prefs: Option<Prefs>,
    /// The whole state at subscription time, by daemons of 1.100 and later.
    pub initial_status: Option<Box<DaemonStatus>>,
    pub self_change: Option<Box<PeerNode>>,
    /// The whole tailnet, by daemons before 1.100.
    pub net_map: Option<Box<NetworkMap>>,
    #[serde(deserialize_with = "nullable")]
    pub peers_changed: Vec<PeerNode>,
    #[serde(deserialize_with = "nullable")]
    pub peers_removed: Vec<NodeId>,
    pub health: Option<Health>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PeerNode {
    #[serde(rename = "ID")]
    pub id: NodeId,
    #[serde(rename = "StableID")]
    pub stable_id: String,
    /// Its fully qualified name with the final dot; empty for some nodes shared in.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Its addresses, as prefixes of one address each.
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    /// What it answers for; absent means its addresses.
    #[serde(rename = "AllowedIPs")]
    pub allowed_ips: Option<Vec<String>>,
    /// Its key has expired: nothing reaches it.
    pub expired: bool,
    #[serde(deserialize_with = "nullable")]
    pub cap_map: CapMap,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CapMap {
    /// The Tailscale Services that the node is approved to serve: objects of their addresses by their names. Of a service that is
    /// named in several of them the last counts. Read by whoever wants it: a grant that is not understood spoils no message.
    #[serde(rename = "service-host", deserialize_with = "nullable")]
    pub service_host: Vec<serde_json::Value>,
    /// The node may be reached from the internet (Funnel); that it is named is all there is to it.
    #[serde(deserialize_with = "named")]
    pub funnel: bool,
}

/// The state of the daemon (`ipnstate.Status`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DaemonStatus {
    /// `ipn.State` in words.
    pub backend_state: String,
    pub have_node_key: bool,
    #[serde(rename = "Self")]
    pub node: Option<PeerStatus>,
    /// The names for which certificates may be had.
    #[serde(deserialize_with = "nullable")]
    pub cert_domains: Vec<String>,
    /// Names besides those of the nodes; daemons before 1.100 do not tell them here.
    #[serde(deserialize_with = "present_or_null")]
    pub extra_records: Option<Vec<DnsRecord>>,
    /// The other nodes, by public key.
    #[serde(deserialize_with = "nullable")]
    pub peer: BTreeMap<String, PeerStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PeerStatus {
    #[serde(rename = "ID")]
    pub stable_id: String,
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// Its fully qualified name with the final dot.
    #[serde(rename = "DNSName", deserialize_with = "nullable")]
    pub dns_name: String,
    /// Its addresses, without prefix length.
    #[serde(rename = "TailscaleIPs", deserialize_with = "nullable")]
    pub tailscale_ips: Vec<String>,
    /// What it answers for; absent means its addresses.
    #[serde(rename = "AllowedIPs")]
    pub allowed_ips: Option<Vec<String>>,
    pub expired: bool,
    /// Traffic was exchanged with it of late.
    pub active: bool,
    /// When a tunnel to it was last agreed on; long ago if never.
    #[serde(deserialize_with = "nullable")]
    pub last_handshake: String,
    /// The address and port at which it is reached directly; empty if it is not.
    #[serde(deserialize_with = "nullable")]
    pub cur_addr: String,
    #[serde(deserialize_with = "nullable")]
    pub cap_map: CapMap,
}

/// The tailnet as older daemons send it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NetworkMap {
    pub self_node: Option<PeerNode>,
    #[serde(deserialize_with = "nullable")]
    pub peers: Vec<PeerNode>,
    #[serde(rename = "DNS")]
    pub dns: DnsConfig,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DnsConfig {
    #[serde(deserialize_with = "nullable")]
    pub cert_domains: Vec<String>,
    /// Names besides those of the nodes.
    #[serde(deserialize_with = "nullable")]
    pub extra_records: Vec<DnsRecord>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DnsRecord {
    /// The name, with or without the final dot.
    pub name: String,
    pub value: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Health {
    /// The warnings by code, whatever they say; one that is absent has healed.
    #[serde(deserialize_with = "nullable")]
    pub warnings: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Prefs {
    /// Whether routes of peers are used besides their own addresses.
    pub route_all: bool,
    #[serde(deserialize_with = "nullable")]
    pub advertise_services: Vec<String>,
    /// New connections from peers are dropped.
    pub shields_up: bool,
}

/// A change of preferences: each value with its `…Set`, and what is `None` is left as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskedPrefs {
    pub control_url: Option<String>,
    /// Whether to use the tailnet's DNS.
    pub corp_dns: Option<bool>,
    pub route_all: Option<bool>,
    pub want_running: Option<bool>,
    /// The name to ask for; empty for the machine's own.
    pub hostname: Option<String>,
    pub advertise_routes: Option<Vec<String>>,
    pub advertise_tags: Option<Vec<String>>,
    pub advertise_services: Option<Vec<String>>,
    /// What the daemon may do to the machine's filters: 0 nothing, 1 chains without jumps to them, 2 all.
    pub netfilter_mode: Option<i64>,
}

impl Serialize for MaskedPrefs {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        macro_rules! masked {
            ($($field:ident $name:literal $set:literal),+ $(,)?) => {$(
                if let Some(value) = &self.$field {
                    map.serialize_entry($name, value)?;
                    map.serialize_entry($set, &true)?;
                }
            )+};
        }
        masked!(
            control_url "ControlURL" "ControlURLSet",
            corp_dns "CorpDNS" "CorpDNSSet",
            route_all "RouteAll" "RouteAllSet",
            want_running "WantRunning" "WantRunningSet",
            hostname "Hostname" "HostnameSet",
            advertise_routes "AdvertiseRoutes" "AdvertiseRoutesSet",
            advertise_tags "AdvertiseTags" "AdvertiseTagsSet",
            advertise_services "AdvertiseServices" "AdvertiseServicesSet",
            netfilter_mode "NetfilterMode" "NetfilterModeSet",
        );
        map.end()
    }
}

/// The body of `start`.
#[derive(Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct StartOptions {
    /// The key to log in with; empty for none.
    pub auth_key: String,
}

/// The answer of `reload-config`; the daemon sends no body at all where it fails.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Reloaded {
    /// False where the daemon was started without a config file.
    pub reloaded: bool,
    pub err: String,
}

/// The answer of `check-udp-gro-forwarding`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Warned {
    /// What is wrong; absent or empty if nothing is.
    pub warning: Option<String>,
}

/// The answer of `ping`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Pong {
    /// Why no node was pinged; empty where one answered.
    pub err: String,
    #[serde(rename = "IsLocalIP")]
    pub is_local_ip: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_absent_fields_are_equal() {
        let notify: Notify = serde_json::from_str(r#"{"PeersChanged":null,"State":null,"NetMap":null,"DriveShares":null}"#).expect("read");
        assert_eq!(notify, Notify::default());
        let status: DaemonStatus =
            serde_json::from_str(r#"{"Peer":null,"CertDomains":null,"Self":{"DNSName":"a.","TailscaleIPs":null}}"#).expect("read");
        assert_eq!(status.node.map(|node| node.dns_name), Some("a.".to_owned()));
    }

    #[test]
    fn masked_prefs_mark_only_set_fields() {
        let none = MaskedPrefs { advertise_services: Some(Vec::new()), netfilter_mode: Some(1), ..MaskedPrefs::default() };
        let text = serde_json::to_string(&none).expect("written");
        assert_eq!(text, r#"{"AdvertiseServices":[],"AdvertiseServicesSet":true,"NetfilterMode":1,"NetfilterModeSet":true}"#);
    }

    #[test]
    fn start_options_are_written_with_go_field_names() {
        assert_eq!(serde_json::to_string(&StartOptions { auth_key: "k".into() }).expect("written"), r#"{"AuthKey":"k"}"#);
    }
}
