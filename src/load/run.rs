//! A complete load: attempts on a fixed schedule, long-lived connections, and report lines.
//!
//! Ends at its deadline or when stopped; attempts in flight are completed first.

use std::cell::RefCell;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at, sleep};

use super::Load;
use super::board::{Board, FlowEvent};
use super::flows::{FlowUpdate, Rhythm, hold};
use super::protocol::TargetProtocol;
use super::report::{Line, LoadEvent, LoadSummary};
use super::resolver::{FoundAddresses, HostPort, NameError, find};
use crate::model::base::net::Proto;
use crate::model::diagnostics::load::{Attempt, Lane};

/// Delay before a broken connection is reopened.
const REOPEN_DELAY: Duration = Duration::from_millis(100);
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct LoadOptions {
    pub aims: Vec<HostPort>,
    /// Address to connect to instead of resolving the names.
    pub connect: Option<IpAddr>,
    pub protos: Vec<Proto>,
    pub load: Load,
    /// New connections per second, for the first line.
    pub rate: u32,
    /// Number of long-lived connections that repeat requests.
    pub active: u16,
    /// Number of long-lived connections without a request before the end.
    pub idle: u16,
    /// Interval of requests of an active connection.
    pub interval: Duration,
}

/// Offers the load from the calling thread's network namespace until its deadline or until `stop` is ready. `print` gets every line at once
/// and must not block. Fails if a name cannot be resolved at the start.
pub async fn run(options: &LoadOptions, print: impl FnMut(Line), stop: impl Future<Output = ()>) -> Result<LoadSummary, NameError> {
    let mut around = JoinSet::new();
    let sought: Vec<HostPort> = options.aims.iter().map(|aim| options.connect.map_or_else(|| aim.clone(), |ip| aim.at(ip))).collect();
    let found = find(&sought, &mut around).await?;
    let start = Instant::now();
    let (board, print) = (RefCell::new(Board::default()), RefCell::new(print));
    let print = |line| print.borrow_mut()(line);
    print(begin(options));
    let (events, mut happened) = mpsc::unbounded_channel();
    let (over, last) = watch::channel(false);
    let mut flows = hold_all(options, &found, start, &events, &last);
    let choose = |number| {
        let attempt = choose(options, &found, number)?;
        board.borrow_mut().begun();
        Some(attempt)
    };
    let record = |report: &_| board.borrow_mut().record(report).into_iter().for_each(print);
    let offering = async {
        options.load.clone().offer(start, choose, record, stop).await;
        let lasted = start.elapsed();
        over.send_replace(true);
        while flows.join_next().await.is_some() {}
        lasted
    };
    tokio::pin!(offering);
    let mut seconds = interval_at((start + REPORT_INTERVAL).into(), REPORT_INTERVAL);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let lasted = loop {
        tokio::select! {
            lasted = &mut offering => break lasted,
            _ = seconds.tick() => print(board.borrow_mut().tick(start.elapsed())),
            Some(event) = happened.recv() => board.borrow_mut().flow(event).into_iter().for_each(print),
        }
    };
    std::iter::from_fn(|| happened.try_recv().ok()).filter_map(|event| board.borrow_mut().flow(event)).for_each(print);
    let summary = board.borrow().summary(lasted);
    print(Line::Summary(summary.clone()));
    Ok(summary)
}

fn begin(options: &LoadOptions) -> Line {
    Line::Start {
        unix: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        to: options.aims.iter().map(ToString::to_string).collect(),
        rate: options.rate,
        seconds: options.load.lasts.as_secs_f64(),
    }
}

/// The attempt with a number: iterates aims, then protocols, then addresses.
fn choose(options: &LoadOptions, found: &[Arc<FoundAddresses>], number: u64) -> Option<Attempt> {
    let (aims, protos) = (u64::try_from(found.len()).ok()?, u64::try_from(options.protos.len()).ok()?);
    let service = u32::try_from(number.checked_rem(aims)?).ok()?;
    let round = number / aims;
    let proto = *options.protos.get(usize::try_from(round.checked_rem(protos)?).ok()?)?;
    let to = found.get(usize::try_from(service).ok()?)?.address(round / protos)?;
    Some(Attempt { lane: Lane { service, replica: 0 }, proto, to })
}

fn hold_all(
    options: &LoadOptions,
    found: &[Arc<FoundAddresses>],
    start: Instant,
    events: &mpsc::UnboundedSender<FlowEvent>,
    last: &watch::Receiver<bool>,
) -> JoinSet<()> {
    let mut flows = JoinSet::new();
    for (flow, found) in (0..options.active.saturating_add(options.idle)).zip(found.iter().cycle()) {
        let idle = flow >= options.active;
        let rhythm = Rhythm { every: (!idle).then_some(options.interval), last: last.clone() };
        let connection = HeldConnection { flow, idle, start, events: events.clone() };
        flows.spawn(connection.keep(Arc::clone(found), options.load.protocol.clone(), rhythm));
    }
    flows
}

struct HeldConnection {
    flow: u16,
    idle: bool,
    start: Instant,
    events: mpsc::UnboundedSender<FlowEvent>,
}

impl HeldConnection {
    /// Keeps the connection open until its last request is answered; reports and reopens a broken one.
    async fn keep(self, found: Arc<FoundAddresses>, protocol: TargetProtocol, rhythm: Rhythm) {
        for turn in u64::from(self.flow).. {
            let Some(to) = found.address(turn) else { return };
            let attempt = Attempt { lane: Lane { service: 0, replica: 0 }, proto: Proto::Tcp, to };
            let mut open = false;
            let note = |update| match update {
                FlowUpdate::Open { greeting } => {
                    open = true;
                    self.report(attempt, Some(LoadEvent::Open { greeting }));
                }
                FlowUpdate::Answered { .. } => self.report(attempt, None),
                FlowUpdate::Lost => {}
            };
            match hold(attempt, &protocol, rhythm.clone(), self.start, note).await {
                Ok(()) => return self.report(attempt, Some(LoadEvent::Kept)),
                Err(failure) if open => self.report(attempt, Some(LoadEvent::Ended(failure))),
                Err(failure) => self.report(attempt, Some(LoadEvent::NotOpened(failure))),
            }
            if *rhythm.last.borrow() {
                return;
            }
            sleep(REOPEN_DELAY).await;
        }
    }

    fn report(&self, attempt: Attempt, what: Option<LoadEvent>) {
        // The receiver is gone once the load is over.
        let _ = self.events.send(FlowEvent { at: self.start.elapsed(), flow: self.flow, idle: self.idle, to: attempt.to, what });
    }
}
