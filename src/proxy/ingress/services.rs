//! Services of a replica's virtual hosts: each routes to backends, or to the Kubernetes API server.

use std::future::pending;
use std::time::Duration;

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::api::routes::Listener;
use crate::model::front_end::vhosts::Vhost;
use crate::model::front_end::vhosts::headers::Upgrades;
use crate::proxy::api_server::callers::ConnectionCaller;
use crate::proxy::api_server::{ApiServerRoute, ApiServerService};
use crate::proxy::front_end::client::ClientConnection;
use crate::proxy::front_end::seams::{HttpService, OwnResponse, UpstreamTarget};
use crate::proxy::front_end::vhosts::{BackendRoute, VhostService};

#[derive(Debug)]
pub struct SiteService {
    pub vhosts: VhostService<ConnectionCaller>,
    pub api_server: ApiServerService,
}

#[derive(Debug)]
pub enum SiteRoute {
    Vhost(BackendRoute),
    ApiServer(ApiServerRoute),
}

type Client = ClientConnection<ConnectionCaller>;

impl HttpService for SiteService {
    type Route = SiteRoute;
    type Caller = ConnectionCaller;

    fn route(
        &self,
        client: &Client,
        site: &Vhost,
        request: &Parts,
        host: &HeaderValue,
        target: &PathAndQuery,
    ) -> Result<SiteRoute, Box<OwnResponse>> {
        let redirects = site.listeners.get(&client.port()) == Some(&Listener::Redirect);
        if site.api_server.is_some() && !redirects {
            self.api_server.route(client, site, request, host, target).map(SiteRoute::ApiServer)
        } else {
            self.vhosts.route(client, site, request, host, target).map(SiteRoute::Vhost)
        }
    }

    async fn authorize(&self, client: &Client, route: &mut SiteRoute, headers: &mut HeaderMap) -> Result<(), Box<OwnResponse>> {
        match route {
            SiteRoute::Vhost(route) => self.vhosts.authorize(client, route, headers).await,
            SiteRoute::ApiServer(route) => self.api_server.authorize(client, route, headers).await,
        }
    }

    fn upstream<'a>(&'a self, route: &'a SiteRoute, headers: &mut HeaderMap) -> Result<UpstreamTarget<'a>, Box<OwnResponse>> {
        match route {
            SiteRoute::Vhost(route) => self.vhosts.upstream(route, headers),
            SiteRoute::ApiServer(route) => self.api_server.upstream(route, headers),
        }
    }

    fn respond(&self, client: &Client, status: StatusCode, message: &str) -> OwnResponse {
        if client.site().api_server.is_some() {
            self.api_server.respond(client, status, message)
        } else {
            self.vhosts.respond(client, status, message)
        }
    }

    fn upstream_name(&self, route: &SiteRoute) -> &'static str {
        match route {
            SiteRoute::Vhost(route) => self.vhosts.upstream_name(route),
            SiteRoute::ApiServer(route) => self.api_server.upstream_name(route),
        }
    }

    fn unreachable(&self, route: &SiteRoute, status: StatusCode) -> StatusCode {
        match route {
            SiteRoute::Vhost(route) => self.vhosts.unreachable(route, status),
            SiteRoute::ApiServer(route) => self.api_server.unreachable(route, status),
        }
    }

    fn is_long_running(&self, route: &SiteRoute) -> bool {
        match route {
            SiteRoute::Vhost(route) => self.vhosts.is_long_running(route),
            SiteRoute::ApiServer(route) => self.api_server.is_long_running(route),
        }
    }

    fn upgrades(&self, site: &Vhost) -> Option<&Upgrades> {
        site.api_server.as_ref().and_then(|_| self.api_server.upgrades(site))
    }

    fn trailers(&self, route: &SiteRoute) -> fn(&mut HeaderMap) {
        match route {
            SiteRoute::Vhost(route) => self.vhosts.trailers(route),
            SiteRoute::ApiServer(route) => self.api_server.trailers(route),
        }
    }

    fn restrict(&self, route: &SiteRoute, headers: &mut HeaderMap) {
        if let SiteRoute::ApiServer(route) = route {
            self.api_server.restrict(route, headers);
        }
    }

    fn answered(&self, client: &Client, route: &SiteRoute, status: StatusCode, waited: Duration) {
        if let SiteRoute::ApiServer(route) = route {
            self.api_server.answered(client, route, status, waited);
        }
    }

    async fn tunnel<C, U>(&self, route: SiteRoute, client: C, upstream: U)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
        U: AsyncRead + AsyncWrite + Unpin + Send,
    {
        match route {
            SiteRoute::Vhost(route) => self.vhosts.tunnel(route, client, upstream).await,
            SiteRoute::ApiServer(route) => self.api_server.tunnel(route, client, upstream).await,
        }
    }

    async fn revoked(&self, client: &Client) {
        if client.site().api_server.is_some() {
            // Boxed: the future is large and would enlarge every connection.
            Box::pin(self.api_server.revoked(client)).await;
        } else {
            pending::<()>().await;
        }
    }
}
