//! Path below which an API server serves, e.g. `/k8s/clusters/c-1` of a managed one.
//!
//! A request's path is appended as received. Where there is a base path, paths with dot segments are refused: a server in between may
//! resolve them to another cluster.

use std::borrow::Cow;

use http::uri::PathAndQuery;

use crate::model::front_end::vhosts::path;

use super::framing::FramingError;

/// Without slash at its end; empty for most API servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BasePath(String);

impl BasePath {
    /// Reads the path of the API server's URL; `None` if it is no path, or has dot segments.
    pub fn read(text: &str) -> Option<Self> {
        let base = text.trim_end_matches('/');
        let is_path = base.starts_with('/') && !base.contains(['?', '#']) && has_no_dots(base) && base.parse::<PathAndQuery>().is_ok();
        (base.is_empty() || is_path).then(|| Self(base.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Path and query for the API server.
    pub fn join(&self, received: &PathAndQuery) -> Result<PathAndQuery, FramingError> {
        if self.0.is_empty() {
            return Ok(received.clone());
        }
        if !has_no_dots(received.path()) {
            return Err(FramingError::DotSegments);
        }
        format!("{}{received}", self.0).try_into().map_err(|_| FramingError::Target)
    }
}

fn has_no_dots(path: &str) -> bool {
    matches!(path::resolved(path), Some(Cow::Borrowed(_)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_are_appended_to_the_base_path_as_received() {
        let cases = [
            ("", "/api/v1/x/proxy//a/../b?q=%zz;1", "/api/v1/x/proxy//a/../b?q=%zz;1"),
            ("/", "/", "/"),
            ("/k8s/clusters/c-1", "/api/v1/services/x/proxy//a%2Fb?watch=1", "/k8s/clusters/c-1/api/v1/services/x/proxy//a%2Fb?watch=1"),
            ("/k8s//", "/", "/k8s/"),
        ];
        for (base, received, sent) in cases {
            let joined = BasePath::read(base).expect("a path").join(&PathAndQuery::from_static(received));
            assert_eq!(joined.expect("a path").as_str(), sent);
        }
        for base in ["k8s", "/a/../b", "/a/%2e%2e/b", "/a?b", "/a#b", "/a b", "https://x/", "/a/..;/b"] {
            assert_eq!(BasePath::read(base), None, "{base}");
        }
    }

    #[test]
    fn dot_segments_are_refused_below_a_base_path() {
        let base = BasePath::read("/k8s/clusters/c-1").expect("a path");
        for path in ["/../c-2/api", "/..", "/a/./b", "/%2e%2E/c-2", "/a/..;/c-2", "/..%2fc-2", "/a\\..\\c-2"] {
            assert_eq!(base.join(&path.parse().expect("a target")), Err(FramingError::DotSegments), "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_leaves_the_base_path(target in "/(/|\\.|%2e|%2F|a|%|;|\\?){0,20}") {
            let base = BasePath::read("/k8s/c-1").expect("a path");
            if let Ok(sent) = base.join(&target.parse().expect("a target")) {
                prop_assert!(path::is_below(&path::normal(sent.path()), "/k8s/c-1"), "{sent}");
                prop_assert!(sent.as_str().ends_with(&target));
            }
        }
    }
}
