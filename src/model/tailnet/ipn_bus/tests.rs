use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn notify(text: &str) -> Notify {
    serde_json::from_str(text).expect("a message")
}

fn fqdn(text: &str) -> Fqdn {
    Fqdn::new(text).expect("a name")
}

/// A fold with a complete state of one peer, `db`.
fn started() -> Fold {
    let mut fold = Fold::default();
    fold.fold(notify(
        r#"{"Version":"1.102","State":6,"Prefs":{"RouteAll":true},"InitialStatus":{"BackendState":"Running",
           "Self":{"ID":"nSelf","NodeID":1,"DNSName":"eg-0.tail.lab.","TailscaleIPs":["100.64.0.1","fd7a:115c:a1e0::1"]},
           "CertDomains":["eg-0.tail.lab"],"ExtraRecords":[{"Name":"Web.tail.lab.","Type":"","Value":"100.99.1.2"},{"Name":"txt","Type":"TXT","Value":"x"}],
           "Peer":{"nodekey:a":{"ID":"nDb","NodeID":2,"DNSName":"DB.tail.lab.","TailscaleIPs":["100.64.0.2"],"AllowedIPs":["100.64.0.2/32","100.99.1.2/32"]}}}}"#,
    ));
    fold
}

fn map(fold: &Fold) -> Arc<NetMap> {
    fold.snapshot().netmap.expect("a complete tailnet")
}

fn targets(fold: &Fold, name: &str) -> Vec<String> {
    map(fold).resolve(&fqdn(name)).iter().map(ToString::to_string).collect()
}

#[test]
fn initial_status_is_a_full_netmap() {
    let fold = started();
    let netmap = map(&fold);
    assert_eq!(fold.snapshot().state, BackendState::Running);
    assert_eq!(
        netmap.node.as_ref().map(|node| (node.stable_id.as_str(), node.name.as_str(), node.addresses.len())),
        Some(("nSelf", "eg-0.tail.lab.", 2))
    );
    assert_eq!(targets(&fold, "db.TAIL.lab"), ["100.64.0.2"]);
    assert_eq!(targets(&fold, "web.tail.lab."), ["100.99.1.2"]);
    assert_eq!(netmap.cert_domains, ["eg-0.tail.lab"]);
}

#[test]
fn repeated_status_is_no_change() {
    let mut fold = started();
    let before = fold.snapshot();
    let status = r#"{"BackendState":"Running","Self":{"ID":"nSelf","DNSName":"eg-0.tail.lab.","TailscaleIPs":["100.64.0.1","fd7a:115c:a1e0::1"]},
        "CertDomains":["eg-0.tail.lab"],"ExtraRecords":[{"Name":"web.tail.lab","Value":"100.99.1.2"}],
        "Peer":{"k":{"NodeID":2,"DNSName":"db.tail.lab","TailscaleIPs":["100.64.0.2"],"AllowedIPs":["100.64.0.2/32","100.99.1.2/32"]}}}"#;
    fold.status(&serde_json::from_str(status).expect("a status"));
    assert_eq!(fold.snapshot(), before);
    assert!(Arc::ptr_eq(&before.netmap.expect("a complete tailnet"), &map(&fold)));
}

#[test]
fn peer_changes_update_the_netmap() {
    let mut fold = started();
    fold.fold(notify(r#"{"PeersChanged":[{"ID":3,"Name":"app.tail.lab.","Addresses":["100.64.0.3/32","fd7a:115c:a1e0::3/128"]}]}"#));
    assert_eq!(targets(&fold, "app.tail.lab"), ["100.64.0.3", "fd7a:115c:a1e0::3"]);
    assert!(map(&fold).routes_to("100.64.0.3".parse().expect("ip")), "absent AllowedIPs are the addresses");
    fold.fold(notify(r#"{"PeersChanged":[{"ID":3,"Name":"app.tail.lab.","Addresses":["100.64.0.9/32"]}]}"#));
    assert_eq!(targets(&fold, "app.tail.lab"), ["100.64.0.9"]);
    assert!(!map(&fold).routes_to("100.64.0.3".parse().expect("ip")));
    fold.fold(notify(r#"{"PeersRemoved":[3]}"#));
    assert!(targets(&fold, "app.tail.lab").is_empty());
    assert_eq!(targets(&fold, "db.tail.lab"), ["100.64.0.2"]);
}

#[test]
fn renamed_peer_no_longer_has_its_old_name() {
    let mut fold = started();
    fold.fold(notify(r#"{"PeersChanged":[{"ID":2,"Name":"db-1.tail.lab.","Addresses":["100.64.0.2/32"]}]}"#));
    assert!(targets(&fold, "db.tail.lab").is_empty());
    assert_eq!(targets(&fold, "db-1.tail.lab"), ["100.64.0.2"]);
}

#[test]
fn peers_with_equal_names_are_both_targets() {
    let mut fold = started();
    fold.fold(notify(
        r#"{"PeersChanged":[{"ID":3,"Name":"db.tail.lab.","Addresses":["100.64.0.3/32"],"AllowedIPs":["100.64.0.3/32","100.99.1.2/32"]}]}"#,
    ));
    assert_eq!(targets(&fold, "db.tail.lab"), ["100.64.0.2", "100.64.0.3"]);
    fold.fold(notify(r#"{"PeersRemoved":[2,2,77]}"#));
    assert_eq!(targets(&fold, "db.tail.lab"), ["100.64.0.3"]);
    assert_eq!(targets(&fold, "web.tail.lab"), ["100.99.1.2"]);
}

#[test]
fn irrelevant_messages_do_not_change_the_netmap() {
    let mut fold = started();
    let before = map(&fold);
    let effect = fold.fold(notify(
        r#"{"PeerChangedPatch":[{"NodeID":2,"Online":false,"DERPRegion":1}],"UserProfiles":{"1":{"ID":1}},"PeerState":{"n":{}}}"#,
    ));
    assert_eq!(effect, Effect::default());
    assert!(Arc::ptr_eq(&before, &map(&fold)));
    fold.fold(notify(r#"{"PeersChanged":[{"ID":8,"Addresses":["100.64.0.8/32"]},{"ID":9,"Name":null,"Addresses":null}]}"#));
    assert_eq!(map(&fold).peers.len(), 1);
    assert!(map(&fold).routes_to("100.64.0.8".parse().expect("ip")));
}

#[test]
fn an_expired_peer_is_not_a_target() {
    let mut fold = started();
    fold.fold(notify(r#"{"PeersChanged":[{"ID":2,"Name":"db.tail.lab.","Addresses":["100.64.0.2/32"],"Expired":true}]}"#));
    assert!(targets(&fold, "db.tail.lab").is_empty());
    fold.fold(notify(r#"{"PeersChanged":[{"ID":2,"Name":"db.tail.lab.","Addresses":["100.64.0.2/32"]}]}"#));
    assert_eq!(targets(&fold, "db.tail.lab"), ["100.64.0.2"]);
}

#[test]
fn subnet_routes_require_accept_routes() {
    let mut fold = started();
    let router = r#"{"PeersChanged":[{"ID":5,"Name":"r.tail.lab.","Addresses":["100.64.0.5/32"],"AllowedIPs":["100.64.0.5/32","10.0.0.0/8","0.0.0.0/0","100.99.1.7/32"]}]}"#;
    fold.fold(notify(router));
    let leads = |fold: &Fold, ip: &str| map(fold).routes_to(ip.parse().expect("ip"));
    assert!(leads(&fold, "10.1.1.1") && !leads(&fold, "192.0.2.1"), "an exit node is no route of everybody");
    fold.fold(notify(r#"{"Prefs":{"RouteAll":false}}"#));
    assert!(!leads(&fold, "10.1.1.1"));
    assert!(leads(&fold, "100.64.0.5") && leads(&fold, "100.99.1.7"), "its own address and a service's need no routes");
    fold.fold(notify(r#"{"Prefs":{"RouteAll":true}}"#));
    assert!(leads(&fold, "10.1.1.1"));
}

#[test]
fn netmap_is_none_before_the_first_full_state() {
    let mut fold = Fold::default();
    fold.fold(notify(r#"{"State":2,"InitialStatus":{"BackendState":"NeedsLogin","Self":{"ID":"","NodeID":0,"DNSName":"","TailscaleIPs":null},"Peer":null}}"#));
    assert_eq!((fold.snapshot().state, fold.snapshot().netmap), (BackendState::NeedsLogin, None));
    let effect = fold.fold(notify(r#"{"SelfChange":{"ID":1,"Name":"a.","Addresses":["100.64.0.1/32"]},"PeersChanged":[{"ID":3,"Name":"b.","Addresses":["100.64.0.3/32"]}]}"#));
    assert!(effect.ask_status && fold.snapshot().netmap.is_none());
}

#[test]
fn status_without_dns_records_keeps_the_previous_records() {
    let mut fold = started();
    let status = |records: &str| format!(r#"{{"BackendState":"Running","Self":{{"TailscaleIPs":["100.64.0.1"]}}{records}}}"#);
    fold.status(&serde_json::from_str(&status("")).expect("a status"));
    assert_eq!((map(&fold).records.len(), map(&fold).peers.len()), (1, 0));
    fold.status(&serde_json::from_str(&status(r#","ExtraRecords":null"#)).expect("a status"));
    assert_eq!(map(&fold).records.len(), 0);
}

#[test]
fn logout_keeps_the_last_netmap() {
    let mut fold = started();
    fold.fold(notify(r#"{"State":2}"#));
    fold.status(&serde_json::from_str(r#"{"BackendState":"NeedsLogin","Self":{"TailscaleIPs":null}}"#).expect("a status"));
    assert_eq!(fold.snapshot().state, BackendState::NeedsLogin);
    assert_eq!(targets(&fold, "db.tail.lab"), ["100.64.0.2"]);
}

#[test]
fn running_state_and_self_change_request_a_status() {
    let mut fold = started();
    assert!(fold.fold(notify(r#"{"SelfChange":{"ID":1,"StableID":"nSelf","Name":"eg-0.","Addresses":["100.64.0.77/32"]}}"#)).ask_status);
    assert_eq!(map(&fold).node.as_ref().map(|node| node.addresses.len()), Some(1));
    assert!(!fold.fold(notify(r#"{"State":6}"#)).ask_status);
    fold.fold(notify(r#"{"State":5}"#));
    assert!(fold.fold(notify(r#"{"State":6}"#)).ask_status);
}

#[test]
fn full_netmap_of_an_older_daemon_is_read() {
    let mut fold = Fold::default();
    fold.fold(notify(
        r#"{"State":6,"NetMap":{"SelfNode":{"ID":1,"StableID":"n1","Name":"me.","Addresses":["100.64.0.1/32"]},
           "Peers":[{"ID":2,"Name":"db.tail.lab.","Addresses":["100.64.0.2/32"]}],"DNS":{"ExtraRecords":[{"Name":"x.tail.lab","Value":"100.64.0.2"}],"CertDomains":["me"]}}}"#,
    ));
    assert_eq!(targets(&fold, "x.tail.lab"), ["100.64.0.2"]);
    fold.fold(notify(
        r#"{"NetMap":{"SelfNode":{"ID":1,"StableID":"n1","Name":"me.","Addresses":["100.64.0.1/32"]},"Peers":null,"DNS":{}}}"#,
    ));
    assert!(map(&fold).peers.is_empty());
}

#[test]
fn health_warnings_and_bus_errors_are_reported() {
    let mut fold = started();
    fold.fold(notify(r#"{"Health":{"Warnings":{"login-state":{"WarnableCode":"login-state","Severity":"medium","Title":"Logged out"}}}}"#));
    assert!(fold.snapshot().login_broken());
    fold.fold(notify(r#"{"Health":{"Warnings":null}}"#));
    assert!(!fold.snapshot().login_broken());
    assert!(fold.fold(notify(r#"{"ErrMessage":"IPN bus consumer fell behind; closing watch"}"#)).lost.is_some());
}

#[test]
fn backend_states_round_trip_through_their_names() {
    for number in 0..=6 {
        let state = BackendState::from_number(number);
        assert_eq!(BackendState::from_word(&state.to_string()), state);
    }
    assert_eq!(BackendState::from_number(99), BackendState::NoState);
}

/// Steps of the tailnet: a peer gets a name and an address, or is removed.
fn steps() -> impl Strategy<Value = Vec<(i64, Option<(u8, u8)>)>> {
    prop::collection::vec((1..6_i64, prop::option::of((0..4_u8, 0..4_u8))), 0..40)
}

/// Nodes in the bus's format: few names and addresses, so that peers share them; some fields are null, absent or invalid.
fn nodes() -> impl Strategy<Value = Value> {
    let id = prop_oneof![8 => 1..5_i64, 1 => any::<i64>()];
    let name = prop_oneof![6 => (0..3_u8).prop_map(|n| json!(format!("N{n}.lab."))), 1 => Just(json!(null)), 1 => Just(json!("."))];
    let address = prop_oneof![8 => (0..4_u8).prop_map(|n| format!("100.64.0.{n}/32")), 1 => Just("fd7a:115c:a1e0::1/128".to_owned()), 1 => Just("nonsense".to_owned())];
    let prefix = prop::sample::select(vec!["100.64.0.1/32", "100.99.1.2/32", "10.1.0.0/16", "0.0.0.0/0", "10.1.2.3/33", ""]);
    let allowed = prop::option::of(prop::collection::vec(prefix, 0..4));
    (id, name, prop::option::of(prop::collection::vec(address, 0..3)), allowed, prop::bool::weighted(0.2)).prop_map(
        |(id, name, addresses, allowed, expired)| {
            json!({"ID": id, "StableID": format!("n{id}"), "Name": name, "Addresses": addresses, "AllowedIPs": allowed, "Expired": expired})
        },
    )
}

fn status_nodes() -> impl Strategy<Value = Value> {
    nodes().prop_map(|node| {
        json!({"ID": node["StableID"], "NodeID": node["ID"], "DNSName": node["Name"], "TailscaleIPs": node["Addresses"], "AllowedIPs": node["AllowedIPs"], "Expired": node["Expired"]})
    })
}

/// Messages of one to three parts.
fn messages() -> impl Strategy<Value = Value> {
    let records =
        || prop::option::of(prop::collection::vec((0..3_u8, prop::sample::select(vec!["100.64.0.1", "100.99.1.2", "text"])), 0..3));
    let records = move || {
        records().prop_map(|all| {
            json!(all.map(|all| all.into_iter().map(|(n, value)| json!({"Name": format!("r{n}.lab"), "Value": value})).collect::<Vec<_>>()))
        })
    };
    let words = prop::sample::select(vec!["Running", "NeedsLogin", "Starting", "Unheard"]);
    let status =
        (words, any::<bool>(), prop::option::of(status_nodes()), prop::collection::vec(status_nodes(), 0..4), prop::option::of(records()))
            .prop_map(|(word, key, node, peers, records)| {
                let peers: serde_json::Map<String, Value> = (0..).map(|n: u8| format!("nodekey:{n}")).zip(peers).collect();
                let mut status = json!({"BackendState": word, "HaveNodeKey": key, "Self": node, "Peer": peers});
                status.as_object_mut().expect("an object").extend(records.map(|records| ("ExtraRecords".to_owned(), records)));
                status
            });
    let net_map = (prop::option::of(nodes()), prop::collection::vec(nodes(), 0..4), records())
        .prop_map(|(node, peers, records)| json!({"SelfNode": node, "Peers": peers, "DNS": {"ExtraRecords": records}}));
    let part = prop_oneof![
        2 => prop_oneof![-1..9_i64, any::<i64>()].prop_map(|state| ("State", json!(state))),
        2 => any::<bool>().prop_map(|accept| ("Prefs", json!({"RouteAll": accept}))),
        2 => status.prop_map(|status| ("InitialStatus", status)),
        2 => net_map.prop_map(|map| ("NetMap", map)),
        1 => nodes().prop_map(|node| ("SelfChange", node)),
        4 => prop::collection::vec(nodes(), 0..4).prop_map(|nodes| ("PeersChanged", json!(nodes))),
        4 => prop::collection::vec(prop_oneof![8 => 1..5_i64, 1 => any::<i64>()], 0..4).prop_map(|ids| ("PeersRemoved", json!(ids))),
        1 => prop::option::of(Just(json!({"login-state": {"Severity": "high"}}))).prop_map(|all| ("Health", json!({"Warnings": all}))),
        1 => prop::sample::select(vec!["PeersChanged", "PeersRemoved", "NetMap", "Health", "Prefs"]).prop_map(|name| (name, Value::Null)),
        1 => Just(("ErrMessage", json!("fell behind"))),
    ];
    prop::collection::vec(part, 1..4)
        .prop_map(|parts| parts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<serde_json::Map<_, _>>().into())
}

proptest! {
    #[test]
    fn peer_deltas_equal_the_full_netmap(steps in steps()) {
        let node = |id: i64, (name, ip): (u8, u8)| format!(
            r#"{{"ID":{id},"Name":"n{name}.lab.","Addresses":["100.64.0.{ip}/32"],"AllowedIPs":["100.64.0.{ip}/32","10.{name}.0.0/16"]}}"#);
        let head = r#""SelfNode":{"Name":"me.","Addresses":["100.64.0.99/32"]},"DNS":{}"#;
        let whole = |peers: &BTreeMap<i64, (u8, u8)>| {
            let peers: Vec<String> = peers.iter().map(|(id, peer)| node(*id, *peer)).collect();
            notify(&format!(r#"{{"NetMap":{{{head},"Peers":[{}]}}}}"#, peers.join(",")))
        };
        let (mut fold, mut peers) = (Fold::default(), BTreeMap::new());
        fold.fold(whole(&peers));
        for (id, step) in steps {
            if let Some(peer) = step {
                peers.insert(id, peer);
                fold.fold(notify(&format!(r#"{{"PeersChanged":[{}]}}"#, node(id, peer))));
            } else {
                peers.remove(&id);
                fold.fold(notify(&format!(r#"{{"PeersRemoved":[{id}]}}"#)));
            }
        }
        let mut fresh = Fold::default();
        fresh.fold(whole(&peers));
        prop_assert_eq!(map(&fold), map(&fresh));
    }

    #[test]
    fn messages_are_idempotent_and_a_full_netmap_replaces_all(messages in prop::collection::vec(messages(), 1..12), netmap: bool) {
        let mut fold = if netmap { started() } else { Fold::default() };
        for message in &messages {
            // Each generated message must parse: one that does not would test nothing.
            let read = || notify(&message.to_string());
            let effect = fold.fold(read());
            prop_assert_eq!(effect.lost.is_some(), message.get("ErrMessage").is_some_and(Value::is_string));
            let once = fold.snapshot();
            fold.fold(read());
            prop_assert_eq!(fold.snapshot(), once, "the same message again: {}", message);
        }
        let whole = json!({"Prefs": {"RouteAll": true}, "NetMap": {
            "SelfNode": {"ID": 1, "StableID": "n1", "Name": "me.", "Addresses": ["100.64.0.1/32"]},
            "Peers": [{"ID": 2, "Name": "n1.lab.", "Addresses": ["100.64.0.2/32"], "AllowedIPs": ["100.64.0.2/32", "10.1.0.0/16"]},
                      {"ID": 3, "Name": "n2.lab.", "Addresses": ["100.64.0.3/32"]}],
            "DNS": {"ExtraRecords": [{"Name": "x.lab", "Value": "100.64.0.2"}], "CertDomains": ["me"]}}});
        let mut fresh = Fold::default();
        for fold in [&mut fold, &mut fresh] {
            fold.fold(notify(&whole.to_string()));
        }
        prop_assert_eq!(map(&fold), map(&fresh));
        // The state behind the map is replaced too: removing a peer shows it.
        for fold in [&mut fold, &mut fresh] {
            fold.fold(notify(r#"{"PeersRemoved":[2]}"#));
        }
        prop_assert_eq!(map(&fold), map(&fresh));
    }
}
