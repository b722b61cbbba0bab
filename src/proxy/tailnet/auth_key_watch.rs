//! The replica's own config Secret, as the API tells it: in milliseconds, where the kubelet takes a minute or two to mount it.
//!
//! Its newest auth key is told; whether a login is tried with it is supervision's decision. Where nothing is mounted, its config
//! files are written where a mount would have them, so that a Pod needs no mount that names its ordinal.

use std::path::{Path, PathBuf};
use std::pin::pin;

use futures_util::stream::{Stream, StreamExt};
use tokio::sync::watch;

use crate::api::names::CONFIG_SECRET_SUFFIX;
use crate::edge::daemon;
use crate::edge::kube::{Cluster, ObjectEvent, Values};
use crate::model::base::backoff::Backoff;
use crate::model::tailnet::supervise::{Secret, conffile};
use crate::runtime::watch_ext::put;

/// The newest key of this Pod's config Secret, and the task that follows it until nobody listens any more. The config files
/// are kept in `fill`, if there is such a directory.
pub fn follow(
    cluster: &Cluster,
    pod: &str,
    fill: Option<PathBuf>,
) -> (watch::Receiver<Option<Secret>>, impl Future<Output = ()> + Send + 'static) {
    let (keys, newest) = watch::channel(None);
    let (cluster, name) = (cluster.clone(), format!("{pod}{CONFIG_SECRET_SUFFIX}"));
    (newest, async move { run(cluster.watch_secret(&name, Backoff::DAEMON), keys, fill).await })
}

/// A Secret that is gone or cannot be read takes no key and no file back.
async fn run(events: impl Stream<Item = ObjectEvent>, keys: watch::Sender<Option<Secret>>, fill: Option<PathBuf>) {
    let mut events = pin!(events);
    let mut lost = None;
    loop {
        let event = tokio::select! {
            () = keys.closed() => return,
            Some(event) = events.next() => event,
        };
        match event {
            ObjectEvent::Current(values) => {
                if let Some(dir) = &fill {
                    write(dir, &values);
                }
                if let Some(key) = newest(&values) {
                    put(&keys, Some(key));
                }
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

/// Keeps the config files of a Secret in a directory. One without any is no config: what is there stays.
fn write(dir: &Path, values: &Values) {
    let files = values.iter().filter(|(name, _)| conffile::is_config(name)).map(|(name, bytes)| (name.as_str(), bytes.as_ref()));
    match daemon::fill(dir, files) {
        Ok(0) => {}
        Ok(changed) => tracing::info!(changed, "config files were written to {}", dir.display()),
        Err(error) => tracing::warn!(reason = error.reason(), "cannot write tailscaled's config: {error}"),
    }
}

/// The key of the newest config. Which daemon it is for does not matter: the key is the same in all of them.
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
        let (keys, mut receiver) = watch::channel(None);
        tokio::spawn(run(stream::iter(events).chain(stream::pending()), keys, None));
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
        let one = values(&[("cap-106.hujson", r#"{"Version":"alpha0","AuthKey":"k"}"#)]);
        let (keys, _seen) = watch::channel(None);
        let events = |events: Vec<ObjectEvent>| run(stream::iter(events), keys.clone(), Some(dir.clone()));
        let ended = |work| timeout(Duration::from_secs(1), work);
        assert!(ended(events(vec![ObjectEvent::Current(two)])).await.is_err());
        assert_eq!(listed(), ["cap-106.hujson".to_owned(), "cap-95.hujson".to_owned()].into());
        assert!(ended(events(vec![ObjectEvent::Current(one), ObjectEvent::Gone, ObjectEvent::Current(Values::new())])).await.is_err());
        assert_eq!(listed(), ["cap-106.hujson".to_owned()].into());
        assert!(std::fs::read_to_string(dir.join("cap-106.hujson")).expect("a file").contains("AuthKey"));
    }

    #[tokio::test(start_paused = true)]
    async fn config_without_auth_key_is_ignored() {
        assert_eq!(key_after(vec![ObjectEvent::Live, ObjectEvent::Current(values(&[("other", "{}")])), ObjectEvent::Gone]).await, None);
    }
}
