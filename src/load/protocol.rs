//! What a client and a server say to each other, and which answers count as the intended target's.
//!
//! An answer that is somebody else's is worse than none, so each way of talking can tell them apart. Nothing here dials,
//! waits or counts.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::https::Https;
use super::identity_protocol;
use super::{ANYBODY, failure_of, greeted};
use crate::model::diagnostics::load::{AttemptFailure, TargetIdentity};

/// The longest first line that a server may say, in bytes.
const LINE: usize = 512;

#[derive(Debug, Clone)]
pub enum Talk {
    /// With targets that answer each question with who they are ([`identity_protocol`](super::identity_protocol)).
    Identity,
    /// With any server. Over TCP it speaks first, over UDP it answers a datagram; either must begin with these bytes. With
    /// none, a TCP connection that stands is enough, and any datagram. On a connection that is held open it gives back what
    /// it is sent.
    Greeting(Arc<[u8]>),
    /// With servers of HTTPS: one question for each new connection.
    Https(Https),
}

impl Talk {
    /// What is asked over UDP.
    pub fn question(&self, nonce: u64) -> Vec<u8> {
        match self {
            Self::Identity => identity_protocol::question(nonce).to_vec(),
            Self::Greeting(_) | Self::Https(_) => line(nonce),
        }
    }

    /// Who gave the answer to a datagram.
    pub fn read(&self, nonce: u64, answer: &[u8]) -> Result<TargetIdentity, AttemptFailure> {
        match self {
            Self::Identity => identity_protocol::read(nonce, answer).ok_or(AttemptFailure::Garbled),
            Self::Greeting(expected) => greeted(expected, answer),
            // It is not spoken over UDP.
            Self::Https(_) => Err(AttemptFailure::NotSent),
        }
    }

    /// What makes a new connection to the aim of this place count as answered.
    pub async fn first(&self, stream: &mut TcpStream, nonce: u64, aim: u32) -> Result<TargetIdentity, AttemptFailure> {
        match self {
            Self::Identity => self.again(stream, nonce).await,
            Self::Greeting(expected) => {
                let mut said = Vec::new();
                stream.take(expected.len() as u64).read_to_end(&mut said).await.map_err(|error| failure_of(&error))?;
                if said.is_empty() && !expected.is_empty() { Err(AttemptFailure::Closed) } else { greeted(expected, &said) }
            }
            Self::Https(https) => https.get(stream, aim).await,
        }
    }

    /// What opens a connection that is to be held: returns what the server said first, without the line's end.
    pub async fn open(&self, stream: &mut TcpStream) -> Result<String, AttemptFailure> {
        let Self::Greeting(expected) = self else { return Ok(String::new()) };
        let mut said = Vec::new();
        while !expected.is_empty() && !said.ends_with(b"\n") && said.len() < LINE {
            said.push(stream.read_u8().await.map_err(|error| failure_of(&error))?);
        }
        greeted(expected, &said)?;
        Ok(String::from_utf8_lossy(&said).trim_end().to_owned())
    }

    /// Asks and is answered once on a connection that stands.
    pub async fn again(&self, stream: &mut TcpStream, nonce: u64) -> Result<TargetIdentity, AttemptFailure> {
        let question = self.question(nonce);
        let mut answer = vec![0; if matches!(self, Self::Identity) { identity_protocol::ANSWER } else { question.len() }];
        let exchange = async {
            stream.write_all(&question).await?;
            stream.read_exact(&mut answer).await
        };
        exchange.await.map_err(|error| failure_of(&error))?;
        match self {
            Self::Identity => identity_protocol::read(nonce, &answer).ok_or(AttemptFailure::Garbled),
            Self::Greeting(_) | Self::Https(_) => (answer == question).then_some(ANYBODY).ok_or(AttemptFailure::Garbled),
        }
    }
}

/// What a server is sent that gives back whatever that is.
fn line(nonce: u64) -> Vec<u8> {
    format!("tailyard load {nonce}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_without_the_expected_greeting_is_wrong_target() {
        let talk = Talk::Greeting(b"db ".as_slice().into());
        assert_eq!(talk.read(1, b"db 10.0.0.1:1"), Ok(ANYBODY));
        assert_eq!(talk.read(1, b"cache 10.0.0.1:1"), Err(AttemptFailure::WrongTarget));
        assert_eq!(talk.read(1, b"d"), Err(AttemptFailure::WrongTarget));
        assert_eq!(Talk::Greeting([].into()).read(1, b"whatever"), Ok(ANYBODY));
        assert_eq!(Talk::Identity.read(1, b"db 10.0.0.1:1"), Err(AttemptFailure::Garbled));
    }
}
