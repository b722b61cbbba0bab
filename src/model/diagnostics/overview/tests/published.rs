//! Groups of type ingress: advertised names of replicas, Ingresses and Services with their certificates, and the selection of one object.

use super::*;
use crate::api::{ingress, state as keys};
use crate::model::controller::key::{PublishSource, Publisher, WorkloadKey};
use crate::model::controller::workload::objects::Owner;
use crate::model::controller::workload::objects::certificate::certificate;

const UNTIL: &str = "2027-04-01T00:00:00Z";

fn ingress(namespace: &str, name: &str, metadata: &Value, host: Option<&str>) -> Value {
    let mut object = json!({"metadata": metadata, "spec": {"ingressClassName": "tailscale"}});
    object["metadata"]["namespace"] = json!(namespace);
    object["metadata"]["name"] = json!(name);
    object["metadata"]["uid"] = json!(name);
    if let Some(host) = host {
        object["status"] = json!({"loadBalancer": {"ingress": [{"hostname": host, "ports": [{"port": 443, "protocol": "TCP"}]}]}});
    }
    object
}

/// Secret of a certificate of an Ingress, with a chain that ends at [`UNTIL`].
fn certificate_secret(owner: &Owner, (namespace, name): (&str, &str), dns: &str) -> Value {
    let claimant = Publisher { source: PublishSource::Ingress, namespace: namespace.into(), name: name.into() };
    let mut value = certificate(owner, dns, &claimant, None).value;
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(vec![dns.to_owned()]).expect("names");
    params.not_after = rcgen::date_time_ymd(2027, 4, 1);
    value["data"] = json!({"tls.crt": base64(&params.self_signed(&key).expect("a certificate").pem())});
    value
}

/// State Secret of a replica whose tailscaled advertises these names and routes.
fn advertising(replica: &str, services: &Value, routes: &Value) -> Value {
    let profile = json!({"AdvertiseServices": services, "AdvertiseRoutes": routes}).to_string();
    json!({"metadata": {"name": replica}, "data": {keys::POD_UID: base64(replica), keys::CURRENT_PROFILE: base64("profile-1"),
        "profile-1": base64(&profile)}})
}

fn replica(name: &str, ready: bool) -> Value {
    let mut pod = pod(0, "localhost/tailyard:0.1.0", ready);
    pod["metadata"] = json!({"name": name, "uid": name, "labels": {names::PARENT: "in"}});
    pod
}

/// Config with an Ingress and a Service by name, a Service by routes, and an Ingress at the replicas' own addresses.
fn config() -> Value {
    let origin = |kind: &str, name: &str| json!({"kind": kind, "namespace": "u", "name": name});
    let mapping = json!({"IPv4Mapping": {"TailscaleServiceIP": "100.64.9.1", "ClusterIP": "10.96.0.9"}});
    let data = [
        ("serve-config.json", json!({"Services": {"svc:app": {}, "svc:lb": {}}})),
        (ingress::KEY, json!({"svc:lb": mapping, "svc:routed": mapping})),
        ("tailyard-routes.json", json!({"svc:app": {}, "svc:own": {}})),
        (
            "tailyard-owners.json",
            json!({"svc:app": origin("Ingress", "app"), "svc:lb": origin("Service", "lb"),
            "svc:routed": origin("Service", "routed"), "svc:own": origin("Ingress", "own")}),
        ),
    ];
    let data: serde_json::Map<_, _> = data.into_iter().map(|(key, value)| (key.to_owned(), base64(&value.to_string()))).collect();
    json!({"metadata": {"name": "in-ingress-config"}, "binaryData": data})
}

fn published_view() -> ClusterView {
    let group = json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 3},
        "status": {"conditions": [condition("ProxyGroupReady", "True", "ProxyGroupReady", "")]}});
    let pods = [replica("in-0", true), replica("in-1", true), proxy("ingress", "site", true)];
    let states = [
        advertising("in-0", &json!(["svc:app", "svc:lb"]), &json!(["100.64.9.1/32"])),
        advertising("in-1", &json!(["svc:app"]), &json!([])),
    ];
    let lb = |name: &str, status: &str| {
        let conditions = [condition("TailscaleIngressSvcConfigured", status, "IngressSvcNoBackendsConfigured", "0/3 proxy backends")];
        json!({"metadata": {"name": name, "namespace": "u", "annotations": {names::PROXY_GROUP: "in"}},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale"}, "status": {"conditions": conditions}})
    };
    let mut view = view(&[group], &pods, &states, &[lb("lb", "True"), lb("routed", "False")]);
    view.take(StatusPart::Configs, std::iter::once(&config()));
    let in_group = |group: &str| json!({"annotations": {names::PROXY_GROUP: group}, "finalizers": [names::INGRESS_FINALIZER]});
    let ingresses = [
        ingress("u", "app", &in_group("in"), Some("app.tail1234.ts.net")),
        ingress("u", "own", &in_group("in"), None),
        ingress("u", "refused", &json!({"annotations": {names::PROXY_GROUP: "nope"}}), None),
        ingress("u", "new", &json!({}), None),
        ingress("shop", "site", &json!({"finalizers": [names::FINALIZER]}), Some("site.tail1234.ts.net")),
        ingress("shop", "waiting", &json!({"finalizers": [names::FINALIZER]}), None),
        json!({"metadata": {"name": "foreign", "namespace": "u"}, "spec": {"ingressClassName": "nginx"}}),
    ];
    view.take(StatusPart::Ingresses, ingresses.iter());
    let owner = |key: WorkloadKey| Owner { namespace: "ts".into(), name: "in".into(), uid: String::new(), app: String::new(), key };
    let of_group = owner(WorkloadKey::of_group("in"));
    let own = owner(WorkloadKey::Ingress("shop".into(), "site".into()));
    let certificates = [
        certificate_secret(&of_group, ("u", "app"), "app.tail1234.ts.net"),
        certificate_secret(&own, ("shop", "site"), "site.tail1234.ts.net"),
    ];
    view.take(StatusPart::Certificates, certificates.iter());
    view.now = since_epoch();
    view.take(StatusPart::Events, [event("refused", "ProxyGroupNotReady", "ProxyGroup nope does not exist.", 12)].iter());
    view
}

#[test]
fn status_of_ingress_groups_matches_golden_files() {
    let overview = Overview::of(&published_view(), &RowSelection::All);
    golden("published.txt", &text(&overview, Width::Narrow));
    golden("published.json", &(serde_json::to_string_pretty(&overview).expect("JSON") + "\n"));
}

#[test]
fn replicas_of_ingress_groups_are_shown_by_the_names_that_they_advertise() {
    let overview = Overview::of(&published_view(), &RowSelection::All);
    let holding: Vec<_> = overview.replicas.iter().map(|replica| replica.config).collect();
    let advertised = |advertised| Holding::Advertised { advertised, configured: 4 };
    assert_eq!(holding, [advertised(4), advertised(2), advertised(0)]);
    let ready: Vec<_> = overview.published.iter().map(|object| (object.name.as_str(), object.ready)).collect();
    let wanted = [("app", 2), ("new", 0), ("own", 2), ("refused", 0), ("lb", 1), ("routed", 1)].map(|(name, ready)| (name, Some(ready)));
    assert_eq!(ready, wanted);
    let mut earlier = published_view();
    earlier.pods.get_mut("in-1").expect("a Pod").metadata.uid = Some("replaced".into());
    assert_eq!(Overview::of(&earlier, &RowSelection::All).replicas[1].config, advertised(0), "the state of an earlier Pod");
}

#[test]
fn certificates_of_ingresses_are_shown_with_their_end() {
    let overview = Overview::of(&published_view(), &RowSelection::All);
    let published = overview.published.iter().map(|object| (object.name.as_str(), object.certificate_expires.as_deref()));
    let standalone = overview.standalone.iter().map(|proxy| (proxy.name.as_str(), proxy.certificate_expires.as_deref()));
    let shown: Vec<_> = published.chain(standalone).filter(|(_, until)| until.is_some()).collect();
    assert_eq!(shown, [("app", Some(UNTIL)), ("site", Some(UNTIL))]);
}

#[test]
fn status_of_one_object_shows_it_and_the_group_that_serves_it() {
    let shown = |selected: &str| {
        let overview = Overview::of(&published_view(), &RowSelection::parse(selected));
        let objects = overview.published.iter().map(|object| object.name.clone());
        let proxies = overview.standalone.iter().map(|proxy| proxy.name.clone());
        let faults = overview.ingress_faults.iter().map(|fault| fault.reason.clone());
        (objects.chain(proxies).chain(faults).collect::<Vec<_>>(), overview.groups.len(), overview.replicas.len(), overview.lacks_object())
    };
    let of =
        |rows: &[&str], groups, replicas| (rows.iter().map(|row| (*row).to_owned()).collect::<Vec<_>>(), groups, replicas, rows.is_empty());
    assert_eq!(shown("u/app"), of(&["app"], 1, 3));
    assert_eq!(shown("u/refused"), of(&["refused", "ProxyGroupNotReady"], 0, 0));
    assert_eq!(shown("shop/waiting"), of(&["waiting"], 0, 0));
    assert_eq!(shown("u/foreign"), of(&[], 0, 0));
    let overview = Overview::of(&published_view(), &RowSelection::parse("shop/site"));
    assert_eq!(overview.pods().collect::<Vec<_>>(), ["ts-site-a3b85-0"]);
    golden("one_object.txt", &text(&overview, Width::Narrow));
}

#[test]
fn kubernetes_api_of_a_group_has_a_row_of_its_own() {
    let group = |name: &str| {
        let unmet = condition("KubeAPIServerProxyConfigured", "False", "KubeAPIServerProxyNoBackends", "1/2 proxy backends");
        json!({"metadata": {"name": name}, "spec": {"type": "kube-apiserver", "replicas": 2},
            "status": {"url": format!("https://{name}.tail1234.ts.net"), "conditions": [unmet]}})
    };
    let of_group = |name: &str| {
        let mut pod = replica(name, true);
        pod["metadata"]["labels"][names::PARENT] = json!("kube");
        pod
    };
    let pods = ["kube-0", "kube-1"].map(of_group);
    let states = [advertising("kube-0", &json!(["svc:kube"]), &json!([])), advertising("kube-1", &json!([]), &json!([]))];
    let mut view = view(&[group("kube"), group("theirs")], &pods, &states, &[]);
    let data = [
        ("serve-config.json", json!({"Services": {"svc:kube": {"TCP": {"443": {"HTTPS": true}}}}})),
        ("tailyard-owners.json", json!({"svc:kube": {"kind": "ProxyGroup", "namespace": "", "name": "kube"}})),
    ];
    let data: serde_json::Map<_, _> = data.into_iter().map(|(key, value)| (key.to_owned(), base64(&value.to_string()))).collect();
    view.take(StatusPart::Configs, std::iter::once(&json!({"metadata": {"name": "kube-ingress-config"}, "binaryData": data})));
    let overview = Overview::of(&view, &RowSelection::Group("kube".to_owned()));
    let rows: Vec<_> = overview.published.iter().map(super::super::text::published_row).collect();
    let error = "KubeAPIServerProxyNoBackends: 1/2 proxy backends";
    assert_eq!(rows, [["ProxyGroup kube", "kube", "kube.tail1234.ts.net", "1/2", "", error].map(str::to_owned)]);
    let holding: Vec<_> = overview.replicas.iter().map(|replica| replica.config).collect();
    assert_eq!(holding, [1, 0].map(|advertised| Holding::Advertised { advertised, configured: 1 }));
    let all = Overview::of(&view, &RowSelection::All);
    assert_eq!(
        all.published.iter().map(|row| row.ready).collect::<Vec<_>>(),
        [Some(1), None],
        "of the Tailscale operator nothing is known"
    );
}
