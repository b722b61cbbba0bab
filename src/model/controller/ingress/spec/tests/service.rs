//! Services that are advertised with all ports.

use super::*;
use crate::model::controller::ingress::spec::service::service;

#[test]
fn a_service_is_published_by_its_addresses() {
    let read = |spec: Value| service(&object("web", spec));
    let both = read(json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]})).expect("valid");
    let addresses = vec!["10.0.0.1".parse().expect("an IP"), "fd00::1".parse().expect("an IP")];
    assert_eq!(both.target, PublishTarget::Whole(L4Service { addresses, ..L4Service::default() }));
    assert_eq!((both.label.as_str(), both.ports), ("u-web", vec!["do-not-validate".to_owned()]));
    for spec in [json!({"clusterIP": "None"}), json!({})] {
        assert!(read(spec).expect_err("no address")[0].contains("no address"));
    }
}

/// Parses a Service with this PROXY protocol annotation.
fn announced(annotation: &str, spec: Value) -> Result<PublishSpec, Vec<String>> {
    let mut web = object("web", spec);
    web.metadata.annotations = Some([("tailyard.io/proxy-protocol".to_owned(), annotation.to_owned())].into());
    service(&web)
}

#[test]
fn external_name_is_published_unresolved() {
    let read = |name: Value| service(&object("web", json!({"type": "ExternalName", "externalName": name})));
    let published = read(json!("DB.example.com.")).expect("valid");
    assert_eq!(published.target, PublishTarget::Whole(L4Service { external_name: "db.example.com".into(), ..L4Service::default() }));
    for bad in [json!("10.0.0.1"), json!("a..b"), json!(""), json!("x y")] {
        let wrong = read(bad.clone()).expect_err("no name");
        assert!(wrong.len() == 1 && wrong[0].contains("is no DNS name"), "{bad}: {wrong:?}");
    }
    let both = announced("true", json!({"type": "ExternalName", "externalName": "a.b", "ports": [{"port": 25}]})).expect_err("both");
    assert!(both.len() == 1 && both[0].contains("remove one of the two"), "{both:?}");
}

#[test]
fn proxy_protocol_is_enabled_for_the_annotated_ports() {
    let spec = || {
        let ports = json!([{"name": "smtp", "port": 25, "protocol": "TCP"}, {"port": 465}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
        json!({"clusterIP": "10.0.0.1", "ports": ports})
    };
    for (annotation, ports) in [("true", vec![25, 465]), ("smtp", vec![25]), ("25, 465", vec![25, 465]), ("false", vec![])] {
        let PublishTarget::Whole(whole) = announced(annotation, spec()).expect("valid").target else { panic!("it is a Service") };
        assert_eq!(whole.proxy_protocol, ports.into_iter().collect(), "{annotation}");
    }
    for bad in ["53", "dns", "26", "v3"] {
        let wrong = announced(bad, spec()).expect_err("no such port");
        assert!(wrong.len() == 1 && wrong[0].contains("neither true nor one of its TCP ports"), "{bad}: {wrong:?}");
    }
    let wrong = announced("true", json!({"clusterIP": "10.0.0.1", "ports": [{"port": 53, "protocol": "UDP"}]})).expect_err("none");
    assert!(wrong[0].contains("it has no TCP port"), "{wrong:?}");
    let backend = to("web", json!({"number": 80}));
    let published = super::read(json!({"tailyard.io/proxy-protocol": "true"}), json!({"defaultBackend": backend})).expect("valid");
    assert!(published.notes.texts().len() == 1 && published.notes.texts()[0].contains("is for Services"), "{:?}", published.notes);
}

#[test]
fn cost_and_faults_of_a_long_list_of_ports_are_bounded() {
    let ports: Vec<_> = (1..=1_000).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let list = |count: usize| (0..count).map(|number| (2_000 + number).to_string()).collect::<Vec<_>>().join(",");
    let cost = |count: usize| {
        let (list, spec) = (list(count), json!({"clusterIP": "10.0.0.1", "ports": ports}));
        let mut wrong = Vec::new();
        let measured = allocation_counter::measure(|| wrong = announced(&list, spec).expect_err("no such ports"));
        assert!(wrong.len() == 21 && wrong[20].contains("more faults"), "{wrong:?}");
        measured.count_total
    };
    let (few, many) = (cost(30), cost(20_000));
    assert!(many < few + 100, "{few} {many}");
}
