//! Objects of reconciler tests: groups with their objects and configs, tailnets, owners of names.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tailyard::api::proxygroup::ProxyGroup;
use tailyard::api::tailnet::Tailnet;

use super::Stage;
use crate::apiserver::DEADLINE;
use crate::hosted::CLIENT;
use crate::wait::eventually_async;

impl Stage {
    /// The egress config of a group.
    pub async fn egress_config(&self, group: &str) -> Value {
        let config = self.here::<ConfigMap>().get_opt(&format!("{group}-egress-config")).await.expect("an answer");
        let text = config.and_then(|config| config.binary_data).and_then(|mut data| data.remove("egress-services"));
        text.map_or(Value::Null, |ByteString(text)| serde_json::from_slice(&text).expect("a config"))
    }

    /// The match port of a Service port, and the Service's target.
    pub async fn port(&self, key: &str, port: u16) -> (Option<u64>, String) {
        let entry = self.egress_config("g").await[key].clone();
        let ports = entry["ports"].as_array().cloned().unwrap_or_default();
        let found =
            ports.iter().find(|port_entry| port_entry["targetPort"] == port).and_then(|port_entry| port_entry["matchPort"].as_u64());
        (found, entry["tailnetTarget"].to_string())
    }

    pub async fn ready_group(&self) {
        self.group("g", 1).await;
        self.join("g", 1).await;
        eventually_async("ready", DEADLINE, async || self.ready("g").await, |condition| condition.starts_with("True")).await;
    }

    /// The objects of a group, as kind and name.
    pub async fn objects(&self, group: &str) -> Vec<String> {
        let labels = format!("tailscale.com/parent-resource-type=proxygroup,tailscale.com/parent-resource={group}");
        let select = kube::api::ListParams::default().labels(&labels);
        let mut names = Vec::new();
        macro_rules! list {
            ($($kind:ty),*) => {$(
                let found = self.here::<$kind>().list(&select).await.map(|list| list.items).unwrap_or_default();
                names.extend(found.iter().map(|object| format!("{} {}", stringify!($kind), object.name_any())));
            )*};
        }
        list!(ServiceAccount, Role, RoleBinding, Secret, ConfigMap, PodDisruptionBudget, StatefulSet);
        names
    }

    /// Deletes the objects of a group; returns them as kind and name.
    pub async fn delete_objects(&self, group: &str) -> Vec<String> {
        let objects = self.objects(group).await;
        // Creation times have whole seconds: a config Secret that is recreated in the second of its Pod looks like that of a new Pod.
        tokio::time::sleep(Duration::from_secs(1)).await;
        macro_rules! delete {
            ($($kind:ty),*) => {$(
                let prefix = concat!(stringify!($kind), " ");
                for name in objects.iter().filter_map(|object| object.strip_prefix(prefix)) {
                    self.here::<$kind>().delete(name, &DeleteParams::default()).await.expect("deleted");
                }
            )*};
        }
        delete!(ServiceAccount, Role, RoleBinding, Secret, ConfigMap, PodDisruptionBudget, StatefulSet);
        objects
    }

    /// The clusters that own a Tailscale Service.
    pub fn owners(&self, name: &str) -> Vec<String> {
        let vips = self.hosted.vips();
        let text = vips.get(name).and_then(|vip| vip["annotations"]["tailscale.com/owner-references"].as_str()).unwrap_or("{}");
        let owners: Value = serde_json::from_str(text).expect("JSON");
        let ids = owners["ownerRefs"].as_array().into_iter().flatten().map(|owner| owner["operatorID"].as_str().expect("an id").to_owned());
        ids.collect()
    }

    pub async fn annotate(&self, ingress: &str, annotations: Value) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.ingresses().patch(ingress, &PatchParams::default(), &patch).await.expect("changed");
    }

    /// Creates a Tailnet with credentials in the Secret `creds`.
    pub async fn tailnet(&self, name: &str) {
        let object = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "Tailnet", "metadata": {"name": name},
            "spec": {"loginUrl": self.hosted.url(), "credentials": {"secretName": "creds"}}});
        self.all::<Tailnet>().patch(name, &PatchParams::apply("user").force(), &Patch::Apply(&object)).await.expect("made");
    }

    /// Makes a group with more in its spec than the number of its replicas.
    pub async fn group_with(&self, name: &str, spec: serde_json::Value) {
        let object = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": name}, "spec": spec});
        self.all::<ProxyGroup>().patch(name, &PatchParams::apply("user").force(), &Patch::Apply(&object)).await.expect("made");
    }

    pub async fn tailnet_says(&self, name: &str) -> String {
        let status = self.all::<Tailnet>().get_opt(name).await.ok().flatten().and_then(|tailnet| tailnet.status);
        let condition = status.unwrap_or_default().conditions.into_iter().find(|condition| condition.type_ == "TailnetReady");
        condition.map_or(String::new(), |condition| format!("{} {} {}", condition.status, condition.reason, condition.message))
    }

    pub async fn credentials(&self, secret: &str) {
        self.cluster.make_secret("creds", &[("client_id", CLIENT.0), ("client_secret", secret)]).await;
    }

    /// Simulates the kubelet: removes a terminating Pod.
    pub async fn pod_goes(&self, name: &str) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.here::<Pod>().delete(name, &now).await.expect("the Pod goes");
    }
}
