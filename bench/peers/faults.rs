//! How do clients experience a killed supervisor and a killed tailscaled, compared with the Tailscale operator's proxy?
//!
//! One replica, so that no other one hides the fault. Both systems have the fault at the same time: most of the duration is waiting, and
//! the load of the machine is equal. The kubelet is simulated: a container that has ended is restarted after a second, like a kubelet's
//! first restart.

use std::num::NonZeroU32;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tailyard::load::Load;
use tailyard::model::diagnostics::load::{AttemptReport, LoadSchedule};

use crate::peers::pod::{Pod, service};
use crate::peers::probe::{all_live, attempt, sample};
use crate::peers::stage::{Stage, on_stage};
use crate::peers::system::System;
use crate::support::{Args, Point, Sheet, at_once, ratios};
use crate::traffic::outcome::LoadOutcome;

/// How many services there are.
const SIZE: u16 = 100;
/// New connections each second.
const RATE: u32 = 200;
/// How long a client waits.
const PATIENCE: Duration = Duration::from_secs(3);
/// When the fault happens.
const CALM: Duration = Duration::from_secs(1);
/// How long is measured: longer than the longest time without an answer that was seen.
const LASTS: Duration = Duration::from_secs(12);
/// The same where it is only to be shown that it works.
const BRIEF: Duration = Duration::from_secs(5);
/// How long a container stays ended.
const RESTART: Duration = Duration::from_secs(1);

/// The killed process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The process that supervises.
    Supervisor,
    /// The first process of the container, and all others with it.
    Container,
    Tailscaled,
    /// tailscaled, whose state is in a Secret, while the API server does not answer.
    TailscaledApart,
    /// Nothing, while the API server does not answer.
    Apart,
}

/// Samples of one system.
struct Samples {
    system: System,
    fault: Fault,
    lasts: Duration,
    failed: Vec<f64>,
    gap: Vec<f64>,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    on_stage(
        args,
        "Supervisor or tailscaled killed under 200 new connections a second, one replica, beside the Tailscale operator's proxy",
        measure,
    )
}

fn measure(stage: &Stage, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let lasts = if args.quick { BRIEF } else { LASTS };
    let nothing = |(fault, system): (Fault, &System)| Samples { system: *system, fault, lasts, failed: Vec::new(), gap: Vec::new() };
    let faults: &[Fault] = if args.quick { &[Fault::TailscaledApart] } else { &Fault::ALL };
    // The firewalls differ only in the time until lost rules are restored.
    let systems = |fault: Fault| if !args.quick && fault.is_alone() { &System::ALL[..] } else { &System::ALL[..2] };
    let pairs = faults.iter().flat_map(|fault| systems(*fault).iter().map(move |system| (*fault, system)));
    let mut all: Vec<Samples> = pairs.map(nothing).collect();
    for _ in 0..args.repetitions(5) {
        // Our proxy and the Tailscale operator's with the same firewall run side by side.
        all.chunks_exact_mut(2).try_for_each(|pair| take(stage, pair))?;
    }
    report(sheet, &all);
    Ok(())
}

/// Starts new Pods, injects the fault into all of them, and records the clients' outcome.
fn take(stage: &Stage, taken: &mut [Samples]) -> Result<()> {
    let pods = Pod::started_together(stage, taken.iter().map(|taken| taken.system), SIZE)?;
    pods.iter().try_for_each(|pod| all_live(stage, pod, SIZE))?;
    at_once(taken.iter_mut().zip(pods).map(|(taken, mut pod)| move || taken.take(stage, &mut pod))).map(drop)
}

impl Fault {
    const ALL: [Self; 5] = [Self::Supervisor, Self::Container, Self::Tailscaled, Self::TailscaledApart, Self::Apart];

    /// Whether one process is all that is lost.
    fn is_alone(self) -> bool {
        matches!(self, Self::Supervisor | Self::Tailscaled)
    }

    fn is_apart(self) -> bool {
        matches!(self, Self::TailscaledApart | Self::Apart)
    }

    fn happen(self, stage: &Stage, pod: &mut Pod<'_>) -> Result<()> {
        if self.is_apart() {
            stage.cluster.freeze_server();
        }
        match self {
            Self::Supervisor => pod.container()?.kill_supervisor(),
            Self::Container => pod.container()?.kill(),
            Self::Tailscaled | Self::TailscaledApart => pod.container()?.kill_child("tailscaled"),
            Self::Apart => Ok(()),
        }
    }

    fn pass(self, stage: &Stage) {
        if self.is_apart() {
            stage.cluster.thaw_server();
        }
    }

    fn plot(self, of: &str) -> String {
        let what = match self {
            Self::Supervisor => "supervisor killed",
            Self::Container => "container killed",
            Self::Tailscaled => "tailscaled killed",
            Self::TailscaledApart => "tailscaled killed without the API server",
            Self::Apart => "no API server",
        };
        format!("{what}: {of}")
    }
}

impl Samples {
    /// Injects the fault into a Pod under load.
    fn take(&mut self, stage: &Stage, pod: &mut Pod<'_>) -> Result<()> {
        let load = Load { timeout: PATIENCE, ..Load::new(LoadSchedule::new(NonZeroU32::new(RATE).context("not zero")?), self.lasts) };
        let attempts: Vec<_> = sample(SIZE).into_iter().map(|number| attempt(pod, number)).collect();
        let choose = |number: u64| attempts.get(usize::try_from(number).ok()? % attempts.len()).copied();
        let (mut reports, begun) = (Vec::new(), Instant::now());
        let offer = || stage.client.node.ns.block_on(|| load.offer(begun, choose, |report| reports.push(*report), std::future::pending()));
        std::thread::scope(|scope| {
            let offering = scope.spawn(offer);
            sleep(CALM);
            self.fault.happen(stage, pod)?;
            let fate = keep(pod, begun + self.lasts);
            self.fault.pass(stage);
            offering.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
            fate
        })?;
        let met = judge(&reports, self.lasts)?;
        self.failed.push(f64::from(u32::try_from(met.failed)?));
        self.gap.push(met.gap.as_secs_f64());
        Ok(())
    }
}

/// Starts the container again whenever it has ended, as the kubelet does.
fn keep(pod: &mut Pod<'_>, until: Instant) -> Result<()> {
    while Instant::now() < until {
        if pod.container()?.ended() {
            sleep(RESTART);
            pod.start();
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The clients' outcome; an answer of a wrong target is an error.
fn judge(reports: &[AttemptReport], lasts: Duration) -> Result<LoadOutcome> {
    let wrong = |report: &&AttemptReport| {
        u16::try_from(report.attempt.lane.service).is_ok_and(|number| report.outcome.is_ok_and(|by| by != service(number).identity()))
    };
    ensure!(reports.iter().find(wrong).is_none(), "answered by a wrong target");
    LoadOutcome::of(reports, lasts)
}

fn report(sheet: &mut Sheet, all: &[Samples]) {
    for Samples { system, fault, lasts, failed, gap } in all {
        let point = |of: &str| Point::of(&fault.plot(of), system.name, SIZE);
        let goal = (*fault == Fault::Apart).then_some("≤ 0");
        sheet.plot(point("failed connects"), &format!("of {}", u64::from(RATE) * lasts.as_secs()), failed.clone(), goal);
        sheet.plot(point("longest time without an answer"), "s", gap.clone(), None);
        // An API server outage alone must not fail connections.
        let rival = all.iter().find(|other| other.fault == *fault && Some(other.system) == system.rival());
        if let Some(theirs) = rival.filter(|_| *fault != Fault::Apart) {
            let what = format!("{}, {}: ours to theirs", fault.plot("failed connects"), system.firewall);
            sheet.add(what, "ratio", ratios(failed, &theirs.failed), Some("≤ 0.05"));
        }
    }
}
