//! Peer warmup: selects the peers that are pinged before a replica gets traffic.
//!
//! A tailscaled that has just started has no tunnels. A peer that exchanged packets with the previous tailscaled keeps sending to its
//! address for up to 6.5 s after the last answer ([`TRUST`]). If that address is another Pod's, the peer's half of the first handshake is
//! lost and `WireGuard` retries only after 5 s: until then every connection hangs. So targets and recent peers
//! ([`crate::model::tailnet::recent_peers`]) are pinged before readiness: with disco first, which a peer answers once it knows of the
//! new node, then through the tunnel. A silent target delays readiness by [`MAX_READINESS_DELAY`] at most: it may be down itself.
//!
//! If the previous tailscaled ran in the same Pod, the tunnel is pinged first: its address is the same, so the handshake arrives. A peer
//! that learns of the restart from the control server drops its tunnel, and this node would notice only after 15 s; tailscaled announces
//! the restart with the ping.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::model::plan::Planned;

/// Maximum targets to probe, besides recent peers. They are probed concurrently, so this limits a burst.
pub const MAX_TARGETS: usize = 16;
/// Maximum delay of readiness. Covers one lost handshake: `WireGuard` repeats it after 5.3 s, and the probe starts it within a second.
pub const MAX_READINESS_DELAY: Duration = Duration::from_secs(7);

/// Time for which a peer's tailscaled uses an endpoint exclusively after its last disco packet (`trustUDPAddrDuration` of
/// `wgengine/magicsock`), with a margin for packets in flight.
const TRUST: SignedDuration = SignedDuration::from_millis(6_700);
/// Delay after a peer's disco response where the start of the mute is unknown.
const SETTLE_DELAY: Duration = Duration::from_secs(1);
/// Minimum of this delay: a peer resets its tunnel shortly after it has learned of the new node, and drops a handshake before that.
const MIN_SETTLE: Duration = Duration::from_millis(200);
/// Maximum age of a recorded mute start: an older one is not of the previous Pod.
const OLD: SignedDuration = SignedDuration::from_mins(1);

/// Delay between a peer's disco response and the handshake request: until the peer no longer trusts the predecessor's endpoint, which has
/// been silent since `silent_since`. Never longer than [`TRUST`], whatever the clocks say.
pub fn settle(silent_since: Option<Timestamp>, now: Timestamp) -> Duration {
    let Some(age) = silent_since.map(|since| now.duration_since(since)).filter(|age| *age <= OLD) else { return SETTLE_DELAY };
    Duration::try_from((TRUST - age).min(TRUST)).unwrap_or_default().max(MIN_SETTLE)
}

/// Addresses to probe: one for each distinct target, at most [`MAX_TARGETS`]; only those routed to a peer.
pub fn targets(planned: &Planned) -> BTreeSet<IpAddr> {
    let Some(netmap) = &planned.world.netmap else { return BTreeSet::new() };
    let targets = planned.plan.egress.values().map(|egress| &egress.targets).chain(planned.plan.pod.values());
    let mut unique = BTreeSet::new();
    let mut chosen = BTreeSet::new();
    for addresses in targets {
        if chosen.len() == MAX_TARGETS {
            break;
        }
        // All addresses of a name belong to one node: the first suffices.
        if unique.insert(addresses) {
            chosen.extend(addresses.iter().find(|ip| netmap.routes_to(**ip)));
        }
    }
    chosen
}

/// Recent peers of a predecessor that are still routed to a peer.
pub fn recent_targets(planned: &Planned, recent: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    let Some(netmap) = &planned.world.netmap else { return BTreeSet::new() };
    recent.iter().copied().filter(|ip| netmap.routes_to(*ip)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::base::net::InterfaceName;
    use crate::model::base::netmap::NetMap;
    use crate::model::config::EgressConfig;
    use crate::model::plan::world::{Single, World};

    fn world(services: &[(String, String)], peers: u8) -> World {
        let entry = |(i, (name, target)): (usize, &(String, String))| {
            format!(r#""{name}":{{"tailnetTarget":{target},"ports":[{{"protocol":"TCP","matchPort":{},"targetPort":80}}]}}"#, 10_000 + i)
        };
        let config = format!("{{{}}}", services.iter().enumerate().map(entry).collect::<Vec<_>>().join(","));
        let peer = |i| format!(r#"{{"name":"n{i}.lab","addresses":["100.64.1.{i}","fd7a:115c:a1e0::{i}"]}}"#);
        let netmap = format!(r#"{{"peers":[{}]}}"#, (0..peers).map(peer).collect::<Vec<_>>().join(","));
        let mut world = World::empty(InterfaceName::tailscale0(), [].into());
        world.egress = Arc::new(EgressConfig::parse(config.as_bytes()).expect("a config"));
        world.netmap = Some(Arc::new(NetMap::from_file(&serde_json::from_str(&netmap).expect("a file")).0));
        world
    }

    fn service(name: &str, target: &str) -> (String, String) {
        (name.to_owned(), target.to_owned())
    }

    fn ips(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn each_peer_is_a_target_once_and_unrouted_addresses_never() {
        let services = [
            service("a", r#"{"fqdn":"n1.lab"}"#),
            service("again", r#"{"fqdn":"N1.lab."}"#),
            service("by-ip", r#"{"ip":"100.64.1.2"}"#),
            service("nobody", r#"{"ip":"100.99.9.9"}"#),
            service("unresolved", r#"{"fqdn":"gone.lab"}"#),
        ];
        assert_eq!(targets(&Planned::new(&world(&services, 3))), ips(&["100.64.1.1", "100.64.1.2"]));
    }

    #[test]
    fn recent_peers_missing_from_the_netmap_are_skipped() {
        let planned = Planned::new(&world(&[], 3));
        assert_eq!(recent_targets(&planned, &ips(&["100.64.1.1", "100.64.1.9"])), ips(&["100.64.1.1"]));
    }

    #[test]
    fn tunnel_probe_waits_until_the_old_endpoint_expires() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
        let settle = |seconds: i64| settle(Some(now - SignedDuration::from_secs(seconds)), now);
        let trust = Duration::try_from(TRUST).expect("positive");
        assert_eq!(settle(4) + Duration::from_secs(4), trust);
        assert_eq!(settle(7), MIN_SETTLE);
        assert_eq!(settle(-30), trust, "another node's clock may be ahead");
        assert_eq!([settle(61), super::settle(None, now)], [SETTLE_DELAY; 2], "nothing is known of who left just now");
    }

    #[test]
    fn target_of_a_single_proxy_is_probed() {
        let mut world = world(&[], 3);
        world.pod_ips = ips(&["10.0.0.1"]);
        world.single = Single::TailnetIp("100.64.1.2".parse().expect("an address"));
        assert_eq!(targets(&Planned::new(&world)), ips(&["100.64.1.2"]));
    }

    #[test]
    fn number_of_targets_is_bounded() {
        let services: Vec<_> = (0..40).map(|i| service(&format!("s{i}"), &format!(r#"{{"fqdn":"n{i}.lab"}}"#))).collect();
        assert_eq!(targets(&Planned::new(&world(&services, 40))).len(), MAX_TARGETS);
    }

    #[test]
    fn no_netmap_means_no_targets() {
        let world = World { netmap: None, ..world(&[service("a", r#"{"fqdn":"n1.lab"}"#)], 3) };
        assert_eq!(targets(&Planned::new(&world)), BTreeSet::new());
    }
}
