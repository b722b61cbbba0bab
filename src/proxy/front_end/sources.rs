//! Limits of connections and of requests in progress by client address.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::front_end::vhosts::shares::{Shares, source};

/// Minimum interval of log lines about clients at a limit.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Limits of a client, and the counts of all clients.
#[derive(Debug)]
pub(super) struct SourceLimits {
    max_connections: usize,
    max_requests: usize,
    open: Mutex<SourceUses>,
}

#[derive(Debug, Default)]
struct SourceUses {
    by_source: HashMap<IpAddr, SourceUse>,
    logged_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct SourceUse {
    connections: usize,
    requests: Arc<AtomicUsize>,
}

/// A limit of a client is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceFull {
    /// Whether to log it: once in an interval.
    pub(super) is_logged: bool,
}

/// Guard of a client's connection.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    limits: Arc<SourceLimits>,
    source: Option<IpAddr>,
    /// Requests in progress of the client; of the connection if its client is unknown.
    requests: Arc<AtomicUsize>,
}

/// Guard of a client's request.
#[derive(Debug)]
pub(super) struct RequestSlot(Arc<AtomicUsize>);

impl SourceLimits {
    pub(super) fn new(shares: &Shares) -> Arc<Self> {
        Arc::new(Self { max_connections: shares.source, max_requests: shares.source_requests, open: Mutex::default() })
    }

    /// Counts a connection of a client. Fails at the limit.
    pub(super) fn enter(self: &Arc<Self>, client: Option<SocketAddr>) -> Result<ConnectionSlot, SourceFull> {
        let source = client.map(|client| source(client.ip()));
        let mut requests = Arc::default();
        if let Some(source) = source {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let used = open.by_source.entry(source).or_default();
            if used.connections >= self.max_connections {
                return Err(open.full());
            }
            used.connections += 1;
            requests = Arc::clone(&used.requests);
        }
        Ok(ConnectionSlot { limits: Arc::clone(self), source, requests })
    }
}

impl SourceUses {
    fn full(&mut self) -> SourceFull {
        let is_logged = self.logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_INTERVAL);
        if is_logged {
            self.logged_at = Some(Instant::now());
        }
        SourceFull { is_logged }
    }
}

impl ConnectionSlot {
    /// Counts a request of the client, without a lock. Fails at the limit.
    pub(super) fn request(&self) -> Result<RequestSlot, SourceFull> {
        let slot = RequestSlot(Arc::clone(&self.requests));
        if self.requests.fetch_add(1, Ordering::Relaxed) < self.limits.max_requests {
            return Ok(slot);
        }
        drop(slot);
        Err(self.limits.open.lock().unwrap_or_else(PoisonError::into_inner).full())
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let Some(source) = self.source else { return };
        let mut open = self.limits.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = open.by_source.get_mut(&source) {
            used.connections -= 1;
            if used.connections == 0 {
                open.by_source.remove(&source);
            }
        }
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Act {
        Connect(u8),
        Request(usize),
        EndRequest(usize),
        Close(usize),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            (0..4_u8).prop_map(Act::Connect),
            (0..64_usize).prop_map(Act::Request),
            (0..64_usize).prop_map(Act::EndRequest),
            (0..64_usize).prop_map(Act::Close),
        ];
        prop::collection::vec(act, 0..200)
    }

    proptest! {
        /// Requests end before their connection.
        #[test]
        fn no_client_has_more_than_its_share_and_none_is_refused_below_it(acts in acts()) {
            let limits = SourceLimits::new(&Shares { source: 3, source_requests: 5, ..Shares::default() });
            let mut open: Vec<(u8, Vec<RequestSlot>, ConnectionSlot)> = Vec::new();
            for act in acts {
                let picked = |at: usize| at.checked_rem(open.len());
                match act {
                    Act::Connect(client) => {
                        let count = open.iter().filter(|(of, ..)| *of == client).count();
                        let slot = limits.enter(Some(([100, 64, 0, client], 1).into()));
                        prop_assert_eq!(slot.is_ok(), count < 3);
                        open.extend(slot.map(|slot| (client, Vec::new(), slot)));
                    }
                    Act::Request(at) => if let Some(at) = picked(at) {
                        let count: usize = open.iter().filter(|(of, ..)| *of == open[at].0).map(|(_, requests, _)| requests.len()).sum();
                        let slot = open[at].2.request();
                        prop_assert_eq!(slot.is_ok(), count < 5);
                        open[at].1.extend(slot);
                    },
                    Act::EndRequest(at) => if let Some(at) = picked(at) {
                        open[at].1.pop();
                    },
                    Act::Close(at) => if let Some(at) = picked(at) {
                        open.swap_remove(at);
                    },
                }
            }
            drop(open);
            prop_assert!(limits.open.lock().expect("no panic").by_source.is_empty());
        }
    }
}
