//! An HTTP/2 server in clear text that processes nothing of the requests on its first connections, and passes later ones to a backend.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::frames::{DATA, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame};

/// The error code of a stream that was not processed.
const REFUSED_STREAM: u32 = 7;
const WINDOW: u32 = 16 << 20;

/// How a request is refused after all of it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedBy {
    /// The stream alone.
    Reset,
    /// The end of the connection, which names no processed stream.
    GoAway,
    /// The end of the connection, which names the stream as one that may have been processed.
    Processed,
}

/// A running server.
pub struct Refusing {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
}

impl Refusing {
    /// Refuses the requests of `count` connections; `backend` answers those of later ones.
    pub async fn new(by: RefusedBy, count: usize, backend: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (address, connections) = (listener.local_addr().expect("an address"), Arc::new(AtomicUsize::new(0)));
        let accepted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let is_refused = accepted.fetch_add(1, Ordering::SeqCst) < count;
                tokio::spawn(async move {
                    if is_refused {
                        // The other side may close the connection first.
                        let _ = refuse(&mut stream, by).await;
                    } else {
                        let mut upstream = TcpStream::connect(backend).await.expect("a backend");
                        let _ = copy_bidirectional(&mut stream, &mut upstream).await;
                    }
                });
            }
        });
        Self { address, connections }
    }
}

async fn refuse(stream: &mut TcpStream, by: RefusedBy) -> std::io::Result<()> {
    stream.read_exact(&mut [0; PREFACE.len()]).await?;
    // SETTINGS_INITIAL_WINDOW_SIZE is 4.
    let settings = [&[0, 4][..], &WINDOW.to_be_bytes()].concat();
    stream.write_all(&[frame(SETTINGS, 0, 0, &settings), frame(WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes())].concat()).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [_, size @ .., kind, flags, _, _, _, _] = head;
        let (size, id) = (u16::from_be_bytes(size).into(), u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        stream.read_exact(&mut vec![0; size]).await?;
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            let go_away = |last: u32| frame(GOAWAY, 0, 0, &[last.to_be_bytes(), 0_u32.to_be_bytes()].concat());
            let refusal = match by {
                RefusedBy::Reset => frame(RST_STREAM, 0, id, &REFUSED_STREAM.to_be_bytes()),
                RefusedBy::GoAway => go_away(0),
                RefusedBy::Processed => go_away(id),
            };
            stream.write_all(&refusal).await?;
            if by != RefusedBy::Reset {
                stream.shutdown().await?;
                // Data that stays unread would reset the connection.
                return tokio::io::copy(stream, &mut tokio::io::sink()).await.map(drop);
            }
        }
    }
}
