//! Soak test: a group under load for a long time, with continuous config changes and one fault after the other. Outside the windows of
//! docs/failures.md nothing may be lost or misdelivered, and memory and file descriptors may not grow.
//!
//! `make soak` runs it for an hour (`SOAK_SECONDS`) with a seed that it prints; `SOAK_SEED` repeats a run. A seed always has the same
//! schedule, but timing depends on the machine. By default the run is short and the seed fixed. The requirements are those of the kube
//! tests.

use std::num::NonZeroU32;
use std::thread;
use std::time::Duration;

use tailyard::demo::replicas::{DemoTailnet, Launch};
use tailyard::demo::scenario::Script;
use tailyard::demo::screen::Screen;
use tailyard::demo::topology::Topology;
use tailyard::demo::{DemoOptions, TARGETS, play as on_stage};
use tokio::sync::oneshot;

use kit::setting;

mod api;
mod daemon;
mod growth;
mod play;
mod pod;
mod schedule;
mod state;

use api::Api;
use growth::{Samples, grown, thirds};
use play::Play;
use schedule::{REPLICAS, STRUCK, Schedule};

/// Default duration in seconds, and default seed.
const SECONDS: u64 = 35;
const SEED: u64 = 6;
/// New connections and flows per second: a busy machine with two processors sustains this rate without optimization.
const RATE: u32 = 100;

/// Grace period of a replica. It is short compared with a Pod's 30 s, so that many replicas leave, and long enough to reserve a second for
/// resets, which a busy machine needs.
const GRACE: Duration = Duration::from_secs(6);

#[test]
fn soak_loses_no_connection_and_grows_no_resource() {
    let topology = Topology::make(REPLICAS, TARGETS).expect("namespaces");
    thread::scope(|scope| {
        let (api_sender, api) = oneshot::channel();
        scope.spawn(|| api::run(&topology, api_sender));
        soak(&topology, &api.blocking_recv().expect("an API server"));
    });
}

fn soak(topology: &Topology, api: &Api) {
    let (lasts, seed) = (Duration::from_secs(setting("SOAK_SECONDS").unwrap_or(SECONDS)), setting("SOAK_SEED").unwrap_or(SEED));
    println!("SOAK_SEED={seed} SOAK_SECONDS={}", lasts.as_secs());
    let directory = tempfile::tempdir().expect("a directory");
    let launch = Launch {
        executable: pod::program(directory.path(), &api.account),
        backend: setting("SOAK_BACKEND").unwrap_or_else(|| "nftables".to_owned()),
        tailnet: DemoTailnet::Daemon(daemon::program(directory.path())),
        egress: directory.path().join("egress"),
        directory: directory.path().to_owned(),
        grace: GRACE,
        api: Some(api.address),
    };
    for replica in 0..REPLICAS {
        daemon::prepare(&launch.own(replica.into()), replica);
    }
    let rate = NonZeroU32::new(setting("SOAK_RATE").unwrap_or(RATE)).expect("some load");
    let options = DemoOptions { replicas: REPLICAS, services: 12, lasts, rate, seed, launch };
    let schedule = Schedule::of(seed, lasts);
    let (changes, troubles) = (schedule.changes.len(), schedule.troubles.len());
    let mut samples = Samples::new();
    let mut renames = Vec::new();
    let play = async |script: &mut Script<'_>| {
        let mut play = Play::new(script, api);
        play.play(schedule, lasts, &mut samples).await?;
        play.end().await?;
        renames = play.renames;
        Ok(())
    };
    let summary = on_stage(topology, &options, None::<&mut Screen<Vec<u8>>>, play).expect("the stage");
    println!("{changes} changes and {troubles} troubles were due\n{summary}");
    println!("names were followed by all after {renames:.0?}");
    let longest = |samples: &&Vec<growth::Sample>| samples.len();
    let mut lived: Vec<_> = samples.values().collect();
    lived.sort_by_key(longest);
    let elder = lived.last().expect("a process was measured");
    println!("memory (kB) and descriptors of a replica that nothing befell, first and last third: {:?}", thirds(elder));
    let grew = grown(elder);
    if !(summary.ok && grew.is_empty()) {
        println!("what the replicas said is in {}", directory.keep().display());
    }
    assert!(summary.ok && grew.is_empty(), "seed {seed}: {grew:?} {summary:#?}");
    assert_eq!(summary.connections.offered, u64::from(rate.get()) * lasts.as_secs(), "the load was offered in full");
    assert!(samples.len() > STRUCK, "replicas were started anew");
}
