//! What a tenant or a compromised Pod may write changes no object, device, certificate or name of another workload, in further ways.

use super::cluster::{Cluster, NS, device_id, encoded};
use super::*;
use crate::api::names;
use crate::model::controller::workload::identity::DeviceId;
use crate::model::controller::workload::objects::ingress::IngressConfigMap;

const DNS: &str = "shop.tail1234.ts.net";

fn ingress(cluster: &mut Cluster, namespace: &str, name: &str, host: &str, group: Option<&str>) {
    let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
    let spec = json!({"ingressClassName": "tailscale", "tls": [{"hosts": [host]}], "defaultBackend": backend});
    let annotations = group.map_or(json!({}), |group| json!({"tailscale.com/proxy-group": group}));
    cluster.put("Ingress", json!({"metadata": {"name": name, "namespace": namespace, "annotations": annotations}, "spec": spec}));
}

fn cluster(tenants: bool) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.permit_standalone();
    for namespace in ["victim", "t"] {
        cluster.put("Namespace", json!({"metadata": {"name": namespace, "labels": {"kubernetes.io/metadata.name": namespace}}}));
        let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
        cluster.put(
            "Service",
            json!({"metadata": {"name": "web", "namespace": namespace}, "spec": {"clusterIP": "10.96.0.10", "ports": ports}}),
        );
    }
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": "victim"}});
    let own = if tenants { json!({"tenants": [{"namespaceSelector": selector}]}) } else { Value::Null };
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 1, "tailyard": own}}));
    cluster.put("ProxyGroup", json!({"metadata": {"name": "eg"}, "spec": {"type": "egress", "replicas": 1}}));
    ingress(&mut cluster, "victim", "shop", "shop", None);
    ingress(&mut cluster, "victim", "app", "app", Some("in"));
    assert!(cluster.settles(), "{:?}", cluster.events);
    cluster
}

fn uid(cluster: &Cluster, name: &str) -> Option<String> {
    cluster.object("Secret", NS, name).map(|secret| secret["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
}

/// Tailscale's API takes a device's stable ID and its numeric one. The numeric ID of a recorded device is another ID for the index.
#[test]
fn other_id_of_a_recorded_device_is_not_recorded_for_another_workload() {
    let mut cluster = Cluster::new();
    let service = |namespace: &str, name: &str, hostname: &str| {
        let metadata = json!({"name": name, "namespace": namespace, "annotations": {"tailscale.com/hostname": hostname}});
        json!({"metadata": metadata, "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "ports": [{"port": 80}]}})
    };
    cluster.put("Service", service("t", "evil", "foo"));
    assert!(cluster.settles());
    cluster.put("Service", service("victim", "web", "shop"));
    assert!(cluster.settles());
    let workload = |cluster: &Cluster, key: &str| cluster.observe(&cluster.cache, key).workload;
    let (evil, victim) = (workload(&cluster, "t/evil"), workload(&cluster, "victim/web"));
    // The replica never reported its own device: its key of less than an hour ago has no record.
    cluster.patch("Secret", NS, &format!("{evil}-0-config"), &json!({"metadata": {"annotations": {names::DEVICE: null}}}));
    cluster.devices.remove(&device_id(&format!("{evil}-0")));
    // The control plane knows the victim's device by a second ID.
    let device = cluster.devices[&device_id(&format!("{victim}-0"))].clone();
    let other = DeviceId::parse("4711").expect("an ID");
    cluster.devices.insert(other.clone(), device);
    cluster.patch("Service", "t", "evil", &json!({"metadata": {"annotations": {"tailscale.com/hostname": "shop"}}}));
    cluster.pass("t/evil");
    cluster.patch("Secret", NS, &format!("{evil}-0"), &json!({"data": {"device_id": encoded("4711")}}));
    for _ in 0..3 {
        cluster.pass("t/evil");
    }
    let record =
        cluster.object("Secret", NS, &format!("{evil}-0-config")).expect("a Secret")["metadata"]["annotations"][names::DEVICE].clone();
    cluster.patch("Secret", NS, &format!("{evil}-0"), &json!({"data": {"reissue_authkey": encoded("")}}));
    for _ in 0..3 {
        cluster.pass("t/evil");
    }
    assert!(cluster.devices.contains_key(&other), "the victim's device is deleted; the record was {record}");
    assert_eq!(record, Value::Null);
}

/// The group refuses an Ingress with the host of another tenant's standalone Ingress.
#[test]
fn refused_ingress_of_a_group_keeps_the_certificate_of_a_standalone_ingress() {
    let mut cluster = cluster(true);
    let before = uid(&cluster, DNS).expect("a certificate");
    ingress(&mut cluster, "t", "evil", "shop", Some("in"));
    let writes = cluster.writes.len();
    for _ in 0..10 {
        cluster.round();
    }
    let certificate: Vec<_> = cluster.writes[writes..].iter().filter(|write| write.contains(DNS)).collect();
    assert_eq!(uid(&cluster, DNS), Some(before), "{certificate:#?}\n{:#?}\n{:#?}", cluster.takeovers, cluster.events);
    assert_eq!(cluster.takeovers, [""; 0]);
}

/// A group of another tailnet has a certificate for the same first label.
#[test]
fn certificate_of_a_group_of_another_tailnet_stays() {
    let mut cluster = cluster(true);
    // The group of another tailnet, whose passes do not run here, with its certificate.
    cluster.put("ProxyGroup", json!({"metadata": {"name": "far"}, "spec": {"type": "ingress", "replicas": 1, "tailnet": "t2"}}));
    ingress(&mut cluster, "victim", "zap", "zap", Some("far"));
    let labels = json!({names::MANAGED: "true", names::PARENT_TYPE: names::PARENT_INGRESS, names::PARENT: "zap", names::PARENT_NAMESPACE: "victim",
        names::PROXY_GROUP: "far", names::SECRET_TYPE: "certs"});
    let data = json!({"tls.crt": encoded("a chain"), "tls.key": encoded("a key")});
    cluster.put("Secret", json!({"metadata": {"name": "zap.tail9999.ts.net", "namespace": NS, "labels": labels}, "data": data}));
    let before = uid(&cluster, "zap.tail9999.ts.net");
    ingress(&mut cluster, "t", "evil", "zap", Some("in"));
    for _ in 0..10 {
        cluster.pass("in");
        cluster.wait(1);
    }
    assert_eq!(uid(&cluster, "zap.tail9999.ts.net"), before, "{:#?}", cluster.takeovers);
}

/// A proxy labels the shared ACME accounts as objects of a Service, which is deleted then.
#[test]
fn labels_of_the_shared_accounts_do_not_delete_them() {
    let mut cluster = cluster(false);
    let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "ports": ports});
    cluster.put("Service", json!({"metadata": {"name": "any", "namespace": "t"}, "spec": spec}));
    assert!(cluster.settles());
    let before = uid(&cluster, names::ACCOUNTS).expect("accounts");
    let labels = json!({names::PARENT_TYPE: names::PARENT_SERVICE, names::PARENT: "any", names::PARENT_NAMESPACE: "t"});
    cluster.patch("Secret", NS, names::ACCOUNTS, &json!({"metadata": {"labels": labels}}));
    cluster.rounds(3);
    let time = cluster.time().to_string();
    cluster.patch("Service", "t", "any", &json!({"metadata": {"deletionTimestamp": time}}));
    cluster.rounds(10);
    assert_eq!(uid(&cluster, names::ACCOUNTS), Some(before), "{:#?}", cluster.takeovers);
    assert_eq!(cluster.takeovers, [""; 0]);
}

/// A `RoleBinding` in a tenant's namespace has the labels of another tenant's object, and a finalizer; it is being deleted.
#[test]
fn labelled_role_binding_of_a_tenant_does_not_hold_the_deletion_of_another() {
    for attacked in [false, true] {
        let mut cluster = cluster(false);
        let labels = json!({names::MANAGED: "true", names::PARENT_TYPE: names::PARENT_INGRESS, names::PARENT: "shop", names::PARENT_NAMESPACE: "victim"});
        let time = cluster.time().to_string();
        if attacked {
            let metadata =
                json!({"name": "evil", "namespace": "t", "labels": labels, "finalizers": ["t.example/hold"], "deletionTimestamp": time});
            cluster.put("RoleBinding", json!({"metadata": metadata, "roleRef": {"kind": "ClusterRole", "name": "view"}}));
        }
        cluster.patch("Ingress", "victim", "shop", &json!({"metadata": {"deletionTimestamp": time}}));
        for _ in 0..40 {
            cluster.round();
            cluster.wait(60);
        }
        let remaining = cluster.object("Ingress", "victim", "shop");
        assert!(remaining.is_none(), "attacked {attacked}: {}\n{:#?}", remaining.expect("it")["metadata"], cluster.events);
    }
}

/// A replica gives a Secret that it may write the label of a certificate that users provide; a tenant names it.
#[test]
fn secret_of_pods_with_the_label_of_a_users_certificate_is_named_by_no_role() {
    let workload = |cluster: &Cluster| cluster.observe(&cluster.cache, "ingress/victim/shop").workload;
    let shop = workload(&cluster(false));
    let of_pods = ["eg-0".to_owned(), format!("{shop}-0"), DNS.to_owned(), names::ACCOUNTS.to_owned(), names::account("eg")];
    let secrets = of_pods.iter().map(|name| (name.as_str(), false)).chain([("own", true), ("zed.example.com", true)]);
    for (name, is_named) in secrets {
        let mut cluster = cluster(false);
        assert_eq!(workload(&cluster), shop);
        let labels = json!({names::MANAGED: null, names::OWN_CERTIFICATE: "true"});
        if cluster.object("Secret", NS, name).is_none() {
            cluster.put("Secret", json!({"metadata": {"name": name, "namespace": NS}, "data": {}}));
        }
        let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
        let tls = json!([{"hosts": ["zed"]}, {"hosts": ["zed.example.com"], "secretName": name}]);
        let spec = json!({"ingressClassName": "tailscale", "tls": tls, "defaultBackend": backend});
        let annotations = json!({"tailscale.com/proxy-group": "in"});
        cluster.put("Ingress", json!({"metadata": {"name": "zed", "namespace": "t", "annotations": annotations}, "spec": spec}));
        let role = |cluster: &Cluster| Cluster::role_secrets(cluster.object("Role", NS, "in").expect("a Role"), "get");
        let mut roles = BTreeSet::new();
        for _ in 0..5 {
            cluster.patch("Secret", NS, name, &json!({"metadata": {"labels": labels}}));
            cluster.pass("in");
            roles.append(&mut role(&cluster));
        }
        assert_eq!(roles.contains(name), is_named, "{name}: {roles:?}");
    }
}

fn names_of(cluster: &Cluster, group: &str) -> BTreeSet<String> {
    let config = cluster.object("ConfigMap", NS, &names::ingress_config(group)).expect("a config");
    IngressConfigMap::read(config).names()
}

/// An older Ingress that the group refuses (`NotAllowed`) keeps the name from a tenant that may have it.
#[test]
fn refused_older_ingress_keeps_no_name_from_a_permitted_one() {
    for attacked in [false, true] {
        let mut cluster = cluster(true);
        if attacked {
            ingress(&mut cluster, "t", "evil", "pay", Some("in"));
            cluster.rounds(3);
            cluster.wait(60);
        }
        ingress(&mut cluster, "victim", "pay", "pay", Some("in"));
        cluster.rounds(20);
        assert!(names_of(&cluster, "in").contains("svc:pay"), "attacked {attacked}: {:#?}", cluster.events);
    }
}

fn origin_of(cluster: &Cluster, group: &str, name: &str) -> Option<String> {
    let config = cluster.object("ConfigMap", NS, &names::ingress_config(group)).expect("a config");
    let origins = IngressConfigMap::origins(config);
    origins.get(name).map(|origin| format!("{}/{}", origin.namespace, origin.name))
}

/// A served Ingress gets a faulty edit with another host: its former name stays served.
#[test]
fn name_of_a_faulty_edit_is_not_taken_by_another_tenant() {
    let mut cluster = cluster(false);
    assert_eq!(origin_of(&cluster, "in", "svc:app").as_deref(), Some("victim/app"));
    // No backend: refused, and what is served stays.
    cluster.patch("Ingress", "victim", "app", &json!({"spec": {"tls": [{"hosts": ["new"]}], "defaultBackend": null}}));
    cluster.rounds(10);
    assert_eq!(origin_of(&cluster, "in", "svc:app").as_deref(), Some("victim/app"), "an invalid edit changes nothing");
    ingress(&mut cluster, "t", "evil", "app", Some("in"));
    cluster.rounds(20);
    assert_eq!(origin_of(&cluster, "in", "svc:app").as_deref(), Some("victim/app"));
}

/// The labels of a group's certificates are its Pods': they may name another namespace.
#[test]
fn labels_of_certificates_use_no_quota_of_another_namespace() {
    let mut cluster = cluster(false);
    let selector = |name: &str| json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
    let own =
        json!({"tenants": [{"namespaceSelector": selector("victim"), "maxCertificatesPerWeek": 2}, {"namespaceSelector": selector("t")}]});
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in3"}, "spec": {"type": "ingress", "replicas": 1, "tailyard": own}}));
    for name in ["one", "two"] {
        ingress(&mut cluster, "t", name, name, Some("in3"));
    }
    cluster.rounds(20);
    let relabel = |cluster: &mut Cluster| {
        for name in ["one", "two"] {
            let labels = json!({names::PARENT_NAMESPACE: "victim"});
            cluster.patch("Secret", NS, &format!("{name}.tail1234.ts.net"), &json!({"metadata": {"labels": labels}}));
        }
    };
    relabel(&mut cluster);
    ingress(&mut cluster, "victim", "third", "third", Some("in3"));
    for _ in 0..10 {
        cluster.round();
        relabel(&mut cluster);
    }
    assert!(names_of(&cluster, "in3").contains("svc:third"), "{:#?}", cluster.events);
    // Nor do other labels spare the quota of the namespace that has them.
    for name in ["four", "five"] {
        ingress(&mut cluster, "victim", name, name, Some("in3"));
    }
    for _ in 0..10 {
        cluster.round();
        for name in ["third", "four", "five"] {
            if cluster.object("Secret", NS, &format!("{name}.tail1234.ts.net")).is_some() {
                let labels = json!({names::PARENT_NAMESPACE: "t"});
                cluster.patch("Secret", NS, &format!("{name}.tail1234.ts.net"), &json!({"metadata": {"labels": labels}}));
            }
        }
    }
    let served = ["svc:third", "svc:four", "svc:five"].into_iter().filter(|name| names_of(&cluster, "in3").contains(*name));
    assert_eq!(served.count(), 2, "{:#?}", cluster.events);
}

/// Whatever the labels of an existing object say: one that a pass does not know as its own is not overwritten.
#[test]
fn object_with_the_labels_of_an_unknown_kind_is_not_overwritten() {
    for labels in [
        json!({names::PARENT_TYPE: "recorder", names::PARENT: "rec", names::PARENT_NAMESPACE: NS}),
        json!({names::PARENT_TYPE: "connector", names::PARENT: "rec"}),
        json!({}),
    ] {
        let mut cluster = Cluster::new();
        let mut labels = labels;
        labels[names::MANAGED] = json!("true");
        let metadata = json!({"name": "rec", "namespace": NS, "labels": labels});
        let kinds = ["ServiceAccount", "Role", "RoleBinding", "StatefulSet"];
        for kind in kinds {
            cluster.put(kind, json!({"metadata": metadata}));
        }
        cluster.put("ProxyGroup", json!({"metadata": {"name": "rec"}, "spec": {"type": "egress", "replicas": 1}}));
        assert!(cluster.settles());
        assert_eq!(cluster.takeovers, [""; 0]);
        for kind in kinds {
            assert_eq!(cluster.object(kind, NS, "rec").expect(kind)["metadata"]["labels"], labels);
        }
        let status = &cluster.object("ProxyGroup", "", "rec").expect("a group")["status"];
        assert!(status.to_string().contains("already exists"), "{status}");
    }
}
