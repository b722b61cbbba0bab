//! One name in the tailnet requested by two objects of which at least one has a proxy of its own: the older one has it, the other one is
//! refused and reported, and gets it when the older one ends.

use super::cluster::{Cluster, NS};
use super::*;
use crate::api::names;

/// Name of the objects in their namespaces.
const NAME: &str = "site";
/// The label that all objects request.
const LABEL: &str = "shop";

/// Kinds of objects that request a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    GroupIngress,
    GroupService,
    Ingress,
    Exposed,
    Egress,
}

const ALL: [Request; 5] = [Request::GroupIngress, Request::GroupService, Request::Ingress, Request::Exposed, Request::Egress];

impl Request {
    fn is_of_group(self) -> bool {
        matches!(self, Self::GroupIngress | Self::GroupService)
    }

    fn kind(self) -> &'static str {
        if matches!(self, Self::GroupIngress | Self::Ingress) { "Ingress" } else { "Service" }
    }

    fn object(self, namespace: &str) -> Value {
        let mut annotations = json!({});
        if self.is_of_group() {
            annotations[names::PROXY_GROUP] = json!("in");
        }
        let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
        let spec = match self {
            Self::GroupIngress | Self::Ingress => json!({"ingressClassName": "tailscale", "tls": [{"hosts": [LABEL]}],
                "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}),
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
    fn is_served(self, cluster: &Cluster, namespace: &str) -> bool {
        let object = cluster.object(self.kind(), namespace, NAME).expect("an object");
        object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty())
    }

    /// Whether the conflict is reported to it.
    fn is_refused(self, cluster: &Cluster, namespace: &str) -> bool {
        match self.kind() {
            "Ingress" => cluster.events.iter().any(|event| event.starts_with(&format!("Ingress {namespace}/{NAME} NameConflict"))),
            _ => cluster.conditions(namespace, NAME).iter().any(|one| one.contains("has the name")),
        }
    }
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.put("ProxyGroup", json!({"metadata": {"name": "in"}, "spec": {"type": "ingress", "replicas": 1}}));
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
    cluster.objects.keys().filter(|(kind, namespace, name)| *kind == "StatefulSet" && namespace == NS && name != "in").count()
}

#[test]
fn older_of_two_objects_of_any_kinds_has_the_name() {
    for older in ALL {
        for younger in ALL {
            if older.is_of_group() && younger.is_of_group() {
                continue;
            }
            let mut cluster = cluster();
            cluster.put(older.kind(), older.object("old"));
            assert!(cluster.settles(), "{older:?}");
            cluster.wait(1);
            cluster.put(younger.kind(), younger.object("new"));
            assert!(cluster.settles(), "{older:?} {younger:?}: {:?}", cluster.events.last());
            assert_eq!(cluster.takeovers, [""; 0], "{older:?} before {younger:?}");
            assert!(older.is_served(&cluster, "old") && !younger.is_served(&cluster, "new"), "{older:?} before {younger:?}");
            assert!(younger.is_refused(&cluster, "new") && !older.is_refused(&cluster, "old"), "{older:?} before {younger:?}");
            assert_eq!(proxies(&cluster), usize::from(!older.is_of_group()), "{older:?} before {younger:?}");
            let ended = json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}});
            cluster.patch(older.kind(), "old", NAME, &ended);
            assert!(cluster.settles(), "{older:?} {younger:?}");
            assert!(younger.is_served(&cluster, "new"), "{younger:?} after {older:?}");
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
