//! Open connections of a server, oldest first: limits in total and per source address, and the choice of the connection to close.
//!
//! A new connection is always accepted. At a limit the oldest connection without a running request is closed, else the oldest one.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

use super::Limits;

/// Open connections, oldest first.
#[derive(Default)]
pub(super) struct Open(Vec<AdminConnection>);

struct AdminConnection {
    source: IpAddr,
    busy: ActiveRequest,
    task: AbortHandle,
}

/// Whether a connection has a running request.
#[derive(Clone, Default)]
pub(super) struct ActiveRequest(Arc<AtomicBool>);

impl ActiveRequest {
    /// Marks the connection busy while `work` runs.
    pub(super) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        self.0.store(true, Ordering::Relaxed);
        let done = work.await;
        self.0.store(false, Ordering::Relaxed);
        done
    }
}

impl Open {
    /// Adds the newest connection.
    pub(super) fn add(&mut self, source: IpAddr, busy: ActiveRequest, task: AbortHandle) {
        self.0.push(AdminConnection { source, busy, task });
    }

    /// Closes a connection if one more of this source would exceed a limit.
    pub(super) fn make_room(&mut self, source: IpAddr, limits: Limits) {
        self.0.retain(|open| !open.task.is_finished());
        let crowded = self.0.iter().filter(|open| open.source == source).count() >= limits.per_source;
        if !crowded && self.0.len() < limits.connections {
            return;
        }
        let candidate = |open: &AdminConnection| !crowded || open.source == source;
        let idle = self.0.iter().position(|open| candidate(open) && !open.busy.0.load(Ordering::Relaxed));
        if let Some(index) = idle.or_else(|| self.0.iter().position(candidate)) {
            self.0.remove(index).task.abort();
        }
    }
}
