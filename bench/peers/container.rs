//! A container as the kubelet has it: a program that is the first process of its own process namespace. When it ends, everything that
//! it started ends with it; the network of its Pod stays.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bench::processor_time;

use super::support::{DEADLINE, Machine, Process, eventually, only_child};

/// How a container's processes are set apart.
const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// A running container.
pub(crate) struct Container {
    outer: Process,
    pid: i32,
}

impl Container {
    /// Starts a program in a Pod.
    pub(crate) fn start(pod: &Machine, argv: &[String], env: &[(&str, &str)]) -> Self {
        let argv: Vec<&str> = UNSHARE.into_iter().chain(argv.iter().map(String::as_str)).collect();
        let outer = pod.spawn("container", &argv, env);
        let pid = eventually("the container's process", DEADLINE, || only_child(outer.id()));
        Self { outer, pid }
    }

    /// The program's process, by its id outside.
    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(self.pid.try_into()?)
    }

    /// The time on a processor of the program and of those children of it that have ended, which tailscaled has not.
    pub(crate) fn used(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        let (_, fields) = stat.rsplit_once(") ").context("a process's stat")?;
        // Of the children in user and in kernel mode, in hundredths of a second.
        let children: u64 = fields.split(' ').skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        Ok(processor_time(self.pid()?)? + Duration::from_millis(children * 10))
    }

    /// Its child of this name, by its id outside.
    pub(crate) fn child(&self, name: &str) -> Result<i32> {
        let named = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid))?;
        let lists = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
        let children: Vec<i32> =
            lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect();
        children.into_iter().find(named).with_context(|| format!("no {name} in the container"))
    }

    /// Kills the program.
    pub(crate) fn kill(&self) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid), Signal::SIGKILL)?)
    }

    /// Kills its child of this name.
    pub(crate) fn kill_child(&self, name: &str) -> Result<()> {
        Ok(kill(Pid::from_raw(self.child(name)?), Signal::SIGKILL)?)
    }

    /// Whether it has ended.
    pub(crate) fn ended(&mut self) -> bool {
        self.outer.ended()
    }

    /// What it has written so far.
    pub(crate) fn output(&self) -> String {
        self.outer.output()
    }

    /// Kills it and waits until it has ended. Told to end while it programs, the Tailscale proxy goes on for longer than any grace.
    pub(crate) fn end(mut self) -> Result<()> {
        self.kill()?;
        eventually("the container's end", DEADLINE, || self.ended().then_some(()));
        Ok(())
    }
}
