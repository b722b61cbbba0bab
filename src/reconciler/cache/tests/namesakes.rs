//! One name in the tailnet requested by two objects, in one group, in two, or with proxies of their own: who has it keeps it, else the older
//! one gets it. The other one is refused and reported, and gets it when the first one ends.

use super::cluster::{Cluster, NS};
use super::*;
use crate::api::names;

/// Name of the objects in their namespaces.
pub(super) const NAME: &str = "site";
/// The label that all objects request.
pub(super) const LABEL: &str = "shop";

/// Kinds of objects that request a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    GroupIngress,
    GroupService,
    SecondGroupIngress,
    Ingress,
    Exposed,
    Egress,
}

pub(super) const ALL: [Request; 6] =
    [Request::GroupIngress, Request::GroupService, Request::SecondGroupIngress, Request::Ingress, Request::Exposed, Request::Egress];

impl Request {
    pub(super) fn group(self) -> Option<&'static str> {
        match self {
            Self::GroupIngress | Self::GroupService => Some("in"),
            Self::SecondGroupIngress => Some("in2"),
            _ => None,
        }
    }

    pub(super) fn kind(self) -> &'static str {
        if matches!(self, Self::GroupIngress | Self::SecondGroupIngress | Self::Ingress) { "Ingress" } else { "Service" }
    }

    pub(super) fn object(self, namespace: &str) -> Value {
        let mut annotations = json!({});
        if let Some(group) = self.group() {
            annotations[names::PROXY_GROUP] = json!(group);
        }
        let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
        let spec = match self {
            Self::GroupIngress | Self::SecondGroupIngress | Self::Ingress => {
                json!({"ingressClassName": "tailscale", "tls": [{"hosts": [LABEL]}],
                "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}})
            }
            Self::Exposed | Self::GroupService => {
                annotations[names::HOSTNAME] = json!(LABEL);
                json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.96.0.9", "ports": ports})
            }
            Self::Egress => {
                annotations[names::HOSTNAME] = json!(LABEL);
                annotations[names::TAILNET_FQDN] = json!("db.tail1234.ts.net");
                json!({"type": "ExternalName", "externalName": "placeholder", "ports": ports})
            }
        };
        json!({"metadata": {"name": NAME, "namespace": namespace, "annotations": annotations}, "spec": spec})
    }

    /// Whether it is served, by its finalizer: one that is refused gets none.
    pub(super) fn is_served(self, cluster: &Cluster, namespace: &str) -> bool {
        let object = cluster.object(self.kind(), namespace, NAME).expect("an object");
        object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty())
    }

    /// Whether the conflict is reported to it.
    pub(super) fn is_refused(self, cluster: &Cluster, namespace: &str) -> bool {
        match self.kind() {
            "Ingress" => cluster.events.iter().any(|event| event.starts_with(&format!("Ingress {namespace}/{NAME} NameConflict"))),
            _ => cluster.conditions(namespace, NAME).iter().any(|one| one.contains("has the name")),
        }
    }
}

pub(super) fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    for group in ["in", "in2"] {
        cluster.put("ProxyGroup", json!({"metadata": {"name": group}, "spec": {"type": "ingress", "replicas": 1}}));
    }
    for namespace in ["old", "new"] {
        let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
        cluster.put(
            "Service",
            json!({"metadata": {"name": "web", "namespace": namespace}, "spec": {"clusterIP": "10.96.0.10", "ports": ports}}),
        );
    }
    cluster
}

/// Number of workloads of single objects.
fn proxies(cluster: &Cluster) -> usize {
    cluster.objects.keys().filter(|(kind, namespace, name)| *kind == "StatefulSet" && namespace == NS && !name.starts_with("in")).count()
}

#[test]
fn older_of_two_objects_of_any_kinds_has_the_name() {
    for older in ALL {
        for younger in ALL {
            let mut cluster = cluster();
            cluster.put(older.kind(), older.object("old"));
            assert!(cluster.settles(), "{older:?}");
            cluster.wait(1);
            cluster.put(younger.kind(), younger.object("new"));
            assert!(cluster.settles(), "{older:?} {younger:?}: {:?}", cluster.events.last());
            assert_eq!(cluster.takeovers, [""; 0], "{older:?} before {younger:?}");
            assert!(older.is_served(&cluster, "old") && !younger.is_served(&cluster, "new"), "{older:?} before {younger:?}");
            assert!(younger.is_refused(&cluster, "new") && !older.is_refused(&cluster, "old"), "{older:?} before {younger:?}");
            assert_eq!(proxies(&cluster), usize::from(older.group().is_none()), "{older:?} before {younger:?}");
            let ended = json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}});
            cluster.patch(older.kind(), "old", NAME, &ended);
            assert!(cluster.settles(), "{older:?} {younger:?}");
            assert!(younger.is_served(&cluster, "new"), "{younger:?} after {older:?}");
        }
    }
}

/// A Service or Ingress is deleted, and another one with its host name is created at once.
#[test]
fn name_of_a_deleted_object_is_given_without_a_number_to_one_that_is_created_at_once() {
    for former in ALL {
        for next in ALL {
            let mut cluster = cluster();
            cluster.put(former.kind(), former.object("old"));
            assert!(cluster.settles(), "{former:?}");
            let deleted = json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}});
            cluster.patch(former.kind(), "old", NAME, &deleted);
            cluster.put(next.kind(), next.object("new"));
            for pass in 0..60 {
                cluster.round();
                let is_reported = next.is_served(&cluster, "new") || next.is_refused(&cluster, "new");
                assert!(is_reported || pass == 0, "{former:?} {next:?}: neither served nor refused after pass {pass}");
            }
            assert!(cluster.settles() && next.is_served(&cluster, "new"), "{next:?} after {former:?}");
            let names: Vec<_> = cluster.devices.values().map(|device| format!("{:?}", device.name)).collect();
            assert!(names.iter().all(|name| !name.contains(&format!("{LABEL}-1"))), "{next:?} after {former:?}: {names:?}");
            let has_name = names.iter().any(|name| name.contains(&format!("{LABEL}.")));
            assert_eq!(has_name, next.group().is_none(), "{next:?} after {former:?}: {names:?}");
        }
    }
}

#[test]
fn two_new_objects_are_arbitrated_by_age() {
    for (older, younger) in
        [(Request::Exposed, Request::Egress), (Request::Ingress, Request::GroupIngress), (Request::GroupService, Request::Exposed)]
    {
        let mut cluster = cluster();
        cluster.put(older.kind(), older.object("old"));
        cluster.wait(1);
        cluster.put(younger.kind(), younger.object("new"));
        assert!(cluster.settles(), "{older:?} {younger:?}");
        assert!(older.is_served(&cluster, "old") && !younger.is_served(&cluster, "new"), "{older:?} before {younger:?}");
    }
}

#[test]
fn proxy_that_exists_stays_beside_an_older_object() {
    let mut cluster = cluster();
    cluster.put("Service", Request::Exposed.object("new"));
    assert!(cluster.settles());
    let mut older = Request::Exposed.object("old");
    older["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    cluster.put("Service", older);
    assert!(cluster.settles());
    assert!(Request::Exposed.is_served(&cluster, "new") && !Request::Exposed.is_served(&cluster, "old"));
}

/// Group and object that the configs record for the label.
pub(super) fn records(cluster: &Cluster) -> Vec<(&'static str, String)> {
    let record = |group: &'static str| {
        let config = cluster.object("ConfigMap", NS, &names::ingress_config(group))?;
        let origins = crate::model::controller::workload::objects::ingress::IngressConfigMap::origins(config);
        origins.get(&format!("svc:{LABEL}")).map(|origin| (group, origin.namespace.clone()))
    };
    ["in", "in2"].into_iter().filter_map(record).collect()
}

/// Why an older object is refused.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    Backend,
    Tenants,
    NameQuota,
}

#[test]
fn refused_older_object_keeps_no_name_from_another_one() {
    let ingresses = [Request::GroupIngress, Request::SecondGroupIngress, Request::Ingress];
    for (refusal, older, younger) in [Refusal::Backend, Refusal::Tenants, Refusal::NameQuota]
        .into_iter()
        .flat_map(|refusal| ingresses.into_iter().flat_map(move |older| ingresses.map(|younger| (refusal, older, younger))))
    {
        let mut cluster = cluster();
        cluster.permit_standalone();
        let mut object = older.object("old");
        match (refusal, older.group()) {
            (Refusal::Backend, _) => object["spec"]["defaultBackend"] = Value::Null,
            // Tenants of single objects are the same for all of them.
            (_, None) => continue,
            (refusal, Some(group)) => {
                let selector = |name: &str| json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
                let own = match refusal {
                    Refusal::Tenants => json!([{"namespaceSelector": selector("new")}]),
                    _ => json!([{"namespaceSelector": selector("new")}, {"namespaceSelector": selector("old"), "maxNames": 0}]),
                };
                cluster.patch("ProxyGroup", "", group, &json!({"spec": {"tailyard": {"tenants": own}}}));
            }
        }
        for namespace in ["old", "new"] {
            let labels = json!({"kubernetes.io/metadata.name": namespace});
            cluster.put("Namespace", json!({"metadata": {"name": namespace, "labels": labels}}));
        }
        cluster.put("Ingress", object);
        assert!(cluster.settles(), "{refusal:?} {older:?}");
        cluster.wait(60);
        cluster.put("Ingress", younger.object("new"));
        assert!(cluster.settles(), "{refusal:?} {older:?} {younger:?}");
        assert!(younger.is_served(&cluster, "new"), "{refusal:?} {older:?} {younger:?}: {:#?}", cluster.events);
        assert!(!older.is_served(&cluster, "old"), "{refusal:?} {older:?} {younger:?}");
    }
}

#[test]
fn name_that_stays_served_after_an_invalid_edit_is_no_other_objects() {
    for holder in [Request::GroupIngress, Request::SecondGroupIngress] {
        for other in ALL {
            for edit in [json!({"tls": [{"hosts": ["new"]}], "defaultBackend": null}), json!({"defaultBackend": null})] {
                let mut cluster = cluster();
                cluster.put("Ingress", holder.object("old"));
                assert!(cluster.settles());
                let record = [(holder.group().expect("a group"), "old".to_owned())];
                assert_eq!(records(&cluster), record);
                cluster.patch("Ingress", "old", NAME, &json!({"spec": edit}));
                cluster.rounds(5);
                cluster.put(other.kind(), other.object("new"));
                assert!(cluster.settles(), "{other:?} beside {holder:?}");
                assert_eq!(records(&cluster), record, "{other:?} beside {holder:?}");
                assert!(!other.is_served(&cluster, "new") && other.is_refused(&cluster, "new"), "{other:?} beside {holder:?}");
            }
        }
    }
}

#[test]
fn request_of_another_object_keeps_no_withdrawn_name_published() {
    for other in [Request::GroupIngress, Request::SecondGroupIngress, Request::Ingress] {
        for is_valid in [false, true] {
            let mut cluster = cluster();
            cluster.put("Ingress", Request::GroupIngress.object("old"));
            assert!(cluster.settles());
            let mut object = other.object("new");
            if !is_valid {
                object["spec"]["defaultBackend"] = Value::Null;
            }
            cluster.put("Ingress", object);
            cluster.rounds(5);
            // The owner withdraws its object without deleting it.
            cluster.patch("Ingress", "old", NAME, &json!({"spec": {"ingressClassName": "nginx"}}));
            assert!(cluster.settles(), "{other:?}");
            let group = other.group().filter(|_| is_valid);
            assert_eq!(records(&cluster), group.map(|group| (group, "new".to_owned())).into_iter().collect::<Vec<_>>(), "{other:?}");
            assert_eq!(other.is_served(&cluster, "new"), is_valid, "{other:?}");
        }
    }
}
