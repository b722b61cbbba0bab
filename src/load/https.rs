//! One HTTPS request: a new connection, a TLS handshake, a GET, and the start of the response body.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::failure_of;
use super::greeted;
use crate::edge::tls::Checked;
use crate::model::diagnostics::load::{AttemptFailure, TargetIdentity};

#[derive(Debug, Clone)]
pub struct Https {
    pub checked: Checked,
    /// Host name of each aim, by its index.
    pub names: Arc<[String]>,
    /// Expected prefix of the response body.
    pub expected: Arc<[u8]>,
}

impl Https {
    /// Sends the request over an established connection, for the aim with this index.
    pub async fn get(&self, stream: &mut TcpStream, aim: u32) -> Result<TargetIdentity, AttemptFailure> {
        let name = usize::try_from(aim).ok().and_then(|aim| self.names.get(aim)).ok_or(AttemptFailure::NotSent)?;
        let stream = self.checked.connect(name, stream).await.map_err(|error| broken(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        let request = Request::get("/")
            .header(HOST, name)
            .header(USER_AGENT, "tailyard-load")
            .header(CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|_| AttemptFailure::NotSent)?;
        let exchange = Box::pin(async {
            let answer = sender.send_request(request).await.map_err(|error| failed(&error))?;
            self.check(answer).await
        });
        // Both must be polled: one sends the request and reads the response, the other transfers the bytes.
        match select(exchange, Box::pin(connection)).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right((_, requested)) => requested.await,
        }
    }

    /// Reads enough of the body to compare it with the expected prefix.
    async fn check(&self, answer: Response<Incoming>) -> Result<TargetIdentity, AttemptFailure> {
        let right = answer.status().is_success();
        let (mut body, mut received) = (answer.into_body(), Vec::new());
        while received.len() < self.expected.len() {
            let Some(frame) = body.frame().await else { break };
            let frame = frame.map_err(|error| failed(&error))?;
            received.extend_from_slice(frame.data_ref().map_or(&[], |data| data.as_ref()));
        }
        let greeting = greeted(&self.expected, &received);
        if right { greeting } else { Err(AttemptFailure::WrongTarget) }
    }
}

/// Failure for an HTTP error.
fn failed(error: &hyper::Error) -> AttemptFailure {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    match source {
        Some(error) => broken(error),
        None if error.is_incomplete_message() || error.is_closed() || error.is_canceled() => AttemptFailure::Closed,
        None => AttemptFailure::Garbled,
    }
}

/// Failure for an I/O error of TLS; a protocol error of TLS counts as the response of another server.
fn broken(error: &io::Error) -> AttemptFailure {
    match error.kind() {
        io::ErrorKind::InvalidData => AttemptFailure::Garbled,
        _ => failure_of(error),
    }
}
