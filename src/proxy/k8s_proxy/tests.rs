use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;
use crate::api::routes;
use crate::edge::kube::{ApiCall, CallFault, KubeError, Verb};
use crate::model::base::netmap::SelfNode;

const WAIT: Duration = Duration::from_mins(1);

fn text(hostname: &str, service: &str) -> Bytes {
    let section = json!({"Enabled": true, "Mode": "auth", "ServiceName": service});
    json!({"Version": "v1alpha1", "Hostname": hostname, "APIServerProxy": section}).to_string().into()
}

fn config(hostname: &str, service: &str) -> Arc<K8sProxyConfig> {
    Arc::new(K8sProxyConfig::parse(&text(hostname, service)).expect("valid"))
}

fn current(text: &Bytes) -> ObjectEvent {
    ObjectEvent::Current([(K8S_PROXY_CONFIG_KEY.to_owned(), text.clone())].into())
}

fn lost() -> ObjectEvent {
    let call = ApiCall { verb: Verb::List, kind: "Secret", namespace: "tailscale".into(), name: "kube-0-config".into() };
    ObjectEvent::Lost(KubeError::Call { call, fault: CallFault::Timeout(Duration::from_secs(10)) })
}

#[tokio::test(start_paused = true)]
async fn last_good_document_stays_in_force() {
    let (sender, receiver) = mpsc::channel(8);
    let first = config("kube-0", "svc:kube");
    let (config, mut configs) = watch::channel(Arc::clone(&first));
    let events = stream::unfold(receiver, |mut receiver: mpsc::Receiver<ObjectEvent>| async { Some((receiver.recv().await?, receiver)) });
    let work = tokio::spawn(follow(events.boxed(), Arc::clone(&first), config));
    let other = Bytes::from_static(b"{\"Version\":\"v1alpha1\",\"APIServerProxy\":{\"Mode\":\"other\"}}");
    for event in [
        current(&other),
        ObjectEvent::Gone,
        ObjectEvent::Current(Values::new()),
        lost(),
        ObjectEvent::Live,
        current(&text("kube-0", "svc:kube")),
    ] {
        sender.send(event).await.expect("a follower");
    }
    assert!(timeout(WAIT, configs.changed()).await.is_err(), "nothing has changed");
    sender.send(current(&text("kube-0", "svc:api"))).await.expect("a follower");
    timeout(WAIT, configs.changed()).await.expect("in time").expect("a follower");
    assert_eq!(configs.borrow().api_server.service.as_ref().expect("a name").as_str(), "svc:api");
    drop(sender);
    timeout(WAIT, work).await.expect("in time").expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn file_is_read_and_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("config.hujson");
    let source = K8sProxySource { reference: K8sProxyReference::File(path.clone()), kube: None, json: false };
    assert!(timeout(WAIT, load(&source)).await.is_err(), "there is none");
    std::fs::write(&path, "{").expect("written");
    assert!(timeout(WAIT, load(&source)).await.is_err(), "it is invalid");
    std::fs::write(&path, text("kube-0", "svc:kube")).expect("written");
    assert_eq!(timeout(WAIT, load(&source)).await.expect("in time"), config("kube-0", "svc:kube"));
}

#[tokio::test(start_paused = true)]
async fn site_follows_document_and_domain() {
    let (config_sender, configs) = watch::channel(config("kube-0", "svc:kube"));
    let (netmap_sender, netmap) = watch::channel(None);
    let mut events = std::pin::pin!(serve_configs(configs, netmap));
    assert!(timeout(WAIT, events.next()).await.is_err(), "no name without a domain");
    let node =
        |name: &str| Some(Arc::new(NetMap { node: Some(SelfNode { name: name.into(), ..SelfNode::default() }), ..NetMap::default() }));
    let mut next = async || match timeout(WAIT, events.next()).await {
        Ok(Some(ObjectEvent::Current(values))) => Some(String::from_utf8(values[routes::KEY].to_vec()).expect("text")),
        _ => None,
    };
    netmap_sender.send_replace(node("kube-0.tail.ts.net."));
    assert!(next().await.is_some_and(|routes| routes.contains("kube.tail.ts.net")));
    netmap_sender.send_replace(node("kube-0-1.tail.ts.net."));
    config_sender.send_replace(config("another", "svc:kube"));
    assert_eq!(next().await, None, "the same site");
    config_sender.send_replace(config("kube-0", "svc:api"));
    assert!(next().await.is_some_and(|routes| routes.contains("api.tail.ts.net") && !routes.contains("kube.tail")));
}

#[tokio::test(start_paused = true)]
async fn auth_key_of_the_document_is_that_of_tailscaled() {
    let (_sender, configs) = watch::channel(config("kube-0", "svc:kube"));
    let mut events = std::pin::pin!(daemon_configs(configs));
    let Some(ObjectEvent::Current(values)) = events.next().await else { panic!("no config") };
    let written: serde_json::Value = serde_json::from_slice(&values[CONFIG_KEY]).expect("JSON");
    assert_eq!((&written["Version"], &written["Hostname"], written.get("AuthKey")), (&json!("alpha0"), &json!("kube-0"), None));
    assert!(timeout(WAIT, events.next()).await.is_err(), "once");
}
