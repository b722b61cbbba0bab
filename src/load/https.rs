//! One question over HTTPS: a connection of its own, a handshake of its own, a GET, and the answer's beginning.

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
    /// The name to ask each aim for, by its place.
    pub names: Arc<[String]>,
    /// How the body of an answer must begin.
    pub expected: Arc<[u8]>,
}

impl Https {
    /// Asks over a connection that stands, on behalf of the aim of this place.
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
            self.judge(answer).await
        });
        // Neither goes on without the other: one asks and reads, the other moves the bytes.
        match select(exchange, Box::pin(connection)).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right((_, requested)) => requested.await,
        }
    }

    /// Reads as much of the answer as says whose it is.
    async fn judge(&self, answer: Response<Incoming>) -> Result<TargetIdentity, AttemptFailure> {
        let right = answer.status().is_success();
        let (mut body, mut said) = (answer.into_body(), Vec::new());
        while said.len() < self.expected.len() {
            let Some(frame) = body.frame().await else { break };
            let frame = frame.map_err(|error| failed(&error))?;
            said.extend_from_slice(frame.data_ref().map_or(&[], |data| data.as_ref()));
        }
        let greeting = greeted(&self.expected, &said);
        if right { greeting } else { Err(AttemptFailure::WrongTarget) }
    }
}

/// What an error of HTTP says of the network.
fn failed(error: &hyper::Error) -> AttemptFailure {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    match source {
        Some(error) => broken(error),
        None if error.is_incomplete_message() || error.is_closed() || error.is_canceled() => AttemptFailure::Closed,
        None => AttemptFailure::Garbled,
    }
}

/// What an error of TLS says of the network; what TLS itself does not like is an answer of somebody else.
fn broken(error: &io::Error) -> AttemptFailure {
    match error.kind() {
        io::ErrorKind::InvalidData => AttemptFailure::Garbled,
        _ => failure_of(error),
    }
}
