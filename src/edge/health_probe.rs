//! Health probes over HTTP, with a timeout: one that identifies the Pod behind a service, evaluated by
//! [`crate::model::flows::prestop_hook`], and one of a Pod's address, evaluated by [`crate::model::failover`].

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::iter::successors;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use reqwest::header::{CONNECTION, HeaderMap};
use reqwest::redirect::Policy;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::model::flows::prestop_hook::HealthProbe;
use crate::runtime::https::{self, HttpsError};

/// Response headers with the Pod's addresses.
pub const POD_HEADERS: [&str; 2] = ["pod-ipv4", "pod-ipv6"];

/// Each request has its own connection, as another connection may reach another Pod. It is plain HTTP, so no CAs are loaded.
static CLIENT: LazyLock<Result<reqwest::Client, HttpsError>> = LazyLock::new(|| https::build(plain()?.pool_max_idle_per_host(0)));

/// Idle time after which a kept connection is closed; less than that of a replica's server, so that no probe is sent on a closing one.
const MAX_IDLE: Duration = Duration::from_millis(700);

/// Connections are kept for the next probe; concurrent probes of an address have one each.
static KEPT_ALIVE: LazyLock<Result<reqwest::Client, HttpsError>> =
    LazyLock::new(|| https::build(plain()?.pool_max_idle_per_host(2).pool_idle_timeout(MAX_IDLE)));

fn plain() -> Result<reqwest::ClientBuilder, HttpsError> {
    Ok(https::builder(None)?.tls_certs_only([]).no_proxy().redirect(Policy::none()))
}

/// Whether a health server answers at a path, with any status. The request is a HEAD: an answer has no body that could be too long.
pub async fn answers(server: SocketAddr, path: &str, limit: Duration) -> bool {
    let Ok(client) = &*KEPT_ALIVE else { return false };
    client.head(format!("http://{server}{path}")).timeout(limit).send().await.is_ok()
}

/// Whether the kernel of a server's host answers, by accepting or refusing a connection: then the host is not lost.
pub async fn host_answers(server: SocketAddr, limit: Duration) -> bool {
    match timeout(limit, TcpStream::connect(server)).await {
        Ok(Ok(_connection)) => true,
        Ok(Err(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
        Err(_elapsed) => false,
    }
}

/// Sends one probe. `url` is from the config; an invalid one gives [`HealthProbe::Silent`].
pub async fn ping(url: &str, limit: Duration) -> HealthProbe {
    let Ok(client) = &*CLIENT else { return HealthProbe::Silent };
    // Only the response head matters.
    match client.get(url).header(CONNECTION, "close").timeout(limit).send().await {
        Ok(answer) => HealthProbe::Answered(addresses(answer.headers())),
        Err(error) if is_refused(&error) => HealthProbe::Refused,
        Err(error) => {
            tracing::debug!(url, %error, "cannot probe the health endpoint");
            HealthProbe::Silent
        }
    }
}

fn addresses(headers: &HeaderMap) -> BTreeSet<IpAddr> {
    let values = POD_HEADERS.iter().filter_map(|name| headers.get(*name)?.to_str().ok());
    values.filter_map(|value| value.trim().parse().ok()).collect()
}

/// Whether the connection was refused or has no route.
fn is_refused(error: &reqwest::Error) -> bool {
    let mut causes = successors(error.source(), |cause| (**cause).source());
    causes.any(|cause| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        matches!(kind, Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable))
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::edge::netns::Namespace;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Serves one connection with this response and returns the request.
    async fn answering(answer: &'static str) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/healthz", listener.local_addr().expect("an address"));
        let request_text = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request_text = vec![0; 1024];
            let length = stream.read(&mut request_text).await.expect("a request");
            stream.write_all(answer.as_bytes()).await.expect("answered");
            String::from_utf8_lossy(&request_text[..length]).into_owned()
        });
        (url, request_text)
    }

    #[tokio::test]
    async fn pod_addresses_are_read_from_response_headers() {
        let (url, request_text) =
            answering("HTTP/1.1 200 OK\r\nPod-IPv4: 10.0.0.5\r\npod-ipv6: FD00:0::5\r\nContent-Length: 2\r\n\r\nok").await;
        let expected = ["10.0.0.5", "fd00::5"].map(|ip| ip.parse().expect("an address")).into();
        assert_eq!(ping(&url, LIMIT).await, HealthProbe::Answered(expected));
        let request_text = request_text.await.expect("asked");
        assert!(request_text.starts_with("GET /healthz HTTP/1.1\r\n") && request_text.contains("connection: close"), "{request_text}");
    }

    #[tokio::test]
    async fn any_answer_is_a_sign_of_life_and_keeps_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let requests = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut requests = Vec::new();
            for answer in ["200 OK\r\nContent-Length: 900", "503 Service Unavailable\r\nContent-Length: 0"] {
                let mut request = vec![0; 1024];
                let length = stream.read(&mut request).await.expect("a request");
                requests.push(String::from_utf8_lossy(&request[..length]).into_owned());
                stream.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).await.expect("answered");
            }
            // The third request gets no answer, and the listener is closed.
            drop(listener);
            (requests, stream)
        });
        assert!(answers(address, "/livez", LIMIT).await && answers(address, "/livez", LIMIT).await);
        let (requests, stream) = requests.await.expect("requested");
        assert!(requests.iter().all(|request| request.starts_with("HEAD /livez HTTP/1.1\r\n")), "{requests:?}");
        assert!(!answers(address, "/livez", Duration::from_millis(50)).await, "silent");
        drop(stream);
        assert!(!answers(address, "/livez", LIMIT).await, "refused");
        assert!(host_answers(address, LIMIT).await, "its kernel refuses");
    }

    #[tokio::test]
    async fn host_of_a_hung_server_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        assert!(!answers(address, "/livez", Duration::from_millis(50)).await && host_answers(address, LIMIT).await, "nothing accepts");
    }

    #[test]
    fn lost_host_does_not_answer() {
        let network = Namespace::make().expect("a namespace");
        let answers = || host_answers(SocketAddr::from(([10, 9, 9, 9], 9)), LIMIT);
        assert!(!network.block_on(answers).expect("ran"), "no route");
    }

    #[tokio::test]
    async fn garbage_is_no_sign_of_life() {
        let (url, _asked) = answering("what?\r\n\r\n").await;
        let address = url.trim_start_matches("http://").trim_end_matches("/healthz").parse().expect("an address");
        assert!(!answers(address, "/livez", LIMIT).await);
    }

    #[tokio::test]
    async fn response_without_pod_headers_has_no_addresses() {
        let (url, _asked) = answering("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(ping(&url, LIMIT).await, HealthProbe::Answered(BTreeSet::new()));
    }

    #[tokio::test]
    async fn refused_probe_differs_from_timeout_and_garbage() {
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
