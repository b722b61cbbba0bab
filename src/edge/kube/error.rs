//! Errors of API calls, with hints for their repair.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::KubeconfigError;

/// Kind of a review of the own permissions.
pub(super) const ACCESS_REVIEW: &str = "SelfSubjectAccessReview";

/// Operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Verb {
    Get,
    List,
    Watch,
    Patch,
    Create,
    /// Used by tailscaled only.
    Update,
    Delete,
}

impl Verb {
    /// RBAC verb.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// An API call in messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiCall {
    pub verb: Verb,
    /// Kind of the object, followed by a slash and the subresource, if any.
    pub kind: &'static str,
    pub namespace: String,
    /// Empty for all objects of the kind.
    pub name: String,
}

impl ApiCall {
    /// RBAC rule that allows the call.
    pub fn rule(&self) -> String {
        let (kind, part) = self.kind.split_once('/').unwrap_or((self.kind, ""));
        let ending = if kind.ends_with('s') { "es" } else { "s" };
        let slash = if part.is_empty() { "" } else { "/" };
        let (group, resource) = (group(kind), format!("{}{ending}{slash}{part}", kind.to_ascii_lowercase()));
        // RBAC cannot restrict `create` by name, except for subresources.
        let nameless = (self.verb == Verb::Create && part.is_empty()) || self.name.is_empty();
        let names = if nameless { String::new() } else { format!("resourceNames: [{:?}], ", self.name) };
        format!("{{apiGroups: [{group:?}], resources: [{resource:?}], {names}verbs: [{:?}]}}", self.verb.name())
    }
}

fn group(kind: &str) -> &'static str {
    match kind {
        ACCESS_REVIEW => "authorization.k8s.io",
        "Lease" => "coordination.k8s.io",
        "ProxyGroup" | "ProxyClass" | "Tailnet" => "tailscale.com",
        "Role" | "RoleBinding" => "rbac.authorization.k8s.io",
        "EndpointSlice" => "discovery.k8s.io",
        "PodDisruptionBudget" => "policy",
        "StatefulSet" => "apps",
        "ServiceMonitor" => "monitoring.coreos.com",
        "Event" => "events.k8s.io",
        _ => "",
    }
}

impl fmt::Display for ApiCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.verb.name(), self.kind)?;
        match (self.namespace.as_str(), self.name.as_str()) {
            ("", "") => f.write_str("of all namespaces"),
            (namespace, "") => write!(f, "of namespace {namespace}"),
            ("", name) => f.write_str(name),
            (namespace, name) => write!(f, "{namespace}/{name}"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CallFault {
    #[error("the API server cannot be reached: {0}")]
    Unreachable(#[source] Box<kube::Error>),
    #[error("the API server did not answer within {0:?}")]
    Timeout(Duration),
    #[error("the API answered {code}: {message}")]
    Refused {
        /// HTTP status.
        code: u16,
        message: String,
    },
    #[error("the API's answer cannot be read: {0}")]
    Malformed(#[source] Box<kube::Error>),
}

impl CallFault {
    pub(super) fn of(error: kube::Error) -> Self {
        match error {
            // The client parses anything but an event as a status, which then has no code.
            kube::Error::Api(status) if status.code != 0 => Self::refused(&status),
            error @ kube::Error::Api(_) => Self::Malformed(Box::new(error)),
            error @ (kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) | kube::Error::BuildRequest(_)) => {
                Self::Malformed(Box::new(error))
            }
            error => Self::Unreachable(Box::new(error)),
        }
    }

    pub(super) fn refused(status: &kube::core::Status) -> Self {
        Self::Refused { code: status.code, message: status.message.clone() }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "Unreachable",
            Self::Timeout(_) => "Timeout",
            Self::Malformed(_) => "Malformed",
            Self::Refused { code, .. } => ApiRefusal::of(*code).name(),
        }
    }

    fn refusal(&self) -> Option<ApiRefusal> {
        if let Self::Refused { code, .. } = self { Some(ApiRefusal::of(*code)) } else { None }
    }
}

/// A request that the API server answered with an error, by its status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
pub enum ApiRefusal {
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// 409.
    Conflict,
    /// 410.
    Expired,
    /// 413 and 422.
    Invalid,
    /// 429.
    Throttled,
    /// 500 and above.
    ServerError,
    #[strum(serialize = "Refused")]
    Other,
}

impl ApiRefusal {
    fn of(code: u16) -> Self {
        match code {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            409 => Self::Conflict,
            410 => Self::Expired,
            413 | 422 => Self::Invalid,
            429 => Self::Throttled,
            500.. => Self::ServerError,
            _ => Self::Other,
        }
    }

    fn name(self) -> &'static str {
        self.into()
    }
}

/// The API could not be set up or called.
#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    /// The Pod's service account is not mounted.
    #[error("cannot read {path}: {source}; the Pod needs a ServiceAccount and automountServiceAccountToken")]
    ServiceAccount { path: PathBuf, source: io::Error },
    /// A kubeconfig, or the config of a service account, is unusable.
    #[error("cannot use {path} to reach the API: {}", kubeconfig_fault(.fault))]
    Config {
        /// File or directory.
        path: PathBuf,
        fault: Box<KubeconfigError>,
    },
    #[error("cannot set up the client of the API: {0}")]
    Client(#[source] Box<kube::Error>),
    #[error("cannot {call}: {fault}{}", advice(.call, .fault))]
    Call {
        call: ApiCall,
        #[source]
        fault: CallFault,
    },
    /// Another process may be the leader, so nothing was sent.
    #[error("did not {call}: this process does not lead (any more)")]
    NotLeading { call: ApiCall },
}

/// The kube client's own message, except for an unreadable file, whose path it would quote twice.
fn kubeconfig_fault(fault: &KubeconfigError) -> String {
    match fault {
        KubeconfigError::ReadConfig(fault, path) => format!("cannot read {}: {fault}", path.display()),
        other => other.to_string(),
    }
}

impl KubeError {
    pub(super) fn config(path: &Path, fault: KubeconfigError) -> Self {
        Self::Config { path: path.to_owned(), fault: Box::new(fault) }
    }

    /// Closed set of values for metric labels and Event reasons.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ServiceAccount { .. } => "NoServiceAccount",
            Self::Config { .. } => "BadConfig",
            Self::Client(_) => "NoClient",
            Self::Call { fault, .. } => fault.reason(),
            Self::NotLeading { .. } => "NotLeading",
        }
    }

    /// Error class of the API server's response; `None` without a response or without a request.
    pub fn refusal(&self) -> Option<ApiRefusal> {
        match self {
            Self::Call { fault, .. } => fault.refusal(),
            _ => None,
        }
    }

    /// Whether the API rejected this request only, so that calls for other objects may succeed.
    pub fn refused(&self) -> bool {
        matches!(self, Self::Call { fault: CallFault::Refused { code, .. }, .. } if !matches!(code, 401 | 429 | 503 | 504))
    }
}

/// Hint for the repair, if the API's message has none.
fn advice(call: &ApiCall, fault: &CallFault) -> String {
    match (fault.refusal(), fault) {
        (Some(ApiRefusal::Forbidden), _) if matches!(call.kind, "ClusterRole" | "ClusterRoleBinding") => {
            "; give the reconciler the rights that it grants (apiServerProxyConfig of the chart, config/rbac/impersonation.yaml), or list fewer \
             users and groups in spec.tailyard.impersonation of the ProxyGroup"
                .to_owned()
        }
        (Some(ApiRefusal::Forbidden), _) => format!("; add the rule {} to the Role of the Pod's ServiceAccount", call.rule()),
        (Some(ApiRefusal::Unauthorized), _) => "; the Pod's token is not valid (any more), see its ServiceAccount".to_owned(),
        (Some(ApiRefusal::NotFound), _) => format!("; {} {}/{} must exist", call.kind, call.namespace, call.name),
        (_, CallFault::Refused { code: 413, .. }) => "; an object holds at most 1 MiB".to_owned(),
        (_, CallFault::Unreachable(_) | CallFault::Timeout(_)) => "; forwarding is not affected".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16) -> KubeError {
        let call = ApiCall { verb: Verb::Patch, kind: "Secret", namespace: "ts".into(), name: "eg-0".into() };
        KubeError::Call { call, fault: CallFault::Refused { code, message: "no".into() } }
    }

    #[test]
    fn forbidden_error_names_the_missing_rbac_rule() {
        let rule = r#"{apiGroups: [""], resources: ["secrets"], resourceNames: ["eg-0"], verbs: ["patch"]}"#;
        assert_eq!((refused(403).reason(), refused(403).to_string().contains(rule)), ("Forbidden", true), "{}", refused(403));
        let create = ApiCall { verb: Verb::Create, kind: "Secret", namespace: "ts".into(), name: "eg-0".into() };
        assert_eq!(create.rule(), r#"{apiGroups: [""], resources: ["secrets"], verbs: ["create"]}"#, "create knows no names");
        let list = ApiCall { verb: Verb::List, kind: "ProxyClass", namespace: String::new(), name: String::new() };
        assert_eq!(list.rule(), r#"{apiGroups: ["tailscale.com"], resources: ["proxyclasses"], verbs: ["list"]}"#);
        assert_eq!(list.to_string(), "list ProxyClass of all namespaces");
        let status = ApiCall { verb: Verb::Patch, kind: "ProxyGroup/status", namespace: String::new(), name: "g".into() };
        assert_eq!(
            status.rule(),
            r#"{apiGroups: ["tailscale.com"], resources: ["proxygroups/status"], resourceNames: ["g"], verbs: ["patch"]}"#
        );
        let token = ApiCall { verb: Verb::Create, kind: "ServiceAccount/token", namespace: "ts".into(), name: "r".into() };
        assert_eq!(token.rule(), r#"{apiGroups: [""], resources: ["serviceaccounts/token"], resourceNames: ["r"], verbs: ["create"]}"#);
    }

    #[test]
    fn status_codes_map_to_fixed_reasons() {
        let kinds = [401, 403, 404, 409, 410, 413, 422, 429, 500, 503, 418].map(|code| refused(code).reason());
        let expected = [
            "Unauthorized",
            "Forbidden",
            "NotFound",
            "Conflict",
            "Expired",
            "Invalid",
            "Invalid",
            "Throttled",
            "ServerError",
            "ServerError",
            "Refused",
        ];
        assert_eq!(kinds, expected);
    }
}
