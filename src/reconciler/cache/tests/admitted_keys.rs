//! Auth keys, adopted devices and the ends of both follow from records and permissions, not from what a Pod and a tenant write together.

use super::cluster::{Cluster, NS, device_id, encoded, exposed_service};
use super::*;
use crate::api::names;
use crate::model::controller::policy::tenancy::DefaultTenancy;
use crate::model::controller::workload::actions::ControlAction;

/// T names a group that does not exist, sets the finalizer of groups and tags that no administrator permits; its proxy requests a key.
#[test]
fn proxy_that_waits_for_a_group_gets_no_key_with_tags_that_are_not_permitted() {
    for kind in ["Service", "Ingress"] {
        let mut cluster = Cluster::new();
        cluster.settings_mut().tenancy = DefaultTenancy::Bounded;
        cluster.put_backends(&["victim", "t"]);
        let (key, finalizer) = if kind == "Service" {
            cluster.put("Service", exposed_service("t", "evil", json!({})));
            ("t/evil", names::SERVICE_FINALIZER)
        } else {
            cluster.put_ingress("t", "evil", "t-evil", None);
            ("ingress/t/evil", names::INGRESS_FINALIZER)
        };
        assert!(cluster.settles(), "{:?}", cluster.events);
        let workload = cluster.observe(&cluster.cache, key).workload;
        let annotations = json!({names::TAGS: "tag:prod"});
        cluster.patch(kind, "t", "evil", &json!({"metadata": {"annotations": annotations}}));
        let before = cluster.minted.len();
        let reissue = json!({"data": {"reissue_authkey": encoded("")}});
        cluster.patch("Secret", NS, &format!("{workload}-0"), &reissue);
        cluster.rounds(3);
        let keys = |cluster: &Cluster| cluster.minted[before..].iter().flat_map(|key| key.tags.clone()).collect::<BTreeSet<_>>();
        assert!(!keys(&cluster).contains("tag:prod"), "{kind}: refused while it has its own proxy");
        // The pass over the missing group removes the finalizer: T sets it again, and one of the two orders is enough.
        for _ in 0..3 {
            let metadata = json!({"annotations": {names::PROXY_GROUP: "missing"}, "finalizers": [names::FINALIZER, finalizer]});
            cluster.patch(kind, "t", "evil", &json!({"metadata": metadata}));
            cluster.patch("Secret", NS, &format!("{workload}-0"), &reissue);
            cluster.pass(key);
            cluster.round();
        }
        assert!(!keys(&cluster).contains("tag:prod"), "{kind}: {:?}", &cluster.minted[before..]);
    }
}

/// A replica of a workload that was taken over and has no record yet claims a device that does not exist.
#[test]
fn claim_of_a_device_that_does_not_exist_permits_no_tags() {
    let mut cluster = Cluster::new();
    cluster.settings_mut().tenancy = DefaultTenancy::Bounded;
    cluster.put("Service", exposed_service("t", "evil", json!({})));
    cluster.take_over(("t", "evil"), "ts-evil-abcde");
    let state = "ts-evil-abcde-0";
    cluster.patch("Secret", NS, state, &json!({"data": {"device_id": encoded("nX")}}));
    cluster.patch("Service", "t", "evil", &json!({"metadata": {"annotations": {names::TAGS: "tag:prod"}}}));
    for _ in 0..5 {
        cluster.patch("Secret", NS, state, &json!({"data": {"device_id": encoded("nX"), "reissue_authkey": encoded("")}}));
        cluster.pass("t/evil");
        cluster.wait(60);
    }
    let tags: BTreeSet<_> = cluster.minted.iter().flat_map(|key| key.tags.clone()).collect();
    assert!(!tags.contains("tag:prod"), "{:?} {:?}", cluster.minted, cluster.conditions("t", "evil"));
}

/// The first pass over a proxy of the Tailscale operator: T names host and tags of a device that is no proxy, and its Pod claims that device.
#[test]
fn device_with_tags_that_are_not_permitted_is_not_adopted() {
    let mut cluster = Cluster::new();
    cluster.settings_mut().tenancy = DefaultTenancy::Bounded;
    cluster.put("Service", exposed_service("t", "evil", json!({names::HOSTNAME: "router", names::TAGS: "tag:infra"})));
    cluster.take_over(("t", "evil"), "ts-evil-abcde");
    let router = device_id("router");
    let created = cluster.time();
    let mut device = crate::model::controller::kinds::tests::simulation::joined(&router, 200, vec!["tag:infra".to_owned()], created);
    device.hostname = "router".to_owned();
    cluster.devices.insert(router.clone(), device);
    cluster.patch("Secret", NS, "ts-evil-abcde-0", &json!({"data": {"device_id": encoded(router.as_str())}}));
    for _ in 0..5 {
        cluster.pass("t/evil");
        cluster.wait(30);
    }
    let config = cluster.object("Secret", NS, "ts-evil-abcde-0-config");
    let record = config.map(|config| config["metadata"]["annotations"][names::DEVICE].clone()).unwrap_or_default();
    let time = cluster.time().to_string();
    cluster.patch("Service", "t", "evil", &json!({"metadata": {"deletionTimestamp": time}}));
    for _ in 0..10 {
        cluster.pass("t/evil");
        cluster.wait(30);
    }
    assert!(cluster.devices.contains_key(&router), "deleted; the record was {record}");
}

#[test]
fn device_that_two_replicas_claim_is_contested_whatever_the_url_of_its_login_server() {
    for (one, other, is_contested) in [
        ("https://hs.lab", "https://hs.lab", true),
        ("https://hs.lab", "https://hs.lab/", true),
        ("https://hs.lab", "https://user@HS.lab.:443", true),
        ("https://hs.lab", "", true),
        ("https://hs.lab", "https://other.lab", false),
    ] {
        let mut cluster = Cluster::new();
        for (service, server) in [("a", one), ("b", other)] {
            cluster.put("Service", exposed_service("t", service, json!({})));
            let workload = format!("ts-{service}-abcde");
            cluster.take_over(("t", service), &workload);
            let config = json!({"Version": "alpha0", "Hostname": service, "ServerURL": server}).to_string();
            let labels = json!({names::MANAGED: "true", names::PARENT_TYPE: names::PARENT_SERVICE, names::PARENT: service,
                names::PARENT_NAMESPACE: "t"});
            let metadata = json!({"name": format!("{workload}-0-config"), "namespace": NS, "labels": labels});
            cluster.put("Secret", json!({"metadata": metadata, "data": {names::CONFIG_KEY: encoded(&config)}}));
        }
        let claimed = device_id("ts-b-abcde-0");
        cluster.patch("Secret", NS, "ts-a-abcde-0", &json!({"data": {"device_id": encoded(claimed.as_str())}}));
        let contested = cluster.observe(&cluster.cache, "t/a").devices.contested;
        assert_eq!(contested.get(&claimed).map(String::as_str), is_contested.then_some("ts-b-abcde-0"), "{one} {other}");
    }
}

/// A proxy gives its device another host name before its workload ends, or before it requests another key.
#[test]
fn renamed_device_is_deleted_with_its_workload() {
    renamed(true);
}

/// Otherwise each request would add a device to the tailnet.
#[test]
fn renamed_device_is_deleted_before_another_key_is_made() {
    renamed(false);
}

fn renamed(ends: bool) {
    {
        let mut cluster = Cluster::new();
        cluster.put("Service", exposed_service("t", "evil", json!({})));
        assert!(cluster.settles());
        let workload = cluster.observe(&cluster.cache, "t/evil").workload;
        let id = device_id(&format!("{workload}-0"));
        cluster.devices.get_mut(&id).expect("its device").hostname = "elsewhere".to_owned();
        let minted = cluster.minted.len();
        if ends {
            let time = cluster.time().to_string();
            cluster.patch("Service", "t", "evil", &json!({"metadata": {"deletionTimestamp": time}}));
            for _ in 0..10 {
                cluster.pass("t/evil");
                if cluster.object("StatefulSet", NS, &workload).is_none() && cluster.object("Pod", NS, &format!("{workload}-0")).is_some() {
                    cluster.delete_object("Pod", NS, &format!("{workload}-0"));
                }
                cluster.wait(30);
            }
            assert!(cluster.object("Secret", NS, &format!("{workload}-0-config")).is_none(), "the record is gone");
        } else {
            cluster.patch("Secret", NS, &format!("{workload}-0"), &json!({"data": {"reissue_authkey": encoded("")}}));
            cluster.pass("t/evil");
            assert!(cluster.minted.len() > minted, "another key");
        }
        assert!(!cluster.devices.contains_key(&id), "ends {ends}: the device stays in the tailnet: {:?}", cluster.devices);
    }
}

/// A proxy gets a key, uses none, and claims some device: the key is taken out of its config, and works for an hour.
#[test]
fn key_that_was_not_used_is_revoked_before_its_record_goes() {
    let mut cluster = Cluster::new();
    cluster.put("Service", exposed_service("t", "evil", json!({})));
    assert!(cluster.settles());
    let workload = cluster.observe(&cluster.cache, "t/evil").workload;
    let state = format!("{workload}-0");
    cluster.patch("Secret", NS, &state, &json!({"data": {"reissue_authkey": encoded("")}}));
    cluster.pass("t/evil");
    let key = format!("tskey-{}", cluster.minted.len());
    let text = |cluster: &Cluster| {
        let config = cluster.object("Secret", NS, &format!("{state}-config"))?;
        let bytes: k8s_openapi::ByteString = serde_json::from_value(config["data"][names::CONFIG_KEY].clone()).ok()?;
        String::from_utf8(bytes.0).ok()
    };
    assert!(text(&cluster).expect("a config").contains(&key));
    cluster.patch("Secret", NS, &state, &json!({"data": {"reissue_authkey": null, "device_id": encoded("nX")}}));
    let mut revoked = false;
    let mut pass = |cluster: &mut Cluster| {
        revoked |= cluster.plan(&cluster.cache, "t/evil").control.iter().any(|action| matches!(action, ControlAction::RevokeKey { .. }));
        cluster.pass("t/evil");
        cluster.wait(30);
    };
    for _ in 0..3 {
        pass(&mut cluster);
    }
    let is_dropped = text(&cluster).is_some_and(|config| !config.contains(&key));
    let time = cluster.time().to_string();
    cluster.patch("Service", "t", "evil", &json!({"metadata": {"deletionTimestamp": time}}));
    for _ in 0..10 {
        pass(&mut cluster);
        if cluster.object("StatefulSet", NS, &workload).is_none() && cluster.object("Pod", NS, &state).is_some() {
            cluster.delete_object("Pod", NS, &state);
        }
    }
    let is_gone = cluster.object("Secret", NS, &format!("{state}-config")).is_none();
    assert!(revoked || !is_dropped, "the key is dropped: {is_dropped}; the workload is gone: {is_gone}; no key was revoked");
}

/// A proxy does not use its key, reports it as failed, and gets another one.
#[test]
fn key_that_was_not_used_is_revoked_before_another_is_made() {
    let mut cluster = Cluster::new();
    cluster.put("Service", exposed_service("t", "evil", json!({})));
    assert!(cluster.settles());
    let state = format!("{}-0", cluster.observe(&cluster.cache, "t/evil").workload);
    let mut revoked = Vec::new();
    for failed in ["", "tskey-2", "tskey-3"] {
        cluster.patch("Secret", NS, &state, &json!({"data": {"device_id": null, "reissue_authkey": encoded(failed)}}));
        let plan = cluster.plan(&cluster.cache, "t/evil");
        revoked.extend(plan.control.iter().filter_map(|action| match action {
            ControlAction::MintKey { revokes, .. } => Some(revokes.as_ref().map(ToString::to_string)),
            _ => None,
        }));
        cluster.pass("t/evil");
    }
    assert_eq!(revoked, [None, Some("k2".to_owned()), Some("k3".to_owned())], "the first key was used");
}
