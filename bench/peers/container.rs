//! A container as in a Pod: its first process is the init of a process namespace. When it ends, all its processes end; the network of the
//! Pod stays. Our image runs the supervisor in a process of its own; in the Tailscale image it is the first process.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use kit::machine::{DEADLINE, Machine, Process, child};
use kit::wait::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::processor_time;

/// A running container.
pub(crate) struct Container(Process);

impl Container {
    /// Starts a program in a Pod.
    pub(crate) fn start(pod: &Machine, argv: &[String], env: &[(&str, &str)]) -> Self {
        Self(pod.contain("container", &argv.iter().map(String::as_str).collect::<Vec<_>>(), env))
    }

    /// The first process, and the supervisor where that is another one, by their ids outside.
    pub(crate) fn programs(&self) -> Result<Vec<u32>> {
        let supervisor = child(self.0.id(), "tailyard").map(u32::try_from).transpose()?;
        Ok([Some(self.0.id()), supervisor].into_iter().flatten().collect())
    }

    /// The time on a processor of its programs and of those children of them that have ended, which tailscaled has not.
    pub(crate) fn used(&self) -> Result<Duration> {
        self.programs()?.into_iter().map(used).sum()
    }

    /// The host process id of this child process of a program.
    pub(crate) fn child(&self, name: &str) -> Result<i32> {
        self.programs()?.into_iter().find_map(|program| child(program, name)).with_context(|| format!("no {name} in the container"))
    }

    /// Kills the supervisor.
    pub(crate) fn kill_supervisor(&self) -> Result<()> {
        kill_by(self.programs()?.pop().context("a container has a process")?)
    }

    /// Kills the first process.
    pub(crate) fn kill(&self) -> Result<()> {
        kill_by(self.0.id())
    }

    /// Kills its child of this name.
    pub(crate) fn kill_child(&self, name: &str) -> Result<()> {
        Ok(kill(Pid::from_raw(self.child(name)?), Signal::SIGKILL)?)
    }

    /// Whether it has ended.
    pub(crate) fn ended(&mut self) -> bool {
        self.0.ended()
    }

    /// The output so far.
    pub(crate) fn output(&self) -> String {
        self.0.output()
    }

    /// Kills it and waits. After SIGTERM during programming the Tailscale proxy continues for longer than any grace period.
    pub(crate) fn end(mut self) -> Result<()> {
        self.kill()?;
        eventually("the container's end", DEADLINE, || self.ended().then_some(()));
        Ok(())
    }
}

fn kill_by(pid: u32) -> Result<()> {
    Ok(kill(Pid::from_raw(pid.try_into()?), Signal::SIGKILL)?)
}

/// The time on a processor of a process and of its children that have ended.
fn used(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("a process's stat")?;
    // Of the children in user and in kernel mode, in hundredths of a second.
    let children: u64 = fields.split(' ').skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Ok(processor_time(pid)? + Duration::from_millis(children * 10))
}
