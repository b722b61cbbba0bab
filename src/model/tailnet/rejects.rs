//! Rejected flows: parsed from tailscaled's records, and counted for the replica's status without addresses.
//!
//! tailscaled records connections that the tailnet's policy or a peer rejects, of TCP alone, and those of peers only over IPv4. Whatever it
//! answers, a summary has at most [`MAX_SHOWN`] rows.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize as _;

use crate::api::localapi::{DebugRejects, RejectEvent};
use crate::api::replica::{FlowDirection, RejectCount, RejectKind, RejectReason, Rejects};

/// Age of the last rejection up to which a flow is recent.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);
/// Maximum number of records of a direction that are parsed: tailscaled has at most 256.
const MAX_EVENTS: usize = 512;
/// Maximum number of rows of a summary.
pub const MAX_SHOWN: usize = 8;

/// Recent rejections of one peer and kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedFlow {
    pub last: Timestamp,
    pub count: u32,
    pub kind: RejectKind,
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// Recent flows, the newest first; `None` if none are recorded. Records that cannot be parsed are skipped. `now` is since the Unix epoch.
pub fn recent(rejects: &DebugRejects, now: Duration) -> Option<Vec<RejectedFlow>> {
    let now = i64::try_from(now.as_secs()).ok().and_then(|now| Timestamp::from_second(now).ok()).unwrap_or_default();
    let flows = [(FlowDirection::Outgoing, &rejects.outgoing), (FlowDirection::Incoming, &rejects.incoming)];
    // tailscaled lists the newest last.
    let flows = flows.into_iter().flat_map(|(direction, events)| events.iter().rev().take(MAX_EVENTS).map(move |event| (direction, event)));
    let mut flows: Vec<_> = flows.filter_map(|(direction, event)| flow(direction, &RejectEvent::deserialize(event).ok()?)).collect();
    flows.retain(|flow| now.duration_since(flow.last) <= MAX_AGE);
    flows.sort_by_key(|flow| Reverse(flow.last));
    rejects.enabled.then_some(flows)
}

fn flow(direction: FlowDirection, event: &RejectEvent) -> Option<RejectedFlow> {
    let kind = RejectKind { direction, reason: event.reason, protocol: event.proto, port: event.dst.port() };
    Some(RejectedFlow { last: event.last.parse().ok()?, count: event.count, kind, source: event.src, destination: event.dst })
}

/// Rejections by kind, the most frequent first.
pub fn summary(flows: Option<&[RejectedFlow]>) -> Rejects {
    let mut counts = BTreeMap::<RejectKind, u64>::new();
    for flow in flows.unwrap_or_default() {
        *counts.entry(flow.kind).or_default() += u64::from(flow.count);
    }
    let mut counts: Vec<_> = counts.into_iter().map(|(kind, count)| RejectCount { count, kind }).collect();
    counts.sort_by_key(|row| Reverse(row.count));
    let others = counts.iter().skip(MAX_SHOWN).map(|row| row.count).sum();
    counts.truncate(MAX_SHOWN);
    Rejects { recorded: flows.is_some(), flows: counts, others }
}

/// Whether a rejection is normal: a replica that starts or drains rejects connections of peers.
pub fn is_expected(kind: &RejectKind) -> bool {
    (kind.direction, kind.reason) == (FlowDirection::Incoming, RejectReason::Shields)
}

/// What to do about these rejections.
pub fn remedies(kinds: &[RejectKind]) -> Vec<String> {
    let mut ports = BTreeMap::<_, Vec<String>>::new();
    for kind in kinds {
        ports.entry((kind.direction, kind.reason)).or_default().push(kind.port_spec());
    }
    ports.into_iter().map(|((direction, reason), ports)| remedy(direction, reason, &ports)).collect()
}

fn remedy(direction: FlowDirection, reason: RejectReason, ports: &[String]) -> String {
    let grant = |src: &str, dst: &str| {
        format!("the tailnet policy rejects them: add a grant with src {src}, dst {dst} and ip {}", ports.join(", "))
    };
    let text = match (direction, reason) {
        (FlowDirection::Outgoing, RejectReason::Acl) => grant("the tags of the proxy", "the target"),
        (FlowDirection::Incoming, RejectReason::Acl) => grant("the clients", "the tags or the Tailscale Service of the proxy"),
        (_, RejectReason::Shields) => "the target accepts no connections: tailscale set --shields-up=false there".to_owned(),
        (_, RejectReason::HostIpForwarding) => "the target does not forward: enable IP forwarding there".to_owned(),
        (_, RejectReason::HostFirewall) => "the target's firewall rejects them: change its rules".to_owned(),
        (_, RejectReason::NoPeer) => {
            "no device that the proxy may see has the address: check the target's annotation, and the policy's grants for it".to_owned()
        }
        (_, RejectReason::PeerUnreachable) => "there is no path to the target: check that it is online".to_owned(),
        (_, RejectReason::Timeout) => "the target does not answer: check its server and its firewall".to_owned(),
        (_, RejectReason::Unknown) => "look at tailscaled's log in the proxy, and in the target".to_owned(),
    };
    format!("{direction} {reason}: {text}")
}

impl fmt::Display for RejectedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RejectKind { direction, reason, .. } = self.kind;
        write!(f, "{direction} {reason} {} to {} ({}), {} times", self.source, self.destination, self.kind.port_spec(), self.count)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// 2026-11-29T12:00:00Z.
    fn now() -> Duration {
        Duration::from_hours(498_876)
    }

    fn event(peer: &str, port: u16, reason: &str, last: &str, count: u32) -> Value {
        json!({"First": "2026-11-29T01:00:00Z", "Last": last, "Count": count, "Direction": "outgoing", "Proto": 6,
            "Src": "100.64.0.1:40000", "Dst": format!("{peer}:{port}"), "Reason": reason, "Source": "tsmp_recv", "MaybeBroken": false})
    }

    fn recorded(outgoing: &[Value], incoming: &[Value]) -> Option<Vec<RejectedFlow>> {
        let text = json!({"Enabled": true, "Outgoing": outgoing, "Incoming": incoming}).to_string();
        recent(&serde_json::from_str(&text).expect("rejects"), now())
    }

    #[test]
    fn rejects_of_the_last_hour_are_counted_by_kind_without_addresses() {
        let outgoing = [
            event("100.64.0.2", 5432, "acl", "2026-11-29T11:59:00.123456789Z", 3),
            event("100.64.0.3", 5432, "acl", "2026-11-29T12:30:00+01:00", 4),
            event("[fd7a:115c:a1e0::4]", 80, "a-later-reason", "2026-11-29T11:01:00Z", 1),
            event("100.64.0.5", 80, "timeout", "2026-11-29T10:59:00Z", 9),
        ];
        let incoming = [event("100.64.0.1", 22, "acl", "2026-11-29T11:59:30Z", 2)];
        let flows = recorded(&outgoing, &incoming).expect("recorded");
        assert_eq!(flows[0].to_string(), "incoming acl 100.64.0.1:40000 to 100.64.0.1:22 (tcp:22), 2 times");
        let summary = summary(Some(&flows));
        let rows: Vec<_> = summary.flows.iter().map(|row| format!("{} {}", row.count, row.kind)).collect();
        assert_eq!(rows, ["7 outgoing acl tcp:5432", "2 incoming acl tcp:22", "1 outgoing unknown tcp:80"]);
        let text = serde_json::to_string(&summary).expect("JSON");
        assert!(!text.contains("100.64") && !text.contains("fd7a"), "{text}");
        assert_eq!(serde_json::from_str::<Rejects>(&text).expect("read"), summary);
    }

    #[test]
    fn invalid_records_are_skipped_and_the_number_of_rows_is_limited() {
        let mut wrong = event("100.64.0.2", 1, "acl", "2026-11-29T11:59:00Z", 1);
        wrong["Dst"] = json!("");
        let late = event("100.64.0.2", 1, "acl", "yesterday", 1);
        let many = (1..=5000).map(|port| event("100.64.0.2", port, "acl", "2026-11-29T11:59:00Z", u32::MAX));
        let outgoing: Vec<_> = [wrong.clone(), late, json!(7)].into_iter().chain(many).collect();
        let flows = recorded(&outgoing, &[wrong]).expect("recorded");
        assert_eq!(flows.len(), MAX_EVENTS);
        let summary = summary(Some(&flows));
        assert_eq!((summary.flows.len(), summary.others), (MAX_SHOWN, u64::from(u32::MAX) * (MAX_EVENTS - MAX_SHOWN) as u64));
    }

    #[test]
    fn nothing_is_recorded_without_the_node_attribute() {
        let disabled: DebugRejects = serde_json::from_str(r#"{"Enabled":false,"Outgoing":[],"Incoming":null}"#).expect("rejects");
        assert_eq!(recent(&disabled, now()), None);
        assert_eq!(summary(None), Rejects::default());
    }

    #[test]
    fn remedy_names_the_missing_grant_with_its_ports() {
        let kind = |direction, reason, port| RejectKind { direction, reason, protocol: 6, port };
        let kinds = [(FlowDirection::Outgoing, 443), (FlowDirection::Outgoing, 5432)].map(|(way, port)| kind(way, RejectReason::Acl, port));
        assert_eq!(
            remedies(&kinds),
            [
                "outgoing acl: the tailnet policy rejects them: add a grant with src the tags of the proxy, dst the target and ip tcp:443, tcp:5432"
            ]
        );
        assert!(is_expected(&kind(FlowDirection::Incoming, RejectReason::Shields, 80)));
        assert!(!is_expected(&kind(FlowDirection::Outgoing, RejectReason::Shields, 80)));
    }
}
