//! Virtual hosts as a service of the front end: routing, and responses in place of a backend's.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use http::uri::PathAndQuery;
use http::{Response, StatusCode};

use crate::model::front_end::vhosts::{Proxied, RouteDecision, Vhost};

use super::ListenerPort;
use super::body::{Download, ProxiedResponse};

/// Backend and path, or a direct response.
pub(super) fn decided<'a>(
    site: &'a Vhost,
    port: &ListenerPort,
    name: &str,
    target: &'a PathAndQuery,
) -> Result<(&'a Proxied, PathAndQuery), Box<ProxiedResponse>> {
    Err(Box::new(match site.decide(port.number, name, target.as_str()) {
        RouteDecision::Proxy(proxied, Cow::Borrowed(_)) => return Ok((proxied, target.clone())),
        RouteDecision::Proxy(proxied, Cow::Owned(path)) => match path.try_into() {
            Ok(path) => return Ok((proxied, path)),
            Err(_) => text(StatusCode::BAD_REQUEST, "the path cannot be rewritten for the backend\n"),
        },
        RouteDecision::Redirect(status, to) => redirect(status, &to),
        RouteDecision::Text(words) => text(StatusCode::OK, words.to_owned()),
        RouteDecision::Misdirected => text(StatusCode::MISDIRECTED_REQUEST, "unknown host\n"),
        RouteDecision::Ambiguous => text(StatusCode::BAD_REQUEST, "ambiguous path: remove its dot segments\n"),
        RouteDecision::NotFound => text(StatusCode::NOT_FOUND, "no route matches this path\n"),
        RouteDecision::Broken(why) => {
            tracing::debug!(service = port.service, why, "route is misconfigured");
            text(StatusCode::BAD_GATEWAY, "the route is misconfigured: see the events of the Ingress and the replica's metrics\n")
        }
    }))
}

fn redirect(status: u16, to: &str) -> ProxiedResponse {
    let mut answer = text(StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND), "");
    match HeaderValue::from_str(to) {
        Ok(to) => drop(answer.headers_mut().insert(LOCATION, to)),
        Err(_) => return text(StatusCode::BAD_REQUEST, "the path cannot be redirected\n"),
    }
    answer
}

/// A response of our own.
pub(super) fn text(status: StatusCode, words: impl Into<Bytes>) -> ProxiedResponse {
    let mut answer = Response::new(Download::Text(words.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
