//! Reader of the IPN bus: folds each message on arrival, publishes only the newest state and subscribes again when necessary.
//!
//! A slow consumer of the published state delays neither the reader nor the daemon, which closes the stream of a slow reader.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, warn};

use crate::api::localapi::{DaemonStatus, DnsConfig, Notify};
use crate::edge::localapi::{Bus, INITIAL_STATUS_CAPVER, LocalApi, LocalApiError, MASK, MASK_OLD, MASK_WITHOUT_PEERS};
use crate::model::base::backoff::Backoff;
use crate::model::base::netmap::NetMap;
use crate::model::tailnet::ipn_bus::{Fold, Snapshot};

/// Interval of comparisons with the complete status, for daemons that lose messages silently (before 1.102).
const COMPARISON_INTERVAL: Duration = Duration::from_mins(5);
/// Interval of liveness checks: a daemon that hangs keeps its connections open but forwards nothing.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(3);
/// Minimum duration of a stream after which the next one is opened without delay.
const MIN_STREAM_LIFETIME: Duration = Duration::from_secs(5);
/// Delay before a failed status request is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of the first message.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of messages read before publishing, if messages arrive without pause.
const BATCH: usize = 256;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct BusView {
    /// Number of the daemon process of this view.
    pub(super) epoch: u64,
    /// Whether the stream is open.
    pub(super) connected: bool,
    pub(super) capver: Option<u32>,
    /// State folded from the messages; the netmap is published separately.
    pub(super) snapshot: Snapshot,
    /// Last error and its kind.
    pub(super) fault: Option<(&'static str, String)>,
}

pub(super) struct Reader {
    pub(super) api: LocalApi,
    /// Number of the current daemon process; zero for none.
    pub(super) epoch: watch::Receiver<u64>,
    pub(super) view: watch::Sender<BusView>,
    pub(super) netmap: watch::Sender<Option<Arc<NetMap>>>,
    /// Peers are part of the netmap.
    pub(super) peers: bool,
}

/// Response to a request made beside the stream.
enum BusReply {
    Status(Result<Box<DaemonStatus>, LocalApiError>),
    Dns(Result<DnsConfig, LocalApiError>),
}

/// Reason for the end of a stream.
enum StreamEnd {
    /// The daemon closed it or the connection broke.
    Lost(Option<LocalApiError>),
    /// The daemon is too old for the watch mask.
    Old,
}

impl Reader {
    /// Reads until the sender of daemon processes is dropped.
    pub(super) async fn run(self) {
        let (mut fold, mut epochs) = (Fold::default(), self.epoch.clone());
        loop {
            let epoch = *epochs.borrow_and_update();
            if epoch == 0 {
                fold.disconnected();
                self.view.send_if_modified(|view| std::mem::replace(&mut view.connected, false));
                if epochs.changed().await.is_err() {
                    return;
                }
                continue;
            }
            tokio::select! {
                () = self.of_daemon(&mut fold, epoch) => {}
                changed = epochs.changed() => if changed.is_err() { return },
            }
            // The next process may have been started before this one's end was seen here.
            fold.disconnected();
        }
    }

    /// Reads from one daemon process until dropped.
    async fn of_daemon(&self, fold: &mut Fold, epoch: u64) {
        let mut retry = Backoff::new(Duration::from_millis(20), Duration::from_secs(1), 0.2).unwrap_or(Backoff::DAEMON);
        let mut mask = if self.peers { MASK } else { MASK_WITHOUT_PEERS };
        loop {
            let fault = match self.api.watch(mask).await {
                Ok(bus) => {
                    let opened = Instant::now();
                    self.view.send_modify(|view| {
                        let snapshot = Snapshot { netmap: None, ..fold.snapshot() };
                        *view = BusView { epoch, connected: true, capver: bus.capver, snapshot, fault: view.fault.take() };
                    });
                    let end = Stream { reader: self, fold, pending: None, stale: false }.read(bus, mask).await;
                    if opened.elapsed() >= MIN_STREAM_LIFETIME {
                        retry.reset();
                    }
                    match end {
                        StreamEnd::Old => {
                            mask = MASK_OLD;
                            continue;
                        }
                        StreamEnd::Lost(fault) => fault,
                    }
                }
                // A socket without a listener is no error here: the phase shows it.
                Err(LocalApiError::Connect { .. }) => None,
                Err(fault) => Some(fault),
            };
            let fault = fault.map(|fault| (fault.reason(), fault.to_string()));
            debug!(?fault, "the bus is closed");
            self.view.send_modify(|view| {
                (view.epoch, view.connected) = (epoch, false);
                view.fault = fault.or(view.fault.take());
            });
            sleep(retry.next(fastrand::f64())).await;
        }
    }
}

struct Stream<'a> {
    reader: &'a Reader,
    fold: &'a mut Fold,
    pending: Option<BoxFuture<'static, BusReply>>,
    /// The pending request is outdated already.
    stale: bool,
}

impl Stream<'_> {
    async fn read(&mut self, mut bus: Bus, mask: u32) -> StreamEnd {
        match timeout(FIRST_MESSAGE_TIMEOUT, bus.next()).await {
            Ok(Ok(Some(message))) => {
                if mask != MASK_OLD && message.initial_status.is_none() {
                    let is_old = bus.capver.is_none_or(|capver| capver < INITIAL_STATUS_CAPVER);
                    return if is_old { StreamEnd::Old } else { StreamEnd::Lost(None) };
                }
                if let Err(end) = self.take(message) {
                    return end;
                }
            }
            Ok(Ok(None)) | Err(_) => return StreamEnd::Lost(None),
            Ok(Err(fault)) => return StreamEnd::Lost(Some(fault)),
        }
        self.publish();
        let mut compare = Instant::now() + COMPARISON_INTERVAL;
        let mut heartbeat = heartbeat(&self.reader.api);
        loop {
            tokio::select! {
                message = bus.next() => {
                    if let Err(end) = self.batch(message, &mut bus) {
                        return end;
                    }
                }
                answer = async { match &mut self.pending { Some(pending) => pending.await, None => std::future::pending().await } } => {
                    self.pending = None;
                    if let Err(fault) = self.answered(answer) {
                        warn!(%fault, "tailscaled did not answer; asking for the whole status again");
                        self.reader.view.send_modify(|view| view.fault = Some((fault.reason(), fault.to_string())));
                        compare = Instant::now() + RETRY_INTERVAL;
                    }
                }
                lives = &mut heartbeat => match lives {
                    Ok(()) => heartbeat = self::heartbeat(&self.reader.api),
                    Err(fault) => return StreamEnd::Lost(Some(fault)),
                },
                () = sleep_until(compare) => {
                    compare = Instant::now() + COMPARISON_INTERVAL;
                    self.request_status();
                }
            }
            self.publish();
        }
    }

    /// Folds a message and all that have arrived after it.
    fn batch(&mut self, first: Result<Option<Notify>, LocalApiError>, bus: &mut Bus) -> Result<(), StreamEnd> {
        let mut message = first;
        for _ in 0..BATCH {
            match message {
                Ok(Some(message)) => self.take(message)?,
                Ok(None) => return Err(StreamEnd::Lost(None)),
                Err(fault) if fault.stream_goes_on() => {
                    warn!(%fault, "a message of the bus was not understood; asking for the whole status");
                    self.reader.view.send_modify(|view| view.fault = Some((fault.reason(), fault.to_string())));
                    self.request_status();
                }
                Err(fault) => return Err(StreamEnd::Lost(Some(fault))),
            }
            match bus.next().now_or_never() {
                Some(next) => message = next,
                None => break,
            }
        }
        Ok(())
    }

    fn take(&mut self, message: Notify) -> Result<(), StreamEnd> {
        let effect = self.fold.fold(message);
        if effect.ask_status {
            self.request_status();
        }
        match effect.lost {
            Some(text) => {
                warn!(text, "tailscaled reports a fault on the bus; subscribing again");
                self.reader.view.send_modify(|view| view.fault = Some(("Lost", text)));
                Err(StreamEnd::Lost(None))
            }
            None => Ok(()),
        }
    }

    /// Requests the complete status beside the stream; one request at a time, and one more if something changed meanwhile.
    fn request_status(&mut self) {
        let (api, peers) = (self.reader.api.clone(), self.reader.peers);
        if self.pending.is_some() {
            self.stale = true;
        } else {
            let status = async move {
                let reported = if peers { api.status().await } else { api.status_without_peers().await };
                BusReply::Status(reported.map(|(status, _)| Box::new(status)))
            };
            self.pending = Some(status.boxed());
        }
    }

    fn answered(&mut self, answer: BusReply) -> Result<(), LocalApiError> {
        match answer {
            BusReply::Status(status) => {
                let status = status?;
                self.fold.status(&status);
                if status.extra_records.is_none() {
                    let api = self.reader.api.clone();
                    self.pending = Some(async move { BusReply::Dns(api.dns_config().await) }.boxed());
                }
            }
            BusReply::Dns(dns) => {
                self.fold.dns(&dns?);
            }
        }
        if std::mem::take(&mut self.stale) {
            self.request_status();
        }
        Ok(())
    }

    /// Publishes only changes.
    fn publish(&mut self) {
        let mut snapshot = self.fold.snapshot();
        let netmap = snapshot.netmap.take();
        if let Some(netmap) = netmap {
            self.reader.netmap.send_if_modified(|current| {
                let before = current.replace(netmap);
                before.as_ref().map(Arc::as_ptr) != current.as_ref().map(Arc::as_ptr)
            });
        }
        self.reader.view.send_if_modified(|view| {
            let differs = view.snapshot != snapshot;
            view.snapshot = snapshot;
            differs
        });
    }
}

/// Liveness check after [`LIVENESS_INTERVAL`].
fn heartbeat(api: &LocalApi) -> BoxFuture<'static, Result<(), LocalApiError>> {
    let api = api.clone();
    async move {
        sleep(LIVENESS_INTERVAL).await;
        // The only call that takes no lock: a daemon that waits for an API server does not hang.
        api.usermetrics().await.map(drop)
    }
    .boxed()
}
