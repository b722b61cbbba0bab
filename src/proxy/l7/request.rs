//! One request: which route it takes, what the backend is told, and what the client gets.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, EXPECT, HOST, HeaderValue, LOCATION, UPGRADE};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::api::routes::Protocol;
use crate::model::sites::headers::{self, About};
use crate::model::sites::{Decision, Proxied, Site};

use super::Port;
use super::activity::InFlight;
use super::body::Passing;
use super::dial::DialError;
use super::peer::{Aim, Busy, Failed, Peer};
use super::pool::Pool;
use super::tunnel;

/// What is held until an answer's body has passed.
#[derive(Debug)]
pub(super) struct Held {
    _in_flight: Option<InFlight>,
    _busy: Option<Busy>,
}

pub(super) type Answer = Response<Passing<Held>>;

/// Answers a request that came in on this port.
pub(super) async fn answer(port: Arc<Port>, client: Option<SocketAddr>, in_flight: InFlight, request: Request<Incoming>) -> Answer {
    let began = Instant::now();
    let head = request.method() == Method::HEAD;
    let mut answer = routed(&port, client, in_flight, request).await;
    if head {
        answer = answer.map(Passing::unsaid);
    }
    port.counts.answered(answer.status().as_u16(), began.elapsed());
    answer
}

async fn routed(port: &Arc<Port>, client: Option<SocketAddr>, in_flight: InFlight, request: Request<Incoming>) -> Answer {
    let site = Arc::clone(&port.site.borrow().site);
    let Some(host) = named(&request) else { return text(StatusCode::BAD_REQUEST, "the request names no host\n") };
    if request.method() == Method::CONNECT {
        return text(StatusCode::METHOD_NOT_ALLOWED, "this is no forward proxy\n");
    }
    let target = request.uri().path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
    let name = host.to_str().unwrap_or_default().to_owned();
    match decided(&site, port, &name, &target) {
        Ok((proxied, path)) => {
            let Ok(path) = path.parse() else { return text(StatusCode::BAD_REQUEST, "the path cannot be sent on\n") };
            let over_tls = proxied.backend.protocol == Protocol::Https;
            let upgrade = headers::upgrade(request.headers()).filter(|_| request.version() != Version::HTTP_2);
            let aim = Aim { host, path, over_tls, from: request.version(), upgrade: upgrade.is_some() };
            proxy(Way { port, proxied, aim, name: &name, upgrade }, client, in_flight, request).await
        }
        Err(answer) => *answer,
    }
}

/// The backend and its path; or the answer, where no backend is asked.
fn decided<'a>(site: &'a Site, port: &Port, name: &str, target: &str) -> Result<(&'a Proxied, String), Box<Answer>> {
    Err(Box::new(match site.decide(port.number, name, target) {
        Decision::Proxy(proxied, path) => return Ok((proxied, path)),
        Decision::Redirect(status, to) => redirect(status, &to),
        Decision::Text(words) => text(StatusCode::OK, words.to_owned()),
        Decision::Misdirected => text(StatusCode::MISDIRECTED_REQUEST, "no site of that name is served here\n"),
        Decision::NotFound => text(StatusCode::NOT_FOUND, "no route leads there\n"),
        Decision::Broken(why) => {
            tracing::debug!(service = port.service, why, "a request met a broken route");
            text(StatusCode::BAD_GATEWAY, "the route is broken: its service's events and the replica's metrics say how\n")
        }
    }))
}

/// The way of a request to a backend.
struct Way<'a> {
    port: &'a Arc<Port>,
    proxied: &'a Proxied,
    aim: Aim,
    name: &'a str,
    upgrade: Option<HeaderValue>,
}

async fn proxy(way: Way<'_>, client: Option<SocketAddr>, in_flight: InFlight, mut request: Request<Incoming>) -> Answer {
    let shared = &way.port.shared;
    let identity = match client {
        Some(client) => shared.identify.who(client).await,
        None => None,
    };
    let about = About {
        client: client.map(|client| client.ip()),
        host: way.name,
        over_tls: way.port.over_tls,
        identity: identity.as_deref(),
        app_caps: &way.proxied.app_caps,
    };
    let theirs = way.upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let mut sent = Request::new(Passing::stream(body, None));
    *sent.method_mut() = parts.method;
    *sent.headers_mut() = parts.headers;
    headers::forward(sent.headers_mut(), about);
    // The body is asked for as soon as the backend wants it; who waits for leave has it by then.
    sent.headers_mut().remove(EXPECT);
    if let Some(protocol) = &way.upgrade {
        sent.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        sent.headers_mut().insert(UPGRADE, protocol.clone());
    }
    let pool = shared.pools.of(&way.proxied.backend);
    match ask(&way, &pool, sent).await {
        Ok((answer, busy)) => match (answer.status(), theirs) {
            (StatusCode::SWITCHING_PROTOCOLS, Some(theirs)) => tunnel::join(way.port, answer, theirs, in_flight, busy),
            (StatusCode::SWITCHING_PROTOCOLS, None) => text(StatusCode::BAD_GATEWAY, "the backend changed the protocol unasked\n"),
            _ => passed(answer, in_flight, busy),
        },
        Err(status) => text(status, "the backend cannot be reached\n"),
    }
}

/// Asks endpoints, one after the other as long as nothing was sent, at last the `ClusterIP`.
async fn ask(way: &Way<'_>, pool: &Arc<Pool>, request: Request<Passing>) -> Result<(Response<Incoming>, Busy), StatusCode> {
    let (pools, counts) = (&way.port.shared.pools, &way.port.counts);
    let mut request = Box::new(request);
    let again = repeatable(&request);
    for peer in pools.choices(pool) {
        match peer.send(*request, &way.aim, pool, pools).await {
            Ok(answered) => {
                pools.note(&peer, true);
                return Ok(answered);
            }
            Err(Failed::Unsent(unsent, error)) => {
                failed(way, &peer, &error);
                request = unsent;
            }
            Err(Failed::Sent(error)) => {
                counts.failed("Broken");
                tracing::debug!(service = way.port.service, address = %peer.address, %error, "a backend broke the connection");
                // Asked again, it does the same, wherever: that is what the method says.
                *request = again.as_ref().map(copy).ok_or(StatusCode::BAD_GATEWAY)?;
            }
        }
    }
    let peer = pool.fallback().await.map_err(|error| {
        counts.failed(error.kind());
        StatusCode::BAD_GATEWAY
    })?;
    counts.fell_back();
    match peer.send(*request, &way.aim, pool, pools).await {
        Ok(answered) => Ok(answered),
        Err(Failed::Unsent(_, error)) => {
            failed(way, &peer, &error);
            Err(if matches!(error, DialError::Deadline(_)) { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::BAD_GATEWAY })
        }
        Err(Failed::Sent(_)) => {
            counts.failed("Broken");
            Err(StatusCode::BAD_GATEWAY)
        }
    }
}

fn failed(way: &Way<'_>, peer: &Peer, error: &DialError) {
    way.port.counts.failed(error.kind());
    way.port.shared.pools.note(peer, false);
    tracing::debug!(service = way.port.service, kind = error.kind(), "an endpoint cannot be reached: {error}");
}

/// What a request is made of that may be sent twice: one that asks only, and has no body.
fn repeatable(request: &Request<Passing>) -> Option<Request<()>> {
    let asks_only = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let plain = asks_only && request.body().is_empty() && !request.headers().contains_key(UPGRADE);
    plain.then(|| copied(request, ()))
}

fn copy(request: &Request<()>) -> Request<Passing> {
    copied(request, Passing::bytes(Bytes::new()))
}

fn copied<A, B>(request: &Request<A>, body: B) -> Request<B> {
    let mut copy = Request::new(body);
    copy.method_mut().clone_from(request.method());
    copy.headers_mut().clone_from(request.headers());
    copy
}

/// A backend's answer as the client gets it.
fn passed(answer: Response<Incoming>, in_flight: InFlight, busy: Busy) -> Answer {
    let (mut parts, body) = answer.into_parts();
    headers::end_to_end(&mut parts.headers);
    parts.version = Version::default();
    parts.extensions.clear();
    let held = Held { _in_flight: Some(in_flight), _busy: Some(busy) };
    Response::from_parts(parts, Passing::stream(body, Some(held)))
}

/// The name that a request is for: that of its URI, which HTTP/2 always has, else the header's.
fn named(request: &Request<Incoming>) -> Option<HeaderValue> {
    match request.uri().authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => request.headers().get(HOST).filter(|host| !host.is_empty()).cloned(),
    }
}

fn redirect(status: u16, to: &str) -> Answer {
    let mut answer = text(StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND), "");
    match HeaderValue::from_str(to) {
        Ok(to) => drop(answer.headers_mut().insert(LOCATION, to)),
        Err(_) => return text(StatusCode::BAD_REQUEST, "the path cannot be redirected\n"),
    }
    answer
}

/// An answer of our own.
pub(super) fn text(status: StatusCode, words: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Passing::bytes(words));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
