//! ProxyGroup of type `kube-apiserver` on a cluster with both operators, used by an administrator on a tailnet client.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kit::cluster::DEADLINE;
use kit::cluster::chart::NAMESPACE;
use kit::operators::Stage;
use kit::wait::{eventually, until};
use serde_json::{Value, json};

use crate::api_server::user::User;
use crate::dropin::acts::{Client, Path};
use crate::dropin::standalone::RATE;
use crate::dropin::standalone_site::CLASS;

/// The group and its Tailscale Service.
const NAME: &str = "kube";
const LOGIN: &str = "admin@example.com";
/// Groups of the administrator's grant: the usual one, which may do everything.
const GROUPS: [&str; 2] = ["system:masters", "admins"];
/// Prefix of the API server's root.
const ROOT: &str = "{";

pub(crate) struct ApiServer {
    user: User,
}

impl ApiServer {
    /// Creates the group, by whichever operator is there.
    pub(crate) fn create(stage: &Stage) -> Self {
        let tailnet = &stage.cluster.tailnet;
        tailnet.set_login("admin", LOGIN);
        let rule = json!({"impersonate": {"groups": GROUPS}});
        tailnet.set_grants(&json!([{"src": [LOGIN], "dst": ["tag:k8s"], "app": {"tailscale.com/cap/kubernetes": [rule]}}]));
        stage.cluster.apply(&[json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": NAME},
            "spec": {"type": "kube-apiserver", "replicas": 2, "proxyClass": CLASS, "kubeAPIServer": {"mode": "auth"}}})]);
        Self { user: User::join(tailnet, "admin", &[]) }
    }

    /// Waits until the first Pods serve it.
    pub(crate) fn is_served_first(&self, stage: &Stage, image: &str) {
        let exists = || self.user.client.services().iter().any(|one| one["name"] == format!("svc:{NAME}"));
        until("its Tailscale Service", DEADLINE, exists);
        self.user.configure(NAME);
        self.is_served(stage, image);
    }

    /// Waits until Pods of this image alone serve it with the identity of the client.
    pub(crate) fn is_served(&self, stage: &Stage, image: &str) {
        let cluster = &stage.cluster;
        let path = "jsonpath={.items[*].spec.containers[?(@.name==\"tailscale\")].image}";
        let selector = format!("tailscale.com/parent-resource={NAME}");
        until(&format!("all replicas run {image}"), DEADLINE, || {
            cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", path]) == [image; 2].join(" ")
        });
        cluster.rolled_out(NAMESPACE, &format!("statefulset/{NAME}"));
        let user = eventually("the administrator's identity", DEADLINE, || self.user.identity(NAME, &[]).ok());
        let groups: Vec<&str> = GROUPS.into_iter().chain(["system:authenticated"]).collect();
        assert_eq!((&user["username"], &user["groups"]), (&json!(LOGIN), &json!(groups)));
        assert!(self.user.kubectl(&["get", "nodes", "-o", "name"]).contains("node/"), "by kubectl");
    }

    /// Waits until the group reports that it is ready, with its URL.
    pub(crate) fn is_ready(stage: &Stage) {
        let (group, url) = (format!("proxygroup/{NAME}"), format!("https://{}", stage.cluster.tailnet.name_of(NAME)));
        stage.cluster.wait(&["--for=condition=ProxyGroupReady", &group]);
        stage.cluster.wait(&[&format!("--for=jsonpath={{.status.url}}={url}"), &group]);
    }

    /// Addresses of the replicas' devices, and those of the Tailscale Service.
    pub(crate) fn addresses(&self, stage: &Stage) -> (BTreeSet<IpAddr>, Value) {
        let replicas = [0, 1].map(|ordinal| stage.cluster.tailnet.addresses_of(&format!("{NAME}-{ordinal}")));
        let service = self.user.client.services().into_iter().find(|one| one["name"] == format!("svc:{NAME}"));
        (replicas.into_iter().flatten().collect(), service.expect("a Tailscale Service")["addrs"].take())
    }

    /// Path to the Kubernetes API.
    pub(crate) fn path(&self) -> Path<'_> {
        let client = Client::Tailnet(&self.user.client, 443, ROOT);
        Path { kind: "ProxyGroup of type `kube-apiserver`", client, target: NAME, rate: RATE }
    }
}
