//! ACME server in front of Pebble that rejects every order as rate limited (429).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Rejecting ACME server; runs until the test ends.
pub(crate) struct Front {
    address: String,
    orders: Arc<AtomicUsize>,
}

impl Front {
    /// Starts a server that answers orders with `Retry-After: <pause>` in seconds. Its directory names the server at `directory` for nonces
    /// and accounts.
    pub(crate) async fn start(directory: &str, pause: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let base = directory.strip_suffix("/dir").expect("Pebble's directory");
        let urls = json!({"newNonce": format!("{base}/nonce-plz"), "newAccount": format!("{base}/sign-me-up"),
            "newOrder": format!("{address}/order"), "revokeCert": "", "keyChange": "", "meta": {}});
        let problem = json!({"type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many certificates", "status": 429});
        let orders = Arc::new(AtomicUsize::new(0));
        let counted = orders.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    head.push(stream.read_u8().await.expect("a request"));
                }
                let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
                stream.read_exact(&mut vec![0; length]).await.expect("its body");
                let answer = if head.starts_with("get") {
                    format!("HTTP/1.1 200 OK\r\n{}", body(&urls))
                } else {
                    counted.fetch_add(1, Ordering::Relaxed);
                    format!("HTTP/1.1 429 Too Many Requests\r\nRetry-After: {pause}\r\n{}", body(&problem))
                };
                stream.write_all(answer.as_bytes()).await.expect("answered");
            }
        });
        Self { address, orders }
    }

    pub(crate) fn directory(&self) -> String {
        format!("{}/dir", self.address)
    }

    /// Number of received orders.
    pub(crate) fn orders(&self) -> usize {
        self.orders.load(Ordering::Relaxed)
    }
}

fn body(value: &serde_json::Value) -> String {
    let text = value.to_string();
    format!("Content-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}
