//! Runs the chosen tiers, in the root of the workspace: a thread waits for each running tier, the main thread schedules and prints.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::args::Options;
use super::cargo::{self, Members};
use super::events::{Output, parse};
use super::process::{self, Busy};
use super::report::{Report, ended, list, say};
use super::schedule::{Job, Stage, next};
use super::servers::{self, Built};
use super::table::Table;
use super::verdict::{Fault, Outcome, faults};

#[derive(Debug)]
enum News {
    Servers(Built),
    Ended(usize, Outcome),
}

impl From<Built> for News {
    fn from(built: Built) -> Self {
        Self::Servers(built)
    }
}

/// The servers of one tier.
#[derive(Debug, Clone)]
enum Servers {
    Building,
    /// Seconds of the build.
    Built(f64),
    Failed(String),
}

/// Servers that are built already are reported one after the other, each within this time.
const REPORTED_WITHIN: Duration = Duration::from_millis(500);

/// All rounds of a run. Vectors are parallel: one element for each chosen tier.
#[derive(Debug)]
struct Runner {
    members: Vec<Members>,
    servers: Vec<Servers>,
    jobs: Vec<Job>,
    outcomes: Vec<Outcome>,
    options: Options,
    begin: Instant,
    sender: Sender<News>,
    reports: Receiver<News>,
}

/// Runs the selected tiers. True if every test passed.
pub(super) fn run(table: &'static Table, options: Options) -> Result<bool, String> {
    if options.list {
        say(list(table).trim_end());
        return Ok(true);
    }
    let tiers = options.select(table)?;
    process::handle_signals().map_err(|error| format!("signals: {error}"))?;
    if options.build_only {
        return cargo::build(table, &tiers).map(|_| true);
    }
    let (sender, reports) = channel();
    let _builds = servers::build(table.servers, &tiers, &sender);
    let programs = if options.no_build { cargo::last_build() } else { cargo::build(table, &tiers) }?;
    let members = cargo::members(table, &tiers, &programs)?;
    let _busy = Busy::start(options.busy).map_err(|error| format!("busy processes: {error}"))?;

    let servers = tiers.iter().map(|tier| if tier.servers.is_empty() { Servers::Built(0.0) } else { Servers::Building }).collect();
    let job = |members: &Members| Job {
        slots: members.tier.slots,
        resource: members.tier.resource,
        expected: members.tier.expected,
        stage: Stage::Waiting,
    };
    let (jobs, begin, rounds) = (members.iter().map(job).collect(), Instant::now(), options.repeat);
    let mut runner = Runner { members, servers, jobs, outcomes: Vec::new(), options, begin, sender, reports };
    for round in 1..=rounds {
        runner.round(round);
        if process::stopped() {
            break;
        }
    }
    let report = Report::new(&tiers, &runner.outcomes, rounds, begin.elapsed().as_secs_f64());
    say(&report.text());
    let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
    let path = cargo::target_directory().join("tiers.json");
    fs::write(&path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(report.passed())
}

impl Runner {
    fn round(&mut self, round: u32) {
        if self.options.repeat > 1 {
            say(&format!("round {round} of {}", self.options.repeat));
        }
        for id in 0..self.jobs.len() {
            self.jobs[id].stage = Stage::Waiting;
            self.settle(id, round);
        }
        // The longest tiers need servers: without them, shorter tiers would take their slots.
        while self.is_building()
            && let Ok(report) = self.reports.recv_timeout(REPORTED_WITHIN)
        {
            self.handle(report, round);
        }
        loop {
            if !process::stopped() {
                // The compiler of the servers takes a slot.
                let budget = self.options.jobs.saturating_sub(u32::from(self.is_building())).max(1);
                for id in next(&self.jobs, budget) {
                    self.start(id, round);
                }
            }
            let any = |stage| self.jobs.iter().any(|job| job.stage == stage);
            if !any(Stage::Running) && (process::stopped() || !any(Stage::Waiting)) {
                break;
            }
            // This value has a sender of its own: the channel never closes.
            match self.reports.recv() {
                Ok(report) => self.handle(report, round),
                Err(_) => break,
            }
        }
        for id in 0..self.jobs.len() {
            if self.jobs[id].stage != Stage::Ended {
                let fault = Fault::of_tier("did not start", String::new());
                self.outcomes.push(self.outcome(id, round, vec![fault]));
            }
        }
    }

    fn handle(&mut self, report: News, round: u32) {
        match report {
            News::Servers(built) => self.servers_built(&built, round),
            News::Ended(id, outcome) => self.end(id, outcome),
        }
    }

    fn is_building(&self) -> bool {
        self.servers.iter().any(|servers| matches!(servers, Servers::Building))
    }

    fn servers_built(&mut self, built: &Built, round: u32) {
        for &id in &built.tiers {
            self.servers[id] = match &built.result {
                Ok(()) => Servers::Built(self.begin.elapsed().as_secs_f64()),
                Err(reason) => Servers::Failed(reason.clone()),
            };
            self.settle(id, round);
        }
    }

    /// Moves a waiting tier on if its servers are built, or never will be.
    fn settle(&mut self, id: usize, round: u32) {
        match &self.servers[id] {
            Servers::Building => {}
            Servers::Built(_) => self.jobs[id].stage = Stage::Ready,
            Servers::Failed(reason) => {
                let fault = Fault::of_tier(reason, String::new());
                self.end(id, self.outcome(id, round, vec![fault]));
            }
        }
    }

    fn start(&mut self, id: usize, round: u32) {
        self.jobs[id].stage = Stage::Running;
        let (members, only, sender) = (self.members[id].clone(), self.options.only.clone(), self.sender.clone());
        let mut outcome = self.outcome(id, round, Vec::new());
        say(&format!("tier {}: started", members.tier.name));
        thread::spawn(move || {
            let begin = Instant::now();
            match execute(&members, only.as_deref()) {
                Ok((output, faults)) => (outcome.output, outcome.faults) = (output, faults),
                Err(reason) => outcome.faults.push(Fault::of_tier(reason, String::new())),
            }
            outcome.seconds = begin.elapsed().as_secs_f64();
            // The main thread receives as long as a tier runs.
            let _received = sender.send(News::Ended(id, outcome));
        });
    }

    fn end(&mut self, id: usize, outcome: Outcome) {
        self.jobs[id].stage = Stage::Ended;
        say(&ended(&outcome, self.members[id].tier));
        if self.options.fail_fast && !outcome.faults.is_empty() {
            process::stop();
        }
        self.outcomes.push(outcome);
    }

    /// An outcome without tests.
    fn outcome(&self, id: usize, round: u32, faults: Vec<Fault>) -> Outcome {
        let wait = if let Servers::Built(seconds) = self.servers[id] { seconds } else { 0.0 };
        Outcome { tier: self.members[id].tier.name, round, output: Output::default(), faults, wait, seconds: 0.0 }
    }
}

/// Runs the process of a tier.
fn execute(members: &Members, only: Option<&str>) -> Result<(Output, Vec<Fault>), String> {
    let Members { tier, program, tests } = members;
    let tests: Vec<&String> = tests.iter().filter(|test| test.starts_with(only.unwrap_or_default())).collect();
    if tests.is_empty() {
        return Err("no test is selected".to_owned());
    }
    // Files, not pipes: a child of a test that outlives it may keep a pipe open.
    let [stdout, stderr] = ["out", "err"].map(|extension| cargo::target_directory().join(format!("tiers/{}.{extension}", tier.name)));
    let mut command = process::command(&program.path);
    command.arg(format!("--test-threads={}", tier.threads));
    command.args(["-Z", "unstable-options", "--report-time", "--show-output", "--format", "json"]);
    if !tier.modules.is_empty() || only.is_some() {
        // A filter without --exact would match the middle of a name.
        command.arg("--exact").args(&tests);
    }
    command
        .env("RUSTC_BOOTSTRAP", "1")
        // Servers in Go are short of processor time, not of memory: they collect garbage less often.
        .env("GOGC", "300")
        .env(crate::PROGRAMS_BUILT, "1")
        .env("CARGO_MANIFEST_DIR", &program.directory)
        .current_dir(&program.directory);
    command.stdout(process::create(&stdout)?).stderr(process::create(&stderr)?);
    let limit = Duration::from_secs(tier.limit.into());
    let end = process::run(&mut command, limit).map_err(|error| format!("{}: {error}", program.path.display()))?;
    let output = parse(&read(&stdout)?);
    let faults = faults(&output, end, &read(&stderr)?);
    Ok((output, faults))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|error| format!("{}: {error}", path.display()))
}
