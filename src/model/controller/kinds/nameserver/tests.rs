//! Objects and conditions of nameservers.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use serde_json::json;

use super::inputs::KINDS;
use super::*;

fn config(name: &str, second: u32, spec: Value) -> Arc<DNSConfig> {
    let metadata = json!({"name": name, "uid": name, "generation": 1, "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")});
    Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": {"nameserver": spec}})).expect("a DNSConfig"))
}

fn inputs(existing: Vec<(Kind, Value)>) -> NameserverInputs {
    let existing = existing.into_iter().map(|(kind, mut value)| {
        if value["metadata"].is_null() {
            value["metadata"] = json!({"labels": {names::PARENT_TYPE: NAME}, "uid": "u"});
        }
        (object(kind, "ts"), Arc::new(value))
    });
    NameserverInputs {
        namespace: "ts".into(),
        image: "r:5000/tailyard:1".into(),
        existing: existing.collect(),
        ..NameserverInputs::default()
    }
}

fn conditions(configs: &[Arc<DNSConfig>], inputs: &NameserverInputs) -> Vec<(String, String, String)> {
    let text = |(name, status): (String, DnsConfigStatus)| {
        let ip = status.nameserver.map(|nameserver| nameserver.ip).unwrap_or_default();
        (name, format!("{} {}", status.conditions[0].status, status.conditions[0].reason), ip)
    };
    statuses(configs, inputs, None, Timestamp::UNIX_EPOCH).into_iter().map(text).collect()
}

fn found(configs: &[Arc<DNSConfig>], manifest: Kind, inputs: &NameserverInputs) -> Value {
    let all = manifests(effective(configs).expect("a DNSConfig"), inputs);
    all.into_iter().find(|found| found.object.kind == manifest).expect("an object").value
}

#[test]
fn only_the_oldest_config_has_an_effect_and_conditions_settle() {
    let ready = inputs(vec![
        (Kind::Service, json!({"spec": {"clusterIP": "10.96.0.53"}})),
        (Kind::Deployment, json!({"status": {"readyReplicas": 2}})),
    ]);
    let mut both = vec![config("b", 1, json!({})), config("a", 2, json!({}))];
    assert_eq!(effective(&both).and_then(|config| config.metadata.name.as_deref()), Some("b"));
    let wanted = [("b", "True NameserverCreated", "10.96.0.53"), ("a", "False MultipleDNSConfigsPresent", "")];
    assert_eq!(conditions(&both, &ready), wanted.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())));
    for (name, status) in statuses(&both, &ready, None, Timestamp::UNIX_EPOCH) {
        let config = both.iter_mut().find(|config| config.metadata.name.as_ref() == Some(&name)).expect("a DNSConfig");
        Arc::make_mut(config).status = Some(status);
    }
    assert_eq!(conditions(&both, &ready), [], "a second write would never end");
    Arc::make_mut(&mut both[0]).metadata.deletion_timestamp = both[1].metadata.creation_timestamp.clone();
    assert_eq!(
        conditions(&both, &ready),
        [("a".to_owned(), "True NameserverCreated".to_owned(), "10.96.0.53".to_owned())],
        "it takes over"
    );
}

#[test]
fn condition_says_whether_pods_are_ready_and_what_is_in_the_way() {
    let one = [config("a", 1, json!({}))];
    let state = |inputs: &NameserverInputs| conditions(&one, inputs)[0].1.clone();
    assert_eq!(state(&inputs(vec![])), "False NameserverPending");
    let foreign = inputs(vec![(Kind::Role, json!({"metadata": {"labels": {names::PARENT_TYPE: "proxygroup"}}}))]);
    assert_eq!(state(&foreign), "False NameserverCreationFailed");
    assert_eq!((manifests(&one[0], &foreign), leftovers(&foreign, &[])), (vec![], vec![]), "others' objects are not touched");
}

#[test]
fn address_of_an_existing_service_stays() {
    let wanted = [config("a", 1, json!({"service": {"clusterIP": "10.96.0.10"}}))];
    let address = |inputs: &NameserverInputs| found(&wanted, Kind::Service, inputs)["spec"]["clusterIP"].clone();
    assert_eq!(address(&inputs(vec![])), "10.96.0.10");
    assert_eq!(address(&inputs(vec![(Kind::Service, json!({"spec": {"clusterIP": "10.96.0.53"}}))])), "10.96.0.53");
    let any = [config("a", 1, json!({}))];
    assert_eq!(found(&any, Kind::Service, &inputs(vec![]))["spec"]["clusterIP"], Value::Null);
}

#[test]
fn image_and_pods_follow_the_spec() {
    let image = |spec: Value| {
        let deployment = found(&[config("a", 1, spec)], Kind::Deployment, &inputs(vec![]));
        (deployment["spec"]["template"]["spec"]["containers"][0]["image"].clone(), deployment["spec"]["replicas"].clone())
    };
    assert_eq!(image(json!({})), (json!("r:5000/tailyard:1"), json!(2)));
    assert_eq!(image(json!({"replicas": 3, "image": {"tag": "2"}})), (json!("r:5000/tailyard:2"), json!(3)));
    let theirs = json!({"replicas": 0, "image": {"repo": "tailscale/k8s-nameserver"}});
    assert_eq!(image(theirs), (json!("tailscale/k8s-nameserver:stable"), json!(0)));
    let pod = json!({"pod": {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}, "imagePullSecrets": [{"name": "s"}]}});
    let spec = found(&[config("a", 1, pod)], Kind::Deployment, &inputs(vec![]))["spec"]["template"]["spec"].clone();
    assert_eq!((&spec["tolerations"][0]["operator"], &spec["nodeSelector"]["a"]), (&json!("Exists"), &json!("b")));
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "s"}]));
}

#[test]
fn objects_without_a_config_are_deleted_and_others_stay() {
    let labelled = inputs(KINDS.map(|kind| (kind, json!({}))).to_vec());
    let deleted = leftovers(&labelled, &[]);
    assert_eq!((deleted.len(), deleted[0].0.kind, deleted[0].1.as_deref()), (KINDS.len(), Kind::Deployment, Some("u")));
    let wanted = manifests(&config("a", 1, json!({})), &labelled);
    assert_eq!((wanted.len(), leftovers(&labelled, &wanted)), (KINDS.len(), vec![]));
}

#[test]
fn condition_names_the_namespaces_without_room() {
    let mut ready = inputs(vec![(Kind::Deployment, json!({"status": {"readyReplicas": 2}}))]);
    let names = ["a", "b", "c", "d", "e", "f"].into_iter().zip(1_usize..);
    ready.records.omitted = names.map(|(namespace, count)| (namespace.to_owned(), count)).collect();
    let (_, status) = statuses(&[config("a", 1, json!({}))], &ready, None, Timestamp::UNIX_EPOCH).remove(0);
    let message = &status.conditions[0].message;
    assert!(
        message.starts_with("21 names have no record") && message.contains(": f (6), e (5), d (4), c (3), b (2), 1 more;"),
        "{message}"
    );
}
