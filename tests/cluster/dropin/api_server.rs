//! ProxyGroup of type `kube-apiserver` on a cluster with both operators, used by an administrator on a tailnet client.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kit::cluster::chart::NAMESPACE;
use kit::cluster::{DEADLINE, site};
use kit::operators::Stage;
use kit::wait::{eventually, until};
use serde_json::{Value, json};

use crate::api_server::user::User;
use crate::dropin::acts::{Client, Path};
use crate::dropin::standalone::RATE;

/// The group, its class and its Tailscale Service.
const NAME: &str = "kube";
/// Host name of the operator.
const DEVICE: &str = "tailscale-operator";
const LOGIN: &str = "admin@example.com";
/// Groups of the administrator's grant: the usual one, which may do everything.
const GROUPS: [&str; 2] = ["system:masters", "admins"];
/// Prefix of the API server's root.
const ROOT: &str = "{";

pub(crate) struct ApiServer {
    user: User,
}

impl ApiServer {
    /// Creates the group, by whichever operator is there, with certificates of this ACME server.
    pub(crate) fn create(stage: &Stage, directory: &str) -> Self {
        let tailnet = &stage.cluster.tailnet;
        tailnet.set_login("admin", LOGIN);
        let rule = json!({"impersonate": {"groups": GROUPS}});
        tailnet.set_grants(
            &json!([{"src": [LOGIN], "dst": ["tag:k8s", "tag:k8s-operator"], "app": {"tailscale.com/cap/kubernetes": [rule]}}]),
        );
        let group = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": NAME},
            "spec": {"type": "kube-apiserver", "replicas": 2, "proxyClass": NAME, "kubeAPIServer": {"mode": "auth"}}});
        Self::set_class(stage, directory, None);
        stage.cluster.apply(&[group]);
        Self { user: User::join(tailnet, "admin", &[]) }
    }

    /// Sets the group's class, with this image or that of the operator. The Tailscale operator refuses one with an init container for this type.
    pub(crate) fn set_class(stage: &Stage, directory: &str, image: Option<&str>) {
        let mut class = site::class(directory);
        class["metadata"]["name"] = json!(NAME);
        if let Some(image) = image {
            class["spec"]["statefulSet"]["pod"]["tailscaleContainer"]["image"] = json!(image);
        }
        stage.cluster.apply(&[class]);
    }

    /// Changes the host name, and has the kubeconfig of the administrator name it.
    pub(crate) fn rename(&self, stage: &Stage, name: &str) {
        let patch = json!({"spec": {"kubeAPIServer": {"hostname": name}}}).to_string();
        stage.cluster.kubectl(&["patch", &format!("proxygroup/{NAME}"), "--type=merge", "-p", &patch]);
        until("its new Tailscale Service", DEADLINE, || self.user.client.services().iter().any(|one| one["name"] == format!("svc:{name}")));
        self.user.configure(name);
    }

    /// UIDs of the replicas' Pods.
    pub(crate) fn pods(stage: &Stage) -> String {
        let selector = format!("tailscale.com/parent-resource={NAME}");
        stage.cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", "jsonpath={.items[*].metadata.uid}"])
    }

    /// Values of this key in the replicas' state Secrets.
    pub(crate) fn state(stage: &Stage, key: &str) -> Vec<Option<String>> {
        [0, 1].map(|ordinal| stage.state(&format!("{NAME}-{ordinal}"), key)).into()
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
        self.is_served_as(stage, image, NAME);
    }

    /// The same by this name.
    pub(crate) fn is_served_as(&self, stage: &Stage, image: &str, name: &str) {
        let cluster = &stage.cluster;
        let path = "jsonpath={.items[*].spec.containers[?(@.name==\"tailscale\")].image}";
        let selector = format!("tailscale.com/parent-resource={NAME}");
        until(&format!("all replicas run {image}"), DEADLINE, || {
            cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", path]) == [image; 2].join(" ")
        });
        cluster.rolled_out(NAMESPACE, &format!("statefulset/{NAME}"));
        let user = eventually("the administrator's identity", DEADLINE, || self.user.identity(name, &[]).ok());
        let groups: Vec<&str> = GROUPS.into_iter().chain(["system:authenticated"]).collect();
        assert_eq!((&user["username"], &user["groups"]), (&json!(LOGIN), &json!(groups)));
        assert!(self.user.kubectl(&["get", "nodes", "-o", "name"]).contains("node/"), "by kubectl");
    }

    /// Waits until the group reports that it is ready, with its URL.
    pub(crate) fn is_ready(stage: &Stage) {
        Self::is_ready_as(stage, NAME);
    }

    /// The same, by this name.
    pub(crate) fn is_ready_as(stage: &Stage, name: &str) {
        let (group, url) = (format!("proxygroup/{NAME}"), format!("https://{}", stage.cluster.tailnet.name_of(name)));
        stage.cluster.wait(&["--for=condition=ProxyGroupReady", &group]);
        stage.cluster.wait(&[&format!("--for=jsonpath={{.status.url}}={url}"), &group]);
    }

    /// Addresses of the replicas' devices, and those of the Tailscale Service.
    pub(crate) fn addresses(&self, stage: &Stage) -> (BTreeSet<IpAddr>, Value) {
        let replicas = [0, 1].map(|ordinal| stage.cluster.tailnet.addresses_of(&format!("{NAME}-{ordinal}")));
        let service = self.user.client.services().into_iter().find(|one| one["name"] == format!("svc:{NAME}"));
        (replicas.into_iter().flatten().collect(), service.expect("a Tailscale Service")["addrs"].take())
    }

    /// Makes the Tailscale operator's process an API server proxy, with certificates of this ACME server, and waits until it serves.
    pub(crate) fn begin_in_process(&self, stage: &Stage, directory: &str) {
        let (operator, directory) = ("deployment/operator", format!("TS_DEBUG_ACME_DIRECTORY_URL={directory}"));
        stage.cluster.kubectl(&["set", "env", "-n", NAMESPACE, operator, "APISERVER_PROXY=true", &directory]);
        stage.cluster.rolled_out(NAMESPACE, operator);
        Self::is_in_process(stage);
        self.user.client.resolve(DEVICE);
        eventually("an answer of the operator's device", DEADLINE, || self.user.ask(DEVICE, "/version", &[]).ok());
    }

    /// Waits until the Tailscale operator listens as its device.
    pub(crate) fn is_in_process(stage: &Stage) {
        let logs = || stage.cluster.kubectl(&["logs", "-n", NAMESPACE, "deployment/operator"]);
        until("the Tailscale operator's API server proxy", DEADLINE, || logs().contains("API server proxy"));
    }

    /// Values of the chart for the operator's device, with certificates of the lab's ACME server from the first Pod on.
    pub(crate) fn values() -> String {
        format!("apiServerProxyConfig.mode=true,defaultProxyClass={NAME}")
    }

    /// ID and addresses of the operator's device, whichever operator is it.
    pub(crate) fn device(stage: &Stage) -> (u64, Vec<IpAddr>) {
        (stage.cluster.tailnet.node_id(DEVICE), stage.cluster.tailnet.addresses_of(DEVICE))
    }

    /// Waits until a Pod of ours serves the Kubernetes API as the operator's device, with the identity of the client.
    pub(crate) fn is_served_by_the_device(&self, stage: &Stage) {
        let service = "service/tailyard-api-server";
        until("its Service", DEADLINE, || stage.cluster.try_kubectl(&["get", "-n", NAMESPACE, service]).status.success());
        stage.cluster.wait(&["-n", NAMESPACE, "--for=condition=TailscaleProxyReady", service]);
        self.user.client.resolve(DEVICE);
        let user = eventually("the administrator's identity by the device", DEADLINE, || self.user.identity(DEVICE, &[]).ok());
        assert_eq!(user["username"], LOGIN);
    }

    /// Paths to the Kubernetes API: through the group, and through the operator's device.
    pub(crate) fn paths(&self) -> [Path<'_>; 2] {
        [("Kubernetes API of a ProxyGroup", NAME), ("Kubernetes API of the operator's device", DEVICE)].map(|(kind, target)| {
            let client = Client::Tailnet(&self.user.client, 443, ROOT);
            Path { kind, client, target, rate: RATE }
        })
    }
}
