//! LocalAPI of tailscaled, the parts that the data plane uses: JSON over HTTP on a unix socket.
//!
//! Source of the format: `ipn.Notify`, `ipnstate.Status`, `tailcfg.Node`, `ipn.Prefs` and `ipn.Options` of tailscaled 1.96 to 1.104.
//! Unknown fields are ignored, absent and `null` mean the same: newer daemons add fields, older ones leave some out.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use super::replica::RejectReason;

pub type NodeId = i64;

/// Reads `null` as the default, as Go writes empty lists and maps.
pub(super) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// Whether a field is present, whatever its value.
fn named<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(from).map(|_| true)
}

/// Distinguishes `null`, an empty list, from an absent field.
fn present_or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    nullable(from).map(Some)
}

/// One message of the IPN bus. Absent fields are unchanged.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Notify {
    /// Message for the user; among others that this reader was too slow and the stream ends.
    pub err_message: Option<String>,
    /// `ipn.State` as a number.
    pub state: Option<i64>,
    pub prefs: Option<Prefs>,
    /// Complete state at subscription time, by daemons of 1.100 and later.
    pub initial_status: Option<Box<DaemonStatus>>,
    pub self_change: Option<Box<PeerNode>>,
    /// Complete netmap, by daemons before 1.100.
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
    /// Fully qualified name with the final dot; empty for some shared nodes.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Addresses, as single-address prefixes.
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    /// Prefixes routed to it; absent means its addresses.
    #[serde(rename = "AllowedIPs")]
    pub allowed_ips: Option<Vec<String>>,
    /// Its node key has expired: it is unreachable.
    pub expired: bool,
    #[serde(deserialize_with = "nullable")]
    pub cap_map: CapMap,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CapMap {
    /// Tailscale Services that the node is approved to serve: objects of addresses by name. For a duplicate name the last object applies.
    /// Parsed by the consumers: an unknown grant does not invalidate a message.
    #[serde(rename = "service-host", deserialize_with = "nullable")]
    pub service_host: Vec<serde_json::Value>,
    /// The node may use Funnel; the capability has no value.
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
    /// Names for which certificates are available.
    #[serde(deserialize_with = "nullable")]
    pub cert_domains: Vec<String>,
    /// DNS records besides those of the nodes; absent with daemons before 1.100.
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
    /// Prefixes routed to it; absent means its addresses.
    #[serde(rename = "AllowedIPs")]
    pub allowed_ips: Option<Vec<String>>,
    pub expired: bool,
    /// It had recent traffic.
    pub active: bool,
    /// Time of the last handshake; long ago if there was none.
    #[serde(deserialize_with = "nullable")]
    pub last_handshake: String,
    /// Endpoint of the direct path; empty if there is none.
    #[serde(deserialize_with = "nullable")]
    pub cur_addr: String,
    #[serde(deserialize_with = "nullable")]
    pub cap_map: CapMap,
}

/// Netmap of older daemons.
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
    /// DNS records besides those of the nodes.
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
    /// Warnings by code; an absent one is resolved.
    #[serde(deserialize_with = "nullable")]
    pub warnings: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Prefs {
    /// Accept subnet routes of peers.
    pub route_all: bool,
    #[serde(deserialize_with = "nullable")]
    pub advertise_services: Vec<String>,
    /// Drop new connections from peers.
    pub shields_up: bool,
}

/// Change of preferences: each value is sent with its `…Set`; `None` leaves a value unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskedPrefs {
    pub control_url: Option<String>,
    /// Use the tailnet's DNS.
    pub corp_dns: Option<bool>,
    pub route_all: Option<bool>,
    pub want_running: Option<bool>,
    /// Requested host name; empty for the machine's own.
    pub hostname: Option<String>,
    pub advertise_routes: Option<Vec<String>>,
    pub advertise_tags: Option<Vec<String>>,
    pub advertise_services: Option<Vec<String>>,
    /// Netfilter mode: 0 off, 1 chains without jumps to them, 2 on.
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
    /// Auth key; empty for none.
    pub auth_key: String,
}

/// Response of `reload-config`; without a body if it fails.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Reloaded {
    /// False if the daemon was started without a config file.
    pub reloaded: bool,
    pub err: String,
}

/// Response of `check-udp-gro-forwarding`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Warned {
    /// The warning; absent or empty if there is none.
    pub warning: Option<String>,
}

/// Response of `ping`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Pong {
    /// Error; empty if a node answered.
    pub err: String,
    #[serde(rename = "IsLocalIP")]
    pub is_local_ip: bool,
}

/// Response of `debug-rejects`, by daemons of 1.104 and later.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DebugRejects {
    /// Whether the node has the attribute `debug-conn-reject`; without it nothing is recorded.
    pub enabled: bool,
    /// Rejected flows ([`RejectEvent`]) of this node and of its peers, parsed one by one.
    #[serde(deserialize_with = "nullable")]
    pub outgoing: Vec<serde_json::Value>,
    #[serde(deserialize_with = "nullable")]
    pub incoming: Vec<serde_json::Value>,
}

/// A rule of `debug-packet-filter-rules`, with the capabilities that it grants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct FilterRule {
    #[serde(deserialize_with = "nullable")]
    pub cap_grant: Vec<CapGrant>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CapGrant {
    /// Values by capability.
    #[serde(deserialize_with = "nullable")]
    pub cap_map: BTreeMap<String, serde_json::Value>,
}

/// Rejected flows of one direction, peer, protocol and reason. The endpoints are those of the last one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct RejectEvent {
    /// RFC 3339.
    pub last: String,
    pub count: u32,
    /// IP protocol number.
    pub proto: u8,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub reason: RejectReason,
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
