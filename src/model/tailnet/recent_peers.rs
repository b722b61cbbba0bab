//! Recent peers of a replica: the next Pod warms up paths to them before it gets traffic.
//!
//! A recent client of a replica may send its reply to the successor's first handshake to the old endpoint, and `WireGuard` retries only
//! after 5 s. Targets of services are known from the config ([`crate::model::tailnet::peer_warmup`]). Clients are known to the predecessor
//! only, so it records them in the state Secret ([`crate::api::state::RECENT_PEERS`]).

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::api::localapi::{DaemonStatus, PeerStatus};

/// Maximum stored peers, the most recent ones. They are probed concurrently, so this limits a burst.
pub const MAX_PEERS: usize = 64;
/// Maximum age of the last handshake. `WireGuard` renews it after 2 min while there is traffic.
const LATE: SignedDuration = SignedDuration::from_mins(5);

/// The first address of each peer with a recent handshake.
pub fn of_late(status: &DaemonStatus, now: Timestamp) -> BTreeSet<IpAddr> {
    let late = |peer: &PeerStatus| {
        let at = peer.last_handshake.parse::<Timestamp>().ok()?;
        let ip = peer.tailscale_ips.first()?.parse::<IpAddr>().ok()?;
        (now.duration_since(at) <= LATE).then_some((at, ip))
    };
    let mut recent: Vec<_> = status.peer.values().filter_map(late).collect();
    recent.sort_unstable_by(|one, other| other.cmp(one));
    recent.truncate(MAX_PEERS);
    recent.into_iter().map(|(_, ip)| ip).collect()
}

/// Encodes the record.
pub fn write(recent: &BTreeSet<IpAddr>) -> Vec<u8> {
    serde_json::to_vec(recent).unwrap_or_default()
}

/// Decodes the record: at most [`MAX_PEERS`] addresses; empty if unreadable.
pub fn read(text: &[u8]) -> BTreeSet<IpAddr> {
    serde_json::from_slice::<BTreeSet<IpAddr>>(text).unwrap_or_default().into_iter().take(MAX_PEERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(peers: &[(&str, &str)]) -> DaemonStatus {
        let peer = |(at, (ip, handshake)): (usize, &(&str, &str))| {
            format!(r#""key:{at}":{{"TailscaleIPs":["{ip}","fd7a:115c:a1e0::{at}"],"LastHandshake":"{handshake}"}}"#)
        };
        let peers = peers.iter().enumerate().map(peer).collect::<Vec<_>>().join(",");
        serde_json::from_str(&format!(r#"{{"Peer":{{{peers}}}}}"#)).expect("a status")
    }

    fn now() -> Timestamp {
        "2026-05-01T12:10:00Z".parse().expect("a time")
    }

    #[test]
    fn peers_with_a_recent_handshake_are_recorded() {
        let status = status(&[
            ("100.64.0.1", "2026-05-01T12:09:00.123456789Z"),
            ("100.64.0.2", "2026-05-01T14:06:00+02:00"),
            ("100.64.0.3", "2026-05-01T12:04:00Z"),
            ("100.64.0.4", "0001-01-01T00:00:00Z"),
            ("100.64.0.5", ""),
            ("nowhere", "2026-05-01T12:09:00Z"),
        ]);
        let expected: BTreeSet<IpAddr> = [[100, 64, 0, 1].into(), [100, 64, 0, 2].into()].into();
        assert_eq!(of_late(&status, now()), expected);
        assert_eq!(read(&write(&expected)), expected);
        assert_eq!(String::from_utf8_lossy(&write(&expected)), r#"["100.64.0.1","100.64.0.2"]"#);
    }

    #[test]
    fn only_the_newest_peers_are_recorded() {
        let peers: Vec<_> = (0..100).map(|i| (format!("100.64.1.{i}"), format!("2026-05-01T12:08:{:02}.{i:02}Z", i / 2))).collect();
        let peers: Vec<_> = peers.iter().map(|(ip, at)| (ip.as_str(), at.as_str())).collect();
        let newest = of_late(&status(&peers), now());
        assert_eq!(newest.len(), MAX_PEERS);
        assert_eq!(newest.first(), Some(&[100, 64, 1, 36].into()));
    }

    #[test]
    fn malformed_peer_list_is_empty() {
        for text in ["", "{}", r#"["x"]"#, "[1]"] {
            assert_eq!(read(text.as_bytes()), BTreeSet::new(), "{text}");
        }
    }
}
