//! Metadata that a Pod writes to its Secrets holds no other workload, and no end of its own; a claimed device is given to no wrong one.

use super::cluster::{Cluster, NS, device_id, encoded};
use super::namesakes::{LABEL, NAME, Request, cluster};
use super::proxy_names::{PROXIES, exposed, key, report};
use super::*;
use crate::api::names;

/// Patches of a Secret's metadata by a Pod whose Role names it.
fn hostile_metadata() -> [Value; 3] {
    [
        json!({"labels": {names::MANAGED: null}}),
        json!({"labels": {names::PARENT_TYPE: names::PARENT_GROUP, names::PROXY_GROUP: "eg"}}),
        json!({"finalizers": ["x.example/hold"]}),
    ]
}

/// A Pod of a group changes metadata of a certificate; its Ingress moves to another workload, which gets a usable Secret.
#[test]
fn certificate_that_a_pod_of_the_former_group_changed_holds_no_other_workload() {
    let mut faults = Vec::new();
    for metadata in hostile_metadata() {
        for next in [Request::SecondGroupIngress, Request::Ingress] {
            for is_recreated in [true, false] {
                let mut cluster = cluster();
                cluster.put("Ingress", Request::GroupIngress.object("old"));
                assert!(cluster.settles());
                let dns = format!("{LABEL}.tail1234.ts.net");
                assert!(cluster.object("Secret", NS, &dns).is_some());
                cluster.patch("Secret", NS, &dns, &json!({"metadata": metadata}));
                if is_recreated {
                    let deleted = json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}});
                    cluster.patch("Ingress", "old", NAME, &deleted);
                    cluster.rounds(30);
                    assert!(cluster.object("Ingress", "old", NAME).is_none(), "{metadata}");
                    cluster.put("Ingress", next.object("old"));
                } else {
                    let group = next.group();
                    cluster.patch("Ingress", "old", NAME, &json!({"metadata": {"annotations": {names::PROXY_GROUP: group}}}));
                }
                cluster.rounds(30);
                let secret = cluster.object("Secret", NS, &dns);
                let is_usable = secret.is_some_and(|secret| secret["metadata"]["deletionTimestamp"].is_null());
                let of = next.group().map_or_else(|| key(next, "old"), str::to_owned);
                let workload = cluster.observe(&cluster.cache, &of).workload;
                let is_granted =
                    cluster.object("Role", NS, &workload).is_some_and(|role| Cluster::role_secrets(role, "get").contains(&dns));
                if !is_usable || !is_granted {
                    let event = cluster.events.last();
                    faults.push(format!(
                        "{metadata} to {next:?}, recreated {is_recreated}: usable {is_usable}, granted {is_granted}: {event:?}"
                    ));
                }
            }
        }
    }
    report("held", &faults);
}

/// A replica changes metadata of its state Secret, and is removed; the replica of that ordinal returns.
#[test]
fn state_secret_that_a_removed_replica_changed_holds_no_later_replica() {
    let mut faults = Vec::new();
    for metadata in hostile_metadata() {
        let mut cluster = Cluster::new();
        cluster.put("ProxyGroup", json!({"metadata": {"name": "eg"}, "spec": {"type": "egress", "replicas": 2}}));
        assert!(cluster.settles());
        cluster.patch("Secret", NS, "eg-1", &json!({"metadata": metadata}));
        cluster.patch("ProxyGroup", "", "eg", &json!({"spec": {"replicas": 1}}));
        let first = cluster.settles();
        cluster.patch("ProxyGroup", "", "eg", &json!({"spec": {"replicas": 2}}));
        let second = cluster.settles();
        let state = cluster.object("Secret", NS, "eg-1").map(|secret| secret["metadata"].clone());
        let has_config = cluster.object("Secret", NS, "eg-1-config").is_some();
        if !first || !second || !has_config || state.as_ref().is_none_or(|state| state["deletionTimestamp"].is_string()) {
            let status = &cluster.object("ProxyGroup", "", "eg").expect("a group")["status"]["conditions"];
            faults.push(format!("{metadata}: settled {first} {second}, config {has_config}: {status}"));
        }
    }
    report("held", &faults);
}

/// An upgrade without records: a Pod claims the device of another tenant's proxy, whose host name its Service requests. The first pass must not decide it.
#[test]
fn device_that_two_replicas_claim_after_an_upgrade_is_not_recorded_for_the_wrong_one() {
    let mut cluster = Cluster::new();
    exposed(&mut cluster, "victim", &json!({}));
    exposed(&mut cluster, "t", &json!({names::HOSTNAME: "victim-web"}));
    cluster.take_over(("victim", "web"), "ts-victim");
    cluster.take_over(("t", "web"), "ts-evil");
    let device = device_id("ts-victim-0");
    cluster.patch("Secret", NS, "ts-evil-0", &json!({"data": {"device_id": encoded(device.as_str())}}));
    for _ in 0..5 {
        cluster.pass("t/web");
        cluster.pass("victim/web");
    }
    let record = |cluster: &Cluster, config: &str| {
        let config = cluster.object("Secret", NS, config)?;
        config["metadata"]["annotations"][names::DEVICE].as_str().map(str::to_owned)
    };
    let (evil, victim) = (record(&cluster, "ts-evil-0-config"), record(&cluster, "ts-victim-0-config"));
    cluster.patch("Secret", NS, "ts-evil-0", &json!({"data": {"reissue_authkey": encoded("")}}));
    for _ in 0..5 {
        cluster.pass("t/web");
    }
    let exists = cluster.devices.contains_key(&device);
    assert!(
        exists && evil.as_ref().is_none_or(|record| !record.contains(device.as_str())),
        "exists {exists}, record of the attacker {evil:?}, of the victim {victim:?}"
    );
}

/// Creates what a proxy Pod of the Tailscale operator may create: the config Secret of a workload with the labels of a Service, and a state with
/// a device.
fn plant(cluster: &mut Cluster, (namespace, service): (&str, &str), workload: &str) {
    let labels = json!({names::MANAGED: "true", names::SECRET_TYPE: "config", names::CONFIG_PARENT: service,
        names::CONFIG_PARENT_NAMESPACE: namespace});
    let config = json!({"Version": "alpha0", "Hostname": "evil"}).to_string();
    let secrets = [
        (format!("{workload}-0-config"), labels, json!({names::CONFIG_KEY: encoded(&config)})),
        (format!("{workload}-0"), json!({names::MANAGED: "true"}), json!({"device_id": encoded("nEVIL")})),
    ];
    for (name, labels, data) in secrets {
        cluster.put("Secret", json!({"metadata": {"name": name, "namespace": NS, "labels": labels}, "data": data}));
    }
}

/// Under the Tailscale operator a Pod planted a config Secret with the labels of another tenant's Service, before or after the takeover of that.
#[test]
fn planted_config_secret_renames_no_workload() {
    let mut faults = Vec::new();
    for planted in ["aaa", "zzz"] {
        for stage in ["new", "takeover", "recorded", "without StatefulSet", "without StatefulSet and Service"] {
            let (mut cluster, is_new) = (Cluster::new(), stage == "new");
            if is_new {
                plant(&mut cluster, ("victim", "web"), planted);
            }
            exposed(&mut cluster, "victim", &json!({}));
            if !is_new {
                cluster.take_over(("victim", "web"), "ts-victim");
                assert!(stage == "takeover" || cluster.settles());
                plant(&mut cluster, ("victim", "web"), planted);
            }
            if stage.starts_with("without") {
                cluster.delete_object("StatefulSet", NS, "ts-victim");
            }
            if stage.ends_with("Service") {
                cluster.delete_object("Service", NS, "ts-victim");
            }
            let first = cluster.observe(&cluster.cache, "victim/web").workload;
            cluster.rounds(20);
            let sets: Vec<_> = cluster.objects.keys().filter(|(kind, ..)| *kind == "StatefulSet").map(|(.., name)| name.clone()).collect();
            let name = if is_new { "ts-web-" } else { "ts-victim" };
            if !first.starts_with(name) || sets != [first.clone()] || cluster.minted.len() != usize::from(is_new) {
                faults.push(format!("{planted}, {stage}: {first}, then {sets:?}, keys {:?}", cluster.minted));
            }
        }
    }
    report("renamed", &faults);
}

/// Under the Tailscale operator a Pod planted the config Secret of another tenant's proxy with the labels of its own Service.
#[test]
fn planted_config_secret_takes_no_name_of_a_workload() {
    let mut cluster = Cluster::new();
    exposed(&mut cluster, "victim", &json!({}));
    cluster.take_over(("victim", "web"), "ts-victim");
    plant(&mut cluster, ("a", "web"), "ts-victim");
    cluster.patch("Secret", NS, "ts-victim-0", &json!({"data": {"device_id": encoded(device_id("ts-victim-0").as_str())}}));
    assert!(cluster.enqueued.contains(&WorkKey::Workload("victim/web".into())), "{:?}", cluster.enqueued);
}

/// A Pod puts a finalizer on its state Secret: the group ends nevertheless.
#[test]
fn finalizer_of_a_pod_does_not_hold_the_end_of_its_group() {
    for finalizers in [json!([]), json!(["x.example/hold"])] {
        let mut cluster = cluster();
        assert!(cluster.settles());
        cluster.patch("Secret", NS, "in-0", &json!({"metadata": {"finalizers": finalizers}}));
        let deleted = json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}});
        cluster.patch("ProxyGroup", "", "in", &deleted);
        for _ in 0..30 {
            cluster.round();
            cluster.wait(60);
        }
        let remaining = &cluster.object("ProxyGroup", "", "in").expect("a group")["metadata"]["finalizers"];
        assert!(remaining.as_array().is_none_or(Vec::is_empty), "{finalizers}: {remaining} {:?}", cluster.events.last());
    }
}

/// A Pod puts a finalizer on its state Secret: its Service or Ingress ends nevertheless.
#[test]
fn finalizer_of_a_pod_does_not_hold_the_end_of_its_object() {
    let mut faults = Vec::new();
    for request in PROXIES {
        for finalizers in [json!([]), json!(["x.example/hold"])] {
            let mut cluster = cluster();
            cluster.put(request.kind(), request.object("old"));
            assert!(cluster.settles());
            let workload = cluster.observe(&cluster.cache, &key(request, "old")).workload;
            cluster.patch("Secret", NS, &format!("{workload}-0"), &json!({"metadata": {"finalizers": finalizers}}));
            let deleted = json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}});
            cluster.patch(request.kind(), "old", NAME, &deleted);
            for _ in 0..30 {
                cluster.round();
                cluster.wait(60);
            }
            if let Some(object) = cluster.object(request.kind(), "old", NAME) {
                faults.push(format!("{request:?} {finalizers}: {} {:?}", object["metadata"]["finalizers"], cluster.events.last()));
            }
        }
    }
    report("held", &faults);
}
