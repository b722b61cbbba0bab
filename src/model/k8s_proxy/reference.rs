//! Location of the config of the Tailscale operator's API server proxy (`TS_K8S_PROXY_CONFIG`).

use std::path::PathBuf;

use super::values::KubernetesName;

/// Form of the variable, for messages.
pub const WANTED: &str = "kube:NAMESPACE/SECRET, or the path of a file";
/// Maximum bytes of a path.
const MAX_PATH: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum K8sProxyReference {
    /// A Secret, whose key is [`crate::api::names::K8S_PROXY_CONFIG_KEY`].
    Secret {
        namespace: KubernetesName,
        name: KubernetesName,
    },
    File(PathBuf),
}

impl K8sProxyReference {
    pub fn parse(text: &str) -> Option<Self> {
        let Some(object) = text.strip_prefix("kube:") else {
            let is_path = (1..=MAX_PATH).contains(&text.len()) && !text.contains('\0') && !text.ends_with('/');
            return is_path.then(|| Self::File(text.into()));
        };
        let (namespace, name) = object.split_once('/')?;
        Some(Self::Secret { namespace: KubernetesName::parse(namespace)?, name: KubernetesName::parse(name)? })
    }
}

impl std::fmt::Display for K8sProxyReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Secret { namespace, name } => write!(f, "Secret {}/{}", namespace.as_str(), name.as_str()),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}
