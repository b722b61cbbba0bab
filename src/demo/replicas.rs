//! Replica processes: `tailyard proxy` in each replica's namespace, and readiness probes as by a cluster.
//!
//! The namespace of a killed process stays, with its kernel rules, as for a container that restarts in its Pod.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::DemoError;
use super::services::write_netmap;
use super::topology::Topology;
use crate::edge::netns::Namespace;

/// Port of a replica's admin server, with `/readyz`.
pub const ADMIN_PORT: u16 = 9003;
/// Timeout of a readiness probe.
const READY_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Source of a replica's netmap.
#[derive(Debug, Clone)]
pub enum DemoTailnet {
    File,
    /// The replica starts and supervises this program as its tailscaled; socket, state and config (`conf`) are in [`Launch::own`].
    Daemon(PathBuf),
}

#[derive(Debug, Clone)]
pub struct Launch {
    pub executable: PathBuf,
    /// Value of `--firewall-mode`.
    pub backend: String,
    /// Directory of netmaps, state and logs.
    pub directory: PathBuf,
    pub tailnet: DemoTailnet,
    pub egress: PathBuf,
    /// Drain timeout.
    pub grace: Duration,
    /// API server; each replica stores its state in the Secret of its name. `None`: in a file.
    pub api: Option<SocketAddr>,
}

impl Launch {
    /// Name of a replica and of its state Secret.
    pub fn name(number: usize) -> String {
        format!("replica-{number}")
    }

    pub fn own(&self, number: usize) -> PathBuf {
        self.directory.join(Self::name(number))
    }
}

#[derive(Debug)]
pub struct ReplicaProcess {
    namespace: Namespace,
    number: usize,
    addresses: [IpAddr; 2],
    log: PathBuf,
    child: Option<Child>,
}

impl ReplicaProcess {
    /// Prepares a replica without starting it; `None` if the topology has no such replica.
    pub fn prepare(topology: &Topology, number: usize, launch: &Launch) -> Result<Option<Self>, DemoError> {
        let Some((site, addresses)) = topology.replicas.get(number).and_then(|site| Some((site, site.pod?))) else { return Ok(None) };
        let netmap = netmap_file(launch, number);
        write_netmap(topology, number, &netmap).map_err(|source| DemoError::Write { path: netmap, source })?;
        let log = launch.directory.join(format!("replica-{number}.log"));
        Ok(Some(Self { namespace: site.namespace.clone(), number, addresses, log, child: None }))
    }

    /// Starts the process; its output is appended to [`ReplicaProcess::log`].
    pub fn start(&mut self, launch: &Launch) -> Result<(), DemoError> {
        let write = |source| DemoError::Write { path: self.log.clone(), source };
        let log = File::options().create(true).append(true).open(&self.log).map_err(write)?;
        let errors = log.try_clone().map_err(write)?;
        let mut command = self.command(launch);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.child = Some(self.namespace.run(|| command.spawn())?.map_err(DemoError::io("start a proxy"))?);
        Ok(())
    }

    fn command(&self, launch: &Launch) -> Command {
        let mut command = Command::new(&launch.executable);
        let [v4, v6] = self.addresses;
        command.arg("proxy");
        match &launch.tailnet {
            DemoTailnet::File => command.arg("--tailnet").arg(format!("static:{}", netmap_file(launch, self.number).display())),
            DemoTailnet::Daemon(program) => {
                let own = launch.own(self.number);
                command.arg("--tailscaled").arg(program).arg("--tailscale").arg(program).env("TS_SOCKET", own.join("ts.sock"));
                command.env("TS_STATE_DIR", &own).env("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", own.join("conf"))
            }
        };
        match launch.api {
            Some(api) => command
                .env("TS_KUBE_SECRET", Launch::name(self.number))
                .env("KUBERNETES_SERVICE_HOST", api.ip().to_string())
                .env("KUBERNETES_SERVICE_PORT_HTTPS", api.port().to_string()),
            None => command.arg("--state-file").arg(launch.directory.join(format!("replica-{}.state.json", self.number))),
        };
        command
            .args(["--tailnet-interface", "ts0", "--firewall-mode", &launch.backend])
            .arg("--egress-config")
            .arg(&launch.egress)
            .args(["--admin-addr", &format!("{v4}:{ADMIN_PORT}")])
            .args(["--drain-timeout", &format!("{}ms", launch.grace.as_millis())])
            .env("POD_IP", v4.to_string())
            .env("POD_IPS", format!("{v4},{v6}"))
            .env("POD_NAME", Launch::name(self.number))
            .env("XTABLES_LOCKFILE", launch.directory.join(format!("replica-{}.xtables.lock", self.number)));
        command
    }

    pub fn admin(&self) -> SocketAddr {
        SocketAddr::new(self.addresses[0], ADMIN_PORT)
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// PID of its process, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            // It may have exited already; [`ReplicaProcess::ended`] reports that.
            let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
        }
    }

    /// Exit status of its process, once it has exited.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, DemoError> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let status = child.try_wait().map_err(DemoError::io("wait for a proxy"))?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }
}

impl Drop for ReplicaProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An error means that it had exited already; the wait reaps it.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn netmap_file(launch: &Launch, number: usize) -> PathBuf {
    launch.directory.join(format!("replica-{number}.netmap.json"))
}

/// Probes a replica's readiness as a kubelet does: only status 200 in time counts.
pub async fn is_ready(admin: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(admin).await?;
        stream.write_all(format!("GET /readyz HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
        let mut status = [0; 12];
        stream.read_exact(&mut status).await?;
        io::Result::Ok(status)
    };
    matches!(tokio::time::timeout(READY_PROBE_TIMEOUT, ask).await, Ok(Ok(status)) if status.ends_with(b" 200"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn replica_state_is_in_a_file_or_in_the_secret_of_its_name() {
        let topology = Topology::make(1, 0).expect("namespaces");
        let directory = tempfile::tempdir().expect("a directory");
        let launch = |api| Launch {
            executable: "tailyard".into(),
            backend: "auto".to_owned(),
            directory: directory.path().to_owned(),
            tailnet: DemoTailnet::File,
            egress: directory.path().join("egress"),
            grace: Duration::ZERO,
            api,
        };
        let replica = ReplicaProcess::prepare(&topology, 0, &launch(None)).expect("files").expect("a replica");
        let state_store = |api| {
            let command = replica.command(&launch(api));
            let secret = command.get_envs().find(|(name, _)| *name == "TS_KUBE_SECRET").and_then(|(_, value)| value?.to_str());
            (command.get_args().any(|argument| argument == OsStr::new("--state-file")), secret.map(str::to_owned))
        };
        assert_eq!(state_store(None), (true, None));
        assert_eq!(state_store(Some(([10, 96, 0, 1], 443).into())), (false, Some("replica-0".to_owned())));
    }
}
