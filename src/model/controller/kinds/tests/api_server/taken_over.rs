//! A group that the Tailscale operator created, and its Pods, which go on until Tailyard's take their place.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Pod;

use super::*;

const UID: &str = "kube-uid";

/// Labels of the group's objects.
fn labels(more: Value) -> Value {
    let mut labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "proxygroup",
        "tailscale.com/parent-resource": "kube"});
    labels.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    labels
}

fn put(world: &mut World, kind: Kind, name: &str, more: Value) {
    let owner = json!([{"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "name": "kube", "uid": UID, "controller": true}]);
    let secret_type = if name.ends_with("-config") { "config" } else { "state" };
    let labels = labels(if kind == Kind::Secret { json!({"tailscale.com/secret-type": secret_type}) } else { json!({}) });
    let mut value =
        json!({"metadata": {"name": name, "namespace": NS, "uid": format!("{kind}-{name}"), "labels": labels, "ownerReferences": owner}});
    value.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    world.objects.insert(object(kind, name), value.into());
}

/// Base64 of a text.
fn data(text: &str) -> Value {
    serde_json::to_value(ByteString(text.as_bytes().to_vec())).expect("JSON")
}

/// A group with two Pods of the image k8s-proxy, in mode auth, that serve `svc:kube`.
fn of_the_tailscale_operator(world: &mut World) {
    world.group("kube", spec(json!({})));
    let group = world.groups.get_mut("kube").expect("a group");
    group.metadata.uid = Some(UID.into());
    group.metadata.finalizers = Some(vec!["tailscale.com/finalizer".into(), "tailscale.com/kube-apiserver-finalizer".into()]);
    let container = json!({"name": "tailscale", "image": "tailscale/k8s-proxy:v1.104.7",
        "env": [{"name": "TS_K8S_PROXY_CONFIG", "value": "kube:tailscale/$(POD_NAME)-config"}]});
    let pod = json!({"serviceAccountName": "kube-apiserver-auth-proxy", "containers": [container]});
    let selector = labels(json!({}));
    let template = json!({"metadata": {"labels": selector}, "spec": pod});
    let set = json!({"spec": {"replicas": 2, "selector": {"matchLabels": selector}, "template": template}});
    put(world, Kind::StatefulSet, "kube", set);
    put(world, Kind::Role, "kube", json!({"rules": []}));
    for ordinal in 0..2 {
        let name = format!("kube-{ordinal}");
        let config = json!({"Version": "v1alpha1", "AdvertiseServices": ["svc:kube"], "APIServerProxy": {"ServiceName": "svc:kube"}});
        put(world, Kind::Secret, &format!("{name}-config"), json!({"data": {"config.hujson": data(&config.to_string())}}));
        let id = world::device_id(&name);
        world.joined(id.clone(), vec!["tag:k8s".into()]);
        let addresses = world.name_device(&id, &name);
        let state = json!({"data": {"device_id": data(&id.to_string()), "device_fqdn": data(&format!("{name}.tail1234.ts.net.")),
            "device_ips": data(&json!(addresses).to_string()), "pod_uid": data(&name), "_current-profile": data("profile-1"),
            "profile-1": data(&json!({"AdvertiseServices": ["svc:kube"]}).to_string())}});
        put(world, Kind::Secret, &name, state);
        let pod = json!({"metadata": {"name": name, "namespace": NS, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": pod,
            "status": {"phase": "Running", "podIP": format!("10.9.0.{ordinal}"), "podIPs": [{"ip": format!("10.9.0.{ordinal}")}],
            "conditions": [{"type": "Ready", "status": "True"}]}});
        world.pods.insert(name.clone(), serde_json::from_value::<Pod>(pod).expect("a Pod"));
        world.asleep.insert(name);
    }
    let resource = json!({"kind": "ProxyGroup", "name": "kube", "uid": UID});
    world.hosted.vips.insert("svc:kube".into(), vip("svc:kube", json!([{"operatorID": "nOperatorCNTRL", "resource": resource}])));
    let certificate = json!({"metadata": {"name": "kube.tail1234.ts.net", "namespace": NS, "uid": "certificate", "labels": labels(json!({
        "tailscale.com/secret-type": "certs", "tailscale.com/proxy-group": "kube", "tailscale.com/domain": "kube.tail1234.ts.net",
        "tailscale.com/parent-resource-ns": ""}))}, "type": "kubernetes.io/tls", "data": {"tls.crt": "YQ==", "tls.key": "YQ=="}});
    world.objects.insert(object(Kind::Secret, "kube.tail1234.ts.net"), certificate.into());
}

/// Runs passes and replicas. Without the invariants of the cluster: Pods of the Tailscale operator advertise before there is a config of ours.
fn run(world: &mut World) {
    for _ in 0..30 {
        world.pass("kube");
        world.live();
        world.now += 1;
    }
}

/// Whether a config Secret has the Tailscale operator's config.
fn has_former_config(world: &World, ordinal: u32) -> bool {
    !world.objects[&object(Kind::Secret, &format!("kube-{ordinal}-config"))]["data"]["config.hujson"].is_null()
}

fn subjects(world: &World) -> Vec<String> {
    let binding = &world.objects[&object(Kind::RoleBinding, "kube")];
    binding["subjects"].as_array().expect("a list").iter().map(|subject| subject["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn pods_go_on_with_their_config_and_rights_until_they_are_replaced() {
    let mut world = granting();
    of_the_tailscale_operator(&mut world);
    let devices: Vec<_> = world.devices.keys().cloned().collect();
    run(&mut world);
    assert_eq!((has_former_config(&world, 0), has_former_config(&world, 1)), (true, true));
    assert_eq!(subjects(&world), ["kube", "kube-apiserver-auth-proxy"]);
    assert_eq!(world.objects[&object(Kind::StatefulSet, "kube")]["spec"]["template"]["spec"]["serviceAccountName"], "kube");
    assert_eq!(url(&world).as_deref(), Some("https://kube.tail1234.ts.net"));
    assert_eq!(world.objects[&object(Kind::Secret, "kube.tail1234.ts.net")]["metadata"]["uid"], "certificate", "no new order");
    // The rollout replaces one Pod after the other.
    for (ordinal, has_former) in [(1, [true, false]), (0, [false, false])] {
        let name = format!("kube-{ordinal}");
        world.pods.remove(&name);
        world.asleep.remove(&name);
        run(&mut world);
        assert_eq!([has_former_config(&world, 0), has_former_config(&world, 1)], has_former);
        assert_eq!(url(&world).as_deref(), Some("https://kube.tail1234.ts.net"), "{ordinal}");
    }
    world.settle();
    assert_eq!(subjects(&world), ["kube"]);
    assert_eq!(world.devices.keys().cloned().collect::<Vec<_>>(), devices, "each device stays");
    assert_eq!((world.minted, world.ready("kube").1.as_str()), (0, "ProxyGroupReady"));
    let owners = &world.hosted.vips["svc:kube"].annotations["tailscale.com/owner-references"];
    assert!(owners.contains("nOperatorCNTRL"), "that operator can take the group back: {owners}");
    world.delete_group("kube");
    world.settle();
    assert!(world.groups.is_empty() && world.hosted.vips.is_empty(), "{:?}", world.hosted.vips);
}

#[test]
fn pods_go_on_while_tailyard_may_not_impersonate() {
    let mut world = granting();
    world.settings.impersonation = Impersonation::default();
    of_the_tailscale_operator(&mut world);
    let set = world.objects[&object(Kind::StatefulSet, "kube")].clone();
    let config = world.objects[&object(Kind::Secret, "kube-0-config")].clone();
    run(&mut world);
    assert_eq!(
        (&world.objects[&object(Kind::StatefulSet, "kube")], &world.objects[&object(Kind::Secret, "kube-0-config")]),
        (&set, &config)
    );
    let ready = world.ready("kube");
    assert!(ready.1 == "ProxyGroupInvalid" && ready.2.contains("allowImpersonation"), "{ready:?}");
    assert_eq!(world.hosted.vips.len(), 1);
}
