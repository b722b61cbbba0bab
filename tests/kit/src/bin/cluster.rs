//! `make cluster`: a real cluster on a real tailnet on this machine, for manual tests. `up` starts a background process that owns the
//! cluster; `down` ends that process and with it everything, in any state.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for developers, made of what the tests use"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use clap::Parser;
use kit::cluster::node::{import_args, sweep};
use kit::cluster::{Cluster, PROGRAMS, commands};
use kit::root;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// The directory of everything about the running cluster.
fn place() -> PathBuf {
    root().join("target/cluster")
}

/// A real Kubernetes cluster beside a real tailnet, on this machine.
#[derive(Parser)]
enum Args {
    /// Start it
    Up {
        /// How many nodes
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
        nodes: u8,
    },
    /// End it; nothing is left
    Down,
    /// Print the state of the cluster
    Status,
    /// Import an image on every node
    LoadImage {
        /// The image's archive [default: the output of `make image`]
        file: Option<PathBuf>,
    },
    /// Be the process that keeps it
    #[command(hide = true)]
    Keep {
        /// How many nodes
        nodes: u8,
    },
}

/// A running cluster, as `up` leaves it behind.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The owner process.
    keeper: i32,
    /// When that process began, in the kernel's ticks: no other process has both.
    began: String,
    /// Where logs, keys and sockets are.
    dir: PathBuf,
    /// Where the programs are.
    bin: PathBuf,
    /// The nodes' first processes, by name.
    nodes: Vec<(String, i32)>,
}

fn main() -> ExitCode {
    match Args::parse() {
        Args::Up { nodes } => up(nodes),
        Args::Down => down(),
        Args::Status => status(),
        Args::LoadImage { file } => load_image(&file.unwrap_or_else(|| root().join("target/image/tailyard.tar"))),
        Args::Keep { nodes } => keep(nodes),
    }
}

#[allow(clippy::zombie_processes, reason = "the keeper outlives this process")]
fn up(nodes: u8) -> ExitCode {
    if Record::running().is_some() {
        eprintln!("It is up already; `make cluster-down` ends it.");
        return usage();
    }
    kit::servers::servers(&PROGRAMS);
    let _ = fs::remove_dir_all(place());
    fs::create_dir_all(place()).expect("a directory");
    let log = fs::File::create(place().join("log")).expect("a log");
    let mut keeper = Command::new("setsid")
        .arg(std::env::current_exe().expect("this program"))
        .args(["keep", &nodes.to_string()])
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .spawn()
        .expect("setsid");
    loop {
        if Record::running().is_some() {
            return usage();
        }
        if let Some(ended) = keeper.try_wait().expect("a child") {
            eprintln!("It did not start ({ended}):\n{}", fs::read_to_string(place().join("log")).unwrap_or_default());
            return ExitCode::FAILURE;
        }
        thread::park_timeout(Duration::from_millis(100));
    }
}

/// Starts the cluster, prints its location, and waits for SIGTERM.
fn keep(nodes: u8) -> ExitCode {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().expect("blocked");
    let cluster = Cluster::start(nodes);
    let keeper = i32::try_from(std::process::id()).expect("a process id");
    let record = Record {
        keeper,
        began: began(keeper).expect("this process"),
        dir: cluster.tailnet.dir().to_owned(),
        bin: cluster.bin.clone(),
        nodes: cluster.nodes.iter().map(|node| (node.name.clone(), node.machine.pid())).collect(),
    };
    commands::write(&cluster, &place());
    fs::copy(&cluster.control.kubeconfig, place().join("kubeconfig")).expect("written");
    fs::write(place().join("key"), cluster.tailnet.key()).expect("written");
    record.write();
    signals.wait().expect("a signal");
    drop(cluster);
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    let Some(record) = Record::running() else {
        eprintln!("No cluster is up; `make cluster` starts one.");
        return ExitCode::FAILURE;
    };
    let place = "target/cluster";
    println!(
        "A cluster of {} nodes is up, on a tailnet of its own.\n
  {place}/kubectl get pods -A          as the administrator
  {place}/helm list -A                 as the administrator
  {place}/node n1 nft list ruleset     anything on a node: n1 to n{}
  {place}/headscale nodes list         the tailnet's control server: https://hs.lab:8443
  {place}/key                          a key with which nodes join it
  {place}/kubeconfig                   for programs in the control plane's network:
                                              as {place}/kubectl enters it
  make image cluster-load-image               the image of this checkout, on every node
  make cluster-down                           ends it; nothing is left\n
Logs are in {}.",
        record.nodes.len(),
        record.nodes.len(),
        record.dir.display()
    );
    ExitCode::SUCCESS
}

fn status() -> ExitCode {
    let shown = usage();
    if shown == ExitCode::SUCCESS {
        let ended = Command::new(place().join("kubectl")).args(["get", "nodes,pods", "-A", "-o", "wide"]).status();
        assert!(ended.expect("kubectl").success(), "the API does not answer");
    }
    shown
}

fn load_image(file: &Path) -> ExitCode {
    let Some(record) = Record::running() else {
        return usage();
    };
    let file = file.canonicalize().unwrap_or_else(|fault| panic!("{}: {fault}", file.display()));
    for (name, pid) in &record.nodes {
        let mut enter = Command::new("nsenter");
        enter.args(["-t", &pid.to_string(), "-m", "-u", "-n", "-p", "-C", "--"]).arg(record.bin.join("ctr")).args(import_args(&file));
        assert!(enter.status().expect("nsenter").success(), "{name} does not take {}", file.display());
    }
    ExitCode::SUCCESS
}

fn down() -> ExitCode {
    if let Some(record) = Record::running() {
        kill(Pid::from_raw(record.keeper), Signal::SIGTERM).expect("its keeper");
        while Record::running().is_some() {
            thread::park_timeout(Duration::from_millis(50));
        }
    }
    // Leftovers of a killed owner process: its child processes have ended, these files have not.
    if let Some(record) = Record::read() {
        let _ = fs::remove_dir_all(record.dir);
    }
    sweep();
    let _ = fs::remove_dir_all(place());
    println!("No cluster is up, and nothing of one is left.");
    ExitCode::SUCCESS
}

impl Record {
    fn path() -> PathBuf {
        place().join("record.json")
    }

    fn write(&self) {
        let part = Self::path().with_extension("part");
        fs::write(&part, serde_json::to_vec(self).expect("JSON")).expect("written");
        fs::rename(part, Self::path()).expect("written");
    }

    fn read() -> Option<Self> {
        serde_json::from_slice(&fs::read(Self::path()).ok()?).ok()
    }

    /// The cluster whose owner process is running.
    fn running() -> Option<Self> {
        Self::read().filter(|record| began(record.keeper).as_ref() == Some(&record.began))
    }
}

/// Start time of a process; `None` for one that has ended.
fn began(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses that may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ended = matches!(*fields.first()?, "Z" | "X");
    fields.get(19).filter(|_| !ended).map(|began| (*began).to_owned())
}
