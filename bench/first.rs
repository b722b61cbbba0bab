//! How long is it from one more egress Service on a group of 1,000 until a connection to it is answered through every replica?
//!
//! Everything is real but Tailscale's own control plane: a cluster of two nodes, the chart, two replicas with kernels and tailscaleds,
//! headscale, and a target in the tailnet. Needs root and the output of `tests/servers/build`.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kit::cluster::{Cluster, chart};
use kit::netns::Greeting;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

use crate::support::{Args, Point, Sheet, ms, tailyard};
use crate::users::Users;

/// The group of all Services.
const GROUP: &str = "eg";
/// How many nodes the cluster has.
const NODES: u8 = 2;
/// The port of the Services and of their target.
const PORT: u16 = 80;
/// Upper bound of every wait.
const PATIENCE: Duration = Duration::from_mins(20);
/// Interval between single Services: longer than a replica's interval between two status writes.
const APART: Duration = Duration::from_millis(1500);
/// How far apart connections are begun until each replica has answered one.
const EVERY: Duration = Duration::from_millis(10);

/// Samples of one more Service, in milliseconds since it was applied.
#[derive(Default)]
struct Samples {
    /// Until its external name was the child Service.
    switched: Vec<f64>,
    /// Until a connection was answered.
    first: Vec<f64>,
    /// Until each replica had forwarded one to the target.
    both: Vec<f64>,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let services = args.services.unwrap_or(if args.quick { 10 } else { 1_000 });
    let mut sheet =
        Sheet::new("A real cluster: until all egress Services are ready, and one more until it is answered through both replicas");
    let cluster = Cluster::start(NODES);
    cluster.load_tailyard(Path::new(kit::tailyard()));
    let (target, _tailscaled) = cluster.tailnet.node("db");
    let _server = target.node.serve(PORT);
    chart::install(&cluster, &[]);
    cluster.apply(&[json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup", "metadata": {"name": GROUP},
        "spec": {"type": "egress", "replicas": 2}})]);
    cluster.wait(&["--for=condition=ProxyGroupReady", &format!("proxygroup/{GROUP}")]);
    let inside = &cluster.nodes.first().context("a node")?.machine.node.ns;
    inside.block_on(|| measure(&cluster, services, args, &mut sheet))??;
    Ok(sheet)
}

/// Makes the Services, and then one after the other, from the network of a node.
async fn measure(cluster: &Cluster, services: usize, args: &Args, sheet: &mut Sheet) -> Result<()> {
    let kubeconfig = Kubeconfig::read_from(&cluster.control.kubeconfig)?;
    let client = Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?;
    let target = cluster.tailnet.addresses_of("db").into_iter().find(IpAddr::is_ipv4).context("an address")?.to_string();
    let replicas = [0, 1].map(|ordinal| cluster.tailnet.addresses_of(&format!("{GROUP}-{ordinal}")));
    let mut users = Users::watch(Api::namespaced(client.clone(), "default"), move |_| target.clone());
    let children: Api<Service> = Api::namespaced(client, chart::NAMESPACE);

    let point = |plot: &str| Point::of(plot, &tailyard(), services as u64);
    let begun = Instant::now();
    users.make(GROUP, 0..services).await?;
    let made = begun.elapsed().as_secs_f64();
    users.ready(services, PATIENCE).await?;
    sheet.plot(point("until the last is made by its user"), "s", vec![made], None);
    sheet.plot(point("until the last is ready"), "s", vec![begun.elapsed().as_secs_f64()], None);

    let mut taken = Samples::default();
    for number in services..services + args.repetitions(30) {
        sleep(APART).await;
        let begun = Instant::now();
        users.make(GROUP, number..number + 1).await?;
        let child = users.child(number, PATIENCE).await?;
        taken.switched.push(ms(begun.elapsed()));
        let child = children.get(child.split('.').next().unwrap_or_default()).await?;
        let address = child.spec.and_then(|spec| spec.cluster_ip).context("a child without an address")?.parse()?;
        let answers = answers(SocketAddr::new(address, PORT), &replicas).await?.map(|answer| ms(answer.duration_since(begun)));
        taken.first.push(answers.into_iter().fold(f64::INFINITY, f64::min));
        taken.both.push(answers.into_iter().fold(0.0, f64::max));
        eprintln!("service {number}: answered through each replica after {answers:.0?} ms");
        users.ready(number + 1, PATIENCE).await?;
    }
    let goal = (services == 1_000).then_some("p99 ≤ 1000");
    sheet.plot(point("one more: applied until its name resolves to the child"), "ms", taken.switched, None);
    sheet.plot(point("one more: applied until the first byte"), "ms", taken.first, None);
    sheet.plot(point("one more: until one through each replica"), "ms", taken.both, goal);
    Ok(())
}

/// When each replica had forwarded a connection to the target: one is opened at each tick, independently of the earlier ones.
async fn answers(to: SocketAddr, replicas: &[Vec<IpAddr>; 2]) -> Result<[Instant; 2]> {
    let (begun, mut ticks) = (Instant::now(), interval(EVERY));
    let (mut open, mut first_answer) = (JoinSet::new(), [None; 2]);
    loop {
        if let [Some(one), Some(other)] = first_answer {
            return Ok([one, other]);
        }
        ensure!(begun.elapsed() < PATIENCE, "no answer through both replicas");
        tokio::select! {
            _ = ticks.tick() => drop(open.spawn(timeout(Duration::from_secs(5), ask(to)))),
            Some(answer) = open.join_next() => if let Ok(Ok(Ok(peer))) = answer {
                let by = replicas.iter().position(|addresses| addresses.contains(&peer));
                first_answer.get_mut(by.with_context(|| format!("the target sees {peer}"))?).map(|first_answer| first_answer.get_or_insert_with(Instant::now));
            },
        }
    }
}

/// The source address that the target sees, on a new connection.
async fn ask(to: SocketAddr) -> Result<IpAddr> {
    let (mut stream, mut line) = (BufReader::new(TcpStream::connect(to).await?), Vec::new());
    stream.read_until(b'\n', &mut line).await?;
    Ok(Greeting::read(&mut line.as_slice())?.peer.ip())
}
