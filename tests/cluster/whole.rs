//! A cluster as a new user has it: the chart, then a `ProxyGroup` and an annotated Service; and what a load meets meanwhile.

use std::fmt;
use std::thread;

use serde_json::{Value, json};

use crate::PORT;
use crate::kubernetes::Cluster;
use crate::kubernetes::images::TAILYARD;

/// Where everything is made.
pub(crate) const NAMESPACE: &str = "tailscale";

/// Installs the chart, with the tailnet's headscale as control plane.
pub(crate) fn install(cluster: &Cluster) {
    cluster.kubectl(&["create", "namespace", NAMESPACE]);
    let key = cluster.tailnet.headscale(&["apikeys", "create", "-e", "1h"]);
    let secret = format!("--from-literal=api_key={}", key.lines().last().expect("a key").trim());
    cluster.kubectl(&["create", "secret", "generic", "headscale", "-n", NAMESPACE, &secret]);
    let (repository, tag) = TAILYARD.rsplit_once(':').expect("a tag");
    let values = [
        format!("image.repository={repository}"),
        format!("image.tag={tag}"),
        "controlPlane.url=https://hs.lab:8443".to_owned(),
        "controlPlane.credentials.headscale.existingSecret=headscale".to_owned(),
    ];
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/tailyard");
    cluster.helm(&["install", "tailyard", chart, "-n", NAMESPACE, "--set", &values.join(",")]);
}

/// Takes the chart away again; what it leaves in the namespace, by name.
pub(crate) fn uninstall(cluster: &Cluster) -> String {
    cluster.helm(&["uninstall", "tailyard", "-n", NAMESPACE, "--wait"]);
    let kinds = "deployments,statefulsets,services,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets";
    let named = cluster.kubectl(&["get", kinds, "-n", NAMESPACE, "-o", "name"]);
    // What Kubernetes itself keeps in every namespace.
    let own = ["configmap/kube-root-ca.crt", "serviceaccount/default"];
    named.lines().filter(|name| !own.contains(name)).collect::<Vec<_>>().join(" ")
}

/// What a user writes: a group, and a Service that leads to a node of the tailnet.
pub(crate) fn wanted(fqdn: &str) -> [Value; 2] {
    let annotations = json!({"tailscale.com/proxy-group": "eg", "tailscale.com/tailnet-fqdn": fqdn});
    [
        json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": "eg"}, "spec": {"type": "egress", "replicas": 2}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": "default", "annotations": annotations},
            "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": [{"name": "db", "port": PORT, "protocol": "TCP"}]}}),
    ]
}

/// Replaces every replica, one after the other.
pub(crate) fn restart(cluster: &Cluster) {
    cluster.kubectl(&["rollout", "restart", "-n", NAMESPACE, "statefulset/eg"]);
    cluster.rolled_out_in(NAMESPACE, "statefulset/eg");
}

/// Changes the number of replicas, and waits until it is so.
pub(crate) fn scale(cluster: &Cluster, replicas: usize) {
    cluster.kubectl(&["patch", "proxygroup/eg", "--type=merge", "-p", &format!(r#"{{"spec":{{"replicas":{replicas}}}}}"#)]);
    for count in ["replicas", "readyReplicas"] {
        cluster.wait(&["-n", NAMESPACE, "statefulset/eg", &format!("--for=jsonpath={{.status.{count}}}={replicas}")]);
    }
}

/// What became of the connections of a load.
pub(crate) struct Load {
    /// So many were answered.
    pub(crate) answered: usize,
    /// So many were not.
    pub(crate) failed: usize,
    /// What was said of the failed ones: the second of each.
    when: Vec<String>,
}

/// Makes new connections to the Service, one after the other, from before a change until after it.
pub(crate) fn under_load(cluster: &Cluster, change: impl FnOnce()) -> Load {
    // Every connection of its own; what is not answered within two seconds has failed.
    let script = format!(
        "rm -f /tmp/over; n=0; while [ ! -e /tmp/over ]; do a=$(nc -w 2 db.default.svc.cluster.local {PORT} </dev/null); \
         case \"$a\" in db\\ *) n=$((n+1));; *) echo failed $(date +%T);; esac; done; echo answered $n"
    );
    thread::scope(|scope| {
        let load = scope.spawn(|| cluster.try_in_pod("client", &["sh", "-c", &script]).expect("a load"));
        change();
        cluster.try_in_pod("client", &["sh", "-c", "sleep 1; echo > /tmp/over"]).expect("the end of the load");
        let said = load.join().expect("no panic");
        let lines = |word: &str| said.lines().filter_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).collect::<Vec<_>>();
        let when = lines("failed");
        Load { answered: lines("answered").first().and_then(|count| count.parse().ok()).expect("a count"), failed: when.len(), when }
    })
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} connections answered, {} failed {:?}", self.answered, self.failed, self.when)
    }
}
