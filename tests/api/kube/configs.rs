//! Config in force while the API server, the object and the mount appear and disappear.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailyard::edge::files::watch::directory;
use tailyard::edge::kube::{Cluster as Client, ObjectEvent};
use tailyard::model::base::backoff::Backoff;
use tailyard::model::config::EgressConfig;
use tailyard::model::config::source::{CopySource, Document, DocumentFault, EgressDocument, InForce, WatchHealth};
use tailyard::proxy::config::follow::{CopySources, FollowOutputs, follow};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

use kit::apiserver::{Cluster, DEADLINE, NAMESPACE, cluster};
use kit::wait::wait_for_value;

const NAME: &str = "eg-egress-config";

/// A replica's config in force and its mounted copy.
struct Replica {
    mount: TempDir,
    services: watch::Receiver<Option<Arc<EgressConfig>>>,
    state: watch::Receiver<InForce<EgressDocument>>,
}

fn retry() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(1), 0.2).expect("bounds")
}

/// A config with one service of this name.
fn config(name: &str) -> String {
    format!(r#"{{"{name}":{{"tailnetTarget":{{"ip":"100.64.0.2"}},"ports":[{{"protocol":"TCP","matchPort":10000,"targetPort":80}}]}}}}"#)
}

async fn may_watch(cluster: &Cluster) {
    cluster.allow("configmaps", &[NAME], &["list", "watch"]).await;
}

impl Replica {
    /// Starts a replica whose mounted copy has this service.
    fn start(client: &Client, mounted: &str, hold: Duration) -> Self {
        let mount = TempDir::new().expect("a directory");
        let (services, services_rx) = watch::channel(None);
        let (state, state_rx) = watch::channel(InForce::default());
        let replica = Self { mount, services: services_rx, state: state_rx };
        replica.project(mounted);
        let (watcher, view) = directory(replica.mount.path(), EgressDocument::KEYS);
        tokio::spawn(watcher.run());
        let api = Box::pin(client.watch_config_map(NAMESPACE, NAME, retry()));
        let sources = CopySources { api: Some(api), mount: Some((view, None)), hold, start: tokio::time::Instant::now() };
        tokio::spawn(follow::<EgressDocument>(sources, FollowOutputs { services, state }));
        replica
    }

    /// Projects a config into the mount as the kubelet does: a new directory, then a swap of the `..data` link.
    fn project(&self, service: &str) {
        let set = format!("..{service}");
        fs::create_dir(self.mount.path().join(&set)).expect("a set");
        fs::write(self.mount.path().join(&set).join("egress-services"), config(service)).expect("a file");
        let temporary = self.mount.path().join("..data_tmp");
        symlink(Path::new(&set), &temporary).expect("a link");
        fs::rename(temporary, self.mount.path().join("..data")).expect("a swap");
    }

    async fn becomes(&mut self, service: &str) {
        let holds = |config: &Option<Arc<EgressConfig>>| config.as_ref().is_some_and(|config| config.services.contains_key(service));
        let waited = timeout(DEADLINE, self.services.wait_for(holds)).await.is_ok();
        assert!(waited, "never {service}: {:?}", self.state.borrow());
    }

    async fn until(&mut self, what: &str, holds: impl FnMut(&InForce<EgressDocument>) -> bool) {
        wait_for_value(what, DEADLINE, &mut self.state, holds).await;
    }

    fn service(&self) -> String {
        let services = self.services.borrow().clone().expect("a config");
        services.services.keys().map(ToString::to_string).collect()
    }
}

#[test]
fn edit_is_delivered_by_the_watch_and_the_mount_is_ignored() {
    cluster(async |cluster| {
        may_watch(&cluster).await;
        cluster.write_config(NAME, &[("egress-services", &config("first")), ("hep-pings", "6")]).await;
        let mut replica = Replica::start(&cluster.pod().await, "mounted", DEADLINE);
        replica.becomes("first").await;
        replica.until("live", |state| state.link == WatchHealth::Live && state.source == Some(CopySource::Api)).await;
        assert_eq!(replica.state.borrow().document.as_ref().map(|document| document.hep_pings), Some(6));
        replica.project("mounted-later");
        let mut slowest = Duration::ZERO;
        for round in 0..20 {
            let service = format!("edit-{round}");
            let before = Instant::now();
            cluster.write_config(NAME, &[("egress-services", &config(&service))]).await;
            replica.becomes(&service).await;
            slowest = slowest.max(before.elapsed());
        }
        println!("slowest of 20 edits, request included: {slowest:?}");
        assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    });
}

#[test]
fn frequent_edits_end_with_the_last() {
    cluster(async |cluster| {
        may_watch(&cluster).await;
        let mut replica = Replica::start(&cluster.pod().await, "mounted", DEADLINE);
        replica.becomes("mounted").await;
        let mut pace = tokio::time::interval(Duration::from_millis(10));
        let begin = Instant::now();
        for round in 0..300 {
            pace.tick().await;
            cluster.write_config(NAME, &[("egress-services", &config(&format!("edit-{round}")))]).await;
        }
        println!("300 edits in {:?}", begin.elapsed());
        let before = Instant::now();
        replica.becomes("edit-299").await;
        assert!(before.elapsed() < Duration::from_secs(10), "{:?} behind", before.elapsed());
    });
}

#[test]
fn watch_survives_an_api_server_restart() {
    cluster(async |mut cluster| {
        may_watch(&cluster).await;
        cluster.write_config(NAME, &[("egress-services", &config("before"))]).await;
        let mut replica = Replica::start(&cluster.pod().await, "mounted", DEADLINE);
        replica.becomes("before").await;
        replica.until("live", |state| state.link == WatchHealth::Live).await;
        cluster.kill_server();
        replica.until("lost", |state| matches!(state.link, WatchHealth::Lost { reason: "Unreachable", .. })).await;
        assert_eq!((replica.service(), replica.state.borrow().source), ("before".into(), Some(CopySource::Api)));
        cluster.start_server().await;
        cluster.write_config(NAME, &[("egress-services", &config("after"))]).await;
        replica.becomes("after").await;
        replica.until("live again", |state| state.link == WatchHealth::Live).await;
    });
}

#[test]
fn frozen_api_server_changes_nothing_until_it_resumes() {
    cluster(async |cluster| {
        may_watch(&cluster).await;
        cluster.write_config(NAME, &[("egress-services", &config("before"))]).await;
        let mut replica = Replica::start(&cluster.pod().await, "mounted", DEADLINE);
        replica.becomes("before").await;
        cluster.freeze_server();
        replica.project("before-too");
        assert!(timeout(Duration::from_secs(2), replica.services.changed()).await.is_err(), "{:?}", replica.state.borrow());
        cluster.thaw_server();
        cluster.write_config(NAME, &[("egress-services", &config("after"))]).await;
        replica.becomes("after").await;
    });
}

#[test]
fn start_without_api_server_uses_the_mount() {
    cluster(async |mut cluster| {
        may_watch(&cluster).await;
        cluster.write_config(NAME, &[("egress-services", &config("watched"))]).await;
        let pod = cluster.pod().await;
        cluster.kill_server();
        let begin = Instant::now();
        let mut replica = Replica::start(&pod, "mounted", DEADLINE);
        replica.becomes("mounted").await;
        assert!(begin.elapsed() < Duration::from_secs(5), "the API is not waited for: {:?}", begin.elapsed());
        replica.until("unreachable", |state| matches!(state.link, WatchHealth::Lost { reason: "Unreachable", .. })).await;
        replica.project("mounted-2");
        replica.becomes("mounted-2").await;
        cluster.start_server().await;
        replica.becomes("watched").await;
        replica.until("from the API", |state| state.source == Some(CopySource::Api)).await;
    });
}

#[test]
fn newer_mount_is_used_after_a_long_watch_outage() {
    cluster(async |mut cluster| {
        may_watch(&cluster).await;
        cluster.write_config(NAME, &[("egress-services", &config("watched"))]).await;
        let hold = Duration::from_secs(6);
        let mut replica = Replica::start(&cluster.pod().await, "old", hold);
        replica.becomes("watched").await;
        replica.until("live", |state| state.link == WatchHealth::Live).await;
        cluster.kill_server();
        replica.until("lost", |state| matches!(state.link, WatchHealth::Lost { .. })).await;
        let lost = Instant::now();
        replica.project("watched");
        replica.project("newer");
        replica.becomes("newer").await;
        assert!(lost.elapsed() > hold / 2, "not before the hold: {:?}", lost.elapsed());
        cluster.start_server().await;
        replica.becomes("watched").await;
    });
}

#[test]
fn a_deleted_or_broken_object_leaves_the_last_good_config() {
    cluster(async |cluster| {
        may_watch(&cluster).await;
        cluster.write_config(NAME, &[("egress-services", &config("good"))]).await;
        let mut replica = Replica::start(&cluster.pod().await, "mounted", DEADLINE);
        replica.becomes("good").await;
        cluster.write_config(NAME, &[("egress-services", r#"{"cut":{"#)]).await;
        replica.until("unreadable", |state| state.fault.as_ref().map(DocumentFault::reason) == Some("Unreadable")).await;
        cluster.delete_config(NAME).await;
        replica.until("deleted", |state| state.fault == Some(DocumentFault::Deleted)).await;
        assert_eq!(replica.service(), "good");
        cluster.write_config(NAME, &[("egress-services", &config("again"))]).await;
        replica.becomes("again").await;
        assert_eq!(replica.state.borrow().fault, None);
        cluster.delete_config(NAME).await;
        replica.until("deleted", |state| state.fault == Some(DocumentFault::Deleted)).await;
        assert_eq!(replica.service(), "again");
    });
}

#[test]
fn missing_permission_uses_the_mount_and_is_named() {
    cluster(async |cluster| {
        cluster.write_config(NAME, &[("egress-services", &config("watched"))]).await;
        let client = Client::kubeconfig(&cluster.kubeconfig_file()).await.expect("a client");
        let mut replica = Replica::start(&client, "mounted", DEADLINE);
        replica.becomes("mounted").await;
        let rule = r#"{apiGroups: [""], resources: ["configmaps"], resourceNames: ["eg-egress-config"], verbs: ["list"]}"#;
        let named = |link: &WatchHealth| matches!(link, WatchHealth::Lost { reason: "Forbidden", message, .. } if message.contains(rule));
        replica.until("forbidden", |state| named(&state.link)).await;
        may_watch(&cluster).await;
        replica.becomes("watched").await;
    });
}

#[test]
fn new_auth_key_is_delivered_from_the_config_secret() {
    use futures_util::StreamExt;
    cluster(async |cluster| {
        cluster.allow("secrets", &["eg-0-config"], &["list", "watch"]).await;
        cluster.make_secret("eg-0-config", &[("cap-106.hujson", r#"{"AuthKey":"old"}"#)]).await;
        let mut events = Box::pin(cluster.pod().await.watch_secret("eg-0-config", retry()));
        let mut next = async || loop {
            match timeout(DEADLINE, events.next()).await.expect("in time").expect("it never ends") {
                ObjectEvent::Current(values) => return String::from_utf8(values["cap-106.hujson"].to_vec()).expect("text"),
                ObjectEvent::Lost(_) | ObjectEvent::Live | ObjectEvent::Gone => {}
            }
        };
        assert_eq!(next().await, r#"{"AuthKey":"old"}"#);
        cluster.patch_secret("eg-0-config", &[("cap-106.hujson", r#"{"AuthKey":"new"}"#)]).await;
        assert_eq!(next().await, r#"{"AuthKey":"new"}"#);
    });
}
