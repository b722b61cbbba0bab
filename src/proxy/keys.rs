//! The newest auth key, as the operator writes it into this Pod's config Secret: earlier than the kubelet mounts it.

use futures_util::StreamExt;
use tokio::sync::watch;

use crate::edge::kube::{Cluster, Event, Values};
use crate::model::backoff::Backoff;
use crate::model::supervise::{Secret, conffile};

/// Follows the Secret until nobody listens. A Secret that cannot be read or understood changes nothing: the mount has it too.
pub fn follow(cluster: &Cluster, pod: &str) -> (watch::Receiver<Option<Secret>>, impl Future<Output = ()> + Send + 'static) {
    let (sender, keys) = watch::channel(None);
    let (cluster, name) = (cluster.clone(), format!("{pod}-config"));
    let follow = async move {
        let mut events = Box::pin(cluster.watch_secret(&name, Backoff::DAEMON));
        while let Some(event) = events.next().await {
            match event {
                Event::Current(values) => {
                    if let Some(key) = key(&values) {
                        sender.send_replace(Some(key));
                    }
                }
                Event::Lost(error) => tracing::debug!(kind = error.kind(), "the config Secret is not watched: {error}"),
                Event::Gone | Event::Live => {}
            }
        }
    };
    (keys, follow)
}

/// The key of the newest config file in the Secret.
fn key(values: &Values) -> Option<Secret> {
    let name = conffile::choose(values.keys().map(String::as_str), u32::MAX).ok()?;
    conffile::check(values.get(name)?).ok()?.auth_key
}
