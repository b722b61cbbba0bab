//! WhoIs lookup through the LocalAPI.

use std::net::SocketAddr;

use hyper::{Method, StatusCode};

use super::{LocalApi, LocalApiError, READ_TIMEOUT, json};
use crate::api::whois::WhoIs;

impl LocalApi {
    /// Looks up the node and user of a TCP client address; `None` if the tailnet does not know it. Capabilities are those of grants to this
    /// node.
    pub async fn whois(&self, client: SocketAddr) -> Result<Option<WhoIs>, LocalApiError> {
        self.look_up(client, "").await
    }

    /// The same, with the capabilities of grants to this node and to a Tailscale Service (`svc:name`) that it hosts. Any other name is that
    /// of the node itself.
    pub async fn whois_of_service(&self, client: SocketAddr, service: &str) -> Result<Option<WhoIs>, LocalApiError> {
        if !service.starts_with("svc:") {
            return self.whois(client).await;
        }
        // Without the grants to the service those to the node may permit more: a recorder may be enforced by the former alone.
        let Some(of_service) = self.look_up(client, &format!("&svc_name={}", service.replace(':', "%3A"))).await? else { return Ok(None) };
        let Some(mut whois) = self.look_up(client, "").await? else { return Ok(None) };
        for (capability, values) in of_service.cap_map {
            whois.cap_map.entry(capability).or_default().extend(values);
        }
        Ok(Some(whois))
    }

    async fn look_up(&self, client: SocketAddr, scope: &str) -> Result<Option<WhoIs>, LocalApiError> {
        const CALL: &str = "whois";
        let address = client.to_string().replace('[', "%5B").replace(']', "%5D");
        match self.call(CALL, Method::GET, &format!("{CALL}?addr={address}&proto=tcp{scope}"), Vec::new(), READ_TIMEOUT).await {
            Ok(answer) => json(CALL, answer.body()).map(Some),
            Err(LocalApiError::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    /// Runs a lookup against a daemon with this response; returns the request line and the result.
    async fn ask(answer: &'static str) -> (String, Result<Option<WhoIs>, LocalApiError>) {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let daemon = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = vec![0; 1024];
            let length = stream.read(&mut request).await.expect("a request");
            stream.write_all(answer.as_bytes()).await.expect("answered");
            String::from_utf8_lossy(&request[..length]).lines().next().unwrap_or_default().to_owned()
        };
        let api = LocalApi::new(&socket);
        tokio::join!(daemon, api.whois("[fd7a::9]:51234".parse().expect("an address")))
    }

    #[tokio::test]
    async fn client_of_a_service_has_the_grants_to_the_node_and_to_the_service() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let daemon = async {
            let of_service = ("&svc_name=svc%3Akube", r#"{"a":[1],"b":[2]}"#);
            for (scope, capabilities) in [of_service, ("", r#"{"a":[3]}"#), ("", r#"{"a":[3]}"#)] {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut request = vec![0; 1024];
                let length = stream.read(&mut request).await.expect("a request");
                let line = format!("GET /localapi/v0/whois?addr=100.64.0.9:1&proto=tcp{scope} HTTP/1.1");
                assert_eq!(String::from_utf8_lossy(&request[..length]).lines().next(), Some(&*line));
                let body = format!(r#"{{"CapMap":{capabilities}}}"#);
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.expect("answered");
            }
        };
        let api = LocalApi::new(&socket);
        let clients = async {
            for (service, granted) in [("svc:kube", r#"{"a":[3,1],"b":[2]}"#), ("node", r#"{"a":[3]}"#)] {
                let whois = api.whois_of_service("100.64.0.9:1".parse().expect("an address"), service).await;
                let found = whois.expect("an answer").expect("a client").cap_map;
                assert_eq!(serde_json::to_string(&found).expect("JSON"), granted);
            }
        };
        tokio::join!(daemon, clients);
    }

    #[tokio::test]
    async fn client_that_either_lookup_does_not_know_is_unknown() {
        for lookups in [[true, false], [false, true]] {
            let dir = tempfile::tempdir().expect("a directory");
            let socket = dir.path().join("socket");
            let listener = UnixListener::bind(&socket).expect("a socket");
            let daemon = async {
                for is_known in lookups {
                    let (mut stream, _) = listener.accept().await.expect("a connection");
                    let _ = stream.read(&mut vec![0; 1024]).await.expect("a request");
                    let answer =
                        if is_known { "200 OK\r\nContent-Length: 2\r\n\r\n{}" } else { "404 Not Found\r\nContent-Length: 0\r\n\r\n" };
                    stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).await.expect("answered");
                }
            };
            let api = LocalApi::new(&socket);
            tokio::select! {
                found = api.whois_of_service("100.64.0.9:1".parse().expect("an address"), "svc:kube") => {
                    assert_eq!(found.expect("an answer"), None, "{lookups:?}");
                }
                () = async { daemon.await; std::future::pending().await } => {}
            }
        }
    }

    #[tokio::test]
    async fn whois_returns_known_users_and_none_for_unknown_peers() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 53\r\n\r\n{\"Node\":{},\"UserProfile\":{\"LoginName\":\"a@b.example\"}}";
        let (request, identity) = ask(text).await;
        assert_eq!(request, "GET /localapi/v0/whois?addr=%5Bfd7a::9%5D:51234&proto=tcp HTTP/1.1");
        assert_eq!(identity.expect("an answer").expect("a user").user_profile.login_name, "a@b.example");
        assert_eq!(ask("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await.1.expect("an answer"), None);
        assert_eq!(ask("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await.1.expect_err("refused").reason(), "Refused");
    }
}
