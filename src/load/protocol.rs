//! Application protocols of a load, and the check whether an answer is from the intended target.
//!
//! An answer of another target is worse than none, so each protocol can distinguish them. Does not connect, wait or count.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::https::Https;
use super::identity_protocol;
use super::{ANY_TARGET, failure_of, greeted};
use crate::model::diagnostics::load::{AttemptFailure, TargetIdentity};

/// Maximum length of a server's first line, in bytes.
const LINE: usize = 512;

#[derive(Debug, Clone)]
pub enum TargetProtocol {
    /// Identity targets, which answer each request with their identity ([`super::identity_protocol`]).
    Identity,
    /// Any server. Over TCP it sends first, over UDP it answers a datagram; either must begin with these bytes. If they are empty, an
    /// established TCP connection is enough, and any datagram. On a long-lived connection it echoes requests.
    Greeting(Arc<[u8]>),
    /// HTTPS servers: one request for each new connection.
    Https(Https),
}

impl TargetProtocol {
    /// Request over UDP.
    pub fn request(&self, nonce: u64) -> Vec<u8> {
        match self {
            Self::Identity => identity_protocol::request(nonce).to_vec(),
            Self::Greeting(_) | Self::Https(_) => line(nonce),
        }
    }

    /// Identity of the target that answered a datagram.
    pub fn read(&self, nonce: u64, answer: &[u8]) -> Result<TargetIdentity, AttemptFailure> {
        match self {
            Self::Identity => identity_protocol::read(nonce, answer).ok_or(AttemptFailure::Garbled),
            Self::Greeting(expected) => greeted(expected, answer),
            // HTTPS is not available over UDP.
            Self::Https(_) => Err(AttemptFailure::NotSent),
        }
    }

    /// Exchange by which a new connection to the aim with this index counts as answered.
    pub async fn first(&self, stream: &mut TcpStream, nonce: u64, aim: u32) -> Result<TargetIdentity, AttemptFailure> {
        match self {
            Self::Identity => self.again(stream, nonce).await,
            Self::Greeting(expected) => {
                let mut received = Vec::new();
                stream.take(expected.len() as u64).read_to_end(&mut received).await.map_err(|error| failure_of(&error))?;
                if received.is_empty() && !expected.is_empty() { Err(AttemptFailure::Closed) } else { greeted(expected, &received) }
            }
            Self::Https(https) => https.get(stream, aim).await,
        }
    }

    /// Opening exchange of a long-lived connection; returns the server's first line without its line end.
    pub async fn open(&self, stream: &mut TcpStream) -> Result<String, AttemptFailure> {
        let Self::Greeting(expected) = self else { return Ok(String::new()) };
        let mut received = Vec::new();
        while !expected.is_empty() && !received.ends_with(b"\n") && received.len() < LINE {
            received.push(stream.read_u8().await.map_err(|error| failure_of(&error))?);
        }
        greeted(expected, &received)?;
        Ok(String::from_utf8_lossy(&received).trim_end().to_owned())
    }

    /// One request and its answer on an established connection.
    pub async fn again(&self, stream: &mut TcpStream, nonce: u64) -> Result<TargetIdentity, AttemptFailure> {
        let request = self.request(nonce);
        let mut answer = vec![0; if matches!(self, Self::Identity) { identity_protocol::ANSWER } else { request.len() }];
        let exchange = async {
            stream.write_all(&request).await?;
            stream.read_exact(&mut answer).await
        };
        exchange.await.map_err(|error| failure_of(&error))?;
        match self {
            Self::Identity => identity_protocol::read(nonce, &answer).ok_or(AttemptFailure::Garbled),
            Self::Greeting(_) | Self::Https(_) => (answer == request).then_some(ANY_TARGET).ok_or(AttemptFailure::Garbled),
        }
    }
}

/// Request for a server that echoes.
fn line(nonce: u64) -> Vec<u8> {
    format!("tailyard load {nonce}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_without_the_expected_greeting_is_wrong_target() {
        let protocol = TargetProtocol::Greeting(b"db ".as_slice().into());
        assert_eq!(protocol.read(1, b"db 10.0.0.1:1"), Ok(ANY_TARGET));
        assert_eq!(protocol.read(1, b"cache 10.0.0.1:1"), Err(AttemptFailure::WrongTarget));
        assert_eq!(protocol.read(1, b"d"), Err(AttemptFailure::WrongTarget));
        assert_eq!(TargetProtocol::Greeting([].into()).read(1, b"whatever"), Ok(ANY_TARGET));
        assert_eq!(TargetProtocol::Identity.read(1, b"db 10.0.0.1:1"), Err(AttemptFailure::Garbled));
    }
}
