//! API server proxy: a service of the front end whose only upstream is the Kubernetes API server of the cluster.
//!
//! Requests impersonate the client's identity in the tailnet with the token of the Pod's service account, or in mode `noauth` have the client's
//! own credentials. [`crate::model::api_server`] decides; own responses are `Status` objects.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};

use crate::api::routes::{ApiServerSite, Backend};
use crate::model::api_server::base_path::BasePath;
use crate::model::api_server::caller::{self, Caller};
use crate::model::api_server::refusal::ApiServerRefusal;
use crate::model::api_server::{self, ApiRoute, UPGRADES, status, upstream, web_page};
use crate::model::front_end::vhosts::headers::{RequestInfo, Upgrades};
use crate::model::front_end::vhosts::{Vhost, bare};

use super::front_end::client::ClientConnection;
use super::front_end::credentials::UpstreamCredentials;
use super::front_end::seams::{HttpService, OwnResponse, UpstreamTarget};

use callers::{Callers, ConnectionCaller};
use stats::ApiServerStats;

pub mod callers;
mod lookups;
pub mod reachability;
pub mod start;
pub mod stats;

#[derive(Debug)]
pub struct ApiServerService {
    callers: Callers,
    credentials: UpstreamCredentials,
    base: BasePath,
    upgrades: Upgrades,
    stats: ApiServerStats,
    /// Whether a client that loses a right loses its connection, with all streams.
    end_revoked_streams: bool,
}

/// Route of a request to the API server.
#[derive(Debug)]
pub struct ApiServerRoute {
    site: Arc<ApiServerSite>,
    backend: Arc<Backend>,
    host: HeaderValue,
    /// Host that the API server receives: its own, as some route by it.
    authority: HeaderValue,
    api: ApiRoute,
    /// The client, once the request is authorized.
    caller: Option<Arc<Caller>>,
}

impl ApiServerService {
    pub fn new(callers: Callers, credentials: UpstreamCredentials, base: BasePath, end_revoked_streams: bool) -> Self {
        let upgrades = Upgrades::read(UPGRADES).unwrap_or_default();
        Self { callers, credentials, base, upgrades, stats: ApiServerStats::default(), end_revoked_streams }
    }

    pub fn stats(&self) -> ApiServerStats {
        self.stats.clone()
    }

    fn routed(
        &self,
        client: &ClientConnection<ConnectionCaller>,
        vhost: &Vhost,
        request: &Parts,
        host: &HeaderValue,
    ) -> Result<ApiServerRoute, ApiServerRefusal> {
        let (named, site) = (host.to_str().unwrap_or_default(), vhost.api_server.clone().ok_or(ApiServerRefusal::NoUpstream)?);
        let is_of_browser = web_page::is_of_browser(&request.headers);
        // A browser may have resolved the name of another site to this address: without TLS, or where a certificate has several names.
        if (!client.over_tls() || is_of_browser) && !is_named(vhost, &site, named) {
            return Err(ApiServerRefusal::UnknownHost);
        }
        if site.mode.impersonates() && web_page::is_of_another_site(&request.headers, named) {
            return Err(ApiServerRefusal::OtherSite);
        }
        let backend = vhost.backends().next().cloned().ok_or(ApiServerRefusal::NoUpstream)?;
        let authority = HeaderValue::from_str(upstream::authority(&backend.address)).map_err(|_| ApiServerRefusal::NoUpstream)?;
        let api = api_server::route(request, &self.base)?;
        // A page of a Pod would be one of the API server's own origin, with the identity of its visitor.
        if site.mode.impersonates() && is_of_browser && api.request.is_proxied() {
            return Err(ApiServerRefusal::OtherSite);
        }
        Ok(ApiServerRoute { site, backend, host: host.clone(), authority, api, caller: None })
    }

    fn refused(&self, refusal: &ApiServerRefusal) -> Box<OwnResponse> {
        self.stats.refused(refusal.reason());
        Box::new(own(refusal.code(), &refusal.to_string()))
    }
}

/// Whether a site has this name, with a certificate or without TLS.
fn is_named(vhost: &Vhost, site: &ApiServerSite, named: &str) -> bool {
    let host = bare(named);
    vhost.host(named).is_some() || site.names.iter().any(|name| name.eq_ignore_ascii_case(&host))
}

impl HttpService for ApiServerService {
    type Route = ApiServerRoute;
    type Caller = ConnectionCaller;

    fn route(
        &self,
        client: &ClientConnection<ConnectionCaller>,
        site: &Vhost,
        request: &Parts,
        host: &HeaderValue,
        _target: &PathAndQuery,
    ) -> Result<ApiServerRoute, Box<OwnResponse>> {
        self.routed(client, site, request, host).map_err(|refusal| self.refused(&refusal))
    }

    async fn authorize(
        &self,
        client: &ClientConnection<ConnectionCaller>,
        route: &mut ApiServerRoute,
        headers: &mut HeaderMap,
    ) -> Result<(), Box<OwnResponse>> {
        let caller = self.callers.of(client, &route.site).await;
        let permitted = caller.and_then(|caller| caller.permit(&route.api).map(|()| caller));
        let caller = permitted.map_err(|refusal| self.refused(&refusal))?;
        let about = RequestInfo {
            client: client.address.map(|address| address.ip()),
            host: route.host.to_str().unwrap_or_default(),
            over_tls: client.over_tls(),
            identity: None,
            app_caps: &[],
        };
        caller.forward(headers, about);
        route.caller = Some(caller);
        Ok(())
    }

    fn upstream<'a>(&'a self, route: &'a ApiServerRoute, headers: &mut HeaderMap) -> Result<UpstreamTarget<'a>, Box<OwnResponse>> {
        if route.site.mode.impersonates() {
            let token = self.credentials.authorization().ok_or_else(|| self.refused(&ApiServerRefusal::NoUpstream))?;
            headers.insert(AUTHORIZATION, token);
        }
        Ok(UpstreamTarget { backend: &route.backend, tls: &self.credentials.tls, host: &route.authority, path: &route.api.path })
    }

    fn respond(&self, _client: &ClientConnection<ConnectionCaller>, status: StatusCode, message: &str) -> OwnResponse {
        own(status, message)
    }

    fn upstream_name(&self, _route: &ApiServerRoute) -> &'static str {
        "API server"
    }

    /// Clients repeat a request after this status, as it had no effect.
    fn unreachable(&self, _route: &ApiServerRoute, _status: StatusCode) -> StatusCode {
        StatusCode::SERVICE_UNAVAILABLE
    }

    fn is_long_running(&self, route: &ApiServerRoute) -> bool {
        route.api.request.is_long_running()
    }

    fn upgrades(&self, _site: &Vhost) -> Option<&Upgrades> {
        Some(&self.upgrades)
    }

    fn trailers(&self, _route: &ApiServerRoute) -> fn(&mut HeaderMap) {
        caller::trailers
    }

    /// Browsers name no `Sec-Fetch-Site` over HTTP, and older ones never: a page of a Pod, which is of the API server's own origin, runs no
    /// script in them.
    fn restrict(&self, route: &ApiServerRoute, headers: &mut HeaderMap) {
        if route.site.mode.impersonates() && route.api.request.is_proxied() {
            headers.append(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
        }
    }

    fn answered(&self, client: &ClientConnection<ConnectionCaller>, route: &ApiServerRoute, status: StatusCode, waited: Duration) {
        let request = &route.api.request;
        self.stats.answered(request, status, waited);
        tracing::debug!(
            service = client.service(),
            client = client.address.map(tracing::field::display),
            user = route.caller.as_ref().and_then(|caller| caller.user()),
            verb = request.verb,
            group = request.group,
            namespace = request.namespace,
            resource = request.resource,
            subresource = request.subresource,
            name = request.name,
            code = status.as_u16(),
            seconds = waited.as_secs_f64(),
            "request to the API server"
        );
    }

    async fn tunnel<C, U>(&self, route: ApiServerRoute, mut client: C, mut upstream: U)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
        U: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let _open = self.stats.opened(route.api.request.stream_kind());
        // An error of either side is a normal end.
        let _ = copy_bidirectional(&mut client, &mut upstream).await;
    }

    async fn revoked(&self, client: &ClientConnection<ConnectionCaller>) {
        if self.end_revoked_streams {
            self.callers.revoked(client).await;
        } else {
            pending::<()>().await;
        }
    }
}

fn own(code: StatusCode, message: &str) -> OwnResponse {
    let mut answer = Response::new(status::body(code, message).into());
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(status::CONTENT_TYPE));
    if let Some(seconds) = status::retry_after(code) {
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    answer
}
