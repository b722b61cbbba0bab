//! A group of two replicas that serve the API server behind a Tailscale Service: ours, or the stock proxy. A replica is a machine with the
//! environment, the `ServiceAccount` and the config that its operator provides; containers are restarted as by the kubelet.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use kit::apiserver::Cluster;
use kit::front_end::front::Authority;
use kit::machine::{Machine, Process};
use kit::member::{Member, in_pod};
use kit::tailnet::Tailnet;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::support::{processor_time_since_start, status};

/// Between SIGTERM and SIGKILL, and between the end of a container and its next start, as by the kubelet.
const GRACE: Duration = Duration::from_secs(30);
const RESTART: Duration = Duration::from_secs(1);
/// Between two looks at an ending process.
const POLL: Duration = Duration::from_millis(50);

/// A system with its Tailscale Service, ConfigMap and certificate, all of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Ours,
    Stock,
}

pub(crate) struct Group {
    replicas: Vec<Replica>,
}

/// A Pod of the group.
enum Replica {
    Ours(Box<Member>),
    Stock { machine: Box<Machine>, process: Option<Process>, env: Vec<(&'static str, String)> },
}

/// Usage of a group's processes: of the proxies, and of these and tailscaled. They are equal where the proxy includes tailscaled.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage<T> {
    pub(crate) proxy: T,
    pub(crate) with_tailscaled: T,
}

impl System {
    pub(crate) const BOTH: [Self; 2] = [Self::Ours, Self::Stock];

    /// Label of its name in the tailnet.
    fn label(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Stock => "stock",
        }
    }

    /// Name in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "Tailyard",
            Self::Stock => "Tailscale k8s-proxy",
        }
    }

    pub(crate) fn service(self) -> String {
        format!("svc:{}", self.label())
    }

    /// DNS name of its Tailscale Service.
    pub(crate) fn domain(self, tailnet: &Tailnet) -> String {
        tailnet.name_of(self.label()).trim_end_matches('.').to_owned()
    }

    /// Names of the nodes and state Secrets of its replicas.
    pub(crate) fn replicas(self) -> [String; 2] {
        [0, 1].map(|ordinal| format!("{}-{ordinal}", self.label()))
    }
}

impl Group {
    /// Starts the replicas, each after the one before has joined.
    pub(crate) fn start(system: System, tailnet: &Tailnet, cluster: &Cluster, authority: &Authority) -> Result<Self> {
        let replicas = system.replicas().into_iter().map(|name| match system {
            System::Ours => Ok(ours(&name, tailnet, cluster)),
            System::Stock => stock(&name, tailnet, cluster, authority),
        });
        Ok(Self { replicas: replicas.collect::<Result<_>>()? })
    }

    /// Processor time of both replicas since their start.
    pub(crate) fn processor(&self) -> Result<Usage<Duration>> {
        let time = |pids: Vec<u32>| pids.into_iter().map(processor_time_since_start).sum::<Result<Duration>>();
        let mut total = Usage::<Duration>::default();
        for replica in &self.replicas {
            let proxy = time(replica.programs())?;
            total.proxy += proxy;
            total.with_tailscaled += proxy + time(replica.pids("tailscaled"))?;
        }
        Ok(total)
    }

    /// Resident memory of the replica that serves, which has more, in MB. The program's file is there once.
    pub(crate) fn resident(&self) -> Result<Usage<f64>> {
        let mut most = Usage::<f64>::default();
        for replica in &self.replicas {
            let programs = replica.programs();
            let all = |field| programs.iter().map(|pid| status(*pid, field)).collect::<Result<Vec<_>>>();
            let proxy = all("RssAnon:")?.into_iter().sum::<f64>() + all("RssFile:")?.into_iter().fold(0.0, f64::max);
            let tailscaled: f64 = replica.pids("tailscaled").into_iter().map(|pid| status(pid, "VmRSS:")).sum::<Result<f64>>()?;
            if proxy > most.proxy {
                most = Usage { proxy, with_tailscaled: proxy + tailscaled };
            }
        }
        Ok(most)
    }

    /// Replaces one replica after the other, the last one first, as a `StatefulSet` does; returns the duration.
    pub(crate) fn restart(&mut self) -> Duration {
        let begun = Instant::now();
        for replica in self.replicas.iter_mut().rev() {
            replica.shut_down();
            replica.run();
            replica.wait_ready();
        }
        begun.elapsed()
    }

    /// Kills the container of the replica that has worked since, with all its processes; it is started again after a second.
    pub(crate) fn kill_busiest(&mut self, work: impl FnOnce()) -> Result<()> {
        let used = |replica: &Replica| replica.programs().into_iter().map(processor_time_since_start).sum::<Result<Duration>>();
        let before = self.replicas.iter().map(used).collect::<Result<Vec<_>>>()?;
        work();
        let after = self.replicas.iter().map(used).collect::<Result<Vec<_>>>()?;
        let worked = |index: &usize| after.get(*index).zip(before.get(*index)).map(|(after, before)| after.saturating_sub(*before));
        let busiest = (0..self.replicas.len()).max_by_key(worked).and_then(|index| self.replicas.get_mut(index));
        if let Some(replica) = busiest {
            replica.kill();
            sleep(RESTART);
            replica.run();
        }
        Ok(())
    }

    /// Waits until both replicas are ready.
    pub(crate) fn wait_ready(&self) {
        self.replicas.iter().for_each(Replica::wait_ready);
    }

    /// The ends of the replicas' outputs.
    pub(crate) fn output(&self) -> String {
        let output = self.replicas.iter().map(|replica| match replica {
            Replica::Ours(member) => member.output(),
            Replica::Stock { process, .. } => process.as_ref().map(Process::output).unwrap_or_default(),
        });
        let end = |text: String| {
            text.lines().rev().take(20).collect::<Vec<_>>().into_iter().rev().fold(String::new(), |all, line| all + line + "\n")
        };
        output.map(end).collect()
    }
}

fn ours(name: &str, tailnet: &Tailnet, cluster: &Cluster) -> Replica {
    let conf = json!({"AdvertiseServices": [System::Ours.service()]});
    let account = cluster.service_account();
    let prepare = |machine: &Machine| in_pod(machine, &account, "ts/ours");
    let member = Member::launch(tailnet, name, &conf, &json!({}), Some(&json!({})), prepare).joined();
    member.wait_ready();
    Replica::Ours(Box::new(member))
}

/// The stock proxy in mode `auth`. Its certificate is that of a Secret, which it takes from its other replica and does not order.
fn stock(name: &str, tailnet: &Tailnet, cluster: &Cluster, authority: &Authority) -> Result<Replica> {
    let machine = tailnet.machine(name);
    let dir = machine.own_dir();
    fs::create_dir_all(&dir)?;
    let proxy = json!({"Enabled": true, "Mode": "auth", "ServiceName": System::Stock.service(), "IssueCerts": false});
    let config = json!({"Version": "v1alpha1", "AuthKey": tailnet.key(), "State": format!("kube:{name}"), "LogLevel": "info",
        "App": "k8s-operator-proxygroup-kube-apiserver", "ServerURL": "https://hs.lab:8443", "Hostname": name,
        "AcceptRoutes": false, "AdvertiseServices": [System::Stock.service()], "APIServerProxy": proxy});
    fs::write(dir.join("config.hujson"), config.to_string())?;
    fs::write(dir.join("roots.pem"), fs::read_to_string(tailnet.dir().join("ca.crt"))? + authority.pem())?;
    let path = |file: &str| dir.join(file).display().to_string();
    let mut env = in_pod(&machine, &cluster.service_account(), "");
    env.extend([
        ("KUBERNETES_SERVICE_PORT", "6443".to_owned()),
        ("TS_KUBERNETES_READ_API_SERVER_ADDRESS_FROM_ENV", "true".to_owned()),
        ("TS_K8S_PROXY_CONFIG", path("config.hujson")),
        ("POD_IP", machine.address.to_string()),
        ("SSL_CERT_FILE", path("roots.pem")),
        ("HOME", "/run".to_owned()),
        ("XDG_CONFIG_HOME", "/run/config".to_owned()),
    ]);
    let mut replica = Replica::Stock { machine: Box::new(machine), process: None, env };
    replica.run();
    Ok(replica)
}

impl Replica {
    fn machine(&self) -> &Machine {
        match self {
            Self::Ours(member) => &member.machine,
            Self::Stock { machine, .. } => machine,
        }
    }

    /// Processes of a name in its machine.
    fn pids(&self, name: &str) -> Vec<u32> {
        self.machine().pids_of(name).into_iter().map(i32::unsigned_abs).collect()
    }

    /// Processes of the proxy.
    fn programs(&self) -> Vec<u32> {
        self.pids(match self {
            Self::Ours(_) => "tailyard",
            Self::Stock { .. } => "k8s-proxy",
        })
    }

    /// Starts its container.
    fn run(&mut self) {
        match self {
            Self::Ours(member) => member.run(),
            Self::Stock { machine, process, env } => {
                let program = machine.bin().join("k8s-proxy").display().to_string();
                let env: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
                *process = Some(machine.spawn("k8s-proxy", &[&program], &env));
            }
        }
    }

    /// A Pod of the stock proxy has no probe: it is ready when its container runs.
    fn wait_ready(&self) {
        if let Self::Ours(member) = self {
            member.wait_ready();
        }
    }

    fn shut_down(&mut self) {
        match self {
            Self::Ours(member) => drop(member.shut_down()),
            Self::Stock { process, .. } => {
                let Some(mut process) = process.take() else { return };
                process.signal(Signal::SIGTERM);
                let begun = Instant::now();
                while !process.ended() && begun.elapsed() < GRACE {
                    sleep(POLL);
                }
                // What is dropped is killed.
            }
        }
    }

    fn kill(&self) {
        for pid in self.programs().into_iter().chain(self.pids("tailscaled")) {
            // One may end with another.
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }
}
