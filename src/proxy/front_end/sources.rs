//! Connection limits by client address.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::front_end::vhosts::shares::source;

/// Minimum interval of log lines about a client with too many connections.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Connection counts of all clients.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    most: usize,
    open: Mutex<SourceConnections>,
}

#[derive(Debug, Default)]
struct SourceConnections {
    by_source: HashMap<IpAddr, usize>,
    logged_at: Option<Instant>,
}

/// Guard of a client's connection.
#[derive(Debug)]
pub(super) struct ConnectionSlot(Arc<ConnectionLimits>, Option<IpAddr>);

impl ConnectionLimits {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// Counts a connection of a client. Fails at the limit; the error is whether to log it.
    pub(super) fn enter(self: &Arc<Self>, client: Option<SocketAddr>) -> Result<ConnectionSlot, bool> {
        let source = client.map(|client| source(client.ip()));
        if let Some(source) = source {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let count = open.by_source.entry(source).or_default();
            if *count >= self.most {
                let is_logged = open.logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_INTERVAL);
                if is_logged {
                    open.logged_at = Some(Instant::now());
                }
                return Err(is_logged);
            }
            *count += 1;
        }
        Ok(ConnectionSlot(Arc::clone(self), source))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let Some(source) = self.1 else { return };
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                open.by_source.remove(&source);
            }
        }
    }
}
