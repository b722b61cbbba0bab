//! What is stored of an object is bounded, whatever its writer puts into it.

use super::cluster::{Cluster, NS};
use super::*;

/// Length of the debug text of what is stored of a role: about its size in memory, whatever other tests allocate.
fn stored(cluster: &Cluster, role: WatchRole) -> usize {
    cluster.cache.objects(role).map(|(_, object)| format!("{object:?}").len()).sum()
}

/// Size of so many copies of an object.
fn grown(role: WatchRole, object: &Value, copies: usize) -> usize {
    let mut cluster = Cluster::new();
    for number in 0..copies {
        let mut object = object.clone();
        object["metadata"]["name"] = json!(format!("{}{number}", object["metadata"]["name"].as_str().unwrap_or_default()));
        object["metadata"]["resourceVersion"] = json!(format!("{}", number + 1));
        cluster.cache.put_json(role, object);
    }
    stored(&cluster, role)
}

/// Objects of the largest size that the API server stores: 1.5 MiB in etcd, 3 MiB as a request.
#[test]
fn ten_large_objects_of_a_tenant_take_less_than_fifty_megabytes() {
    let metadata = || json!({"name": "x", "namespace": "t"});
    let ingress = |class: &str| {
        let spec = json!({"ingressClassName": class, "tls": vec![json!({}); 700_000]});
        json!({"metadata": metadata(), "spec": spec})
    };
    let subjects = vec![json!({"kind": "ServiceAccount", "name": "a", "namespace": "a"}); 45_000];
    let labels = json!({names::MANAGED: "true"});
    let binding = |name: &str| {
        json!({"metadata": {"name": name, "namespace": "t", "labels": labels}, "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "none"}})
    };
    let ports: Vec<_> =
        (1..30_000).map(|port| json!({"name": format!("{port}"), "port": port, "protocol": "TCP", "targetPort": port})).collect();
    let service =
        |class: Value| json!({"metadata": metadata(), "spec": {"type": "LoadBalancer", "loadBalancerClass": class, "ports": ports}});
    let bindings = WatchRole::Owned(Kind::RoleBinding);
    let rows = [
        (WatchRole::Ingress, ingress("nginx")),
        (WatchRole::Ingress, ingress("tailscale")),
        (bindings, binding("x")),
        (bindings, binding("tailyard-endpoints-x")),
        (WatchRole::Service, service(json!("tailscale"))),
        (WatchRole::Service, service(Value::Null)),
    ];
    let sizes: Vec<_> = rows.iter().map(|(role, object)| (*role, grown(*role, object, 10) >> 20)).collect();
    assert!(sizes.iter().all(|(_, megabytes)| *megabytes < 50), "MB: {sizes:?}");
}

/// Without the admission policy: owner references of a state Secret, as many as a request of 3 MiB has.
#[test]
fn metadata_of_a_secret_of_pods_takes_less_than_one_megabyte() {
    let reference = |number: usize| json!({"apiVersion": "v1", "kind": "k", "name": "n", "uid": format!("{number:x}")});
    let references: Vec<_> = (0..50_000).map(reference).collect();
    let many: serde_json::Map<String, Value> = (0..190_000).map(|number| (format!("{number:x}"), json!(""))).collect();
    let finalizers: Vec<_> = (0..190_000).map(|number| format!("a/{number:x}")).collect();
    for name in ["eg-", "app.tail1234.ts.net", "in-acme-accounts", "other"] {
        for (field, content) in [
            ("ownerReferences", json!(references)),
            ("labels", json!(many)),
            ("annotations", json!(many)),
            ("finalizers", json!(finalizers)),
            ("other", json!({"many": many})),
        ] {
            let mut metadata = json!({"name": name, "namespace": NS, "labels": {names::MANAGED: "true"}});
            metadata[field] = content;
            let size = grown(WatchRole::Owned(Kind::Secret), &json!({"metadata": metadata, "data": {}}), 1);
            assert!(size < 1 << 20, "{name} {field}: {size} bytes");
        }
    }
}

/// Without the admission policy a Pod fills its Secrets and takes off their label: writes find them, and a pass reads their metadata.
#[test]
fn content_of_a_secret_that_a_write_finds_is_not_stored() {
    let data: serde_json::Map<String, Value> = (0..1_000).map(|number| (format!("{number}"), json!("x".repeat(1_400)))).collect();
    for name in ["eg-0", "app.tail1234.ts.net", "in-acme-accounts", names::ACCOUNTS, "other"] {
        let mut cluster = Cluster::new();
        let secret = json!({"metadata": {"name": name, "namespace": NS, "uid": "u"}, "data": data});
        let (object, found) = (ObjectRef::new(Kind::Secret, NS, name), WatchRole::Owned(Kind::Secret).decode(secret).parse());
        cluster.cache.found(&"eg".into(), object.clone(), &found, Instant::now());
        let owned = cluster.cache.owned(&"eg".into());
        assert_eq!(owned.get(&object).map(|found| &found["metadata"]["uid"]), Some(&json!("u")), "{name}");
        let size = format!("{owned:?}").len();
        assert!(size < 1 << 10, "{name}: {size} bytes");
    }
}

/// Who may write EndpointSlices in the namespace `default` labels one as that of the API server.
#[test]
fn endpoint_slices_of_a_tenant_in_default_are_no_endpoints_of_the_api_server() {
    let mut cluster = Cluster::new();
    let labels = json!({"kubernetes.io/service-name": "kubernetes"});
    let slice = |name: &str, addresses: Value| json!({"metadata": {"name": name, "namespace": "default", "labels": labels}, "addressType": "IPv6", "endpoints": addresses});
    let address = |number: usize| format!("2001:db8:{:x}:{:x}::1", number >> 16, number & 0xffff);
    let endpoint = |at: usize| json!({"addresses": (0..40).map(|n| address((at * 40 + n) * 2)).collect::<Vec<_>>()});
    let endpoints: Vec<_> = (0..1_000_usize).map(endpoint).collect();
    cluster.put("EndpointSlice", slice("evil", json!(endpoints)));
    cluster.put("EndpointSlice", slice("wide", json!([{"addresses": ["2001:db8:ffff::7"]}])));
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 1}}));
    cluster.rounds(5);
    let networks = |cluster: &Cluster| cluster.observe(&cluster.cache, "in").targets.cluster.len();
    assert_eq!(networks(&cluster), 0, "slices of other names");
    cluster.put("EndpointSlice", slice("kubernetes", json!([{"addresses": ["2001:db8:ffff::7"]}])));
    assert_eq!(networks(&cluster), 1);
    cluster.put("EndpointSlice", slice("kubernetes", json!(endpoints)));
    cluster.rounds(5);
    let config = cluster.object("Secret", NS, "in-0-config").expect("a config").to_string().len();
    assert!(config < 1 << 20 && networks(&cluster) <= 1_000, "{} addresses, a config Secret of {config} bytes", networks(&cluster));
}

/// A Pod may write these Secrets at any rate.
#[test]
fn certificates_are_paced_like_states() {
    let secret = |name: &str| WatchRole::Owned(Kind::Secret).decode(json!({"metadata": {"name": name, "namespace": NS}}));
    for name in ["eg-0", "app.tail1234.ts.net", "in-acme-accounts", names::ACCOUNTS] {
        assert!(secret(name).is_paced(), "{name} is written by Pods");
    }
    for name in ["eg-0-config", "eg"] {
        assert!(!secret(name).is_paced(), "{name} is the reconciler's");
    }
}

/// Changes of an object that tenants or Pods may write are paced; the others are urgent, and their writers are trusted.
#[test]
fn changes_of_every_role_are_paced_unless_their_writers_are_trusted() {
    let pacing = |role: WatchRole, name: &str| match role {
        WatchRole::Service | WatchRole::Ingress | WatchRole::BackendSlice => (true, "tenants"),
        WatchRole::GroupPolicy => (true, "administrators, who may delegate a namespace"),
        WatchRole::Credentials => (true, "Pods, which may remove the label of a Secret"),
        WatchRole::CreateFailure => (true, "Pods with the Tailscale operator's image"),
        WatchRole::Group
        | WatchRole::Class
        | WatchRole::Connector
        | WatchRole::DnsConfig
        | WatchRole::Tailnet
        | WatchRole::IngressClass => (false, "administrators"),
        WatchRole::Namespace => (false, "administrators: its labels decide who is a tenant"),
        WatchRole::Node | WatchRole::ServiceRange => (false, "the cluster"),
        WatchRole::Pod => (false, "the kubelet and controllers: readiness is urgent"),
        WatchRole::Owned(kind) => match kind {
            Kind::RoleBinding => (true, "tenants, in their namespaces"),
            Kind::Secret if ["other", "eg-0-config"].contains(&name) => (false, "the reconciler"),
            Kind::Secret => (true, "Pods"),
            Kind::ServiceAccount | Kind::Role | Kind::ConfigMap | Kind::ServiceMonitor | Kind::Deployment => (false, "the reconciler"),
            Kind::ClusterRole | Kind::ClusterRoleBinding | Kind::AdmissionPolicy | Kind::AdmissionBinding => {
                (false, "the reconciler, else administrators")
            }
            Kind::Service | Kind::PodDisruptionBudget | Kind::StatefulSet => (false, "the reconciler, and of the status the cluster"),
            Kind::EndpointSlice => (false, "the cluster: failover is urgent"),
        },
    };
    let secrets = ["eg-0", "app.tail1234.ts.net", "in-acme-accounts", names::ACCOUNTS, "eg-0-config", "other"];
    for role in WatchRole::TYPED.iter().copied().chain(Kind::ALL.map(WatchRole::Owned)) {
        let names = if role == WatchRole::Owned(Kind::Secret) { &secrets[..] } else { &["x"] };
        for name in names {
            let object = role.decode(json!({"metadata": {"name": name, "namespace": NS}}));
            let (is_paced, writer) = pacing(role, name);
            assert_eq!(object.is_paced(), is_paced, "{role:?} {name} is written by {writer}");
        }
    }
}

#[test]
fn changes_of_every_object_outside_of_the_proxies_namespace_are_paced() {
    let users = crate::reconciler::informers::watches(NS, &["u".to_owned()], true);
    let roles: BTreeSet<_> =
        users.into_iter().filter(|watch| watch.follow.namespace.as_deref() == Some("u")).map(|watch| watch.role).collect();
    assert_eq!(roles.len(), 4, "{roles:?}");
    for role in roles {
        assert!(role.decode(json!({"metadata": {"name": "x", "namespace": "u"}})).is_paced(), "{role:?}");
    }
}

/// Entries of a map, half of them with a prefix that is read.
fn texts(count: usize) -> Value {
    let entries = (0..count).map(|number| (format!("{}{number:x}", if number % 2 == 0 { "tailscale.com/" } else { "" }), json!("")));
    Value::Object(entries.collect())
}

/// An object with long lists in its metadata and with these fields.
fn long(namespace: &str, name: &str, mut labels: Value, fields: &Value) -> Value {
    super::cluster::merge(&mut labels, &texts(20_000));
    let reference = |number: usize| json!({"apiVersion": "v1", "kind": "ProxyGroup", "name": "n", "uid": format!("{number:x}")});
    let finalizers: Vec<_> = (0..20_000).map(|number| format!("a/{number:x}")).collect();
    let metadata = json!({"name": name, "namespace": namespace, "labels": labels, "annotations": texts(20_000),
        "ownerReferences": (0..20_000).map(reference).collect::<Vec<_>>(), "finalizers": finalizers, "resourceVersion": "1",
        "managedFields": vec![json!({"manager": "m"}); 1_000]});
    let mut object = json!({"metadata": metadata});
    super::cluster::merge(&mut object, fields);
    object
}

/// Fields of the kinds with types, each with its bound in KiB beside metadata. Administrators and the cluster write the other fields.
fn typed(role: WatchRole) -> Vec<(Value, usize)> {
    let name = |number: usize| format!("{number:x}");
    let with_paths =
        |number: usize| json!({"host": name(number), "http": {"paths": vec![json!({"pathType": "Prefix", "backend": {}}); 20]}});
    let rules: Vec<_> = (0..10_000).map(with_paths).collect();
    let hosts = json!([{"hosts": (0..20_000).map(name).collect::<Vec<_>>()}]);
    let balancer = json!({"loadBalancer": {"ingress": vec![json!({"ip": "10.0.0.1", "ports": vec![json!({"port": 1, "protocol": "TCP"}); 100]}); 5_000]}});
    let condition = json!({"type": "t", "status": "True", "reason": "", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    match role {
        WatchRole::Group => vec![(json!({"spec": {"type": "ingress"}}), 1)],
        WatchRole::Class => vec![(json!({"spec": {}}), 1)],
        WatchRole::Connector => vec![(json!({"spec": {"exitNode": true}}), 1)],
        WatchRole::GroupPolicy => vec![(json!({"spec": {"ingress": vec!["a".repeat(100); 20_000], "egress": vec!["a"; 20_000]}}), 128)],
        WatchRole::DnsConfig => vec![(json!({"spec": {"nameserver": {}}}), 1)],
        WatchRole::Tailnet => vec![(json!({"spec": {"credentials": {"secretName": "s"}}}), 1)],
        WatchRole::Service => {
            let ports: Vec<_> = (1..30_000).map(|port| json!({"name": name(port), "port": port, "protocol": "TCP"})).collect();
            let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "ports": ports, "selector": texts(20_000),
                "externalIPs": vec!["10.0.0.1"; 20_000], "loadBalancerSourceRanges": vec!["10.0.0.0/8"; 20_000]});
            let mut status = balancer;
            status["conditions"] = json!(vec![condition; 10_000]);
            vec![(json!({"spec": spec, "status": status}), 1_536)]
        }
        WatchRole::Ingress => {
            let ours = |spec: Value| json!({"spec": spec, "status": balancer});
            vec![
                (ours(json!({"ingressClassName": "tailscale", "rules": rules})), 3 * 1_024),
                (ours(json!({"ingressClassName": "tailscale", "tls": hosts})), 1_024),
                (ours(json!({"ingressClassName": "tailscale", "tls": vec![json!({}); 20_000]})), 1_024),
                (json!({"spec": {"ingressClassName": "other", "rules": rules, "tls": hosts}}), 1),
            ]
        }
        WatchRole::BackendSlice => {
            let endpoints = vec![json!({"addresses": vec!["10.0.0.1"; 100]}); 1_000];
            let ports = vec![json!({"port": 1}); 20_000];
            vec![(json!({"addressType": "IPv4", "endpoints": endpoints, "ports": ports}), 64)]
        }
        WatchRole::CreateFailure => {
            let event = json!({"eventTime": null, "reason": "FailedCreate", "note": "x".repeat(1 << 20), "type": "Warning",
                "regarding": {"kind": "StatefulSet", "name": "eg"}, "deprecatedLastTimestamp": "2026-01-01T00:00:00Z"});
            vec![(event, 2)]
        }
        WatchRole::Pod
        | WatchRole::Node
        | WatchRole::ServiceRange
        | WatchRole::Namespace
        | WatchRole::IngressClass
        | WatchRole::Credentials => {
            vec![(json!({}), 1)]
        }
        WatchRole::Owned(_) => Vec::new(),
    }
}

/// Of each kind the lists that its writers choose have a bound: of metadata 300 KiB of debug text, and of the rest what the table says.
#[test]
fn lists_of_every_watched_kind_are_bounded() {
    const METADATA: usize = 300;
    let mut rows = Vec::new();
    for role in WatchRole::TYPED {
        let (namespace, name) = if *role == WatchRole::BackendSlice { ("default", "kubernetes") } else { ("t", "x") };
        let labels = json!({"kubernetes.io/service-name": "kubernetes"});
        rows.extend(typed(*role).into_iter().map(|(fields, bound)| (*role, long(namespace, name, labels.clone(), &fields), bound)));
    }
    for kind in Kind::ALL {
        let names: &[&str] = match kind {
            Kind::Secret => &["eg-0", "eg-0-config", "app.tail1234.ts.net", "in-acme-accounts", names::ACCOUNTS, "other"],
            Kind::RoleBinding => &["x", "tailyard-endpoints-in"],
            _ => &["x"],
        };
        let fields = match kind {
            Kind::RoleBinding => json!({"subjects": vec![json!({"kind": "ServiceAccount", "name": "a"}); 20_000]}),
            _ => json!({}),
        };
        let labels = json!({names::MANAGED: "true"});
        rows.extend(names.iter().map(|name| (WatchRole::Owned(kind), long(NS, name, labels.clone(), &fields), 16)));
    }
    for (role, object, bound) in rows {
        let mut cluster = Cluster::new();
        // An Event about an unknown set is not stored.
        cluster.put("ProxyGroup", json!({"metadata": {"name": "eg"}, "spec": {"type": "egress"}}));
        let before = stored(&cluster, role);
        let name = object["metadata"]["name"].to_string();
        cluster.cache.put_json(role, object);
        let kib = (stored(&cluster, role) - before) >> 10;
        assert!(kib <= METADATA + bound, "{role:?} {name}: {kib} KiB, more than {METADATA} + {bound}");
    }
}

/// Two objects of which one has too many entries.
#[test]
fn object_with_too_many_entries_is_refused_alone_with_the_limit() {
    let ports =
        |count: usize| (1..=count).map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"})).collect::<Vec<_>>();
    let service = |name: &str, count: usize, annotations: Value| {
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "ports": ports(count)});
        json!({"metadata": {"name": name, "namespace": "t", "annotations": annotations}, "spec": spec})
    };
    let ingress = |name: &str, count: usize| {
        let backend = json!({"service": {"name": "web", "port": {"name": "p1"}}});
        let mut tls = vec![json!({"hosts": [name]})];
        tls.resize(count, json!({}));
        let spec = json!({"ingressClassName": "tailscale", "tls": tls, "defaultBackend": backend});
        json!({"metadata": {"name": name, "namespace": "t"}, "spec": spec})
    };
    let mut cluster = Cluster::new();
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 1}}));
    cluster.put("Service", json!({"metadata": {"name": "web", "namespace": "t"}, "spec": {"clusterIP": "10.96.0.10", "ports": ports(1)}}));
    cluster.put("Service", service("small", 1, json!({})));
    cluster.put("Service", service("large", 1_001, json!({})));
    cluster.put("Service", service("grouped", 1_001, json!({names::PROXY_GROUP: "in"})));
    cluster.put("Ingress", ingress("few", 5_000));
    cluster.put("Ingress", ingress("many", 5_001));
    assert!(cluster.settles(), "{:?}", cluster.events);
    let has_proxy = |key: &str| {
        let workload = cluster.observe(&cluster.cache, key).workload;
        cluster.object("StatefulSet", NS, &workload).is_some()
    };
    let keys = ["t/small", "t/large", "ingress/t/few"];
    assert_eq!(keys.map(|key| (key, has_proxy(key))), [("t/small", true), ("t/large", false), ("ingress/t/few", true)]);
    for name in ["large", "grouped"] {
        let conditions = cluster.conditions("t", name).join(" ");
        assert!(conditions.contains("spec.ports has more than 1000 entries"), "{name}: {conditions}");
    }
    let limit = |event: &&String| event.contains("many") && event.contains("spec.tls has more than 5000 entries or hosts");
    assert!(cluster.events.iter().any(|event| limit(&event)), "{:?}", cluster.events);
}

#[test]
fn ingress_that_gets_the_class_is_read_as_a_whole() {
    let mut cluster = Cluster::new();
    let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
    cluster.put("Service", json!({"metadata": {"name": "web", "namespace": "t"}, "spec": {"clusterIP": "10.96.0.10", "ports": ports}}));
    let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
    let spec = json!({"ingressClassName": "nginx", "tls": [{"hosts": ["shop"]}], "defaultBackend": backend});
    cluster.put("Ingress", json!({"metadata": {"name": "shop", "namespace": "t"}, "spec": spec}));
    assert!(cluster.settles(), "{:?}", cluster.events);
    let key = "ingress/t/shop";
    let has_proxy = |cluster: &Cluster| {
        let workload = cluster.observe(&cluster.cache, key).workload;
        cluster.object("StatefulSet", NS, &workload).is_some()
    };
    assert!(!has_proxy(&cluster));
    cluster.patch("Ingress", "t", "shop", &json!({"spec": {"ingressClassName": "tailscale"}}));
    assert!(cluster.settles(), "{:?}", cluster.events);
    assert!(has_proxy(&cluster));
    cluster.patch("Ingress", "t", "shop", &json!({"spec": {"ingressClassName": "nginx"}}));
    cluster.rounds(20);
    assert!(!has_proxy(&cluster), "released: {:?}", cluster.events);
}

/// Tenants may write `RoleBinding`s with any labels in their namespaces.
#[test]
fn role_binding_enqueues_only_workloads_with_an_ingress_in_its_namespace() {
    let mut cluster = Cluster::new();
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 1}}));
    let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
    cluster
        .put("Service", json!({"metadata": {"name": "web", "namespace": "victim"}, "spec": {"clusterIP": "10.96.0.10", "ports": ports}}));
    for (name, group) in [("shop", None), ("app", Some("in"))] {
        let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
        let spec = json!({"ingressClassName": "tailscale", "tls": [{"hosts": [name]}], "defaultBackend": backend});
        let annotations = group.map_or(json!({}), |group| json!({names::PROXY_GROUP: group}));
        cluster.put("Ingress", json!({"metadata": {"name": name, "namespace": "victim", "annotations": annotations}, "spec": spec}));
    }
    assert!(cluster.settles(), "{:?}", cluster.events);
    let workload = cluster.observe(&cluster.cache, "ingress/victim/shop").workload;
    let (of_shop, of_group) = (names::endpoints(&workload), names::endpoints("in"));
    let labels = |name: &str| cluster.object("RoleBinding", "victim", name).expect("a binding")["metadata"]["labels"].clone();
    let own = [(of_shop.as_str(), labels(&of_shop)), (of_group.as_str(), labels(&of_group))];
    let mut version = 1_000_000;
    for (name, labels) in &own {
        for (namespace, name) in [("t", "x"), ("t", *name), ("victim", "x"), ("victim", *name)] {
            version += 1;
            let metadata = json!({"name": name, "namespace": namespace, "labels": labels, "resourceVersion": format!("{version}")});
            let binding = json!({"metadata": metadata, "roleRef": {"kind": "Role", "name": "none"}});
            let keys = cluster.cache.put_json(WatchRole::Owned(Kind::RoleBinding), binding);
            assert_eq!(keys.len(), usize::from(namespace == "victim" && name != "x"), "{namespace}/{name}: {keys:?}");
        }
    }
}

/// In core/v1 an Event's `involvedObject.name` has no maximum.
#[test]
fn event_about_a_stateful_set_takes_no_more_than_a_name_and_a_short_text() {
    let long = "x".repeat(1 << 20);
    let event = |number: usize| {
        json!({"metadata": {"name": format!("e{number}"), "namespace": NS, "resourceVersion": format!("{}", number + 1)},
            "eventTime": null, "reason": "FailedCreate", "note": "x", "type": "Warning",
            "regarding": {"kind": "StatefulSet", "name": format!("{number}{long}"), "namespace": NS},
            "deprecatedLastTimestamp": "2026-01-01T00:00:00Z"})
    };
    let mut cluster = Cluster::new();
    for number in 0..3 {
        cluster.cache.put_json(WatchRole::CreateFailure, event(number));
    }
    let kib = stored(&cluster, WatchRole::CreateFailure) >> 10;
    assert!(kib < 8, "{kib} KiB of three Events");
}
