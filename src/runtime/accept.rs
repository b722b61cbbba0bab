//! Accepts connections.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// Accepts a connection, with its source address; `None` if accepting failed, after a pause: the usual cause (no file descriptors left)
/// lasts. `name` is that of the listener in the log.
pub async fn next(listener: &TcpListener, name: &str) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::warn!(
                %error,
                listener = name,
                "cannot accept a connection; if file descriptors are used up, raise the limit of the process"
            );
            sleep(Duration::from_millis(100)).await;
            None
        }
    }
}
