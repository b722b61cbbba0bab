//! A machine: a set of namespaces (network, mounts, host name, processes) with a private `/etc`, `/var` and `/run`.
//!
//! Programs in it may rewrite `/etc/resolv.conf`. Its first process ends when its standard input is closed, which happens with the end of
//! the test; the kernel then ends all the others.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tailyard::model::base::net::Family;

use crate::netns::Node;
use crate::wait::eventually;

/// Upper bound of every wait in a machine.
pub const DEADLINE: Duration = Duration::from_secs(90);
/// Script of a machine's first process: `$1` is its name, `$2` the control server's address.
pub const INIT: &str = r#"set -e
hostname "$1"
mount --make-rprivate /
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/over /run/netns /run/lock
for dir in etc var; do
  mkdir -p /run/over/$dir.upper /run/over/$dir.work
  mount -t overlay -o lowerdir=/$dir,upperdir=/run/over/$dir.upper,workdir=/run/over/$dir.work overlay /$dir
done
rm -f /etc/resolv.conf
echo '# no DNS server' > /etc/resolv.conf
printf '127.0.0.1 localhost %s\n%s hs.lab\n' "$1" "$2" > /etc/hosts
echo 'hosts: files dns' > /etc/nsswitch.conf
echo ready
while read -r _; do :; done
"#;

/// How a machine begins.
pub struct Boot<'a> {
    /// Its name.
    pub name: &'a str,
    /// The last byte of its address.
    pub host: u8,
    /// Shell script of the first process: prints `ready` after its setup and runs until its standard input ends. `$1` is the machine's
    /// name, `$2` the control server's address.
    pub init: &'a str,
    /// The control groups that all its processes are in, by hierarchy; the machine sees them as the roots. None: this process's own.
    pub cgroups: Vec<PathBuf>,
}

/// A machine.
pub struct Machine {
    /// The machine's network node, for servers and clients of the test.
    pub node: Node,
    /// Its address outside the tailnet.
    pub address: IpAddr,
    dir: PathBuf,
    bin: PathBuf,
    cgroups: Vec<PathBuf>,
    init: Child,
    pid: i32,
}

/// A program that runs in a machine until it is dropped.
pub struct Process {
    child: Child,
    pid: i32,
    /// Where its output goes.
    pub log: PathBuf,
}

impl<'a> Boot<'a> {
    pub(crate) fn plain(name: &'a str, host: u8) -> Self {
        Self { name, host, init: INIT, cgroups: Vec::new() }
    }
}

impl Machine {
    /// Starts the first process of a machine whose node is on its switch, and waits until it is ready. Logs and sockets are in `dir`.
    pub(crate) fn start(boot: Boot<'_>, node: Node, address: IpAddr, control: IpAddr, dir: &Path, bin: &Path) -> Self {
        let Boot { name, init, cgroups, .. } = boot;
        let network = format!("--net={}", node.ns.path().display());
        let mut enter = joined(&cgroups, &["nsenter", &network, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]);
        if !cgroups.is_empty() {
            enter.arg("--cgroup");
        }
        let mut init = enter
            .args(["--mount-proc", "sh", "-c", init, "init", name, &control.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log(&dir.join(format!("{name}-init.log"))))
            .spawn()
            .expect("nsenter and unshare");
        let mut ready = String::new();
        BufReader::new(init.stdout.take().expect("piped")).read_line(&mut ready).expect("a pipe");
        assert_eq!(ready, "ready\n", "{name} does not start: see {}", dir.display());
        let pid = only_child(init.id()).expect("the first process");
        Self { node, address, dir: dir.to_owned(), bin: bin.to_owned(), cgroups, init, pid }
    }

    /// A command in the machine.
    pub fn command(&self, program: &Path) -> Command {
        let pid = self.pid.to_string();
        let mut command = joined(&self.cgroups, &["nsenter", "-t", &pid, "-m", "-u", "-n", "-p"]);
        if !self.cgroups.is_empty() {
            command.arg("-C");
        }
        command.arg("--").arg(program);
        command.env("SSL_CERT_FILE", self.dir.join("ca.crt")).env("TS_NO_LOGS_NO_SUPPORT", "true").stdin(Stdio::null());
        command
    }

    /// Starts a program with its output in a log.
    pub fn spawn(&self, what: &str, argv: &[&str], env: &[(&str, &str)]) -> Process {
        let path = self.dir.join(format!("{}-{what}.log", self.node.name));
        let mut command = self.command(Path::new(argv[0]));
        command.args(&argv[1..]).envs(env.iter().copied()).stdout(log(&path)).stderr(log(&path));
        let child = command.spawn().expect("nsenter");
        let pid = eventually(what, DEADLINE, || only_child(child.id()));
        Process { child, pid, log: path }
    }

    /// Starts a program as a container has it: it is the first process of its own process namespace, which ends with it.
    pub fn contain(&self, what: &str, argv: &[&str], env: &[(&str, &str)]) -> Process {
        let mut process = self.spawn(what, &[&["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"], argv].concat(), env);
        process.pid = eventually(what, DEADLINE, || only_child(process.id()));
        process
    }

    /// Starts a tailscaled with a device and its state in the machine's memory.
    pub fn tailscaled(&self) -> Process {
        let (program, socket) = (self.bin.join("tailscaled").display().to_string(), self.socket());
        let socket_flag = format!("--socket={}", socket.display());
        let argv = [&program, "--tun=tailscale0", "--state=/run/ts.state", "--statedir=/run/ts", "--port=41641", &socket_flag];
        let process = self.spawn("tailscaled", &argv, &[("TS_DEBUG_FIREWALL_MODE", "nftables")]);
        eventually("the socket of tailscaled", DEADLINE, || socket.exists().then_some(()));
        process
    }

    /// The socket of the machine's tailscaled, reachable from the test too.
    pub fn socket(&self) -> PathBuf {
        self.dir.join(format!("{}.sock", self.node.name))
    }

    /// Runs the tailscale command and returns its output; a failure panics.
    pub fn tailscale(&self, args: &[&str]) -> String {
        let output = self.command(&self.bin.join("tailscale")).arg(format!("--socket={}", self.socket().display())).args(args).output();
        let output = output.expect("nsenter");
        assert!(output.status.success(), "{}: tailscale {args:?}: {}", self.node.name, String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The machine's addresses in the tailnet, by family.
    pub fn tailnet_addresses(&mut self) -> Vec<IpAddr> {
        let addresses: Vec<IpAddr> = self.tailscale(&["ip"]).lines().map(|line| line.trim().parse().expect("an address")).collect();
        self.node.tailnet = addresses.iter().map(|ip| (Family::of(*ip), *ip)).collect();
        addresses
    }

    /// A directory of the machine's own that the test sees too; the socket is beside it.
    pub fn own_dir(&self) -> PathBuf {
        self.dir.join(&self.node.name)
    }

    /// Its first process, by its id outside.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The directory of the real programs.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// The process of this name that runs in the machine, by its id outside.
    pub fn pid_of(&self, name: &str) -> Option<i32> {
        self.pids_of(name).into_iter().next()
    }

    /// All processes of this name that run in the machine, by their ids outside.
    pub fn pids_of(&self, name: &str) -> Vec<i32> {
        let space = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let own = space(&self.pid.to_string());
        let entries = fs::read_dir("/proc").expect("/proc");
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).filter(|pid| pid.parse::<i32>().is_ok());
        let named = |pid: &String| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
        pids.filter(named).filter(|pid| space(pid) == own).filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Kills the process of this name.
    pub fn kill(&self, name: &str, signal: Signal) {
        let pid = self.pid_of(name).unwrap_or_else(|| panic!("{}: no {name} runs", self.node.name));
        kill(Pid::from_raw(pid), signal).expect("killed");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.init.stdin.take());
        let _ = self.init.wait();
    }
}

impl Process {
    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid), signal).expect("a running process");
    }

    /// Its id outside.
    pub fn id(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().expect("a child")
    }

    /// Sends SIGTERM and waits; the exit status must be 0. Returns the time it took.
    pub fn shut_down(mut self) -> Duration {
        let begin = Instant::now();
        self.signal(Signal::SIGTERM);
        assert!(self.wait().success(), "{}", self.output());
        begin.elapsed()
    }

    /// The output so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// A command that is in these control groups from its first instruction on.
fn joined(cgroups: &[PathBuf], argv: &[&str]) -> Command {
    if cgroups.is_empty() {
        let mut command = Command::new(argv[0]);
        command.args(&argv[1..]);
        return command;
    }
    let files: Vec<_> = cgroups.iter().map(|group| group.join("cgroup.procs").display().to_string()).collect();
    let mut command = Command::new("sh");
    command.args(["-ec", r#"for file in $1; do echo $$ >"$file"; done; shift; exec "$@""#, "join", &files.join(" ")]).args(argv);
    command
}

/// The one child of a process.
pub fn only_child(pid: u32) -> Option<i32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.split_whitespace().next()?.parse().ok()
}

/// The child of this name that a process has.
pub fn child(pid: u32, name: &str) -> Option<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let children: Vec<i32> =
        lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect();
    children.into_iter().find(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name))
}

fn log(path: &Path) -> File {
    File::options().create(true).append(true).open(path).expect("a log")
}
