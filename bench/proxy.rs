//! One real proxy between a client and a target, with any number of services: used by most benchmarks.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use tailyard::demo::replicas::{DemoTailnet, Launch, ReplicaProcess, is_ready};
use tailyard::demo::services::{DemoService, Volume};
use tailyard::demo::topology::Topology;

use crate::support::backend;

/// Upper bound until a proxy is ready.
const READY: Duration = Duration::from_mins(1);

/// A directory of the benchmark's own, removed with it.
#[derive(Debug)]
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// Makes it.
    pub(crate) fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("tailyard-bench-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Leftovers are small and in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running proxy with its config.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// Its process.
    pub(crate) replica: ReplicaProcess,
    /// Its config.
    pub(crate) volume: Volume,
    _scratch: Scratch,
}

impl Proxy {
    /// Starts the proxy of a replica with this number of services, all with target 0, and waits until it is ready.
    pub(crate) fn start(topology: &Topology, number: usize, services: u16) -> Result<Self> {
        let scratch = Scratch::make()?;
        let mut volume = Volume::make(scratch.0.join("egress"))?;
        volume.write(topology, (0..services).map(|number| DemoService { number, target: 0 }))?;
        let launch = Launch {
            executable: kit::tailyard().into(),
            backend: backend(),
            tailnet: DemoTailnet::File,
            egress: volume.path().to_owned(),
            directory: scratch.0.clone(),
            grace: Duration::from_secs(1),
            api: None,
        };
        let mut replica = ReplicaProcess::prepare(topology, number, &launch)?.context("there is no such replica")?;
        replica.start(&launch)?;
        let until = Instant::now() + READY;
        let admin = replica.admin();
        while !topology.client.block_on(|| is_ready(admin))? {
            if Instant::now() > until || replica.ended()?.is_some() {
                bail!("the proxy was not ready:\n{}", std::fs::read_to_string(replica.log()).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { replica, volume, _scratch: scratch })
    }

    /// Ends the process in order.
    pub(crate) fn end(mut self) -> Result<()> {
        self.replica.signal(Signal::SIGTERM);
        let until = Instant::now() + READY;
        while self.replica.pid().is_some() {
            if self.replica.ended()?.is_some_and(|status| !status.success()) || Instant::now() > until {
                bail!("the proxy did not end in order:\n{}", std::fs::read_to_string(self.replica.log()).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}
