//! The Tailscale operator's config of an API server proxy: read at the start, followed, and passed on as the configs that other tasks follow.
//!
//! A document that cannot be read or is invalid changes nothing: the last good one stays in force. Before the first one a replica waits.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::api::names::{CONFIG_KEY, K8S_PROXY_CONFIG_KEY};
use crate::edge::files;
use crate::edge::files::watch::{FilesView, file};
use crate::edge::kube::{Cluster, ObjectEvent, SERVICE_ACCOUNT, Values};
use crate::model::base::backoff::Backoff;
use crate::model::base::netmap::NetMap;
use crate::model::k8s_proxy::K8sProxyConfig;
use crate::model::k8s_proxy::reference::K8sProxyReference;
use crate::model::k8s_proxy::translation;
use crate::model::settings::{K8sProxySettings, K8sProxySource};
use crate::proxy::config::follow::ObjectEvents;
use crate::runtime::tasks::Tasks;
use crate::runtime::watch_ext::put;

/// The document in force.
pub type K8sProxyConfigs = watch::Receiver<Arc<K8sProxyConfig>>;

/// Reads the document; waits until there is a valid one.
pub async fn load(source: &K8sProxySource) -> Arc<K8sProxyConfig> {
    let (mut backoff, mut logged) = (Backoff::DAEMON, String::new());
    loop {
        let fault = match attempt(source).await {
            Ok(config) => return Arc::new(config),
            Err(fault) => fault,
        };
        if logged != fault {
            tracing::warn!("waiting for the config of the API server proxy ({}): {fault}", source.reference);
            logged = fault;
        }
        sleep(backoff.next(fastrand::f64())).await;
    }
}

/// The document, or why it cannot be used.
async fn attempt(source: &K8sProxySource) -> Result<K8sProxyConfig, String> {
    let text = match (&source.reference, &source.kube) {
        (K8sProxyReference::File(path), _) => files::read_one(path).map_err(|error| error.to_string())?.ok_or("the file does not exist")?,
        (K8sProxyReference::Secret { namespace, name }, Some(kube)) => {
            let cluster = Cluster::in_pod(&kube.server, Path::new(SERVICE_ACCOUNT)).await.map_err(|error| error.to_string())?;
            let found = cluster.within(namespace.as_str()).secret(name.as_str()).await.map_err(|error| error.to_string())?;
            let values = found.ok_or("the Secret does not exist")?;
            values.get(K8S_PROXY_CONFIG_KEY).cloned().ok_or_else(|| format!("the Secret has no key {K8S_PROXY_CONFIG_KEY}"))?
        }
        (K8sProxyReference::Secret { .. }, None) => return Err("the Pod's environment names no API server".to_owned()),
    };
    K8sProxyConfig::parse(&text).map_err(|fault| fault.to_string())
}

/// Follows the document.
pub fn start(settings: &K8sProxySettings, cluster: Option<&Cluster>, tasks: &mut Tasks) -> K8sProxyConfigs {
    let (sender, receiver) = watch::channel(Arc::clone(&settings.config));
    let events: Option<ObjectEvents> = match (&settings.reference, cluster) {
        (K8sProxyReference::Secret { namespace, name }, Some(cluster)) => {
            Some(cluster.within(namespace.as_str()).watch_secret(name.as_str(), Backoff::DAEMON).boxed())
        }
        (K8sProxyReference::Secret { .. }, None) => None,
        (K8sProxyReference::File(path), _) => {
            let (watcher, views, name) = file(path);
            tasks.run_until_stop("files", watcher.run());
            Some(of_file(views, name).boxed())
        }
    };
    if let Some(events) = events {
        tasks.run_until_stop("config of the API server proxy", follow(events, Arc::clone(&settings.config), sender));
    }
    receiver
}

/// Contents of a file, as those of the key of a Secret.
fn of_file(views: watch::Receiver<FilesView>, name: String) -> impl Stream<Item = ObjectEvent> + Send {
    values_of(views).filter_map(move |view| {
        let text = view.snapshot.and_then(|snapshot| snapshot.files.get(&name).cloned());
        let event = text.filter(|text| !text.is_empty()).map(|text| ObjectEvent::Current([(K8S_PROXY_CONFIG_KEY.to_owned(), text)].into()));
        std::future::ready(event)
    })
}

/// Puts valid documents in force. `first` is that of the start.
async fn follow(mut events: ObjectEvents, first: Arc<K8sProxyConfig>, config: watch::Sender<Arc<K8sProxyConfig>>) {
    let (mut lost, mut fault, mut unapplied) = (None, None, Vec::new());
    while let Some(event) = events.next().await {
        let values = match event {
            ObjectEvent::Current(values) => values,
            ObjectEvent::Live => {
                lost = None;
                continue;
            }
            ObjectEvent::Lost(error) => {
                if lost.replace(error.reason()) != Some(error.reason()) {
                    tracing::warn!(reason = error.reason(), "cannot watch the config of the API server proxy; it stays in force: {error}");
                }
                continue;
            }
            ObjectEvent::Gone => {
                tracing::warn!("the config of the API server proxy was deleted; it stays in force");
                continue;
            }
        };
        let parsed = match values.get(K8S_PROXY_CONFIG_KEY) {
            None => Err(format!("the Secret has no key {K8S_PROXY_CONFIG_KEY}")),
            Some(text) => K8sProxyConfig::parse(text).map_err(|fault| fault.to_string()),
        };
        let newer = match parsed {
            Ok(newer) => newer,
            Err(text) => {
                if fault.as_ref() != Some(&text) {
                    tracing::warn!("invalid config of the API server proxy, the last good one stays in force: {text}");
                    fault = Some(text);
                }
                continue;
            }
        };
        fault = None;
        let fields = first.unapplied(&newer);
        if !fields.is_empty() && fields != unapplied {
            tracing::warn!(?fields, "changed fields of the config take effect when the container restarts");
        }
        unapplied = fields;
        if put(&config, Arc::new(first.reloaded(newer))) {
            tracing::info!("config of the API server proxy in force");
        }
    }
}

/// The documents as tailscaled's config files.
pub fn daemon_configs(configs: K8sProxyConfigs) -> impl Stream<Item = ObjectEvent> + Send {
    values_of(configs).map(|config| {
        let text = Bytes::from(translation::daemon_config(&config));
        ObjectEvent::Current([(CONFIG_KEY.to_owned(), text)].into())
    })
}

/// The documents as serve configs with routes, once the netmap has the tailnet's domain.
pub fn serve_configs(configs: K8sProxyConfigs, netmap: watch::Receiver<Option<Arc<NetMap>>>) -> impl Stream<Item = ObjectEvent> + Send {
    struct Inputs {
        configs: K8sProxyConfigs,
        netmap: watch::Receiver<Option<Arc<NetMap>>>,
        last: Option<BTreeMap<String, Vec<u8>>>,
    }
    stream::unfold(Inputs { configs, netmap, last: None }, |mut inputs| async move {
        loop {
            let config = Arc::clone(&inputs.configs.borrow_and_update());
            let netmap = inputs.netmap.borrow_and_update().clone();
            let values = translation::serve_values(&config, netmap.as_deref().and_then(NetMap::domain));
            if values.is_some() && values != inputs.last {
                inputs.last.clone_from(&values);
                let values: Values = values.into_iter().flatten().map(|(key, text)| (key, Bytes::from(text))).collect();
                return Some((ObjectEvent::Current(values), inputs));
            }
            tokio::select! {
                Ok(()) = inputs.configs.changed() => {}
                Ok(()) = inputs.netmap.changed() => {}
                else => return None,
            }
        }
    })
}

/// Values of a channel, the current one first.
fn values_of<T: Clone + Send + Sync + 'static>(receiver: watch::Receiver<T>) -> impl Stream<Item = T> + Send {
    stream::unfold((receiver, true), |(mut receiver, is_first)| async move {
        if !is_first && receiver.changed().await.is_err() {
            return None;
        }
        let value = receiver.borrow_and_update().clone();
        Some((value, (receiver, false)))
    })
}

#[cfg(test)]
mod tests;
