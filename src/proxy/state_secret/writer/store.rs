//! Storage of the state: the state Secret, or a file with the same keys.

use std::path::{Path, PathBuf};

use crate::edge::files::{self, FilesError};
use crate::edge::kube::{ApiCall, ApiRefusal, Cluster, KubeError, StateSecret, Verb};
use crate::model::settings::{Settings, StateOut};
use crate::model::tailnet::state::{Content, StateChanges, applied};

#[derive(Debug)]
pub enum Store {
    Secret(StateSecret),
    /// A JSON object of strings by key, replaced as a whole.
    File(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Api(#[from] KubeError),
    /// A permission check denied the required access.
    #[error("the Pod's ServiceAccount may not use Secret {name:?}; nothing is written until its Role has: {}", rules.join(", "))]
    Denied { name: String, rules: Vec<String> },
    #[error("Secret {name:?} does not exist; the operator makes it, and tailscaled too if it may")]
    Missing { name: String },
    #[error(transparent)]
    File(#[from] FilesError),
    #[error("{path} is not a JSON object of text by key: {source}; remove it or choose another --state-file")]
    Content { path: PathBuf, source: serde_json::Error },
}

impl ReportError {
    /// Metric label and Event reason; closed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Api(error) => error.reason(),
            Self::Denied { .. } => "Forbidden",
            Self::Missing { .. } => "NotFound",
            Self::File(error) => error.reason(),
            Self::Content { .. } => "Malformed",
        }
    }

    /// Whether the Secret does not exist.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::Api(error) => error.refusal() == Some(ApiRefusal::NotFound),
            _ => false,
        }
    }
}

impl Store {
    /// The configured storage, if any; a Secret requires access to a cluster.
    pub fn of(settings: &Settings, cluster: Option<&Cluster>) -> Option<Self> {
        match &settings.state {
            StateOut::None => None,
            StateOut::File(path) => Some(Self::File(path.clone())),
            StateOut::Secret(name) => cluster.map(|cluster| Self::Secret(StateSecret::new(cluster.clone(), name.clone()))),
        }
    }

    /// Fails if the API server denies a required permission. tailscaled needs `update`, we do not.
    pub(super) async fn permitted(&self) -> Result<(), ReportError> {
        let Self::Secret(secret) = self else { return Ok(()) };
        let permissions = secret.cluster.permissions(&secret.name).await;
        for (verb, error) in &permissions.unknown {
            tracing::debug!(verb = verb.name(), reason = error.reason(), "access review failed: {error}");
        }
        if permissions.denies(Verb::Get) || permissions.denies(Verb::Patch) {
            let needed = permissions.denied.iter().filter(|call| call.verb != Verb::Create);
            return Err(ReportError::Denied { name: secret.name.clone(), rules: needed.map(ApiCall::rule).collect() });
        }
        Ok(())
    }

    /// Reads all keys; fails if the Secret does not exist.
    pub async fn read(&self) -> Result<Content, ReportError> {
        match self {
            Self::Secret(secret) => secret.get().await?.ok_or_else(|| ReportError::Missing { name: secret.name.clone() }),
            Self::File(path) => blocking(path, read_file).await,
        }
    }

    pub(super) async fn apply(&self, changes: &StateChanges) -> Result<(), ReportError> {
        match self {
            Self::Secret(secret) => Ok(secret.patch(changes).await?),
            Self::File(path) => {
                let changes = changes.clone();
                blocking(path, move |path| write_file(path, &applied(read_file(path)?, &changes))).await
            }
        }
    }
}

async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce(&Path) -> Result<T, ReportError> + Send + 'static,
) -> Result<T, ReportError> {
    let owned = path.to_owned();
    match tokio::task::spawn_blocking(move || work(&owned)).await {
        Ok(result) => result,
        Err(source) => Err(FilesError::Unwritable { path: path.to_owned(), source: source.into() }.into()),
    }
}

fn read_file(path: &Path) -> Result<Content, ReportError> {
    let Some(bytes) = files::read_one(path)?.filter(|bytes| !bytes.is_empty()) else { return Ok(Content::new()) };
    let text: std::collections::BTreeMap<String, String> =
        serde_json::from_slice(&bytes).map_err(|source| ReportError::Content { path: path.to_owned(), source })?;
    Ok(text.into_iter().map(|(key, value)| (key, value.into())).collect())
}

fn write_file(path: &Path, content: &Content) -> Result<(), ReportError> {
    let text: serde_json::Map<_, _> =
        content.iter().map(|(key, value)| (key.clone(), String::from_utf8_lossy(value).into_owned().into())).collect();
    let mut document = serde_json::to_vec_pretty(&text).map_err(|source| ReportError::Content { path: path.to_owned(), source })?;
    document.push(b'\n');
    Ok(files::replace(path, &document)?)
}
