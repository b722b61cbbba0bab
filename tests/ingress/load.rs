//! New connections of somebody in the tailnet while something changes, begun by the clock: `tailyard load`, as a user runs it.

use std::fmt;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::kubernetes::eventually;
use crate::stage::Stage;
use crate::support::Process;

/// After how many seconds an attempt has failed. A client's kernel asks again after one second, two, three and so on.
const PATIENCE: &str = "5";

/// What became of them.
pub(crate) struct Load {
    summary: Value,
    /// Each that failed.
    pub(crate) failed: Vec<Value>,
}

/// Asks the site and the service of the kernel from before a change until after it.
pub(crate) fn under_load(stage: &Stage, change: impl FnOnce()) -> [Load; 2] {
    let web = stage.name("web");
    let roots = stage.roots.display().to_string();
    let over_https = [format!("{web}:443"), "--https".to_owned(), "--ca".to_owned(), roots];
    let loads = [("web", over_https.to_vec(), "20"), ("plain", vec![format!("{}:7000", stage.name("plain"))], "5")];
    let mut loads = loads.map(|(service, args, rate)| start(stage, service, &args, rate));
    for load in &loads {
        eventually("the load being answered", || (lines(load).iter().any(|line| line["answered"].as_u64() > Some(0))).then_some(()));
    }
    change();
    loads.each_mut().map(|load| {
        load.signal(Signal::SIGTERM);
        load.wait();
        let lines = lines(load);
        let summary = lines.last().filter(|line| line["event"] == "summary").expect("a summary").clone();
        Load { summary, failed: lines.into_iter().filter(|line| line["event"] == "fault").collect() }
    })
}

fn start(stage: &Stage, service: &str, args: &[String], rate: &str) -> Process {
    let address = stage.address(service).expect("a Tailscale Service");
    let mut command = vec![env!("CARGO_BIN_EXE_tailyard"), "load"];
    command.extend(args.iter().map(String::as_str));
    command.extend(["--connect", &address, "--expect", crate::stage::ANSWER, "--rate", rate, "--seconds", "3600", "--patience", PATIENCE]);
    stage.user.spawn(&format!("load-{service}"), &command, &[])
}

fn lines(load: &Process) -> Vec<Value> {
    // The last one may be half written.
    load.output().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

impl Load {
    /// How many were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.summary["answered"]["tcp"].as_u64().unwrap_or_default()
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answered {}, {} failed {:?}", self.answered(), self.summary["answer"], self.failed.len(), self.failed)
    }
}
