//! The tailscaled process and its files.
//!
//! The daemon has its own process group and the read end of a pipe (`TS_PARENT_DEATH_FD`), whose write end only this process has: it exits
//! with this process, whatever the cause. A daemon that outlives this process has no such pipe, and the next process reattaches to it
//! ([`RunningDaemon::orphan`]). The caller decides when to start and stop it.

mod reattach;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{Pid, pipe2};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tracing::{debug, info};

use crate::model::tailnet::supervise::Secret;
use crate::model::tailnet::supervise::conffile::{self, ConfFault};
use crate::runtime::command::{self, error_output};

/// Maximum bytes of a log line; longer lines of the daemon are split.
const LONGEST_LINE: u64 = 16 << 10;
/// Timeout of a query with the `tailscale` command.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a login with the `tailscale` command.
const LOGIN_TIMEOUT: Duration = Duration::from_mins(2);
/// Maximum time to read the log of an exited daemon: a grandchild may hold the pipe open indefinitely.
const LAST_LOG_TIMEOUT: Duration = Duration::from_millis(200);
/// Environment variable that identifies our daemon: its arguments, separated by spaces.
const MARK: &str = "TAILYARD_TAILSCALED_ARGS";

#[derive(Debug)]
pub struct RunningDaemon {
    handle: Handle,
    group: Pid,
    ended: Option<String>,
    /// Write end of the parent-death pipe; `None` for a daemon that outlives this process.
    _alive: Option<OwnedFd>,
    logs: JoinSet<()>,
}

/// How the exit of the daemon is detected.
#[derive(Debug)]
enum Handle {
    /// Child of this process.
    Own(Child),
    /// Left by a previous process. Only its parent receives the exit status.
    Left(JoinHandle<io::Result<()>>),
}

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum DaemonError {
    #[error("cannot start {}: {}", program.display(), spawn_cause(program, source))]
    Spawn { program: PathBuf, source: io::Error },
    #[error("cannot wait for tailscaled: {0}")]
    Wait(#[source] io::Error),
    #[error("cannot send {signal} to tailscaled: {source}")]
    Signal { signal: Signal, source: Errno },
    #[error("cannot make {}: {source}; give the Pod the device, or CAP_MKNOD, or set TS_USERSPACE=true", path.display())]
    Tun { path: PathBuf, source: io::Error },
    #[error("{} {what} failed: {text}", program.display())]
    Command { program: PathBuf, what: &'static str, text: String },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Config(#[from] ConfFault),
}

/// A program without a slash is searched in `PATH`, which the system's message does not say.
fn spawn_cause(program: &Path, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound if program.components().count() == 1 => {
            "not found in PATH; install it or set --tailscaled (TAILYARD_TAILSCALED)".to_owned()
        }
        _ => source.to_string(),
    }
}

impl DaemonError {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Config(fault) => fault.reason(),
            other => other.into(),
        }
    }
}

impl RunningDaemon {
    /// Starts the program. With `outlives` it does not exit with this process. Its output is logged line by line.
    pub fn spawn(program: &Path, args: &[String], env: &BTreeMap<String, String>, outlives: bool) -> Result<Self, DaemonError> {
        Self::start(program, args, env, outlives).map_err(|source| DaemonError::Spawn { program: program.to_owned(), source })
    }

    fn start(program: &Path, args: &[String], env: &BTreeMap<String, String>, outlives: bool) -> io::Result<Self> {
        let (stdout, stdout_end) = output()?;
        let (stderr, complained) = output()?;
        let mut command = Command::new(program);
        command.args(args).envs(env).env(MARK, args.join(" ")).stdin(Stdio::null()).stdout(stdout_end).stderr(complained);
        command.process_group(0).kill_on_drop(!outlives);
        let ends = if outlives { None } else { Some(pipe2(OFlag::O_CLOEXEC)?) };
        if let Some((read, _)) = &ends {
            // Only the read end is inheritable, and only during the start; it is harmless in another child.
            fcntl(read, FcntlArg::F_SETFD(FdFlag::empty()))?;
            command.env("TS_PARENT_DEATH_FD", read.as_raw_fd().to_string());
        }
        let child = command.spawn()?;
        let group = Pid::from_raw(child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(i32::MAX));
        let alive = ends.map(|(_, alive)| alive);
        Ok(Self { handle: Handle::Own(child), group, ended: None, _alive: alive, logs: logs(stdout, stderr) })
    }

    pub fn pid(&self) -> i32 {
        self.group.as_raw()
    }

    /// Waits for the exit and returns its description; kills processes left in the process group. Cancel-safe and repeatable.
    pub async fn wait(&mut self) -> Result<String, DaemonError> {
        let how = match (&self.ended, &mut self.handle) {
            (Some(how), _) => how.clone(),
            (None, Handle::Own(child)) => child.wait().await.map_err(DaemonError::Wait)?.to_string(),
            (None, Handle::Left(process)) => {
                process.await.map_err(io::Error::other).flatten().map_err(DaemonError::Wait)?;
                "as a process before this one had started it, it is not known how".to_owned()
            }
        };
        self.ended = Some(how.clone());
        if killpg(self.group, Signal::SIGKILL).is_ok() {
            debug!("tailscaled left processes behind");
        }
        let words = async { while self.logs.join_next().await.is_some() {} };
        drop(timeout(LAST_LOG_TIMEOUT, words).await);
        Ok(how)
    }

    /// Sends a signal; SIGKILL goes to the whole process group.
    pub fn signal(&self, signal: Signal) -> Result<(), DaemonError> {
        if self.ended.is_some() {
            return Ok(());
        }
        let sent = if signal == Signal::SIGKILL { killpg(self.group, signal) } else { nix::sys::signal::kill(self.group, signal) };
        match sent {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(source) => Err(DaemonError::Signal { signal, source }),
        }
    }
}

/// Capability version of the daemon, from `tailscale version`.
pub async fn capver(tailscale: &Path) -> Result<u32, DaemonError> {
    const WHAT: &str = "version --json";
    let fail = |text: String| DaemonError::Command { program: tailscale.to_owned(), what: WHAT, text };
    let args: Vec<_> = WHAT.split(' ').collect();
    let output = command::run(tailscale, &args, "", QUERY_TIMEOUT).await.map_err(|error| fail(error.to_string()))?;
    let versions: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| fail(error.to_string()))?;
    let cap = versions.get("cap").and_then(serde_json::Value::as_u64).and_then(|cap| u32::try_from(cap).ok());
    cap.ok_or_else(|| fail("it names no capability version".to_owned()))
}

/// Logs in with the `tailscale` command, which reads the secret from standard input.
pub async fn login(tailscale: &Path, args: &[String], secret: Option<&Secret>) -> Result<(), DaemonError> {
    let fail = |text: String| DaemonError::Command { program: tailscale.to_owned(), what: "up", text };
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let run = command::run(tailscale, &args, secret.map_or("", Secret::reveal), LOGIN_TIMEOUT).await;
    let output = run.map_err(|error| fail(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(fail(format!("{}: {}", output.status, error_output(&output)))) }
}

/// Resolves a key: `file:PATH` is read from the file.
pub fn key(secret: &Secret) -> Result<Secret, DaemonError> {
    let Some(path) = secret.reveal().strip_prefix("file:") else { return Ok(secret.clone()) };
    let text = fs::read_to_string(path).map_err(|source| DaemonError::File { path: path.into(), source })?;
    Ok(Secret::new(text.trim()))
}

/// Creates the TUN device unless it exists. `path` is `/dev/net/tun`.
pub fn ensure_tun(path: &Path) -> Result<(), DaemonError> {
    let fail = |source: io::Error| DaemonError::Tun { path: path.to_owned(), source };
    if path.exists() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(fail)?;
    }
    match mknod(path, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, makedev(10, 200)) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(fail(errno.into())),
    }
}

/// Selects the config file for a capability version; returns its path and content.
pub fn config(dir: &Path, capver: u32) -> Result<(PathBuf, Vec<u8>), DaemonError> {
    let fail = |path: &Path, source| DaemonError::File { path: path.to_owned(), source };
    let entries = fs::read_dir(dir).map_err(|source| fail(dir, source))?;
    let names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let path = dir.join(conffile::choose(names.iter().map(String::as_str), capver)?);
    let bytes = fs::read(&path).map_err(|source| fail(&path, source))?;
    Ok((path, bytes))
}

/// Replaces the config files of a directory with these, each one atomically; returns the number of files written or removed. Without any
/// files the directory is unchanged.
pub fn fill<'a>(dir: &Path, files: impl Iterator<Item = (&'a str, &'a [u8])>) -> Result<usize, DaemonError> {
    let fail = |source| DaemonError::File { path: dir.to_owned(), source };
    let files: BTreeMap<&str, &[u8]> = files.collect();
    if files.is_empty() {
        return Ok(0);
    }
    fs::create_dir_all(dir).map_err(fail)?;
    let mut changed = 0;
    for (name, bytes) in &files {
        let path = dir.join(name);
        if fs::read(&path).is_ok_and(|there| there == *bytes) {
            continue;
        }
        stage(&path, bytes)?;
        changed += 1;
    }
    let there = fs::read_dir(dir).map_err(fail)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    for name in there.filter(|name| conffile::is_config(name) && !files.contains_key(name.as_str())) {
        fs::remove_file(dir.join(&name)).map_err(fail)?;
        changed += 1;
    }
    Ok(changed)
}

/// Writes a copy of a config atomically, with mode 0600.
pub fn stage(path: &Path, bytes: &[u8]) -> Result<(), DaemonError> {
    let fail = |source| DaemonError::File { path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        // The daemon creates this directory at its start, which is later.
        fs::create_dir_all(parent).map_err(fail)?;
    }
    let fresh = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh).map_err(fail)?;
    file.write_all(bytes).map_err(fail)?;
    fs::rename(&fresh, path).map_err(fail)
}

/// Symlinks the socket at the path where the `tailscale` command expects it, unless that path exists.
pub fn link_socket(socket: &Path, well_known: &Path) -> Result<(), DaemonError> {
    let fail = |source| DaemonError::File { path: well_known.to_owned(), source };
    if socket == well_known || fs::read_link(well_known).is_ok_and(|target| target == socket) {
        return Ok(());
    }
    if let Some(parent) = well_known.parent() {
        fs::create_dir_all(parent).map_err(fail)?;
    }
    match symlink(socket, well_known) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(fail(source)),
        _ => Ok(()),
    }
}

/// Output pipe: its reader, and a file that is open for reading and writing. As the daemon has both ends, it gets no SIGPIPE when our
/// reader is closed; with a full pipe it blocks until the next process reads.
fn output() -> io::Result<(pipe::Receiver, File)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    let both = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", write.as_raw_fd()))?;
    Ok((pipe::Receiver::from_owned_fd(read)?, both))
}

/// Logs the output of the daemon.
fn logs(stdout: pipe::Receiver, stderr: pipe::Receiver) -> JoinSet<()> {
    [("stdout", stdout), ("stderr", stderr)].into_iter().map(|(stream, reader)| pump(stream, reader)).collect()
}

async fn pump(stream: &'static str, reader: pipe::Receiver) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while matches!((&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line).await, Ok(1..)) {
        info!(target: "tailscaled", stream, "{}", String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}
