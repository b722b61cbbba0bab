//! Start of the config followers of a replica.

use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::edge::files::watch::{directory, file};
use crate::edge::kube::{Cluster, SERVICE_ACCOUNT};
use crate::model::base::backoff::Backoff;
use crate::model::config::source::{Document, EgressDocument, HOLD_PERIOD, InForce, IngressDocument, ServeDocument};
use crate::model::settings::{ConfigInput, Kube, Settings};
use crate::runtime::tasks::Tasks;

use crate::proxy::config::follow::{CopySources, FollowOutputs, MountedCopy, ObjectEvents, follow};

#[derive(Debug)]
pub struct FollowedConfig<D: Document> {
    /// Services in force; `None` before the first readable copy.
    pub services: watch::Receiver<Option<Arc<D::Services>>>,
    pub state: watch::Receiver<InForce<D>>,
}

#[derive(Debug)]
pub struct ConfigPart {
    pub egress: FollowedConfig<EgressDocument>,
    pub ingress: FollowedConfig<IngressDocument>,
    pub serve: FollowedConfig<ServeDocument>,
}

impl ConfigPart {
    /// Starts all followers; a config without source is empty. `sites` are serve configs from elsewhere.
    pub fn start(settings: &Settings, cluster: Option<&Cluster>, sites: Option<ObjectEvents>, tasks: &mut Tasks) -> Self {
        Self {
            egress: config(tasks, "egress config", settings.egress.as_ref(), cluster, false),
            ingress: config(tasks, "ingress config", settings.ingress.as_ref(), cluster, true),
            serve: match sites {
                Some(sites) => followed(tasks, "serve config", Some(sites), None),
                None => config(tasks, "serve config", settings.serve.as_ref(), cluster, true),
            },
        }
    }
}

/// Kubernetes client, if this Pod is in a cluster. A failure is logged and the replica runs without.
pub async fn cluster(kube: Option<&Kube>) -> Option<Cluster> {
    match Cluster::in_pod(&kube?.server, Path::new(SERVICE_ACCOUNT)).await {
        Ok(cluster) => Some(cluster),
        Err(error) => {
            tracing::error!(reason = error.reason(), "cannot use the Kubernetes API; using mounted files only: {error}");
            None
        }
    }
}

/// Follows a config; without source it is empty. A mounted path is the document's key, with its other keys beside it, or a single file
/// of any name; for a config that is always mounted as a whole, the directory.
fn config<D>(
    tasks: &mut Tasks,
    name: &'static str,
    input: Option<&ConfigInput>,
    cluster: Option<&Cluster>,
    is_file: bool,
) -> FollowedConfig<D>
where
    D: Document + Send + Sync + 'static,
    D::Services: Default + Send + Sync + 'static,
{
    let Some(input) = input else {
        let (services, state) = (watch::channel(Some(Arc::default())).1, watch::channel(InForce::default()).1);
        return FollowedConfig { services, state };
    };
    let api = cluster.zip(input.configmap.as_ref()).map(|(cluster, map)| {
        let events = cluster.watch_config_map(&map.namespace, &map.name, Backoff::DAEMON);
        events.boxed() as ObjectEvents
    });
    let mount = input.path.as_deref().map(|path| {
        let whole = path.parent().filter(|_| is_file && path.file_name().is_some_and(|name| name == D::KEY));
        let (watcher, views, name) = if let Some(volume) = whole.or((!is_file).then_some(path)) {
            let (watcher, views) = directory(volume, D::KEYS);
            (watcher, views, None)
        } else {
            let (watcher, views, name) = file(path);
            (watcher, views, Some(name))
        };
        tasks.run_until_stop("files", watcher.run());
        (views, name)
    });
    followed(tasks, name, api, mount)
}

/// Follows the copies of a config.
fn followed<D>(tasks: &mut Tasks, name: &'static str, api: Option<ObjectEvents>, mount: Option<MountedCopy>) -> FollowedConfig<D>
where
    D: Document + Send + Sync + 'static,
    D::Services: Send + Sync + 'static,
{
    let (services, services_seen) = watch::channel(None);
    let (state, state_seen) = watch::channel(InForce::default());
    let sources = CopySources { api, mount, hold: HOLD_PERIOD, start: Instant::now() };
    tasks.run_until_stop(name, follow::<D>(sources, FollowOutputs { services, state }));
    FollowedConfig { services: services_seen, state: state_seen }
}
