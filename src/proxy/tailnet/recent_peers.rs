//! Recent peers: records in the state Secret which peers this replica had traffic with, and reads the record of its predecessor.
//!
//! Checked while services are routed to this replica, or always if its device is the service, and once more during shutdown; written only
//! after changes. The record of a killed replica is some seconds old.

use std::collections::BTreeSet;
use std::future::pending;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::api::state::{DISCO_MUTED_SINCE, POD_UID, RECENT_PEERS};
use crate::edge::localapi::LocalApi;
use crate::model::tailnet::advertise::AdvertiseStatus;
use crate::model::tailnet::peer_warmup::settle;
use crate::model::tailnet::recent_peers::{of_late, read, write};
use crate::model::tailnet::state::Content;
use crate::proxy::state_secret::writer::{Ledger, Store};
use crate::runtime::watch_ext::put;

/// Minimum interval of checks.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval as a multiple of a check's duration: the status of a large tailnet has megabytes.
const COOLDOWN: u32 = 200;
/// Timeout of reading the predecessor's record, so that an unavailable API server does not delay the start.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The same timeout in a restarted container: its peers must learn of the new tailscaled through the tunnel before the control server
/// notifies them, and tailscaled does not wait longer for the Secret either.
const RESTART_TIMEOUT: Duration = Duration::from_millis(500);

/// A predecessor's record, for the peer warm-up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PredecessorPeers {
    /// Its recent peers.
    pub addresses: BTreeSet<IpAddr>,
    /// Start of its disco mute, if it had the time to record it.
    pub silent_since: Option<Timestamp>,
    /// Whether it had this replica's endpoint: in the same Pod, whose address and port its peers still send to.
    pub here: bool,
}

/// Records recent peers in the state.
#[derive(Debug, Clone)]
pub struct RecentPeersWriter {
    pub api: LocalApi,
    pub ledger: Ledger,
    /// Known recent peers, for the peer warm-up.
    pub predecessor: watch::Sender<Option<PredecessorPeers>>,
}

/// Reads the predecessor's record, if state is configured, then waits forever. After an error or a timeout it publishes one without peers
/// instead of waiting. The state shows whether the predecessor ran in the Pod of this UID only until its writer has started; `restarted`
/// means that files of an earlier container of the Pod exist.
pub async fn load(store: Option<Store>, pod: Option<String>, restarted: bool, predecessor: watch::Sender<Option<PredecessorPeers>>) {
    let limit = if restarted { RESTART_TIMEOUT } else { TIMEOUT };
    let found = match store {
        Some(store) => timeout(limit, store.read()).await,
        None => Ok(Ok(Content::new())),
    };
    let mut found_peers = match found {
        Ok(Ok(content)) => read_predecessor(&content, pod.as_deref()),
        Ok(Err(error)) => {
            tracing::info!(reason = error.reason(), "cannot load the recent peers of the previous Pod: {error}");
            PredecessorPeers::default()
        }
        Err(_) => {
            tracing::info!("cannot load the recent peers of the previous Pod: no answer within {limit:?}");
            PredecessorPeers::default()
        }
    };
    found_peers.here |= restarted;
    predecessor.send_if_modified(|current| {
        // This replica's own recent peers are newer.
        let unknown = current.is_none();
        if unknown {
            *current = Some(found_peers);
        }
        unknown
    });
    // The end of this task would end the process.
    pending::<()>().await;
}

impl PredecessorPeers {
    /// Delay between a peer's disco answer and the handshake request.
    pub fn settle(&self) -> Duration {
        settle(self.silent_since, Timestamp::now())
    }
}

fn read_predecessor(content: &Content, pod: Option<&str>) -> PredecessorPeers {
    let since = content.get(DISCO_MUTED_SINCE).and_then(|text| str::from_utf8(text).ok()?.parse().ok());
    let here = pod.is_some_and(|pod| content.get(POD_UID).is_some_and(|uid| uid == pod));
    PredecessorPeers { addresses: content.get(RECENT_PEERS).map(|text| read(text)).unwrap_or_default(), silent_since: since, here }
}

impl RecentPeersWriter {
    /// Checks while services are routed to this replica, or always without a status; ends when the status's sender is dropped.
    pub async fn keep(self, mut advertise_status: Option<watch::Receiver<AdvertiseStatus>>) {
        if advertise_status.is_none() {
            // The predecessor's record is loaded meanwhile.
            sleep(MIN_CHECK_INTERVAL).await;
        }
        loop {
            if let Some(advertise_status) = &mut advertise_status
                && advertise_status.wait_for(|advertise_status| !advertise_status.active.is_empty()).await.is_err()
            {
                return;
            }
            let began = Instant::now();
            self.look().await;
            sleep(MIN_CHECK_INTERVAL.max(began.elapsed() * COOLDOWN)).await;
        }
    }

    /// Checks once, and records changes.
    pub async fn look(&self) {
        let status = match self.api.status().await {
            Ok((status, _)) => status,
            Err(error) => return tracing::debug!(reason = error.reason(), "cannot read the recent peers of this replica: {error}"),
        };
        let recent = of_late(&status, Timestamp::now());
        let written = write(&recent);
        if put(&self.predecessor, Some(PredecessorPeers { addresses: recent, silent_since: None, here: true })) {
            self.ledger.set(RECENT_PEERS, written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published record if the state is unreadable.
    async fn without_state(restarted: bool) -> PredecessorPeers {
        let predecessor = watch::Sender::new(None);
        let mut published = predecessor.subscribe();
        let path = std::env::temp_dir();
        tokio::spawn(load(Some(Store::File(path)), Some("uid".to_owned()), restarted, predecessor));
        published.wait_for(Option::is_some).await.expect("published").clone().expect("some")
    }

    #[tokio::test]
    async fn restarted_container_keeps_its_endpoint_without_readable_state() {
        let of = |here| PredecessorPeers { here, ..PredecessorPeers::default() };
        assert_eq!([without_state(true).await, without_state(false).await], [of(true), of(false)]);
    }
}
