//! A node between a client and a target with rules of the real kube-proxy, for Services of a real kube-apiserver.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use k8s_openapi::api::core::v1::{Node as KubeNode, Service as KubeService};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kit::apiserver::{Cluster, NAMESPACE};
use kit::servers::servers;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tailyard::demo::services::DemoService;
use tailyard::demo::topology::{Topology, route};
use tailyard::edge::netns::Namespace;

use crate::support::processor_time;

/// The port of every Service.
pub(crate) const PORT: u16 = 80;
/// Where Services are.
const SERVICES: &str = "10.96.0.0/16";
/// The node name for kube-proxy.
const NAME: &str = "node";
/// How many objects are made at a time.
const AT_ONCE: usize = 32;
/// Upper bound for kube-proxy to program all Services.
const PATIENCE: Duration = Duration::from_mins(4);

/// Processor time of an idle kube-proxy in a second.
const RESTING: Duration = Duration::from_millis(20);

/// The node, with kube-proxy and its API server in its network.
pub(crate) struct Node {
    cluster: Cluster,
    proxy: Child,
    client: Namespace,
    target: IpAddr,
    served: u16,
}

/// The address of the Service of a number.
pub(crate) fn address(number: u16) -> Ipv4Addr {
    let [high, low] = (number + 256).to_be_bytes();
    Ipv4Addr::new(10, 96, high, low)
}

impl Node {
    /// Starts kube-proxy next to the API server, on the route of this number; its Services have one target.
    pub(crate) async fn start(cluster: Cluster, topology: &Topology, way: usize, target: IpAddr) -> Result<Self> {
        let pod = topology.replicas.get(way).and_then(|site| site.pod).context("a way has a Pod address")?;
        let pod = pod.into_iter().find(IpAddr::is_ipv4).context("an IPv4 address")?;
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("the node cannot forward")?;
        route(&topology.client, SERVICES.parse()?, pod)?;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME},
            "status": {"addresses": [{"type": "InternalIP", "address": pod}]}});
        Api::<KubeNode>::all(cluster.admin()).create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        // Nothing of the machine's connection tracking is set. Our proxy has the target answer it and not the client, too.
        let config = json!({"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "clientConnection": {"kubeconfig": cluster.kubeconfig_of("admin")}, "hostnameOverride": NAME,
            "nftables": {"masqueradeAll": true}});
        let path = cluster.path("kube-proxy.json");
        std::fs::write(&path, config.to_string())?;
        servers(&["kube-proxy"]);
        let proxy = cluster.spawn("kube-proxy", &[format!("--config={}", path.display())]);
        Ok(Self { cluster, proxy, client: topology.client.clone(), target, served: 0 })
    }

    /// Creates Services up to this number, and waits until the last ones accept connections.
    pub(crate) async fn serve(&mut self, count: u16) -> Result<()> {
        let made = iter(self.served..count).map(|number| self.make(number)).buffer_unordered(AT_ONCE);
        made.try_collect::<()>().await?;
        self.served = count;
        let begun = Instant::now();
        for number in [0, count / 2, count - 1] {
            while !self.answers(number)? {
                ensure!(begun.elapsed() < PATIENCE, "Service {number} of {count} does not answer; kube-proxy said:\n{}", self.log());
                ensure!(self.proxy.try_wait()?.is_none(), "kube-proxy ended:\n{}", self.log());
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        self.rested().await
    }

    /// Waits until kube-proxy is nearly idle, so that it does not compete with the measurement.
    async fn rested(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let before = processor_time(self.proxy.id())?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            if processor_time(self.proxy.id())?.saturating_sub(before) < RESTING {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "kube-proxy finds no rest:\n{}", self.log());
        }
    }

    async fn make(&self, number: u16) -> Result<()> {
        let (name, port) = (format!("service-{number}"), DemoService { number, target: 0 }.identity().port);
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"clusterIP": address(number), "ports": [{"port": PORT, "targetPort": port, "protocol": "TCP"}]}});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "endpoints": [{"addresses": [self.target], "conditions": {"ready": true}}],
            "ports": [{"name": "", "port": port, "protocol": "TCP"}]});
        let (admin, new) = (self.cluster.admin(), PostParams::default());
        Api::<KubeService>::namespaced(admin.clone(), NAMESPACE).create(&new, &serde_json::from_value(service)?).await?;
        Api::<EndpointSlice>::namespaced(admin, NAMESPACE).create(&new, &serde_json::from_value(slice)?).await?;
        Ok(())
    }

    /// Whether a connection of the client to the Service of a number is accepted.
    fn answers(&self, number: u16) -> Result<bool> {
        let to = SocketAddr::new(address(number).into(), PORT);
        match self.client.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(1)))? {
            Ok(_) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error).with_context(|| format!("{to}")),
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.cluster.path("kube-proxy.log")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}
