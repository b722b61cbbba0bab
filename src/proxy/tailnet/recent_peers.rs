//! Remembers in the state Secret with whom this replica spoke of late, and what its predecessor left there.
//!
//! Looked for as long as something leads here, and once more when the replica leaves; written only when it has changed. One that was
//! killed leaves what was true some minutes before.

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

/// How often it is looked for at most.
const EVERY: Duration = Duration::from_mins(1);
/// How many times as long as a look took nothing is looked for: the status of a large tailnet is megabytes.
const COOLDOWN: u32 = 200;
/// How long what the predecessor left is waited for; nobody is to wait for an API server that is away.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The same in a container that starts again: its peers have to learn of the new tailscaled through the tunnel before the control
/// server tells them, and tailscaled does not wait longer for the Secret either.
const RESTART_TIMEOUT: Duration = Duration::from_millis(500);

/// What a predecessor left for whoever opens ways.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PredecessorPeers {
    /// With whom it spoke of late.
    pub addresses: BTreeSet<IpAddr>,
    /// Since when its peers heard nothing of it outside the tunnel, if it had the time to write that down.
    pub silent_since: Option<Timestamp>,
    /// Whether it was where this one is: in the same Pod, whose address and port its peers go on sending to.
    pub here: bool,
}

/// Keeps it in the state.
#[derive(Debug, Clone)]
pub struct RecentPeersWriter {
    pub api: LocalApi,
    pub ledger: Ledger,
    /// What is known, for whoever opens ways.
    pub predecessor: watch::Sender<Option<PredecessorPeers>>,
}

/// Reads what the predecessor left, if there is a place for it, and rests. Nobody is better than to wait. Whether the predecessor was
/// in the Pod of this UID is known from the state only until its writer has begun; `restarted` says that an earlier container of the
/// Pod is known by what it left on the disk.
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
        // Who speaks with this replica is newer.
        let unknown = current.is_none();
        if unknown {
            *current = Some(found_peers);
        }
        unknown
    });
    // A task's end is the process's.
    pending::<()>().await;
}

impl PredecessorPeers {
    /// How long a peer that answers outside the tunnel is left alone now until it is asked for a handshake.
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
    /// Looks now and then for as long as something leads here; ends with the sender.
    pub async fn keep(self, mut standing: watch::Receiver<AdvertiseStatus>) {
        while standing.wait_for(|standing| !standing.leading.is_empty()).await.is_ok() {
            let began = Instant::now();
            self.look().await;
            sleep(EVERY.max(began.elapsed() * COOLDOWN)).await;
        }
    }

    /// Looks, and says it where it has changed.
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

    /// What is published for whoever opens ways while the state cannot be read.
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
