//! Objects of publishing tests: users' Services and Ingresses, endpoints, and the replicas of a group of type ingress.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::Api;
use serde_json::{Map, Value, json};

use tailyard::api::names::DEVICE;

use super::{Stage, USERS};
use crate::apiserver::DEADLINE;
use crate::wait::{eventually_async, until_async};

impl Stage {
    pub fn ingresses(&self) -> Api<Ingress> {
        Api::namespaced(self.client.clone(), USERS)
    }

    /// The class of the Ingresses, as the chart makes it.
    pub async fn class(&self) {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "tailscale"},
            "spec": {"controller": "tailscale.com/ts-ingress"}});
        self.apply(self.all::<IngressClass>(), "tailscale", object).await;
    }

    /// A Service of the cluster with two ports.
    pub async fn backend(&self, name: &str) {
        let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}, {"name": "grpc", "port": 81, "protocol": "TCP"}]);
        let object =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": ports}});
        self.apply(self.users(), name, object).await;
    }

    /// An Ingress to a backend of its name.
    pub async fn ingress(&self, name: &str, group: &str, label: &str) {
        let backend = json!({"service": {"name": "web", "port": {"name": "web"}}});
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": name, "annotations": {"tailscale.com/proxy-group": group}},
            "spec": {"ingressClassName": "tailscale", "tls": [{"hosts": [label]}], "defaultBackend": backend}});
        self.apply(self.ingresses(), name, object).await;
    }

    /// A Service that is published whole, at this label.
    pub async fn exposed(&self, name: &str, group: &str, label: &str) {
        let annotations = json!({"tailscale.com/proxy-group": group, "tailscale.com/expose": "true", "tailscale.com/hostname": label});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations},
            "spec": {"ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}});
        self.apply(self.users(), name, object).await;
    }

    /// A Service of type `LoadBalancer` without an explicit name.
    pub async fn balanced(&self, name: &str, group: &str) {
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": {"tailscale.com/proxy-group": group}},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "tailscale", "allocateLoadBalancerNodePorts": false,
                "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}});
        self.apply(self.users(), name, object).await;
    }

    /// Simulates the endpoint slice controller: sets whether a Service has a ready endpoint.
    pub async fn endpoint(&self, service: &str, ready: bool) {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), USERS);
        let labels = json!({"kubernetes.io/service-name": service});
        let object = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": format!("{service}-1"), "labels": labels},
            "addressType": "IPv4", "ports": [], "endpoints": [{"addresses": ["10.2.0.1"], "conditions": {"ready": ready}}]});
        self.apply(slices, &format!("{service}-1"), object).await;
    }

    /// Waits until the config of both replicas advertises exactly these services.
    pub async fn wait_advertised(&self, group: &str, names: &[&str]) {
        for ordinal in 0..2 {
            let advertised = async || self.named(&format!("{group}-{ordinal}")).await;
            eventually_async("the config of a replica", DEADLINE, advertised, |advertised| advertised == names).await;
        }
    }

    /// Advertises until an Ingress has a host name in its status.
    pub async fn serves(&self, name: &str, group: &str) {
        let look = async || {
            self.advertise(group, 2).await;
            self.reached(name).await
        };
        eventually_async("it is reached", DEADLINE, look, |advertised| advertised["ingress"][0]["hostname"].is_string()).await;
    }

    /// Fills the Secret of a name's certificate, as a replica does it.
    pub async fn certify(&self, dns: &str) {
        let there = async || self.here::<Secret>().get_opt(dns).await.expect("an answer").is_some();
        eventually_async("the Secret of the certificate", DEADLINE, there, |there| *there).await;
        self.cluster.patch_secret(dns, &[("tls.crt", "a chain"), ("tls.key", "a key")]).await;
    }

    /// A key of a group's config.
    pub async fn published(&self, group: &str, key: &str) -> Value {
        let config = self.here::<ConfigMap>().get_opt(&format!("{group}-ingress-config")).await.expect("an answer");
        let text = config.and_then(|config| config.binary_data).and_then(|mut data| data.remove(key));
        text.map_or(Value::Null, |ByteString(text)| serde_json::from_slice(&text).expect("JSON"))
    }

    /// The services in a replica's tailscaled config.
    pub async fn named(&self, replica: &str) -> Vec<String> {
        let secret = self.here::<Secret>().get_opt(&format!("{replica}-config")).await.expect("an answer");
        let text = secret.and_then(|secret| secret.data).and_then(|mut data| data.remove("cap-106.hujson"));
        let config: Map<String, Value> = text.map_or(Map::new(), |ByteString(text)| serde_json::from_slice(&text).expect("JSON"));
        serde_json::from_value(config.get("AdvertiseServices").cloned().unwrap_or_else(|| json!([]))).expect("names")
    }

    /// Simulates the replicas' tailscaleds: they advertise the configured services.
    pub async fn advertise(&self, group: &str, replicas: u8) {
        for ordinal in 0..replicas {
            let name = format!("{group}-{ordinal}");
            let profile = json!({"AdvertiseServices": self.named(&name).await}).to_string();
            self.cluster.patch_secret(&name, &[("_current-profile", "profile-ab"), ("profile-ab", &profile)]).await;
        }
    }

    /// The load balancer status of an Ingress.
    pub async fn reached(&self, name: &str) -> Value {
        let ingress = self.ingresses().get_opt(name).await.expect("an answer");
        ingress.map_or(Value::Null, |ingress| json!(ingress.status.and_then(|status| status.load_balancer)))
    }

    /// Creates a group of type ingress and joins its replicas to the tailnet.
    pub async fn publisher(&self, group: &str, replicas: u8) {
        self.class().await;
        self.backend("web").await;
        self.group_of(group, json!({"type": "ingress", "replicas": replicas})).await;
        self.attend(group, replicas).await;
        for ordinal in 0..replicas {
            let name = format!("{group}-{ordinal}-config");
            let recorded =
                async || self.here::<Secret>().get_opt(&name).await.expect("an answer").is_some_and(|secret| has_device(&secret));
            until_async("the device is recorded", DEADLINE, recorded).await;
        }
    }

    /// Simulates the replicas: they join the tailnet.
    pub async fn attend(&self, group: &str, replicas: u8) {
        for ordinal in 0..replicas {
            self.member(group, ordinal).await;
        }
    }
}

/// Whether a config Secret has the record of its replica's device.
fn has_device(secret: &Secret) -> bool {
    secret.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(DEVICE))
}
