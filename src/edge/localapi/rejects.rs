//! Rejected flows that the daemon records.

use hyper::{Method, StatusCode};

use super::{LocalApi, LocalApiError, READ_TIMEOUT, json};
use crate::api::localapi::DebugRejects;

impl LocalApi {
    /// Recently rejected flows; `None` if the daemon is older than 1.104.
    pub async fn debug_rejects(&self) -> Result<Option<DebugRejects>, LocalApiError> {
        const CALL: &str = "debug-rejects";
        match self.call(CALL, Method::GET, CALL, Vec::new(), READ_TIMEOUT).await {
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

    #[tokio::test]
    async fn older_daemon_has_no_rejects() {
        for (answer, expected) in [
            ("200 OK\r\nContent-Length: 16\r\n\r\n{\"Enabled\":true}", Ok(Some(true))),
            ("404 Not Found\r\nContent-Length: 0\r\n\r\n", Ok(None)),
            ("500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", Err("Refused")),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let listener = UnixListener::bind(dir.path().join("socket")).expect("a socket");
            let daemon = async {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let length = stream.read(&mut [0; 1024]).await.expect("a request");
                stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).await.expect("answered");
                length
            };
            let api = LocalApi::new(dir.path().join("socket"));
            let (_, rejects) = tokio::join!(daemon, api.debug_rejects());
            assert_eq!(rejects.map(|rejects| rejects.map(|rejects| rejects.enabled)).map_err(|error| error.reason()), expected, "{answer}");
        }
    }
}
