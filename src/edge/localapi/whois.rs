//! WhoIs lookup through the LocalAPI.

use std::net::SocketAddr;

use hyper::{Method, StatusCode};

use super::{LocalApi, LocalApiError, READ_TIMEOUT, json};
use crate::api::whois::WhoIs;

impl LocalApi {
    /// Looks up the node and user of a TCP client address; `None` if the tailnet does not know it.
    pub async fn whois(&self, client: SocketAddr) -> Result<Option<WhoIs>, LocalApiError> {
        const CALL: &str = "whois";
        let address = client.to_string().replace('[', "%5B").replace(']', "%5D");
        match self.call(CALL, Method::GET, &format!("{CALL}?addr={address}&proto=tcp"), Vec::new(), READ_TIMEOUT).await {
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
    async fn whois_returns_known_users_and_none_for_unknown_peers() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 53\r\n\r\n{\"Node\":{},\"UserProfile\":{\"LoginName\":\"a@b.example\"}}";
        let (request, identity) = ask(text).await;
        assert_eq!(request, "GET /localapi/v0/whois?addr=%5Bfd7a::9%5D:51234&proto=tcp HTTP/1.1");
        assert_eq!(identity.expect("an answer").expect("a user").user_profile.login_name, "a@b.example");
        assert_eq!(ask("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await.1.expect("an answer"), None);
        assert_eq!(ask("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await.1.expect_err("refused").reason(), "Refused");
    }
}
