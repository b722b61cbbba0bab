//! Accepts connections, with or without a limit on concurrent ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// Accepts a connection once a slot is free; `None` if accepting failed.
pub async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    next(listener).await.map(|(stream, _)| (stream, slot))
}

/// Accepts a connection, with its source address; `None` if accepting failed, after a pause: the usual cause (no file descriptors left)
/// lasts.
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
