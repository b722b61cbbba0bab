//! The Pod: environment and files as the kubelet and the Tailscale operator provide them to a replica of an egress `ProxyGroup`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kit::machine::Machine;
use kit::tailnet::conf_with;
use tailyard::api::egress;
use tailyard::demo::services::{DemoService, Volume};

use super::container::Container;
use super::probe::{live, sample};
use super::stage::Stage;
use super::system::System;

/// Where the kubelet mounts the account.
const ACCOUNT: &str = "/run/secrets/kubernetes.io/serviceaccount";

/// Upper bound of a start.
const START: Duration = Duration::from_mins(2);

/// A Pod, with or without its container.
pub(crate) struct Pod<'a> {
    pub(crate) system: System,
    container: Option<Container>,
    stage: &'a Stage,
    volume: Volume,
    machine: Machine,
    /// The DNS target of all tailnet traffic; without one it is a replica with an egress config.
    name: Option<&'static str>,
}

impl<'a> Pod<'a> {
    /// A new Pod with this number of services; its container is not started. The node's state is that of the Pods before it.
    pub(crate) fn make(stage: &'a Stage, system: System, services: u16) -> Result<Self> {
        let machine = stage.tailnet.machine(&stage.unique(system.pod));
        machine.node.sysctl("net.ipv4.ip_forward", "1");
        machine.node.sysctl("net.ipv6.conf.all.forwarding", "1");
        let dir = machine.own_dir();
        std::fs::create_dir_all(dir.join("tsconfig"))?;
        std::fs::create_dir_all(dir.join("bin"))?;
        // As in the published image.
        symlink("/usr/sbin/iptables-legacy", dir.join("bin/iptables"))?;
        std::fs::write(dir.join("tsconfig/cap-106.hujson"), conf_with(system.pod, stage.tailnet.key(), false))?;
        let copy = format!("mkdir -p {ACCOUNT} && cp {}/* {ACCOUNT}", stage.account.display());
        let copied = machine.command("sh".as_ref()).args(["-c", &copy]).status()?;
        ensure!(copied.success(), "the service account is not in the Pod");
        let volume = Volume::make(dir.join("proxies"))?;
        let mut pod = Self { system, container: None, stage, volume, machine, name: None };
        pod.configure(0..services)?;
        Ok(pod)
    }

    /// A new Pod that forwards traffic from the tailnet to the addresses of a name, resolved by this server.
    pub(crate) fn named(stage: &'a Stage, system: System, name: &'static str, server: IpAddr) -> Result<Self> {
        let pod = Self { name: Some(name), ..Self::make(stage, system, 0)? };
        let write = format!("echo nameserver {server} > /etc/resolv.conf");
        ensure!(pod.machine.command("sh".as_ref()).args(["-c", &write]).status()?.success(), "the Pod has no DNS server");
        Ok(pod)
    }

    /// A new Pod with this number of services, started and live; returns the time from the start of the container until then.
    pub(crate) fn started(stage: &'a Stage, system: System, services: u16) -> Result<(Self, Duration)> {
        let mut pod = Self::make(stage, system, services)?;
        let begun = pod.start();
        let took = pod.wait(services, begun)?;
        Ok((pod, took))
    }

    /// A new Pod for each of these systems, all started at once, with all services live.
    pub(crate) fn started_together(stage: &'a Stage, systems: impl IntoIterator<Item = System>, services: u16) -> Result<Vec<Self>> {
        let pods = systems.into_iter().map(|system| Self::make(stage, system, services));
        let mut pods = pods.collect::<Result<Vec<_>>>()?;
        let begun: Vec<Instant> = pods.iter_mut().map(Self::start).collect();
        pods.iter().zip(begun).try_for_each(|(pod, begun)| pod.wait(services, begun).map(drop))?;
        Ok(pods)
    }

    /// One Pod for each system, with one service.
    pub(crate) fn one_of_each(stage: &'a Stage) -> Result<Vec<Self>> {
        Self::started_together(stage, System::ALL, 1)
    }

    /// Puts a new Pod with one service, which is answered, in the place of this one.
    pub(crate) fn renew(&mut self) -> Result<()> {
        self.container.take().map_or(Ok(()), Container::end)?;
        *self = Self::started(self.stage, self.system, 1)?.0;
        Ok(())
    }

    fn wait(&self, services: u16, begun: Instant) -> Result<Duration> {
        let took = live(self.stage, self, &sample(services), begun, START);
        took.with_context(|| self.container.as_ref().map(Container::output).unwrap_or_default())
    }

    /// Starts its container; returns the time.
    pub(crate) fn start(&mut self) -> Instant {
        let dir = self.machine.own_dir();
        let path = |name: &str| dir.join(name).display().to_string();
        let servers = self.machine.bin();
        let search = format!("{}:{}:/usr/sbin:/usr/bin:/sbin:/bin", path("bin"), servers.display());
        let (ip, conf, proxies) = (self.address().to_string(), path("tsconfig"), path("proxies"));
        let (api_ip, api_port) = (self.stage.api.ip().to_string(), self.stage.api.port().to_string());
        let env = [
            ("PATH", search.as_str()),
            ("POD_NAME", self.system.pod),
            ("POD_IP", &ip),
            ("POD_IPS", &ip),
            ("POD_UID", self.system.pod),
            ("TS_KUBE_SECRET", self.system.pod),
            ("TS_USERSPACE", "false"),
            ("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", &conf),
            ("TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT", "false"),
            self.name.map_or(("TS_EGRESS_PROXIES_CONFIG_PATH", proxies.as_str()), |name| ("TS_EXPERIMENTAL_DEST_DNS_NAME", name)),
            ("TS_INTERNAL_APP", self.name.map_or("k8s-operator-proxygroup-egress", |_| "k8s-operator-ingress-proxy")),
            ("TS_ENABLE_HEALTH_CHECK", "true"),
            ("TS_DEBUG_FIREWALL_MODE", self.system.firewall),
            // The machine's /tmp is everybody's.
            ("TS_SOCKET", "/run/tailscaled.sock"),
            ("TS_STATE_DIR", "/run/ts"),
            ("KUBERNETES_SERVICE_HOST", &api_ip),
            ("KUBERNETES_SERVICE_PORT_HTTPS", &api_port),
            ("TS_KUBERNETES_READ_API_SERVER_ADDRESS_FROM_ENV", "true"),
        ];
        let begun = Instant::now();
        self.container = Some(Container::start(&self.machine, &self.system.argv(servers), &env));
        begun
    }

    /// Writes a config with these services as the kubelet does; returns the time.
    pub(crate) fn configure(&mut self, services: impl IntoIterator<Item = u16>) -> Result<Instant> {
        self.put(services.into_iter().map(|number| (service(number), service(number).identity().port)), &["TCP"])
    }

    /// Writes a config with one service whose target is this port.
    pub(crate) fn lead_to(&mut self, port: u16) -> Result<Instant> {
        self.put([(service(0), port)], &["TCP", "UDP"])
    }

    /// Writes a config with this number of services, TCP and UDP, each with the target of the service `by` numbers later.
    pub(crate) fn shift(&mut self, services: u16, by: u16) -> Result<Instant> {
        self.put((0..services).map(|number| (service(number), service(number + by).identity().port)), &["TCP", "UDP"])
    }

    fn put(&mut self, services: impl IntoIterator<Item = (DemoService, u16)>, protocols: &[&str]) -> Result<Instant> {
        let entry = |(service, target_port): (DemoService, u16)| {
            let tailnet_target = egress::EgressTarget { ip: self.stage.target.to_string(), fqdn: String::new() };
            let (match_port, target_port) = (service.match_port().into(), target_port.into());
            let port = |protocol: &&str| egress::PortMap { protocol: (*protocol).to_owned(), match_port, target_port };
            let ports = protocols.iter().map(port).collect();
            (service.name(), egress::EgressService { health_check_endpoint: String::new(), tailnet_target, ports })
        };
        let entries: BTreeMap<_, _> = services.into_iter().map(entry).collect();
        Ok(self.volume.write_bytes(&serde_json::to_vec(&entries)?)?)
    }

    /// Its address in the cluster.
    pub(crate) fn address(&self) -> IpAddr {
        self.machine.address
    }

    /// Where a service of it is.
    pub(crate) fn at(&self, number: u16) -> SocketAddr {
        SocketAddr::new(self.address(), service(number).match_port())
    }

    /// Ends it.
    pub(crate) fn end(mut self) -> Result<()> {
        self.container.take().map_or(Ok(()), Container::end)
    }

    /// Its container, which there must be.
    pub(crate) fn container(&mut self) -> Result<&mut Container> {
        self.container.as_mut().context("the Pod has no container")
    }
}

/// The service of a number; all have the same target host.
pub(crate) fn service(number: u16) -> DemoService {
    DemoService { number, target: 0 }
}
