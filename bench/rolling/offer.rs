//! New connections from a node to a Service for as long as something happens.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tailyard::edge::conntrack::Conntrack;
use tailyard::edge::netns::Namespace;
use tailyard::load::Load;
use tailyard::load::protocol::TargetProtocol;
use tailyard::model::base::net::Proto;
use tailyard::model::diagnostics::load::{Attempt, AttemptFailure, Lane, LoadSchedule};
use tailyard::model::flows::flow::FlowFilter;
use tokio::sync::oneshot;

use crate::traffic::outcome::LoadOutcome;

/// Timeout of a connection: longer than the second handshake attempt of `WireGuard` after 5 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer than anything that happens.
const LONGEST: Duration = Duration::from_mins(10);

/// From where, and whereto.
pub(crate) struct LoadRoute {
    pub(crate) from: Namespace,
    pub(crate) to: SocketAddr,
    /// Prefix of the right target's greeting.
    pub(crate) greeting: &'static str,
}

impl LoadRoute {
    /// Opens connections at this rate until the event is over; fails if one reaches another target.
    pub(crate) fn loaded<T>(&self, rate: u32, happen: impl FnOnce() -> T) -> Result<(T, LoadOutcome)> {
        let protocol = TargetProtocol::Greeting(self.greeting.as_bytes().into());
        let schedule = LoadSchedule::new(NonZeroU32::new(rate).context("not zero")?);
        // A reused port would repeat a failure of up to two minutes before.
        let load = Load { protocol, timeout: PATIENCE, fresh_ports: true, ..Load::new(schedule, LONGEST) };
        let attempt = Attempt { lane: Lane { service: 0, replica: 0 }, proto: Proto::Tcp, to: self.to };
        let (mut reports, begun) = (Vec::new(), Instant::now());
        // The load also ends if the event panics.
        let (halt, halted) = oneshot::channel::<()>();
        let offer = || {
            let halted = async { drop(halted.await) };
            self.from.block_on(|| load.offer(begun, |_| Some(attempt), |report| reports.push(*report), halted))
        };
        let (happened, lasts) = std::thread::scope(|scope| {
            let offering = scope.spawn(offer);
            let happened = happen();
            let lasts = begun.elapsed();
            drop(halt);
            offering.join().map_err(|_| anyhow!("the load panicked"))??;
            anyhow::Ok((happened, lasts))
        })?;
        let wrong = [Err(AttemptFailure::WrongTarget), Err(AttemptFailure::Garbled)];
        ensure!(reports.iter().all(|report| !wrong.contains(&report.outcome)), "answered by a wrong target");
        Ok((happened, LoadOutcome::of(&reports, lasts)?))
    }

    /// Deletes the node's conntrack entries of these connections: an unanswered one is remembered for two minutes, and a connection from
    /// the same source port would go to the same endpoint, even if it is gone.
    pub(crate) fn forget(&self) -> Result<()> {
        let forgotten = self.from.run(|| {
            let mut conntrack = Conntrack::open()?;
            let flows = conntrack.flows(FlowFilter::forwarded())?;
            conntrack.delete_all(flows.iter().filter(|flow| flow.original.destination == self.to))
        })?;
        forgotten.map(drop).context("the node's connection tracking")
    }
}
