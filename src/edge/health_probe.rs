//! Asks the health endpoint of a service which Pod answers: one GET on a connection of its own, bounded in time and size.
//!
//! What follows from the answers is [`crate::model::flows::prestop_hook`]'s business.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{HeaderMap, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::model::flows::prestop_hook::HealthProbe;

/// The headers in which a Pod says its addresses.
pub const POD_HEADERS: [&str; 2] = ["pod-ipv4", "pod-ipv6"];

/// Asks once. `url` is that of the config; one that cannot be asked is [`HealthProbe::Silent`].
pub async fn ping(url: &str, limit: Duration) -> HealthProbe {
    match timeout(limit, get(url)).await {
        Ok(Ok(headers)) => HealthProbe::Answered(addresses(&headers)),
        Ok(Err(error)) if refused(&error) => HealthProbe::Refused,
        Ok(Err(error)) => {
            tracing::debug!(url, %error, "health endpoint cannot be asked");
            HealthProbe::Silent
        }
        Err(_) => HealthProbe::Silent,
    }
}

async fn get(url: &str) -> io::Result<HeaderMap> {
    let uri: Uri = url.parse().map_err(io::Error::other)?;
    let authority = uri.authority().ok_or_else(|| io::Error::other("a URL without a host"))?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(16 * 1024).handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path).header(HOST, authority.as_str()).header(CONNECTION, "close").body(Empty::<Bytes>::new());
    let request = request.map_err(io::Error::other)?;
    // The answer's head is all that counts: the connection ends with this future, whatever else it has to say.
    let mut answer = pin!(sender.send_request(request));
    let answer = tokio::select! {
        biased;
        answer = answer.as_mut() => answer,
        // A connection that has ended has told the request's fate.
        _ = connection => answer.await,
    };
    answer.map(|answer| answer.headers().clone()).map_err(io::Error::other)
}

fn addresses(headers: &HeaderMap) -> BTreeSet<IpAddr> {
    let values = POD_HEADERS.iter().filter_map(|name| headers.get(*name)?.to_str().ok());
    values.filter_map(|value| value.trim().parse().ok()).collect()
}

/// Whether the network says that nobody is there.
fn refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Answers one connection with these bytes and tells what was asked.
    async fn answering(answer: &'static str) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/healthz", listener.local_addr().expect("an address"));
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut asked = vec![0; 1024];
            let length = stream.read(&mut asked).await.expect("a request");
            stream.write_all(answer.as_bytes()).await.expect("answered");
            String::from_utf8_lossy(&asked[..length]).into_owned()
        });
        (url, asked)
    }

    #[tokio::test]
    async fn the_pods_addresses_are_read_from_the_headers() {
        let (url, asked) = answering("HTTP/1.1 200 OK\r\nPod-IPv4: 10.0.0.5\r\npod-ipv6: FD00:0::5\r\nContent-Length: 2\r\n\r\nok").await;
        let expected = ["10.0.0.5", "fd00::5"].map(|ip| ip.parse().expect("an address")).into();
        assert_eq!(ping(&url, LIMIT).await, HealthProbe::Answered(expected));
        let asked = asked.await.expect("asked");
        assert!(asked.starts_with("GET /healthz HTTP/1.1\r\n") && asked.contains("connection: close"), "{asked}");
    }

    #[tokio::test]
    async fn a_pod_may_say_nothing_of_itself() {
        let (url, _asked) = answering("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(ping(&url, LIMIT).await, HealthProbe::Answered(BTreeSet::new()));
    }

    #[tokio::test]
    async fn refused_silent_and_senseless_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/healthz", listener.local_addr().expect("an address"));
        assert_eq!(ping(&url, Duration::from_millis(50)).await, HealthProbe::Silent);
        drop(listener);
        assert_eq!(ping(&url, LIMIT).await, HealthProbe::Refused);
        assert_eq!(ping("not a url", LIMIT).await, HealthProbe::Silent);
        let (url, _asked) = answering("what?\r\n\r\n").await;
        assert_eq!(ping(&url, LIMIT).await, HealthProbe::Silent);
    }
}
