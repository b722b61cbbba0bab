//! Endpoints of a backend, watched through the API: without the permission, with it, and after changes.

use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tailyard::model::front_end::endpoints::ServicePort;
use tailyard::model::front_end::vhosts::{Vhosts, read};
use tailyard::proxy::front_end::endpoints::{UpstreamEndpoints, follow};
use tokio::sync::watch;
use tokio::time::timeout;

use kit::apiserver::{DEADLINE, NAMESPACE, cluster};

fn slice(name: &str, address: &str) -> EndpointSlice {
    let slice = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}, "zone": "a"}],
    });
    serde_json::from_value(slice).expect("a slice")
}

/// Sites with a backend for each of these Services.
fn sites(services: &[&str]) -> Arc<Vhosts> {
    let backend = |service: &&str| json!({"namespace": NAMESPACE, "service": service, "portName": "http", "address": "10.96.0.1:80"});
    let route = |service: &&str| json!({"path": format!("/{service}"), "backend": backend(service)});
    let routes: Vec<_> = services.iter().map(route).collect();
    let routes = json!({"svc:web": {"hosts": {"web": {}}, "listeners": {"443": "https"}, "routes": routes}});
    Arc::new(read(Some(routes.to_string().as_bytes()), None).expect("readable").sites)
}

/// Waits until the backend has exactly these endpoints and no error.
async fn answers(upstreams: &mut watch::Receiver<Arc<UpstreamEndpoints>>, expected: &[&str]) {
    let port = ServicePort { namespace: NAMESPACE.into(), service: "web".into(), port: "http".into() };
    let wait = upstreams.wait_for(|upstreams| {
        let endpoints = upstreams.endpoints.get(&port).map(Vec::as_slice).unwrap_or_default();
        upstreams.faults.is_empty() && endpoints.iter().map(|endpoint| endpoint.address.to_string()).eq(expected.iter().copied())
    });
    drop(timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("{expected:?} do not answer")).expect("followed"));
}

#[test]
fn endpoints_are_watched_once_permitted() {
    cluster(async |cluster| {
        let slices: Api<EndpointSlice> = Api::namespaced(cluster.admin(), NAMESPACE);
        slices.create(&PostParams::default(), &slice("web-1", "10.0.0.1")).await.expect("made");
        let (sites_sender, sites_receiver) = watch::channel(sites(&["web"]));
        let (endpoints_sender, mut upstreams) = watch::channel(Arc::default());
        let following = tokio::spawn(follow(cluster.pod().await, sites_receiver, endpoints_sender));
        let refused = upstreams.wait_for(|upstreams| upstreams.faults.get(NAMESPACE) == Some(&"Forbidden"));
        drop(timeout(DEADLINE, refused).await.expect("refused in time").expect("followed"));
        cluster.allow_in("discovery.k8s.io", "endpointslices", &[], &["get", "list", "watch"]).await;
        answers(&mut upstreams, &["10.0.0.1:8080"]).await;
        slices.create(&PostParams::default(), &slice("web-2", "10.0.0.2")).await.expect("made");
        answers(&mut upstreams, &["10.0.0.1:8080", "10.0.0.2:8080"]).await;
        let unready = json!({"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": false}}]});
        slices.patch("web-1", &PatchParams::default(), &Patch::Merge(unready)).await.expect("changed");
        answers(&mut upstreams, &["10.0.0.2:8080"]).await;
        slices.delete("web-2", &DeleteParams::default()).await.expect("deleted");
        answers(&mut upstreams, &[]).await;
        let mut late = slice("late-1", "10.0.0.3");
        late.metadata.labels = Some([("kubernetes.io/service-name".into(), "late".into())].into());
        slices.create(&PostParams::default(), &late).await.expect("made");
        sites_sender.send_replace(sites(&["web", "late"]));
        let port = ServicePort { namespace: NAMESPACE.into(), service: "late".into(), port: "http".into() };
        let found = upstreams.wait_for(|upstreams| upstreams.endpoints.contains_key(&port));
        drop(timeout(DEADLINE, found).await.expect("a new backend lists its namespace again").expect("followed"));
        sites_sender.send_replace(Arc::default());
        let forgotten = upstreams.wait_for(|upstreams| **upstreams == UpstreamEndpoints::default());
        drop(timeout(DEADLINE, forgotten).await.expect("forgotten in time").expect("followed"));
        following.abort();
    });
}
