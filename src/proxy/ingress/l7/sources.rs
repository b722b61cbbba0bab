//! How many connections each client has.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::ingress::vhosts::shares::source;

/// How often a client with too many connections is told of.
const TELL: Duration = Duration::from_mins(1);

/// The connections of all clients.
#[derive(Debug)]
pub(super) struct Sources {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_source: HashMap<IpAddr, usize>,
    told: Option<Instant>,
}

/// A connection of a client, as long as this lives.
#[derive(Debug)]
pub(super) struct Place(Arc<Sources>, Option<IpAddr>);

impl Sources {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// Counts a connection of this client. Fails if it has as many as it may have, and says whether that is worth a line.
    pub(super) fn enter(self: &Arc<Self>, client: Option<SocketAddr>) -> Result<Place, bool> {
        let source = client.map(|client| source(client.ip()));
        if let Some(source) = source {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let count = open.by_source.entry(source).or_default();
            if *count >= self.most {
                let news = open.told.is_none_or(|told| told.elapsed() >= TELL);
                if news {
                    open.told = Some(Instant::now());
                }
                return Err(news);
            }
            *count += 1;
        }
        Ok(Place(Arc::clone(self), source))
    }
}

impl Drop for Place {
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
