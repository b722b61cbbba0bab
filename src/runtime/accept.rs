//! Accepting connections, with or without a limit on how many are open at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// The next connection, once there is room for it. Nothing if accepting failed.
pub async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    next(listener).await.map(|(stream, _)| (stream, slot))
}

/// The next connection and the address it comes from. Nothing if accepting failed: then a moment has passed, for the usual reason (no
/// file descriptors left) does not go away at once.
pub async fn next(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            sleep(Duration::from_millis(100)).await;
            None
        }
    }
}
