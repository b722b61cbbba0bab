//! API server proxy: identity, rights and form of the requests that clients in the tailnet send to the Kubernetes API server.
//!
//! A request is routed ([`route`]), permitted by the client's grants ([`caller::Caller::permit`]) and gets the client's identity
//! ([`caller::Caller::forward`]). Own responses are `Status` objects ([`status`]). Does no I/O.

use http::header::UPGRADE;
use http::request::Parts;
use http::uri::PathAndQuery;

use self::base_path::BasePath;
use self::refusal::ApiServerRefusal;
use self::request_info::ApiRequest;

pub mod base_path;
pub mod caller;
pub mod framing;
pub mod grants;
pub mod impersonation;
pub mod refusal;
pub mod request_info;
pub mod status;
pub mod subject;
pub mod upstream;
pub mod web_page;

/// Protocols to which connections may be upgraded. Other upgrades, e.g. to `h2c`, are ignored.
pub const UPGRADES: &str = "websocket,spdy/3.1";

/// A request for the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiRoute {
    pub request: ApiRequest,
    /// Whether it may open a session in a container, in any reading of its path.
    pub may_open_session: bool,
    /// Path and query to send.
    pub path: PathAndQuery,
}

/// Routes a request by its head as received.
pub fn route(received: &Parts, base: &BasePath) -> Result<ApiRoute, ApiServerRefusal> {
    framing::check(received)?;
    let target = received.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let method = received.method.as_str();
    let request = ApiRequest::read(method, target.path(), target.query());
    // An upgraded connection may carry any stream.
    let may_open_session = received.headers.contains_key(UPGRADE) || request_info::may_open_session(&request, method, target.path());
    Ok(ApiRoute { path: base.join(&target)?, may_open_session, request })
}

#[cfg(test)]
mod tests;
