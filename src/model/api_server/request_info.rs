//! Facts of a request, as the API server itself reads method, path and query.
//!
//! Source of the rules: `RequestInfoFactory` of `k8s.io/apiserver`. The path is decoded before it is split, because the API server routes by
//! the decoded path: an escaped slash separates segments there. The path that is sent stays as received.

use std::borrow::Cow;

use crate::model::front_end::vhosts::path;

/// Resources with a metric label of their own. Clients choose names of resources, so that others share one.
const LABELLED_RESOURCES: [&str; 28] = [
    "clusterrolebindings",
    "clusterroles",
    "configmaps",
    "cronjobs",
    "customresourcedefinitions",
    "daemonsets",
    "deployments",
    "endpoints",
    "endpointslices",
    "events",
    "horizontalpodautoscalers",
    "ingresses",
    "jobs",
    "leases",
    "namespaces",
    "networkpolicies",
    "nodes",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "replicasets",
    "rolebindings",
    "roles",
    "secrets",
    "serviceaccounts",
    "services",
    "statefulsets",
    "storageclasses",
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiRequest {
    /// E.g. `get`, `list`, `watch` or `deletecollection`; the method in lower case if there is no resource.
    pub verb: &'static str,
    /// API group; empty for the core group.
    pub group: String,
    pub namespace: String,
    /// Empty if the path names no resource.
    pub resource: String,
    pub name: String,
    pub subresource: String,
}

/// Stream that an upgraded connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamKind {
    Exec,
    Attach,
    PortForward,
    /// A connection to a Pod, Service or node.
    Proxy,
    Other,
}

impl StreamKind {
    /// Value of a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
            Self::Proxy => "proxy",
            Self::Other => "other",
        }
    }
}

impl ApiRequest {
    pub fn read(method: &str, path: &str, query: Option<&str>) -> Self {
        let path = decoded(path);
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, parts) = match segments.as_slice() {
            ["api", _, parts @ ..] if !parts.is_empty() => ("", parts),
            ["apis", group, _, parts @ ..] if !parts.is_empty() => (*group, parts),
            _ => return Self { verb: lower_case(method), ..Self::default() },
        };
        let (special, parts) = match parts {
            ["watch", parts @ ..] => (Some("watch"), parts),
            // The API server has not served this form since 1.10.
            ["proxy", parts @ ..] => (Some("proxy"), parts),
            _ => (None, parts),
        };
        let (namespace, parts) = match parts {
            // `status` and `finalize` belong to the namespace itself.
            ["namespaces", namespace, third, ..] if !matches!(*third, "status" | "finalize") => (*namespace, &parts[2..]),
            ["namespaces", namespace, ..] => (*namespace, parts),
            _ => ("", parts),
        };
        let part = |index: usize| parts.get(index).copied().unwrap_or_default().to_owned();
        Self {
            verb: special.unwrap_or_else(|| verb(method, part(1).is_empty(), query)),
            group: group.to_owned(),
            namespace: namespace.to_owned(),
            resource: part(0),
            name: part(1),
            subresource: if special == Some("proxy") { String::new() } else { part(2) },
        }
    }

    /// Value of a metric's label.
    pub fn resource_label(&self) -> &'static str {
        if self.resource.is_empty() {
            return "none";
        }
        LABELLED_RESOURCES.binary_search(&self.resource.as_str()).map_or("other", |index| LABELLED_RESOURCES[index])
    }

    /// Kind of the stream, if the connection is upgraded.
    pub fn stream_kind(&self) -> StreamKind {
        match (self.resource.as_str(), self.subresource.as_str()) {
            ("pods", "exec") => StreamKind::Exec,
            ("pods", "attach") => StreamKind::Attach,
            ("pods", "portforward") => StreamKind::PortForward,
            (_, "proxy") => StreamKind::Proxy,
            _ if self.verb == "proxy" => StreamKind::Proxy,
            _ => StreamKind::Other,
        }
    }

    /// Whether the request may take any time, as the API server classifies it: watches, logs, sessions and requests to a Pod, Service or node.
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch" || self.subresource == "log" || self.stream_kind() != StreamKind::Other
    }

    /// Whether the response may be that of a Pod, a Service or a kubelet, in place of the API server's.
    pub fn is_proxied(&self) -> bool {
        self.stream_kind() == StreamKind::Proxy
    }

    /// Whether the request runs a program in a container, or connects to one, also without an upgrade of the connection.
    fn is_session(&self) -> bool {
        match self.stream_kind() {
            // The kubelet has exec, run, attach and port-forward below its proxy, and a Pod or Service may be a shell over HTTP.
            StreamKind::Exec | StreamKind::Attach | StreamKind::PortForward | StreamKind::Proxy => true,
            StreamKind::Other => self.resource == "pods" && self.subresource == "ephemeralcontainers" && self.verb != "get",
        }
    }
}

/// Whether a request opens a session without an upgrade, in any reading of its path: a server in between may resolve `..`, which the API
/// server does not.
pub fn may_open_session(request: &ApiRequest, method: &str, received: &str) -> bool {
    let is_session_if_resolved = |resolved: Cow<'_, str>| {
        let resolved = path::normal(&resolved);
        resolved != received && ApiRequest::read(method, &resolved, None).is_session()
    };
    request.is_session() || path::resolved(received).is_none_or(is_session_if_resolved)
}

/// Verb of a request for a resource.
fn verb(method: &str, is_nameless: bool, query: Option<&str>) -> &'static str {
    match method {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if is_nameless => "deletecollection",
        "DELETE" => "delete",
        "GET" | "HEAD" if !is_nameless => "get",
        "GET" | "HEAD" if is_watch(query) => "watch",
        "GET" | "HEAD" => "list",
        _ => "other",
    }
}

fn lower_case(method: &str) -> &'static str {
    match method {
        "GET" => "get",
        "HEAD" => "head",
        "POST" => "post",
        "PUT" => "put",
        "PATCH" => "patch",
        "DELETE" => "delete",
        "OPTIONS" => "options",
        _ => "other",
    }
}

/// Whether the first parameter `watch` is neither `false` nor `0`. A pair with a semicolon is none.
fn is_watch(query: Option<&str>) -> bool {
    let pairs = query.into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.contains(';'));
    let mut named = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).filter(|(name, _)| decoded(name) == "watch");
    named.next().is_some_and(|(_, value)| !matches!(&*decoded(value).to_ascii_lowercase(), "false" | "0"))
}

fn decoded(text: &str) -> Cow<'_, str> {
    if text.contains('%') {
        Cow::Owned(String::from_utf8_lossy(&path::percent_decoded(text, None)).into_owned())
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests;
