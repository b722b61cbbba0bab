//! Content of the cluster: Pods to list, a Pod for sessions on a node whose kubelet is a stand-in, and rights of the client's user.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use hyper::Method;
use serde_json::{Value, json};

use super::client::Site;

pub(crate) const NODE: &str = "kubelet";
pub(crate) const PODS: &str = "/api/v1/namespaces/ts/pods";
/// A Pod, as `kubectl get pod` requests it.
pub(crate) const POD: &str = "/api/v1/namespaces/ts/pods/pod-0";
/// The object whose changes are watched.
pub(crate) const WATCHED: &str = "/api/v1/namespaces/ts/configmaps/watched";
const CONFIG_MAPS: &str = "/api/v1/namespaces/ts/configmaps";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Pods that are created at a time.
const AT_ONCE: usize = 16;

/// Creates everything, as the administrator.
pub(crate) async fn fill(admin: &Site, pods: usize, kubelet: SocketAddr) -> Result<()> {
    let connection = &mut admin.connect().await?;
    let address = json!([{"type": "InternalIP", "address": kubelet.ip().to_string()}]);
    let endpoints = json!({"kubeletEndpoint": {"Port": kubelet.port()}});
    let status = json!({"addresses": address, "daemonEndpoints": endpoints});
    let rule = json!({"apiGroups": [""], "resources": ["users", "groups"], "verbs": ["impersonate"]});
    let objects = [
        ("/api/v1/namespaces/ts/serviceaccounts".to_owned(), json!({"metadata": {"name": "default"}})),
        ("/api/v1/nodes".to_owned(), json!({"metadata": {"name": NODE}, "status": status})),
        (CONFIG_MAPS.to_owned(), json!({"metadata": {"name": "watched"}, "data": {"change": "0"}})),
        (format!("{RBAC}/clusterroles"), json!({"metadata": {"name": "impersonator"}, "rules": [rule]})),
        (format!("{RBAC}/clusterrolebindings"), binding("impersonator", "pod")),
        ("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas".to_owned(), without_queue()),
    ];
    for (path, object) in objects {
        admin.send(connection, Method::POST, &path, &object).await?;
    }
    let numbers = iter((0..AT_ONCE).map(|first| (first..pods).step_by(AT_ONCE)));
    let create = async |numbers: std::iter::StepBy<std::ops::Range<usize>>| {
        let connection = &mut admin.connect().await?;
        for number in numbers {
            admin.send(connection, Method::POST, PODS, &pod(number)).await?;
        }
        anyhow::Ok(())
    };
    numbers.map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await
}

/// Permits everything to a user.
pub(crate) async fn permit(admin: &Site, user: &str) -> Result<()> {
    let path = format!("{RBAC}/clusterrolebindings");
    admin.send(&mut admin.connect().await?, Method::POST, &path, &binding("cluster-admin", user)).await.map(drop)
}

/// The user as which the API server sees a client: not that of the proxy.
pub(crate) async fn user(site: &Site) -> Result<String> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let reviewed = site.send(&mut site.connect().await?, Method::POST, path, &review).await?;
    let user = reviewed["status"]["userInfo"]["username"].as_str().context("no user")?;
    ensure!(user != "pod", "{} impersonates no user", site.name);
    Ok(user.to_owned())
}

/// Changes the watched object.
pub(crate) async fn change(admin: &Site, number: usize) -> Result<()> {
    let patch = json!({"data": {"change": number.to_string()}});
    admin.send(&mut admin.connect().await?, Method::PATCH, WATCHED, &patch).await.map(drop)
}

/// Path of a watch of that object, which begins with its present state.
pub(crate) fn watch() -> String {
    format!("{CONFIG_MAPS}?watch=true&resourceVersion=0&fieldSelector=metadata.name%3Dwatched&timeoutSeconds=3600")
}

/// Path of a session: one that echoes, or one that sends bytes until it is closed.
pub(crate) fn exec(is_endless: bool) -> String {
    format!("{POD}/exec?container=app&command={}&stdin=true&stdout=true", if is_endless { "endless" } else { "echo" })
}

fn binding(role: &str, user: &str) -> Value {
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
    let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
    json!({"metadata": {"name": format!("bench-{role}")}, "subjects": [subject], "roleRef": reference})
}

/// Priority and fairness would queue some of 100 clients, but not the administrator: no request is queued.
fn without_queue() -> Value {
    let everyone = json!({"kind": "Group", "group": {"name": "system:authenticated"}});
    let rules = json!({"subjects": [everyone], "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true,
        "namespaces": ["*"]}]});
    json!({"metadata": {"name": "bench"}, "spec": {"matchingPrecedence": 2, "priorityLevelConfiguration": {"name": "exempt"}, "rules": [rules]}})
}

/// A Pod as of a small Deployment, some 3 kB as the API server returns it.
fn pod(number: usize) -> Value {
    let labels = json!({"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": format!("web-{}", number % 100),
        "app.kubernetes.io/part-of": "shop", "pod-template-hash": "7d4b9c6f5"});
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10});
    let env: Vec<_> = (0..8).map(|index| json!({"name": format!("SETTING_{index}"), "value": format!("value-{index}")})).collect();
    let container = json!({"name": "app", "image": "registry.example.com/shop/web:1.4.2", "ports": [{"name": "http", "containerPort": 8080}],
        "env": env, "readinessProbe": probe, "livenessProbe": probe, "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}});
    json!({"metadata": {"name": format!("pod-{number}"), "labels": labels, "annotations": {"prometheus.io/scrape": "true"}},
        "spec": {"nodeName": NODE, "containers": [container]}})
}
