//! Watch of the replica's own config Secret: the API server reports changes in milliseconds, the kubelet mounts them after a minute or two.
//!
//! Publishes the newest auth key, the values for forwarding, and the device that was deleted at the control plane; supervision decides what
//! follows. If no Secret is mounted, the config files are written to the path of a mount, so that the Pod template needs no mount that names
//! the Pod's ordinal.

use std::path::{Path, PathBuf};
use std::pin::pin;

use futures_util::stream::{Stream, StreamExt};
use tokio::sync::watch;

use crate::api::names::DELETED_DEVICE_KEY;
use crate::edge::daemon;
use crate::edge::kube::{ObjectEvent, Values};
use crate::model::controller::workload::identity::DeviceId;
use crate::model::tailnet::supervise::{Secret, conffile};
use crate::proxy::tailnet::config_values::{self, ConfigValuesSender};
use crate::runtime::watch_ext::put;

/// Content of this Pod's config Secret.
#[derive(Debug)]
pub struct ConfigSecret {
    /// The newest auth key.
    pub key: watch::Receiver<Option<Secret>>,
    /// The device that was deleted at the control plane; a value that is no ID names none.
    pub deleted: watch::Receiver<Option<DeviceId>>,
}

struct Outputs {
    key: watch::Sender<Option<Secret>>,
    deleted: watch::Sender<Option<DeviceId>>,
    forwarding: ConfigValuesSender,
}

/// This Pod's config Secret, and the task that follows it until the receivers of the key are dropped. The config files are written to `fill`,
/// if given, and the values for forwarding to `forwarding`.
pub fn follow(
    events: impl Stream<Item = ObjectEvent> + Send + 'static,
    fill: Option<PathBuf>,
    forwarding: ConfigValuesSender,
) -> (ConfigSecret, impl Future<Output = ()> + Send + 'static) {
    let ((key, newest), (deleted, gone)) = (watch::channel(None), watch::channel(None));
    (ConfigSecret { key: newest, deleted: gone }, run(events, Outputs { key, deleted, forwarding }, fill))
}

/// A missing or unreadable Secret removes no key and no file.
async fn run(events: impl Stream<Item = ObjectEvent>, outputs: Outputs, fill: Option<PathBuf>) {
    let mut events = pin!(events);
    let mut lost = None;
    loop {
        let event = tokio::select! {
            () = outputs.key.closed() => return,
            Some(event) = events.next() => event,
        };
        match event {
            ObjectEvent::Current(values) => {
                if let Some(dir) = &fill {
                    write(dir, &values);
                }
                outputs.forwarding.follow(&values);
                if let Some(key) = newest(&values) {
                    put(&outputs.key, Some(key));
                }
                put(&outputs.deleted, values.get(DELETED_DEVICE_KEY).and_then(|id| DeviceId::read(id)));
            }
            ObjectEvent::Lost(error) if lost != Some(error.reason()) => {
                lost = Some(error.reason());
                tracing::warn!(
                    reason = error.reason(),
                    "cannot watch the config Secret; a new auth key takes effect when the kubelet mounts it: {error}"
                );
            }
            ObjectEvent::Live => lost = None,
            ObjectEvent::Gone | ObjectEvent::Lost(_) => {}
        }
    }
}

/// Mirrors the Secret's config files to a directory. A Secret without config files is ignored: existing files stay.
fn write(dir: &Path, values: &Values) {
    if !values.keys().any(|name| conffile::is_config(name)) {
        return;
    }
    let is_ours = |name: &str| conffile::is_config(name) || config_values::KEYS.contains(&name);
    let files = values.iter().filter(|(name, _)| is_ours(name)).map(|(name, bytes)| (name.as_str(), bytes.as_ref()));
    match daemon::fill(dir, files) {
        Ok(0) => {}
        Ok(changed) => tracing::info!(changed, "config files were written to {}", dir.display()),
        Err(error) => tracing::warn!(reason = error.reason(), "cannot write tailscaled's config: {error}"),
    }
}

/// The auth key of the newest config. The config's capability version does not matter: all of them have the same key.
fn newest(values: &Values) -> Option<Secret> {
    let name = conffile::choose(values.keys().map(String::as_str), u32::MAX).ok()?;
    let config = conffile::check(values.get(name)?);
    config.inspect_err(|fault| tracing::warn!(reason = fault.reason(), "invalid {name} in the config Secret: {fault}")).ok()?.auth_key
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use futures_util::stream;
    use tokio::time::timeout;

    use super::*;

    fn values(pairs: &[(&str, &'static str)]) -> Values {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), Bytes::from_static(value.as_bytes()))).collect()
    }

    async fn key_after(events: Vec<ObjectEvent>) -> Option<String> {
        let ((key, mut receiver), (deleted, _)) = (watch::channel(None), watch::channel(None));
        let outputs = Outputs { key, deleted, forwarding: config_values::channel(None).0 };
        tokio::spawn(run(stream::iter(events).chain(stream::pending()), outputs, None));
        while timeout(Duration::from_secs(1), receiver.changed()).await.is_ok_and(|changed| changed.is_ok()) {}
        receiver.borrow().as_ref().map(|key: &Secret| key.reveal().to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn auth_key_comes_from_the_newest_config() {
        let both = values(&[
            ("cap-95.hujson", r#"{"Version":"alpha0","AuthKey":"old"}"#),
            ("cap-106.hujson", r#"{"Version":"alpha0","AuthKey":"new"} // of today"#),
        ]);
        assert_eq!(key_after(vec![ObjectEvent::Current(both)]).await.as_deref(), Some("new"));
    }

    #[tokio::test(start_paused = true)]
    async fn auth_key_is_never_unset() {
        let good = values(&[("cap-106.hujson", r#"{"Version":"alpha0","AuthKey":"k"}"#)]);
        let used = values(&[("cap-106.hujson", r#"{"Version":"alpha0"}"#)]);
        let broken = values(&[("cap-106.hujson", "{")]);
        let events = vec![
            ObjectEvent::Current(good),
            ObjectEvent::Gone,
            ObjectEvent::Current(used),
            ObjectEvent::Current(broken),
            ObjectEvent::Current(Values::new()),
        ];
        assert_eq!(key_after(events).await.as_deref(), Some("k"));
    }

    #[tokio::test(start_paused = true)]
    async fn config_directory_mirrors_the_secret_and_keeps_the_last_config() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().join("made");
        let listed = || {
            let names = std::fs::read_dir(&dir)
                .expect("a directory")
                .map(|entry| entry.expect("a file").file_name().into_string().expect("a name"));
            names.collect::<std::collections::BTreeSet<_>>()
        };
        let two = values(&[("cap-95.hujson", "{}"), ("cap-106.hujson", r#"{"Version":"alpha0"}"#), ("../other", "x")]);
        let one = values(&[("cap-106.hujson", r#"{"Version":"alpha0","AuthKey":"k"}"#), ("deleted-device", "17")]);
        let ((key, _seen), (deleted, gone)) = (watch::channel(None), watch::channel(None));
        let outputs = || Outputs { key: key.clone(), deleted: deleted.clone(), forwarding: config_values::channel(None).0 };
        let events = |events: Vec<ObjectEvent>| run(stream::iter(events), outputs(), Some(dir.clone()));
        let ended = |work| timeout(Duration::from_secs(1), work);
        assert!(ended(events(vec![ObjectEvent::Current(two)])).await.is_err());
        assert_eq!(listed(), ["cap-106.hujson".to_owned(), "cap-95.hujson".to_owned()].into());
        assert!(ended(events(vec![ObjectEvent::Current(one), ObjectEvent::Gone, ObjectEvent::Current(Values::new())])).await.is_err());
        assert_eq!((listed(), gone.borrow().as_ref()), (["cap-106.hujson".to_owned()].into(), None), "the last Secret has no key");
        assert!(std::fs::read_to_string(dir.join("cap-106.hujson")).expect("a file").contains("AuthKey"));
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_device_is_an_id_or_none() {
        for (value, expected) in [("nAb12CNTRL", true), ("17", true), ("", false), ("../17", false), ("n\n1", false)] {
            let ((key, _receiver), (deleted, gone)) = (watch::channel(None), watch::channel(None));
            let outputs = Outputs { key, deleted, forwarding: config_values::channel(None).0 };
            let events = stream::iter([ObjectEvent::Current(values(&[("deleted-device", value)]))]).chain(stream::pending());
            timeout(Duration::from_secs(1), run(events, outputs, None)).await.expect_err("it watches on");
            assert_eq!(gone.borrow().as_ref().map(DeviceId::as_str), expected.then_some(value));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn config_without_auth_key_is_ignored() {
        assert_eq!(key_after(vec![ObjectEvent::Live, ObjectEvent::Current(values(&[("other", "{}")])), ObjectEvent::Gone]).await, None);
    }
}
