use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::api::replica::{PeerCounts, ReplicaStatus};
use crate::model::config::fingerprint;

mod published;

const CONFIG: &str = concat!(
    r#"{"default-db":{"healthCheckEndpoint":"","tailnetTarget":{"ip":"","fqdn":"db.tail1234.ts.net"},"#,
    r#""ports":[{"protocol":"TCP","matchPort":10001,"targetPort":5432}]},"#,
    r#""default-web":{"healthCheckEndpoint":"","tailnetTarget":{"ip":"100.64.0.9","fqdn":""},"#,
    r#""ports":[{"protocol":"TCP","matchPort":10002,"targetPort":80}]}}"#
);

fn base64(text: &str) -> Value {
    json!(k8s_openapi::ByteString(text.as_bytes().to_vec()))
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn pod(ordinal: u8, image: &str, ready: bool) -> Value {
    json!({"metadata": {"name": format!("eg-{ordinal}"), "namespace": "ts", "labels": {names::PARENT: "eg"}},
        "spec": {"nodeName": format!("node{ordinal}"), "containers": [{"name": "tailscale", "image": image,
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": 9002}}}]},
        "status": {"phase": "Running", "podIP": format!("10.1.0.{ordinal}"), "podIPs": [{"ip": format!("10.1.0.{ordinal}")}],
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
}

/// State Secret of a replica with these services.
fn state(ordinal: u8, services: &Value, rejected: &Value) -> Value {
    let status = json!({"podIPv4": format!("10.1.0.{ordinal}"), "services": services, "rejected": rejected});
    json!({"metadata": {"name": format!("eg-{ordinal}"), "namespace": "ts"}, "data": {
        "device_fqdn": base64(&format!("eg-{ordinal}.tail1234.ts.net.")),
        "device_ips": base64(&json!([format!("100.64.0.{ordinal}"), format!("fd7a:115c:a1e0::{ordinal}")]).to_string()),
        "egress-services": base64(&status.to_string())}})
}

fn resolved_config() -> Value {
    let mut resolved_config: Value = serde_json::from_str(CONFIG).expect("JSON");
    resolved_config["default-db"]["tailnetTargetIPs"] = json!(["100.64.0.7"]);
    resolved_config["default-web"]["tailnetTargetIPs"] = json!(["100.64.0.9"]);
    resolved_config
}

fn service(name: &str, group: &str, target: (&str, &str), conditions: &[Value]) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "annotations": {names::PROXY_GROUP: group, target.0: target.1}},
        "spec": {}, "status": {"conditions": conditions}})
}

fn view(groups: &[Value], pods: &[Value], states: &[Value], services: &[Value]) -> ClusterView {
    let config = json!({"metadata": {"name": "eg-egress-config"}, "binaryData": {"egress-services": base64(CONFIG)}});
    let mut view = ClusterView::new("ts");
    view.take(StatusPart::Groups, groups.iter());
    view.take(StatusPart::Pods, pods.iter());
    view.take(StatusPart::States, states.iter());
    view.take(StatusPart::Configs, std::iter::once(&config));
    view.take(StatusPart::Services, services.iter());
    view
}

fn group(replicas: u32, conditions: &[Value]) -> Value {
    json!({"metadata": {"name": "eg"}, "spec": {"type": "egress", "replicas": replicas},
        "status": {"conditions": conditions, "devices": [{"hostname": "eg-0", "tailnetIPs": ["100.64.0.40"]}]}})
}

/// Pod of a standalone proxy.
fn proxy(kind: &str, name: &str, ready: bool) -> Value {
    let mut proxy = pod(0, "localhost/tailyard:0.1.0", ready);
    proxy["metadata"] = json!({"name": format!("ts-{name}-a3b85-0"), "namespace": "ts",
        "labels": {names::PARENT_TYPE: kind, names::PARENT: name, names::PARENT_NAMESPACE: "shop"}});
    proxy
}

/// Service with a standalone proxy.
fn standalone(name: &str, annotations: &Value, status: &Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "annotations": annotations},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale"}, "status": status})
}

/// Two healthy replicas, and two standalone proxies; a Service without proxy is omitted.
fn well() -> ClusterView {
    let image = "localhost/tailyard:0.1.0";
    let ready = condition("TailscaleEgressSvcReady", "True", "ReadyToRouteTraffic", "");
    let shop = json!({"loadBalancer": {"ingress": [{"hostname": "shop-shop.tail1234.ts.net"}, {"ip": "100.64.0.50"}]},
        "conditions": [condition("TailscaleProxyReady", "True", "ProxyCreated", "")]});
    let services = [
        service("db", "eg", (names::TAILNET_FQDN, "db.tail1234.ts.net"), std::slice::from_ref(&ready)),
        service("web", "eg", (names::TAILNET_IP, "100.64.0.9"), std::slice::from_ref(&ready)),
        json!({"metadata": {"name": "other", "namespace": "default"}, "spec": {}}),
        standalone("defaulted", &json!({}), &json!({})),
        standalone("shop", &json!({}), &shop),
    ];
    let states = [state(0, &resolved_config(), &json!({})), state(1, &resolved_config(), &json!({}))];
    let mut view = view(
        &[group(2, &[condition("ProxyGroupReady", "True", "ProxyGroupReady", "2/2 ProxyGroup pods running")])],
        &[pod(0, image, true), pod(1, image, true), proxy("svc", "shop", true), proxy("ingress", "site", true)],
        &states,
        &services,
    );
    for (ordinal, peers) in [(0, PeerCounts { direct: 2, relayed: 0 }), (1, PeerCounts { direct: 1, relayed: 1 })] {
        let live = ReplicaStatus { version: "0.1.0".into(), flows: Some(40 + ordinal), peers: Some(peers), ..ReplicaStatus::default() };
        view.live.insert(format!("eg-{ordinal}"), Ok(live));
    }
    view
}

/// A replica that is behind, one that is not scheduled, a group without reconciler, a Service of no group.
fn troubled() -> ClusterView {
    let message = "1/3 ProxyGroup pods running";
    let rejected = json!({"default-db": ["TCP 10001: nobody in the tailnet is named db.tail1234.ts.net"]});
    let mut some = resolved_config();
    some.as_object_mut().expect("services").remove("default-db");
    let mut pending = pod(1, "localhost/tailyard:0.1.0", false);
    pending["status"] = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
        "message": "0/3 nodes are available: 3 Insufficient memory."}]});
    let mut stock = pod(2, "docker.io/tailscale/tailscale:v1.102.3", false);
    stock["status"]["containerStatuses"] = json!([{"name": "tailscale", "ready": false, "restartCount": 4, "image": "", "imageID": "",
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:00Z"}}}]);
    let waiting = "The name is pointed at ProxyGroup eg when all its replicas have taken up the Service.";
    let waiting = condition("TailscaleEgressSvcReady", "False", "NotReadyToRouteTraffic", waiting);
    let lost = "ProxyGroup gone does not exist: make it, or name another group.";
    let lost = condition("TailscaleEgressSvcValid", "Unknown", "ProxyGroupNotReady", lost);
    let refused = json!({"conditions": [condition("TailscaleProxyReady", "False", "ProxyInvalid", "tags: not allowed.")]});
    let mut view = view(
        &[
            group(3, &[condition("ProxyGroupReady", "False", "ProxyGroupCreating", message)]),
            json!({"metadata": {"name": "new"}, "spec": {"type": "egress", "replicas": 0}}),
        ],
        &[pod(0, "localhost/tailyard:0.1.0", true), pending, stock, proxy("svc", "shop", false)],
        &[state(0, &some, &rejected)],
        &[
            service("db", "eg", (names::TAILNET_FQDN, "db.tail1234.ts.net"), &[]),
            standalone("shop", &json!({names::TAILNET_IP: "100.64.0.51"}), &json!({})),
            standalone("refused", &json!({}), &refused),
            service("web", "eg", (names::TAILNET_IP, "100.64.0.9"), &[waiting]),
            service("lost", "gone", (names::TAILNET_IP, "100.64.0.10"), &[lost]),
        ],
    );
    let (version, peers) = ("0.1.0".into(), Some(PeerCounts::default()));
    let last_error = Some("tailscaled: Exited, started again 3 times".to_owned());
    let live = ReplicaStatus { version, flows: Some(7), peers, last_error, ..ReplicaStatus::default() };
    view.live.insert("eg-0".into(), Ok(live));
    let approval = condition("TailyardRoutesApproved", "False", "RoutesNotApproved", "not approved: lab-connector (10.40.0.0/14)");
    let ready = condition("ConnectorReady", "True", "ConnectorCreated", "1 of 1 devices are in the tailnet and advertise 3 routes");
    let connectors = [
        json!({"metadata": {"name": "lab"}, "spec": {"subnetRouter": {"advertiseRoutes": ["10.40.0.0/14"]}, "exitNode": true},
            "status": {"subnetRoutes": "10.40.0.0/14", "isExitNode": true, "devices": [{"hostname": "lab-connector.tail1234.ts.net"}],
                "conditions": [ready, approval]}}),
        json!({"metadata": {"name": "apps"}, "spec": {"appConnector": {}, "replicas": 2}}),
    ];
    view.take(StatusPart::Connectors, connectors.iter());
    view.now = since_epoch();
    view.take(StatusPart::Events, [event("site", "InvalidIngress", "The Ingress is not valid: spec.tls names no host.", 12)].iter());
    view
}

/// View of a user who may list only groups and Services.
fn unread() -> ClusterView {
    let mut view =
        ClusterView { pods: BTreeMap::new(), states: BTreeMap::new(), configs: BTreeMap::new(), live: BTreeMap::new(), ..well() };
    for part in [StatusPart::Pods, StatusPart::States, StatusPart::Configs, StatusPart::Ingresses, StatusPart::Events] {
        view.gaps.insert(part, Gap::Forbidden);
    }
    view.gaps.insert(StatusPart::Pages, Gap::Failed("eg-0: the API server did not answer within 5s".into()));
    view
}

fn golden(name: &str, text: &str) {
    kit::golden::assert_golden(&format!("tests/golden/overview/{name}"), text);
}

#[test]
fn status_output_matches_golden_files() {
    for (name, view) in [("well", well()), ("troubled", troubled()), ("unread", unread())] {
        let overview = Overview::of(&view, &RowSelection::All);
        golden(&format!("{name}.txt"), &text(&overview, Width::Narrow));
        golden(&format!("{name}.wide.txt"), &text(&overview, Width::Wide));
        golden(&format!("{name}.json"), &(serde_json::to_string_pretty(&overview).expect("JSON") + "\n"));
    }
}

#[test]
fn status_of_one_group_hides_the_others() {
    let overview = Overview::of(&troubled(), &RowSelection::parse("new"));
    assert_eq!((overview.groups.len(), overview.replicas.len(), overview.services.len(), overview.standalone.len()), (1, 0, 0, 0));
    assert_eq!(overview.groups[0].conditions[0].reason, "NoReconciler");
}

#[test]
fn status_of_one_connector_shows_its_row_alone() {
    let shown = text(&Overview::of(&troubled(), &RowSelection::parse("lab")), Width::Narrow);
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines.len(), 2, "{shown}");
    for cell in
        ["lab", "1/1", "10.40.0.0/14, exit node", "lab-connector.tail1234.ts.net", "TailyardRoutesApproved False RoutesNotApproved: "]
    {
        assert!(lines[1].contains(cell), "{cell}: {shown}");
    }
}

#[test]
fn lost_replica_is_shown_as_unreachable_with_its_time() {
    let mut view = well();
    let status = view.pods.get_mut("eg-1").and_then(|pod| pod.status.as_mut()).expect("a status");
    let message = "no answer to health probes since 2026-01-01T00:00:00Z; r made the Pod unready";
    let lost = json!([{"type": "Ready", "status": "False", "reason": "TailyardUnreachable", "message": message}]);
    status.conditions = serde_json::from_value(lost).expect("conditions");
    let replica = &Overview::of(&view, &RowSelection::All).replicas[1];
    assert_eq!((replica.state.as_deref(), replica.last_error.as_deref(), replica.ready), (Some("Unreachable"), Some(message), false));
}

#[test]
fn config_fingerprint_is_an_acknowledgement_of_its_own_pod_only() {
    let mut view = well();
    let state = view.states.get_mut("eg-0").and_then(|state| state.egress.as_mut()).expect("a status");
    (state.services, state.fingerprint) = (None, Some(fingerprint(CONFIG.as_bytes())));
    let holding = |view: &ClusterView| Overview::of(view, &RowSelection::All).replicas[0].config;
    assert_eq!(holding(&view), Holding::Acknowledged);
    assert_eq!(Overview::of(&view, &RowSelection::All).services[0].ready, Some(2));
    view.states.get_mut("eg-0").and_then(|state| state.egress.as_mut()).expect("a status").pod_ipv4 = "10.1.0.9".into();
    assert_eq!(holding(&view), Holding::Behind { up_to_date: 0, configured: 2 });
    assert_eq!(Overview::of(&view, &RowSelection::All).services[0].ready, Some(1));
}

#[test]
fn watch_prints_changed_and_removed_rows() {
    let (before, after) = (Overview::of(&well(), &RowSelection::All), Overview::of(&troubled(), &RowSelection::All));
    assert_eq!(changes(&before, &before, Width::Narrow), [""; 0]);
    let all = changes(&Overview::default(), &before, Width::Narrow);
    assert_eq!(all.len(), 1 + 2 + 2 + 2, "{all:?}");
    let mut busier = before.clone();
    busier.replicas[0].flows = Some(99);
    assert_eq!(changes(&before, &busier, Width::Narrow), [""; 0], "a count of flows never stands still");
    let mut repeated = after.clone();
    repeated.ingress_faults[0].last_reported = "2027-01-15T08:30:00Z".to_owned();
    assert_eq!(changes(&after, &repeated, Width::Narrow), [""; 0], "an Event is repeated");
    let mut fewer = before.clone();
    fewer.replicas.pop();
    assert_eq!(changes(&before, &fewer, Width::Narrow), ["replica eg-1 is gone"]);
    assert!(changes(&before, &after, Width::Narrow).iter().any(|line| line.starts_with("replica\teg-2\tNotReady")));
}

#[test]
fn only_running_pods_with_our_image_are_queried() {
    let names = |view: ClusterView| view.with_status_endpoint().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(well()), ["eg-0", "eg-1", "ts-shop-a3b85-0", "ts-site-a3b85-0"]);
    assert_eq!(names(troubled()), ["eg-0", "ts-shop-a3b85-0"], "one has no node, one is the stock image");
}

/// An Event about Ingress `u/NAME`, which has the UID `NAME`, some minutes before `now`.
fn event(name: &str, reason: &str, message: &str, minutes: i64) -> Value {
    json!({"metadata": {"name": format!("{name}.{reason}"), "namespace": "u"}, "type": "Warning", "reason": reason, "note": message,
        "eventTime": format!("{}000Z", (now() - SignedDuration::from_mins(minutes)).strftime("%Y-%m-%dT%H:%M:%S.%3f")),
        "reportingController": names::EVENT_CONTROLLER, "regarding": {"kind": "Ingress", "namespace": "u", "name": name, "uid": name}})
}

fn since_epoch() -> std::time::Duration {
    std::time::Duration::from_secs(now().as_second().try_into().expect("a time"))
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("a time")
}

/// Faults in the overview of Ingresses `a` and `b`, `b` of group `in`: name, reason and message.
fn faults(events: &[Value], ingresses: Option<&[&str]>, only: Option<&str>) -> Vec<[String; 3]> {
    let mut view = ClusterView { now: since_epoch(), ..ClusterView::new("ts") };
    let annotations = |name: &str| if name == "b" { json!({names::PROXY_GROUP: "in"}) } else { json!({}) };
    let object = |name: &&str| json!({"metadata": {"name": name, "namespace": "u", "uid": name, "annotations": annotations(name)}});
    if let Some(ingresses) = ingresses {
        view.take(StatusPart::Ingresses, ingresses.iter().map(object).collect::<Vec<_>>().iter());
    }
    view.take(StatusPart::Events, events.iter());
    let faults = Overview::of(&view, &only.map(RowSelection::parse).unwrap_or_default()).ingress_faults;
    faults.into_iter().map(|fault| [fault.name, fault.reason, fault.message]).collect()
}

#[test]
fn fault_of_an_ingress_is_its_newest_event_that_is_not_overdue() {
    let row = |name: &str, reason: &str, message: &str| [name, reason, message].map(str::to_owned);
    let all = [event("a", "InvalidIngress", "old", 20), event("a", "NameConflict", "new", 10), event("b", "InvalidIngress", "other", 34)];
    let both = [row("a", "NameConflict", "new"), row("b", "InvalidIngress", "other")];
    assert_eq!(faults(&all, Some(&["a", "b"]), None), both);
    assert_eq!(faults(&all, None, None), both, "Ingresses are not readable");
    assert_eq!(faults(&all, Some(&["a"]), None), both[..1], "the other one is deleted");
    assert_eq!(faults(&all, Some(&["a", "b"]), Some("in")), both[1..], "of one group");
    assert_eq!(faults(&[event("a", "InvalidIngress", "x", 36)], Some(&["a"]), None).len(), 0, "it was not repeated");
    let mut repeated = event("a", "InvalidIngress", "x", 36);
    repeated["series"] = json!({"count": 2, "lastObservedTime": event("a", "", "", 31)["eventTime"]});
    assert_eq!(faults(&[repeated], Some(&["a"]), None).len(), 1);
    for (field, value) in [("type", json!("Normal")), ("reportingController", json!("nginx")), ("reason", json!("IneffectiveAnnotation"))] {
        let mut other = event("a", "InvalidIngress", "x", 1);
        other[field] = value;
        assert_eq!(faults(&[other], Some(&["a"]), None).len(), 0, "{field}");
    }
    for (end, shown) in [(3, 0), (7, 1)] {
        let mut resolved = event("a", "FaultResolved", "The faults of earlier Events have ended.", end);
        resolved["type"] = json!("Normal");
        assert_eq!(faults(&[event("a", "NameConflict", "x", 5), resolved], Some(&["a"]), None).len(), shown, "{end} min ago");
    }
    let mut replaced = event("a", "InvalidIngress", "x", 1);
    replaced["regarding"]["uid"] = json!("before");
    assert_eq!(faults(&[replaced], Some(&["a"]), None).len(), 0, "an earlier Ingress of the name");
}
