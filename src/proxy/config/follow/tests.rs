use bytes::Bytes;
use futures_util::stream;
use kit::wait::wait_for_value;
use tokio::sync::mpsc;

use super::*;
use crate::edge::files::Snapshot;
use crate::edge::kube::{ApiCall, CallFault, KubeError, Verb};
use crate::model;
use crate::model::config::EgressConfig;
use crate::model::config::source::EgressDocument;

const HOLD_PERIOD: Duration = Duration::from_mins(2);

/// A simulated watch and mount, and the outputs.
struct Play {
    api: mpsc::UnboundedSender<ObjectEvent>,
    mount: watch::Sender<FilesView>,
    services: watch::Receiver<Option<Arc<EgressConfig>>>,
    state: watch::Receiver<InForce<EgressDocument>>,
}

fn play() -> Play {
    let (api, events) = mpsc::unbounded_channel();
    let (mount, view) = watch::channel(FilesView::default());
    let (services, services_rx) = watch::channel(None);
    let (state, state_rx) = watch::channel(InForce::default());
    let api_stream: ObjectEvents =
        Box::pin(stream::unfold(events, |mut events| async { events.recv().await.map(|event| (event, events)) }));
    let sources = CopySources { api: Some(api_stream), mount: Some((view, None)), hold: HOLD_PERIOD, start: Instant::now() };
    tokio::spawn(follow::<EgressDocument>(sources, FollowOutputs { services, state }));
    Play { api, mount, services: services_rx, state: state_rx }
}

fn keys(version: u32) -> CopyKeys {
    [("egress-services".to_owned(), Bytes::from(format!(r#"{{"v{version}":{{}}}}"#)))].into()
}

fn lost() -> ObjectEvent {
    let call = ApiCall { verb: Verb::Watch, kind: "ConfigMap", namespace: "ts".into(), name: "eg-egress-config".into() };
    ObjectEvent::Lost(KubeError::Call { call, fault: CallFault::Timeout(Duration::from_secs(1)) })
}

impl Play {
    fn show(&self, version: u32) {
        let snapshot = Some(Snapshot { files: keys(version), projected: true });
        self.mount.send_replace(FilesView { snapshot, fault: None, notified: true });
    }

    fn say(&self, event: ObjectEvent) {
        self.api.send(event).expect("followed");
    }

    async fn becomes(&mut self, version: u32) {
        let name = format!("v{version}");
        let holds = |config: &Option<Arc<EgressConfig>>| config.as_ref().is_some_and(|config| config.services.contains_key(name.as_str()));
        let waited = tokio::time::timeout(Duration::from_hours(1), self.services.wait_for(holds)).await;
        assert!(waited.is_ok(), "never {name}: {:?}", self.state.borrow());
    }

    async fn until(&mut self, what: &str, holds: impl FnMut(&InForce<EgressDocument>) -> bool) {
        wait_for_value(what, Duration::from_hours(1), &mut self.state, holds).await;
    }
}

#[tokio::test(start_paused = true)]
async fn mount_is_used_before_the_watch_and_after_the_hold() {
    let mut play = play();
    play.show(1);
    play.becomes(1).await;
    play.say(ObjectEvent::Current(keys(2)));
    play.say(ObjectEvent::Live);
    play.becomes(2).await;
    play.until("live", |state| state.link == WatchHealth::Live && state.source == Some(CopySource::Api)).await;
    play.say(lost());
    play.show(3);
    let before = Instant::now();
    play.becomes(3).await;
    assert!(before.elapsed() >= HOLD_PERIOD && before.elapsed() < 2 * HOLD_PERIOD, "{:?}", before.elapsed());
    play.until("lost", |state| matches!(state.link, WatchHealth::Lost { reason: "Timeout", .. }) && state.source == Some(CopySource::File))
        .await;
    play.say(ObjectEvent::Current(keys(4)));
    play.becomes(4).await;
}

#[tokio::test(start_paused = true)]
async fn config_fault_is_reported_without_a_new_config() {
    let mut play = play();
    play.say(ObjectEvent::Current(keys(1)));
    play.becomes(1).await;
    play.services.mark_unchanged();
    play.say(ObjectEvent::Current([("egress-services".to_owned(), Bytes::from_static(b"{"))].into()));
    play.until("unreadable", |state| state.fault.as_ref().map(model::config::source::DocumentFault::reason) == Some("Unreadable")).await;
    play.say(ObjectEvent::Gone);
    play.until("deleted", |state| state.fault == Some(model::config::source::DocumentFault::Deleted)).await;
    play.say(ObjectEvent::Current(keys(1)));
    play.until("well", |state| state.fault.is_none()).await;
    assert!(!play.services.has_changed().expect("followed"), "the document in force never changed");
}

#[tokio::test(start_paused = true)]
async fn queued_updates_are_parsed_once() {
    let mut play = play();
    for version in 0..=500 {
        play.say(ObjectEvent::Current(keys(version)));
    }
    let mut parsed = 0;
    while play.services.borrow_and_update().as_ref().is_none_or(|config| !config.services.contains_key("v500")) {
        play.services.changed().await.expect("followed");
        parsed += 1;
    }
    assert!(parsed <= 8, "{parsed} documents were read; a task is given some hundred messages at a time");
}

#[tokio::test(start_paused = true)]
async fn follower_survives_closed_sources() {
    let mut play = play();
    play.show(1);
    play.becomes(1).await;
    let Play { api, mount, services, state } = play;
    drop((api, mount));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(services.has_changed().is_ok() && state.has_changed().is_ok());
}

#[test]
fn file_of_any_name_stands_for_the_configmap_key() {
    let files: CopyKeys = [("my.json".to_owned(), Bytes::from_static(b"{}"))].into();
    assert_eq!(named::<EgressDocument>(files, Some("my.json")), [("egress-services".to_owned(), Bytes::from_static(b"{}"))].into());
    assert_eq!(named::<EgressDocument>(keys(1), None), keys(1));
}
