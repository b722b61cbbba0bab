//! Virtual hosts as a service of the front end: requests are routed by host and path, to backends whose certificates are not verified, with
//! the client's identity in headers.

use std::borrow::Cow;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Response, StatusCode};

use crate::edge::tls::{Connector, TlsError};
use crate::model::front_end::vhosts::headers::{self, RequestInfo};
use crate::model::front_end::vhosts::{Proxied, RouteDecision, Vhost};

use super::client::ClientConnection;
use super::identify::{Identify, WhoIsLookup};
use super::seams::{HttpService, OwnResponse, UpstreamTarget};

/// A service without state of connections, which may be of any type.
#[derive(Debug)]
pub struct VhostService<C = ()> {
    identify: Identify,
    tls: Connector,
    caller: PhantomData<fn() -> C>,
}

/// Route of a request to a backend.
#[derive(Debug)]
pub struct BackendRoute {
    proxied: Arc<Proxied>,
    host: HeaderValue,
    path: PathAndQuery,
}

impl<C> VhostService<C> {
    /// Without lookup, all clients are unknown. Fails if TLS cannot be initialized.
    pub fn new(lookup: Option<WhoIsLookup>) -> Result<Self, TlsError> {
        Ok(Self { identify: Identify::new(lookup), tls: Connector::new()?, caller: PhantomData })
    }
}

impl<C: Debug + Default + Send + Sync + 'static> HttpService for VhostService<C> {
    type Route = BackendRoute;
    type Caller = C;

    fn route(
        &self,
        client: &ClientConnection<C>,
        site: &Vhost,
        _request: &Parts,
        host: &HeaderValue,
        target: &PathAndQuery,
    ) -> Result<BackendRoute, Box<OwnResponse>> {
        let to = |proxied: &Arc<Proxied>, path| Ok(BackendRoute { proxied: Arc::clone(proxied), host: host.clone(), path });
        Err(Box::new(match site.decide(client.port(), host.to_str().unwrap_or_default(), target.as_str()) {
            RouteDecision::Proxy(proxied, Cow::Borrowed(_)) => return to(proxied, target.clone()),
            RouteDecision::Proxy(proxied, Cow::Owned(path)) => match path.try_into() {
                Ok(path) => return to(proxied, path),
                Err(_) => own(StatusCode::BAD_REQUEST, "the path cannot be rewritten for the backend"),
            },
            RouteDecision::Redirect(status, to) => redirect(status, &to),
            RouteDecision::Text(words) => text(StatusCode::OK, words.to_owned()),
            RouteDecision::Misdirected => own(StatusCode::MISDIRECTED_REQUEST, "unknown host"),
            RouteDecision::Ambiguous => own(StatusCode::BAD_REQUEST, "ambiguous path: remove its dot segments"),
            RouteDecision::NotFound => own(StatusCode::NOT_FOUND, "no route matches this path"),
            RouteDecision::Broken(why) => {
                tracing::debug!(service = client.service(), why, "route is misconfigured");
                let message = "the route is misconfigured: see the events of the Ingress and the replica's metrics";
                own(StatusCode::BAD_GATEWAY, message)
            }
        }))
    }

    /// Permits every request: the tailnet policy and the backend decide. Adds the identity.
    async fn authorize(
        &self,
        client: &ClientConnection<C>,
        route: &mut BackendRoute,
        headers: &mut HeaderMap,
    ) -> Result<(), Box<OwnResponse>> {
        let identity = match client.tailnet_client() {
            Some(address) => self.identify.who(address).await,
            None => None,
        };
        let about = RequestInfo {
            client: client.address.map(|address| address.ip()),
            host: route.host.to_str().unwrap_or_default(),
            over_tls: client.over_tls(),
            identity: identity.as_deref(),
            app_caps: &route.proxied.app_caps,
        };
        headers::forward(headers, about);
        Ok(())
    }

    fn upstream<'a>(&'a self, route: &'a BackendRoute, _headers: &mut HeaderMap) -> Result<UpstreamTarget<'a>, Box<OwnResponse>> {
        Ok(UpstreamTarget { backend: &route.proxied.backend, tls: &self.tls, host: &route.host, path: &route.path })
    }

    fn respond(&self, _client: &ClientConnection<C>, status: StatusCode, message: &str) -> OwnResponse {
        own(status, message)
    }

    fn trailers(&self, _route: &BackendRoute) -> fn(&mut HeaderMap) {
        headers::trailers
    }
}

fn own(status: StatusCode, message: &str) -> OwnResponse {
    text(status, format!("{message}\n"))
}

fn redirect(status: u16, to: &str) -> OwnResponse {
    let mut answer = text(StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND), "");
    match HeaderValue::from_str(to) {
        Ok(to) => drop(answer.headers_mut().insert(LOCATION, to)),
        Err(_) => return own(StatusCode::BAD_REQUEST, "the path cannot be redirected"),
    }
    answer
}

fn text(status: StatusCode, words: impl Into<Bytes>) -> OwnResponse {
    let mut answer = Response::new(words.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
