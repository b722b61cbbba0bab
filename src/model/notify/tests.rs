use proptest::prelude::*;

use super::*;

fn notify(text: &str) -> Notify {
    serde_json::from_str(text).expect("a message")
}

fn fqdn(text: &str) -> Fqdn {
    Fqdn::new(text).expect("a name")
}

/// A fold that has seen a complete state with one peer, `db`.
fn started() -> Fold {
    let mut fold = Fold::default();
    let effect = fold.fold(notify(
        r#"{"Version":"1.102","State":6,"Prefs":{"RouteAll":true},"InitialStatus":{"BackendState":"Running",
           "Self":{"ID":"nSelf","NodeID":1,"DNSName":"eg-0.tail.lab.","TailscaleIPs":["100.64.0.1","fd7a:115c:a1e0::1"]},
           "CertDomains":["eg-0.tail.lab"],"ExtraRecords":[{"Name":"Web.tail.lab.","Type":"","Value":"100.99.1.2"},{"Name":"txt","Type":"TXT","Value":"x"}],
           "Peer":{"nodekey:a":{"ID":"nDb","NodeID":2,"DNSName":"DB.tail.lab.","TailscaleIPs":["100.64.0.2"],"AllowedIPs":["100.64.0.2/32","100.99.1.2/32"]}}}}"#,
    ));
    assert!(effect.changed);
    fold
}

fn map(fold: &Fold) -> Arc<NetMap> {
    fold.snapshot().netmap.expect("a complete tailnet")
}

fn targets(fold: &Fold, name: &str) -> Vec<String> {
    map(fold).resolve(&fqdn(name)).iter().map(ToString::to_string).collect()
}

#[test]
fn the_initial_status_is_the_whole_state() {
    let fold = started();
    let known = map(&fold);
    assert_eq!(fold.snapshot().state, BackendState::Running);
    assert_eq!(
        known.node.as_ref().map(|node| (node.stable_id.as_str(), node.name.as_str(), node.addresses.len())),
        Some(("nSelf", "eg-0.tail.lab.", 2))
    );
    assert_eq!(targets(&fold, "db.TAIL.lab"), ["100.64.0.2"]);
    assert_eq!(targets(&fold, "web.tail.lab."), ["100.99.1.2"]);
    assert_eq!(known.cert_domains, ["eg-0.tail.lab"]);
}

#[test]
fn the_same_status_again_is_no_change() {
    let mut fold = started();
    let before = map(&fold);
    let status = r#"{"BackendState":"Running","Self":{"ID":"nSelf","DNSName":"eg-0.tail.lab.","TailscaleIPs":["100.64.0.1","fd7a:115c:a1e0::1"]},
        "CertDomains":["eg-0.tail.lab"],"ExtraRecords":[{"Name":"web.tail.lab","Value":"100.99.1.2"}],
        "Peer":{"k":{"NodeID":2,"DNSName":"db.tail.lab","TailscaleIPs":["100.64.0.2"],"AllowedIPs":["100.64.0.2/32","100.99.1.2/32"]}}}"#;
    assert!(!fold.status(&serde_json::from_str(status).expect("a status")));
    assert!(Arc::ptr_eq(&before, &map(&fold)));
}

#[test]
fn a_peer_comes_moves_and_leaves() {
    let mut fold = started();
    assert!(
        fold.fold(notify(r#"{"PeersChanged":[{"ID":3,"Name":"app.tail.lab.","Addresses":["100.64.0.3/32","fd7a:115c:a1e0::3/128"]}]}"#))
            .changed
    );
    assert_eq!(targets(&fold, "app.tail.lab"), ["100.64.0.3", "fd7a:115c:a1e0::3"]);
    assert!(map(&fold).leads_to("100.64.0.3".parse().expect("ip")), "absent AllowedIPs are the addresses");
    assert!(fold.fold(notify(r#"{"PeersChanged":[{"ID":3,"Name":"app.tail.lab.","Addresses":["100.64.0.9/32"]}]}"#)).changed);
    assert_eq!(targets(&fold, "app.tail.lab"), ["100.64.0.9"]);
    assert!(!map(&fold).leads_to("100.64.0.3".parse().expect("ip")));
    assert!(fold.fold(notify(r#"{"PeersRemoved":[3]}"#)).changed);
    assert!(targets(&fold, "app.tail.lab").is_empty());
    assert_eq!(targets(&fold, "db.tail.lab"), ["100.64.0.2"]);
}

#[test]
fn a_renamed_peer_leaves_its_old_name() {
    let mut fold = started();
    fold.fold(notify(r#"{"PeersChanged":[{"ID":2,"Name":"db-1.tail.lab.","Addresses":["100.64.0.2/32"]}]}"#));
    assert!(targets(&fold, "db.tail.lab").is_empty());
    assert_eq!(targets(&fold, "db-1.tail.lab"), ["100.64.0.2"]);
}

#[test]
fn two_peers_of_one_name_are_both_used_and_a_shared_prefix_outlives_one() {
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
fn patches_profiles_and_nameless_peers_disturb_nothing() {
    let mut fold = started();
    let before = map(&fold);
    let effect = fold.fold(notify(
        r#"{"PeerChangedPatch":[{"NodeID":2,"Online":false,"DERPRegion":1}],"UserProfiles":{"1":{"ID":1}},"PeerState":{"n":{}}}"#,
    ));
    assert_eq!(effect, Effect::default());
    assert!(Arc::ptr_eq(&before, &map(&fold)));
    fold.fold(notify(r#"{"PeersChanged":[{"ID":8,"Addresses":["100.64.0.8/32"]},{"ID":9,"Name":null,"Addresses":null}]}"#));
    assert_eq!(map(&fold).peers.len(), 1);
    assert!(map(&fold).leads_to("100.64.0.8".parse().expect("ip")));
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
fn subnets_count_only_where_routes_are_accepted() {
    let mut fold = started();
    let router = r#"{"PeersChanged":[{"ID":5,"Name":"r.tail.lab.","Addresses":["100.64.0.5/32"],"AllowedIPs":["100.64.0.5/32","10.0.0.0/8","0.0.0.0/0","100.99.1.7/32"]}]}"#;
    fold.fold(notify(router));
    let leads = |fold: &Fold, ip: &str| map(fold).leads_to(ip.parse().expect("ip"));
    assert!(leads(&fold, "10.1.1.1") && !leads(&fold, "192.0.2.1"), "an exit node is no route of everybody");
    assert!(fold.fold(notify(r#"{"Prefs":{"RouteAll":false}}"#)).changed);
    assert!(!leads(&fold, "10.1.1.1"));
    assert!(leads(&fold, "100.64.0.5") && leads(&fold, "100.99.1.7"), "its own address and a service's need no routes");
    fold.fold(notify(r#"{"Prefs":{"RouteAll":true}}"#));
    assert!(leads(&fold, "10.1.1.1"));
}

#[test]
fn nothing_is_a_tailnet_before_the_first_complete_state() {
    let mut fold = Fold::default();
    fold.fold(notify(r#"{"State":2,"InitialStatus":{"BackendState":"NeedsLogin","Self":{"ID":"","NodeID":0,"DNSName":"","TailscaleIPs":null},"Peer":null}}"#));
    assert_eq!((fold.snapshot().state, fold.snapshot().netmap), (BackendState::NeedsLogin, None));
    let effect = fold.fold(notify(r#"{"SelfChange":{"ID":1,"Name":"a.","Addresses":["100.64.0.1/32"]},"PeersChanged":[{"ID":3,"Name":"b.","Addresses":["100.64.0.3/32"]}]}"#));
    assert!(effect.ask_status && fold.snapshot().netmap.is_none());
}

#[test]
fn an_older_daemons_status_without_records_leaves_those_that_are_known() {
    let mut fold = started();
    let status = |records: &str| format!(r#"{{"BackendState":"Running","Self":{{"TailscaleIPs":["100.64.0.1"]}}{records}}}"#);
    fold.status(&serde_json::from_str(&status("")).expect("a status"));
    assert_eq!((map(&fold).records.len(), map(&fold).peers.len()), (1, 0));
    fold.status(&serde_json::from_str(&status(r#","ExtraRecords":null"#)).expect("a status"));
    assert_eq!(map(&fold).records.len(), 0);
}

#[test]
fn a_logout_keeps_the_last_tailnet() {
    let mut fold = started();
    fold.fold(notify(r#"{"State":2}"#));
    fold.status(&serde_json::from_str(r#"{"BackendState":"NeedsLogin","Self":{"TailscaleIPs":null}}"#).expect("a status"));
    assert_eq!(fold.snapshot().state, BackendState::NeedsLogin);
    assert_eq!(targets(&fold, "db.tail.lab"), ["100.64.0.2"]);
}

#[test]
fn beginning_to_run_and_a_change_of_self_ask_for_more() {
    let mut fold = started();
    assert!(fold.fold(notify(r#"{"SelfChange":{"ID":1,"StableID":"nSelf","Name":"eg-0.","Addresses":["100.64.0.77/32"]}}"#)).ask_status);
    assert_eq!(map(&fold).node.as_ref().map(|node| node.addresses.len()), Some(1));
    assert!(!fold.fold(notify(r#"{"State":6}"#)).ask_status);
    fold.fold(notify(r#"{"State":5}"#));
    assert!(fold.fold(notify(r#"{"State":6}"#)).ask_status);
}

#[test]
fn an_older_daemon_sends_the_whole_map() {
    let mut fold = Fold::default();
    let effect = fold.fold(notify(
        r#"{"State":6,"NetMap":{"SelfNode":{"ID":1,"StableID":"n1","Name":"me.","Addresses":["100.64.0.1/32"]},
           "Peers":[{"ID":2,"Name":"db.tail.lab.","Addresses":["100.64.0.2/32"]}],"DNS":{"ExtraRecords":[{"Name":"x.tail.lab","Value":"100.64.0.2"}],"CertDomains":["me"]}}}"#,
    ));
    assert!(effect.changed);
    assert_eq!(targets(&fold, "x.tail.lab"), ["100.64.0.2"]);
    fold.fold(notify(
        r#"{"NetMap":{"SelfNode":{"ID":1,"StableID":"n1","Name":"me.","Addresses":["100.64.0.1/32"]},"Peers":null,"DNS":{}}}"#,
    ));
    assert!(map(&fold).peers.is_empty());
}

#[test]
fn health_and_errors_are_told() {
    let mut fold = started();
    assert!(
        fold.fold(notify(
            r#"{"Health":{"Warnings":{"login-state":{"WarnableCode":"login-state","Severity":"medium","Title":"Logged out"}}}}"#
        ))
        .changed
    );
    assert!(fold.snapshot().login_broken());
    assert!(fold.fold(notify(r#"{"Health":{"Warnings":null}}"#)).changed);
    assert!(!fold.snapshot().login_broken());
    assert!(fold.fold(notify(r#"{"ErrMessage":"IPN bus consumer fell behind; closing watch"}"#)).lost.is_some());
}

#[test]
fn states_have_one_word_each() {
    for number in 0..=6 {
        let state = BackendState::from_number(number);
        assert_eq!(BackendState::from_word(state.word()), state);
    }
    assert_eq!(BackendState::from_number(99), BackendState::NoState);
}

/// A step of the tailnet: a peer set to a name and an address, or gone.
fn steps() -> impl Strategy<Value = Vec<(i64, Option<(u8, u8)>)>> {
    prop::collection::vec((1..6_i64, prop::option::of((0..4_u8, 0..4_u8))), 0..40)
}

proptest! {
    #[test]
    fn deltas_end_where_the_whole_state_would(steps in steps()) {
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
    fn no_message_can_upset_the_fold(text in r#"\{"(State|PeersRemoved|PeersChanged|NetMap|InitialStatus)":(-?[0-9]{1,19}|\[[0-9]{1,3}\]|\[\{\}\]|\{\})\}"#) {
        if let Ok(message) = serde_json::from_str::<Notify>(&text) {
            started().fold(message);
        }
    }
}
