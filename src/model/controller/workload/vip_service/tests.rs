//! Ownership of Tailscale Services.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::api::vip::{OWNERS, VipService};

fn desired() -> DesiredVipService {
    let (tags, ports) = (vec!["tag:k8s".into()], vec!["tcp:443".into()]);
    let (name, group, taken_by) = ("svc:a".to_owned(), "g".to_owned(), BTreeSet::new());
    DesiredVipService { name, group, tags, ports, share: true, adopt: false, taken_by, sole_owner: None }
}

fn me() -> ServiceOwner {
    ServiceOwner { id: "me".into(), former: vec!["old".into()] }
}

fn existing(owners: &str) -> VipService {
    let annotations = [(OWNERS.to_owned(), owners.to_owned())].into();
    let DesiredVipService { name, tags, ports, .. } = desired();
    VipService { name, tags, ports, annotations, addrs: vec!["100.99.0.1".into()], ..VipService::default() }
}

/// Owner annotation with these IDs; ours has our group.
fn refs(ids: &[&str]) -> String {
    let reference = |id: &&str| if *id == "me" { json!({"operatorID": id, "tailyardGroup": "g"}) } else { json!({"operatorID": id}) };
    json!({"ownerRefs": ids.iter().map(reference).collect::<Vec<_>>()}).to_string()
}

fn written(verdict: OwnershipVerdict) -> VipService {
    match verdict {
        OwnershipVerdict::Write { service, .. } => *service,
        other => panic!("{other:?}"),
    }
}

#[test]
fn clusters_create_join_and_leave_a_tailscale_service() {
    let made = written(verify_owner(None, &desired(), &me(), false));
    assert_eq!((made.annotations[OWNERS].as_str(), made.addrs.len()), (refs(&["me"]).as_str(), 0));
    assert_eq!(verify_owner(Some(&existing(&refs(&["me"]))), &desired(), &me(), false), OwnershipVerdict::Settled);
    let joined = written(verify_owner(Some(&existing(&refs(&["them"]))), &desired(), &me(), false));
    assert_eq!((joined.annotations[OWNERS].as_str(), joined.addrs.len()), (refs(&["them", "me"]).as_str(), 1));
    let taken = written(verify_owner(Some(&existing(&refs(&["old"]))), &desired(), &me(), false));
    assert_eq!(taken.annotations[OWNERS], refs(&["me"]), "what we were called before is ours");

    let moved = DesiredVipService { group: "h".into(), ..desired() };
    let service = written(verify_owner(Some(&existing(&refs(&["them", "me"]))), &moved, &me(), false));
    let of = |group: &'static str| of_group([&service, &made], &me(), group).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!((of("h"), of("g"), of("")), (vec!["svc:a".to_owned()], vec!["svc:a".to_owned()], Vec::new()), "each names its group");

    assert_eq!(release(None, &me(), "g"), Release::Nothing);
    assert_eq!(release(Some(&existing(&refs(&["them"]))), &me(), "g"), Release::Nothing);
    assert_eq!(release(Some(&existing(&refs(&["me"]))), &me(), "g"), Release::Delete);
    assert_eq!(release(Some(&existing(&refs(&["me"]))), &me(), "h"), Release::Nothing, "that of another group");
    let Release::Write(remaining) = release(Some(&joined), &me(), "g") else { panic!("they have it still") };
    assert_eq!(*remaining, existing(&refs(&["them"])));
}

#[test]
fn service_that_another_group_has_for_another_object_is_refused() {
    let of = |taken_by: &[&str]| DesiredVipService {
        group: "h".into(),
        taken_by: taken_by.iter().map(|name| (*name).into()).collect(),
        ..desired()
    };
    let verdict = |ids: &[&str], taken_by: &[&str]| verify_owner(Some(&existing(&refs(ids))), &of(taken_by), &me(), true);
    for ids in [vec!["me"], vec!["them", "me"]] {
        assert_eq!(verdict(&ids, &["g"]), OwnershipVerdict::Refused(OwnershipRefusal::OtherGroup), "{ids:?}");
        assert!(matches!(verdict(&ids, &["other"]), OwnershipVerdict::Write { ours: true, .. }), "{ids:?}: that group has it no more");
    }
    assert!(matches!(verdict(&["them"], &["g"]), OwnershipVerdict::Write { ours: false, .. }), "of another cluster");
}

#[test]
fn display_name_and_unknown_fields_survive_every_write() {
    let fields = [("displayName", json!("Shop")), ("later", json!({"a": [1]}))];
    let shown = |owners: &str| {
        let mut text = serde_json::to_value(existing(owners)).expect("JSON");
        for (name, value) in &fields {
            text[name] = value.clone();
        }
        serde_json::from_value::<VipService>(text).expect("a Tailscale Service")
    };
    let joined = written(verify_owner(Some(&shown(&refs(&["them"]))), &desired(), &me(), false));
    let Release::Write(remaining) = release(Some(&shown(&refs(&["them", "me"]))), &me(), "g") else { panic!("they have it still") };
    for service in [joined, *remaining] {
        let body = serde_json::to_value(service).expect("JSON");
        assert!(fields.iter().all(|(name, value)| body[name] == *value), "{body}");
    }
}

#[test]
fn foreign_tailscale_service_is_refused_unless_adopted() {
    let foreign = VipService { annotations: BTreeMap::new(), ..existing("") };
    let adopting = DesiredVipService { adopt: true, ..desired() };
    assert_eq!(verify_owner(Some(&foreign), &desired(), &me(), false), OwnershipVerdict::Refused(OwnershipRefusal::Foreign));
    assert_eq!(verify_owner(Some(&existing("not JSON")), &adopting, &me(), true), OwnershipVerdict::Refused(OwnershipRefusal::Foreign));
    let adopted = written(verify_owner(Some(&foreign), &adopting, &me(), false));
    assert_eq!(adopted.annotations[OWNERS], refs(&["me"]));
    assert_eq!(
        release(Some(&adopted), &me(), "g"),
        Release::Write(Box::new(VipService { annotations: BTreeMap::new(), ..adopted.clone() }))
    );
    let again = verify_owner(Some(&adopted), &adopting, &me(), true);
    assert_eq!(again, OwnershipVerdict::Settled, "it stays marked");
    assert_eq!(written(verify_owner(Some(&foreign), &desired(), &me(), true)).annotations[OWNERS], refs(&["me"]), "its owners got lost");
    let single_owner = r#"{"ownerRefs":[{"operatorID":"them","resource":{"kind":"ProxyGroup","name":"g","uid":"u"}}]}"#;
    assert_eq!(verify_owner(Some(&existing(single_owner)), &desired(), &me(), false), OwnershipVerdict::Refused(OwnershipRefusal::Alone));
    let (twin, unshared) = (existing(&refs(&["them"])), DesiredVipService { share: false, ..desired() });
    assert_eq!(verify_owner(Some(&twin), &unshared, &me(), false), OwnershipVerdict::Refused(OwnershipRefusal::Twin));
    assert!(matches!(verify_owner(Some(&twin), &desired(), &me(), false), OwnershipVerdict::Write { ours: false, .. }));
}

#[test]
fn clusters_with_different_ports_and_tags_converge() {
    let other = DesiredVipService { ports: vec!["tcp:443".into(), "tcp:80".into()], tags: vec!["tag:other".into()], ..desired() };
    let them = ServiceOwner { id: "them".into(), ..ServiceOwner::default() };
    let mut service = written(verify_owner(None, &desired(), &me(), false));
    for _ in 0..3 {
        for (desired, owner) in [(&other, &them), (&desired(), &me())] {
            if let OwnershipVerdict::Write { service: written, .. } = verify_owner(Some(&service), desired, owner, true) {
                service = *written;
            }
        }
    }
    assert_eq!((service.ports.as_slice(), service.tags.as_slice()), (other.ports.as_slice(), desired().tags.as_slice()));
    for (desired, owner) in [(&other, &them), (&desired(), &me())] {
        assert_eq!(verify_owner(Some(&service), desired, owner, true), OwnershipVerdict::Settled);
    }
}

/// Owner annotation with these references.
#[allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]
fn owned_by(refs: serde_json::Value) -> VipService {
    existing(&json!({ "ownerRefs": refs }).to_string())
}

#[test]
fn group_that_owns_a_tailscale_service_alone_is_found_by_its_uid() {
    let sole = DesiredVipService { sole_owner: Some("u1".into()), share: false, ..desired() };
    let resource = |uid: &str| json!({"kind": "ProxyGroup", "name": "g", "uid": uid});
    let own = json!({"operatorID": "old", "resource": resource("u1"), "tailyardGroup": "g"});
    let decide = |found: Option<&VipService>, recorded| verify_owner(found, &sole, &me(), recorded);
    let made = written(decide(None, false));
    assert_eq!(made.annotations[OWNERS], json!({ "ownerRefs": [own] }).to_string());
    let refused = |refs: serde_json::Value| match decide(Some(&owned_by(refs.clone())), false) {
        OwnershipVerdict::Refused(why) => why,
        other => panic!("{refs}: {other:?}"),
    };
    // Reference, and what is refused.
    let table = [
        (json!([]), OwnershipRefusal::Foreign),
        (json!([{"operatorID": "me"}]), OwnershipRefusal::Shared),
        (json!([{"operatorID": "them"}, own]), OwnershipRefusal::Shared),
        (json!([{"operatorID": "them"}]), OwnershipRefusal::Shared),
        (json!([{"operatorID": "them", "resource": resource("u2")}]), OwnershipRefusal::Alone),
        (json!([{"operatorID": "me", "resource": resource("u2")}]), OwnershipRefusal::Alone),
        (json!([{"operatorID": "me", "resource": resource("u2"), "tailyardGroup": "h"}]), OwnershipRefusal::Alone),
        (json!([{"operatorID": "me", "resource": {"kind": "Ingress", "name": "g", "uid": "u1"}}]), OwnershipRefusal::Alone),
    ];
    for (refs, why) in table {
        assert_eq!(refused(refs.clone()), why, "{refs}");
    }
    let plain = existing("");
    let unowned = VipService { annotations: BTreeMap::new(), ..plain.clone() };
    assert_eq!(decide(Some(&unowned), false), OwnershipVerdict::Refused(OwnershipRefusal::Foreign));
    assert_eq!(decide(Some(&plain), true), OwnershipVerdict::Refused(OwnershipRefusal::Foreign), "unreadable owners");
    let again = written(decide(Some(&unowned), true));
    assert_eq!(again.annotations[OWNERS], made.annotations[OWNERS], "lost owners of a recorded service");
    let sole_here = ServiceOwner { former: Vec::new(), ..me() };
    for operator in ["me", "nOperatorCNTRL", "old"] {
        let found = owned_by(json!([{"operatorID": operator, "resource": resource("u1")}]));
        assert_eq!(verify_owner(Some(&found), &sole, &sole_here, false), OwnershipVerdict::Settled, "{operator}");
        match decide(Some(&found), false) {
            OwnershipVerdict::Settled => assert_ne!(operator, "me", "only the former operator can take the group back"),
            other => assert_eq!(written(other).annotations[OWNERS], made.annotations[OWNERS], "{operator}"),
        }
        let group = OwningGroup { name: "g", sole_owner: Some("u1") };
        assert_eq!(release(Some(&found), &me(), group), Release::Delete, "{operator}");
        assert_eq!(of_group([&found], &me(), group).collect::<Vec<_>>(), ["svc:a"], "{operator}");
        let other = OwningGroup { name: "h", sole_owner: Some("u2") };
        assert_eq!(of_group([&found], &me(), other).count(), 0, "{operator}");
    }
    let restored = owned_by(json!([{"operatorID": "me", "resource": resource("u0"), "tailyardGroup": "g"}]));
    assert_eq!(written(decide(Some(&restored), false)).annotations[OWNERS], made.annotations[OWNERS], "a group that was created again");
    let ports = VipService { ports: vec!["tcp:80".into()], tags: vec!["tag:x".into()], ..owned_by(json!([own])) };
    let corrected = written(decide(Some(&ports), false));
    assert_eq!((corrected.ports, corrected.tags), (desired().ports, desired().tags));
    assert_eq!(verify_owner(Some(&made), &desired(), &me(), false), OwnershipVerdict::Refused(OwnershipRefusal::Alone), "for an Ingress");
}
