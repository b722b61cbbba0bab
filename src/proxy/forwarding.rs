//! IP forwarding sysctls: enables them, or reports the commands where it may not. Root of the forwarding tasks.

pub mod backend;
pub mod drain;
pub mod firewall;
pub mod flow_cleanup;
pub mod planner;
pub mod resolve;
pub mod routing;
pub mod ruleset_sync;
pub mod start;

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::edge::sysctl::{Forwarding, forward};
use crate::model::base::net::Family;
use crate::runtime::watch_ext::put;

/// Poll interval while a sysctl is off.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Poll interval while all are on: another program may turn one off.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Keeps the sysctls on; publishes a command for each that is off.
pub async fn run(off: watch::Sender<Vec<String>>) {
    loop {
        let faults = spawn_blocking(|| Family::ALL.into_iter().filter_map(switch_on).collect::<Vec<_>>()).await.unwrap_or_default();
        let rest = if faults.is_empty() { POLL_INTERVAL } else { RETRY_INTERVAL };
        if put(&off, faults.clone()) {
            for fault in &faults {
                tracing::error!("{fault}");
            }
        }
        sleep(rest).await;
    }
}

fn switch_on(family: Family) -> Option<String> {
    match forward(&[family]) {
        Ok(done) => {
            if done.contains(&Forwarding::SwitchedOn) {
                tracing::info!("enabled {family} forwarding");
            }
            None
        }
        Err(error) => Some(error.to_string()),
    }
}
