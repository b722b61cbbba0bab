//! Load against real targets over the demo's links, without a proxy: the client gets a route to the tailnet.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use super::*;
use crate::demo::target::DemoTarget;
use crate::demo::topology::{Topology, forward_plainly};
use crate::model::diagnostics::load::{Lane, Tally};

/// A client and two targets behind one replica that only routes.
fn plain_path() -> (Topology, Vec<DemoTarget>) {
    let topology = Topology::make(1, 2).expect("namespaces");
    forward_plainly(&topology, 0).expect("routed");
    let targets =
        (0..).zip(&topology.targets).map(|(n, site)| DemoTarget::start(&site.namespace, n, 7000..7002).expect("served")).collect();
    (topology, targets)
}

fn attempt(topology: &Topology, number: u64, port: u16) -> Attempt {
    let [service, family, proto] = [number % 2, number / 2 % 2, number / 4 % 2].map(|n| usize::try_from(n).expect("small"));
    let ip = topology.targets[service].tailnet[family];
    Attempt {
        lane: Lane { service: u32::try_from(service).expect("small"), replica: 0 },
        proto: Proto::ALL[proto],
        to: SocketAddr::new(ip, port),
    }
}

fn offer(topology: &Topology, load: Load, port: u16) -> (Tally, Vec<AttemptReport>) {
    let (mut tally, mut reports) = (Tally::default(), Vec::new());
    let work = load.offer(
        Instant::now(),
        |number| Some(attempt(topology, number, port)),
        |report| {
            tally.record(report, false);
            reports.push(*report);
        },
        std::future::pending(),
    );
    let runtime = || {
        topology.client.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(work);
        })
    };
    runtime().expect("the thread");
    (tally, reports)
}

fn rate(per_second: u32) -> LoadSchedule {
    LoadSchedule::new(NonZeroU32::new(per_second).expect("not zero"))
}

#[test]
fn every_attempt_is_made_and_every_answer_identifies_its_server() {
    let (topology, _targets) = plain_path();
    let (tally, reports) = offer(&topology, Load::new(rate(400), Duration::from_secs(1)), 7001);
    assert_eq!((tally.answered(), tally.answered_over(Proto::Udp)), (400, 200), "{:?}", tally.faults());
    for report in reports {
        let identity = report.outcome.expect("answered");
        assert_eq!((u32::from(identity.target), identity.port), (report.attempt.lane.service, 7001));
        assert!(report.began >= report.due, "nothing is begun early: {report:?}");
    }
}

#[test]
fn a_closed_port_is_refused_over_both_protocols() {
    let (topology, _targets) = plain_path();
    let (tally, _) = offer(&topology, Load::new(rate(80), Duration::from_millis(100)), 6999);
    assert_eq!(tally.failed().iter().collect::<Vec<_>>(), [(&AttemptFailure::Refused, &8)]);
}

#[test]
fn attempts_over_the_in_flight_limit_are_generator_failures() {
    let (topology, targets) = plain_path();
    // Links of stopped targets stay; without links there is no answer, not even a refusal.
    drop(targets);
    for site in &topology.targets {
        let down = || std::process::Command::new("ip").args(["link", "set", "ts0", "down"]).status();
        assert!(site.namespace.run(down).expect("the thread").expect("ip is installed").success());
    }
    let load = Load { max_in_flight: 5, timeout: Duration::from_millis(200), ..Load::new(rate(200), Duration::from_millis(50)) };
    let (tally, reports) = offer(&topology, load, 7001);
    assert_eq!(tally.failed().iter().collect::<Vec<_>>(), [(&AttemptFailure::Timeout, &5), (&AttemptFailure::NotSent, &5)]);
    assert_eq!(reports.len(), 10, "a silent server does not slow the offered load");
}

#[tokio::test]
async fn fresh_ports_differ_and_are_below_the_ephemeral_ones() {
    let to = SocketAddr::from(([127, 0, 0, 1], 9));
    let port = |_| from_fresh_port(to).and_then(|socket| socket.local_addr()).expect("a port").port();
    let ports: std::collections::BTreeSet<u16> = (0..200).map(port).collect();
    assert_eq!((ports.len(), ports.range(32_768..).count()), (200, 0), "{ports:?}");
}

#[tokio::test]
async fn attempts_started_too_late_are_generator_failures() {
    let load = Load { timeout: Duration::from_secs(2), ..Load::new(rate(100), Duration::from_millis(100)) };
    // Simulates a generator without CPU time for five seconds.
    let start = Instant::now().checked_sub(Duration::from_secs(5)).expect("a machine that runs for longer");
    let to = SocketAddr::from(([127, 0, 0, 1], 9));
    let attempt = Attempt { lane: Lane { service: 0, replica: 0 }, proto: Proto::Tcp, to };
    let mut reports = Vec::new();
    load.offer(start, |_| Some(attempt), |report| reports.push(*report), std::future::pending()).await;
    let outcomes: Vec<_> = reports.iter().map(|report| report.outcome).collect();
    assert_eq!(outcomes, [Err(AttemptFailure::NotSent); 10], "no packet is sent");
}
