//! A backend that answers every connection with the same bytes after the request head, and records the request.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A running backend.
pub struct Scripted {
    pub address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Scripted {
    pub async fn new(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let all = Arc::clone(&all);
                tokio::spawn(async move {
                    let (mut request, mut bytes, mut answered) = (Vec::new(), [0; 4096], false);
                    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                        all.lock().expect("no panic").extend_from_slice(&bytes[..read]);
                        request.extend_from_slice(&bytes[..read]);
                        if !answered && request.windows(4).any(|end| end == b"\r\n\r\n") {
                            answered = stream.write_all(answer.as_bytes()).await.is_ok();
                        }
                    }
                });
            }
        });
        Self { address, heard }
    }

    /// The recorded request bytes, in lower case.
    pub fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().expect("no panic")).to_ascii_lowercase()
    }
}
