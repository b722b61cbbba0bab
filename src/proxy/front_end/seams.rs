//! Seams of the front end: decisions about requests that depend on the service behind the listeners.
//!
//! The front end terminates TLS, limits, counts and drains connections, pools upstream connections and streams bodies. An [`HttpService`]
//! routes each request, authorizes it, and names its upstream; virtual hosts are one implementation. Calls are static: no seam costs
//! anything per byte.

use std::fmt::Debug;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};

use crate::api::routes::Backend;
use crate::edge::tls::Connector;
use crate::model::front_end::vhosts::Vhost;
use crate::model::front_end::vhosts::headers::Upgrades;

use super::client::ClientConnection;

/// A response of the front end itself.
pub type OwnResponse = Response<Bytes>;

/// Upstream of a request.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamTarget<'a> {
    /// One of the listener's [`Vhost::backends`]: its endpoints are followed, and its connections pooled.
    pub backend: &'a Arc<Backend>,
    /// TLS client for `https` backends.
    pub tls: &'a Connector,
    pub host: &'a HeaderValue,
    pub path: &'a PathAndQuery,
}

/// A service behind the listeners of a front end.
pub trait HttpService: Debug + Send + Sync + Sized + 'static {
    /// Route of a request, until its response begins or its tunnel ends.
    type Route: Send + Sync + 'static;
    /// State of a client's connection, such as its identity.
    type Caller: Debug + Default + Send + Sync + 'static;

    /// Routes a request by the newest snapshot of its virtual host; an error is the response. `host` is the only one that the request
    /// names, `target` is its path and query, or `*`.
    fn route(
        &self,
        client: &ClientConnection<Self::Caller>,
        site: &Vhost,
        request: &Parts,
        host: &HeaderValue,
        target: &PathAndQuery,
    ) -> Result<Self::Route, Box<OwnResponse>>;

    /// Decides whether the client may send the request, and replaces the headers that only the proxy may send. Hop-by-hop headers are
    /// removed before, so that a client cannot have these removed. An error is the response.
    fn authorize(
        &self,
        client: &ClientConnection<Self::Caller>,
        route: &mut Self::Route,
        headers: &mut HeaderMap,
    ) -> impl Future<Output = Result<(), Box<OwnResponse>>> + Send;

    /// Upstream of a permitted request; adds the proxy's own credentials to the headers. An error is the response.
    fn upstream<'a>(&'a self, route: &'a Self::Route, headers: &mut HeaderMap) -> Result<UpstreamTarget<'a>, Box<OwnResponse>>;

    /// A response of the front end itself, such as 504 for a late one of the upstream.
    fn respond(&self, client: &ClientConnection<Self::Caller>, status: StatusCode, message: &str) -> OwnResponse;

    /// Name of the upstream in messages, without article.
    fn upstream_name(&self, _route: &Self::Route) -> &'static str {
        "backend"
    }

    /// Status of the response where the upstream has processed nothing of the request; `status` says whether for lack of time.
    fn unreachable(&self, _route: &Self::Route, status: StatusCode) -> StatusCode {
        status
    }

    /// Whether a draining replica accepts connections until this request, or its tunnel, has ended: moving the Tailscale Service's address
    /// would cut it.
    fn is_long_running(&self, _route: &Self::Route) -> bool {
        false
    }

    /// Protocols to which connections may be upgraded, where these are not those of the front end.
    fn upgrades(&self, _site: &Vhost) -> Option<&Upgrades> {
        None
    }

    /// Function that removes forbidden fields from a request's trailers.
    fn trailers(&self, route: &Self::Route) -> fn(&mut HeaderMap);

    /// Adds headers to a response of the upstream.
    fn restrict(&self, _route: &Self::Route, _headers: &mut HeaderMap) {}

    /// Counts or logs a response by its route, after its head was received or composed.
    fn answered(&self, _client: &ClientConnection<Self::Caller>, _route: &Self::Route, _status: StatusCode, _waited: Duration) {}

    /// Transfers the bytes of an upgraded connection until either side ends. An idle timeout and the end of the listener drop it.
    fn tunnel<C, U>(&self, route: Self::Route, mut client: C, mut upstream: U) -> impl Future<Output = ()> + Send
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
        U: AsyncRead + AsyncWrite + Unpin + Send,
    {
        async move {
            // An error of either side is a normal end.
            let _ = copy_bidirectional(&mut client, &mut upstream).await;
            drop(route);
        }
    }

    /// Returns when the client loses its right to the service: its connection is then closed, with its requests and tunnels.
    fn revoked(&self, _client: &ClientConnection<Self::Caller>) -> impl Future<Output = ()> + Send {
        pending()
    }
}
