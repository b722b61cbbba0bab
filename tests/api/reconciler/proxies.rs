//! Standalone proxies of Services and Ingresses: their objects, and a simulated kubelet and replica.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde::de::DeserializeOwned;
use serde_json::json;

use kit::apiserver::DEADLINE;
use kit::hosted::DOMAIN;
use kit::reconciler::{Running, Stage, USERS};
use kit::wait::eventually_async;

/// Kind of the objects with proxies: in metrics, in labels, and the label of further Secrets.
pub(super) struct Parent {
    kind: &'static str,
    label: &'static str,
    secrets: &'static str,
}

pub(super) const SERVICE: Parent = Parent { kind: "Service", label: "svc", secrets: "tailyard.io/parent-service" };
pub(super) const INGRESS: Parent = Parent { kind: "Ingress", label: "ingress", secrets: "tailyard.io/parent-ingress" };

impl Parent {
    /// Labels of the objects of a proxy.
    pub(super) fn labels(&self, parent: &str) -> BTreeMap<&'static str, String> {
        [
            ("tailscale.com/managed", "true".to_owned()),
            ("tailscale.com/parent-resource-type", self.label.to_owned()),
            ("tailscale.com/parent-resource", parent.to_owned()),
            ("tailscale.com/parent-resource-ns", USERS.to_owned()),
        ]
        .into()
    }

    fn selector(&self, parent: &str) -> ListParams {
        let labels: Vec<_> = self.labels(parent).into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        ListParams::default().labels(&labels.join(","))
    }

    /// The `StatefulSet` of a proxy.
    pub(super) async fn set(&self, stage: &Stage, parent: &str) -> StatefulSet {
        let sets = async || stage.here::<StatefulSet>().list(&self.selector(parent)).await.expect("a list").items;
        eventually_async("a StatefulSet", DEADLINE, sets, |sets| sets.len() == 1).await.remove(0)
    }

    /// Simulates kubelet and replica: the Pod runs, joins the tailnet under this name, and reports it. Returns the workload's name.
    pub(super) async fn join(&self, stage: &Stage, parent: &str, label: &str) -> String {
        let set = self.set(stage, parent).await;
        let name = format!("{}-0", set.name_any());
        let labels = json!(set.spec)["template"]["metadata"]["labels"].clone();
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"serviceAccountName": set.name_any(), "containers": [{"name": "tailscale", "image": "x"}]}});
        stage.apply(stage.here::<Pod>(), &name, object).await;
        let status = json!({"status": {"phase": "Running", "podIP": "10.1.9.9", "podIPs": [{"ip": "10.1.9.9"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let pod = stage.here::<Pod>().patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a status");
        stage.log_in(&pod, &format!("n{parent}"), label).await;
        set.name_any()
    }

    /// Waits until the config of a proxy has a host name, and simulates its tailscaled: the device is renamed.
    pub(super) async fn rename(&self, stage: &Stage, parent: &str, workload: &str, label: &str) {
        let config = async || {
            let secret = stage.here::<Secret>().get(&format!("{workload}-0-config")).await.expect("a Secret");
            String::from_utf8_lossy(&secret.data.expect("data")["cap-106.hujson"].0).into_owned()
        };
        let written = format!(r#""Hostname":"{label}""#);
        eventually_async("the host name", DEADLINE, config, |text| text.contains(&written)).await;
        stage.hosted.add_device(&format!("n{parent}"), label);
        stage.cluster.patch_secret(&format!("{workload}-0"), &[("device_fqdn", &format!("{label}.{DOMAIN}."))]).await;
    }

    /// Waits until a change of the parent that changes nothing for its proxy causes no write.
    pub(super) async fn quiet<K>(&self, stage: &Stage, running: &Running, api: &Api<K>, parent: &str)
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let reconciled = format!("tailyard_reconcile_total{{kind=\"{}\"", self.kind);
        let mut last = (usize::MAX, 0);
        let look = async || {
            let now = (stage.cluster.writes().len(), running.metric(&reconciled));
            let quiet = now.0 == last.0 && now.1 > last.1;
            last = now;
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"poke": fastrand::u64(..).to_string()}}}));
            api.patch(parent, &PatchParams::default(), &patch).await.expect("poked");
            quiet
        };
        eventually_async("nothing more is written", DEADLINE, look, |quiet| *quiet).await;
    }

    /// Objects of a proxy in the proxies' namespace.
    pub(super) async fn objects(&self, stage: &Stage, parent: &str) -> Vec<String> {
        let all = self.selector(parent);
        let secrets = ListParams::default().labels(&format!("{}={parent}", self.secrets));
        let mut names = Vec::new();
        names.extend(stage.here::<StatefulSet>().list(&all).await.expect("a list").iter().map(ResourceExt::name_any));
        names.extend(stage.here::<Service>().list(&all).await.expect("a list").iter().map(ResourceExt::name_any));
        names.extend(stage.here::<Secret>().list(&all).await.expect("a list").iter().map(ResourceExt::name_any));
        names.extend(stage.here::<Secret>().list(&secrets).await.expect("a list").iter().map(ResourceExt::name_any));
        names.extend(stage.here::<ConfigMap>().list(&all).await.expect("a list").iter().map(ResourceExt::name_any));
        names.extend(stage.here::<ServiceAccount>().list(&all).await.expect("a list").iter().map(ResourceExt::name_any));
        names.extend(stage.here::<Role>().list(&all).await.expect("a list").iter().map(ResourceExt::name_any));
        names.extend(stage.here::<RoleBinding>().list(&all).await.expect("a list").iter().map(ResourceExt::name_any));
        names
    }
}
