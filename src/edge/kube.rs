//! Kubernetes API client. A replica uses one `ConfigMap`, its own two Secrets, the Secrets of its group's certificates, a Lease and access
//! reviews. The reconciler watches whole kinds ([`Follow`]) and writes through one client ([`LeaderClient`]) while it leads ([`Lease`]).
//!
//! Every call has a timeout and is attempted once; callers retry. Callers also decide what is in force and what is written. A replica never
//! reads or writes the state or config Secret of another one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::config::{AuthInfo, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};
use kube::{Api, Client, Config};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::pages::MAX_PAGES;

mod access_review;
mod conditional_secret;
mod error;
mod events;
mod item;
mod leader_client;
mod leader_leases;
mod lease;
mod list_watch;
mod pages;
mod queries;
mod resource;
mod secret;

pub use access_review::Permissions;
pub use conditional_secret::VersionedSecret;
pub use error::{ApiCall, ApiRefusal, CallFault, KubeError, Verb};
pub use events::{DropObserver, EventWriter};
pub use item::{MetadataOnly, WatchedItem, WatchedObject};
pub use leader_client::{LeaderClient, ObjectPart, Observer};
pub use lease::{Leading, Lease};
pub use list_watch::{Follow, ObjectEvent, WatchChange};
pub use queries::MAX_ITEMS;
pub use resource::Resource;
pub use secret::StateSecret;

/// Directory of the Pod's namespace, token and API CA certificate.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Timeout of a connection, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Read timeout of a connection; longer than a watch without events lasts.
const READ_TIMEOUT: Duration = Duration::from_secs(75);
/// Timeout of a call other than a watch.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Values of a `ConfigMap` or Secret by key.
pub type Values = BTreeMap<String, Bytes>;

/// Client for one namespace of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    namespace: String,
    /// Permits of pages of lists.
    pages: Arc<Semaphore>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Cluster {
    /// The Pod's own cluster. `server` is the URL of the API; `service_account` is [`SERVICE_ACCOUNT`]. Token and CA are reloaded once a
    /// minute, as the kubelet renews them. Sends no request yet.
    pub async fn in_pod(server: &str, service_account: &Path) -> Result<Self, KubeError> {
        let file = |name: &str| {
            let path = service_account.join(name);
            std::fs::read_to_string(&path).map(|text| (path.clone(), text)).map_err(|source| KubeError::ServiceAccount { path, source })
        };
        let ((_, namespace), (token, _), (authority, _)) = (file("namespace")?, file("token")?, file("ca.crt")?);
        let text = |path: &Path| Some(path.display().to_string());
        let cluster =
            kube::config::Cluster { server: Some(server.to_owned()), certificate_authority: text(&authority), ..Default::default() };
        let user = AuthInfo { token_file: text(&token), ..AuthInfo::default() };
        let context =
            Context { cluster: "pod".into(), user: Some("pod".into()), namespace: Some(namespace.trim().into()), ..Default::default() };
        let file = Kubeconfig {
            clusters: vec![NamedCluster { name: "pod".into(), cluster: Some(cluster), ..Default::default() }],
            auth_infos: vec![NamedAuthInfo { name: "pod".into(), auth_info: Some(user), ..Default::default() }],
            contexts: vec![NamedContext { name: "pod".into(), context: Some(context), ..Default::default() }],
            current_context: Some("pod".into()),
            ..Kubeconfig::default()
        };
        Self::of(file, service_account, Some(authority), None).await
    }

    /// Cluster of the kubeconfig (`KUBECONFIG` or the home directory), with this context or the current one; without a kubeconfig the Pod's
    /// own cluster.
    pub async fn find(context: Option<&str>) -> Result<Self, KubeError> {
        match Kubeconfig::read() {
            Ok(file) => Self::of(file, Path::new("the kubeconfig (KUBECONFIG or ~/.kube/config)"), None, context).await,
            Err(source) => match std::env::var("KUBERNETES_SERVICE_HOST") {
                Ok(host) if context.is_none() && std::env::var_os("KUBECONFIG").is_none() => {
                    let host = if host.contains(':') { format!("[{host}]") } else { host };
                    let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".to_owned());
                    Self::in_pod(&format!("https://{host}:{port}"), Path::new(SERVICE_ACCOUNT)).await
                }
                _ => Err(KubeError::config(Path::new("the kubeconfig (KUBECONFIG or ~/.kube/config)"), source)),
            },
        }
    }

    /// Cluster and namespace of the current context in a kubeconfig.
    pub async fn kubeconfig(path: &Path) -> Result<Self, KubeError> {
        let file = Kubeconfig::read_from(path).map_err(|source| KubeError::config(path, source))?;
        Self::of(file, path, None, None).await
    }

    /// That of a kubeconfig if one is given, else the Pod's own, else that of the default kubeconfig.
    pub async fn connect(kubeconfig: Option<&Path>, in_pod: Option<&str>) -> Result<Self, KubeError> {
        match (kubeconfig, in_pod) {
            (Some(file), _) => Self::kubeconfig(file).await,
            (None, Some(server)) => Self::in_pod(server, Path::new(SERVICE_ACCOUNT)).await,
            (None, None) => Self::kubeconfig(Path::new("")).await,
        }
    }

    async fn of(file: Kubeconfig, path: &Path, authority: Option<PathBuf>, context: Option<&str>) -> Result<Self, KubeError> {
        let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(file, &options).await;
        let mut config = config.map_err(|source| KubeError::config(path, source))?;
        config.root_cert_file = authority;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        config.default_retry = false;
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).map_err(|source| KubeError::Client(Box::new(source)))?;
        Ok(Self { client, namespace, pages: Arc::new(Semaphore::new(MAX_PAGES)) })
    }

    /// The same cluster with another namespace.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self.clone() }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn config_maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn call(&self, verb: Verb, kind: &'static str, name: &str) -> ApiCall {
        ApiCall { verb, kind, namespace: self.namespace.clone(), name: name.to_owned() }
    }
}

/// Runs a call with the timeout [`CALL_TIMEOUT`].
async fn within<T>(call: impl FnOnce() -> ApiCall, work: impl Future<Output = kube::Result<T>>) -> Result<T, KubeError> {
    limited(CALL_TIMEOUT, work).await.map_err(|fault| KubeError::Call { call: call(), fault })
}

async fn limited<T>(limit: Duration, work: impl Future<Output = kube::Result<T>>) -> Result<T, CallFault> {
    timeout(limit, work).await.map_err(|_elapsed| CallFault::Timeout(limit))?.map_err(CallFault::of)
}

/// Text and binary values; the API allows no key in both.
fn config_map_values(object: ConfigMap) -> Values {
    let text = object.data.unwrap_or_default().into_iter().map(|(key, value)| (key, Bytes::from(value)));
    text.chain(binary(object.binary_data)).collect()
}

fn secret_values(object: Secret) -> Values {
    binary(object.data).collect()
}

fn binary(data: Option<BTreeMap<String, ByteString>>) -> impl Iterator<Item = (String, Bytes)> {
    data.unwrap_or_default().into_iter().map(|(key, ByteString(value))| (key, Bytes::from(value)))
}
