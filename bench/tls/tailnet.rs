//! The same through a tailnet: our replica, one whose kernel terminates connections, and the stock proxy's tailscaled, each a node with a
//! Tailscale Service and its certificate; another node connects over `WireGuard`. Processor time is that of all processes of the Pod.
//!
//! The stock proxy is its tailscaled: a serve config by LocalAPI, and the certificate in its directory. Everything but the control plane is
//! real.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kit::apiserver::{Cluster, cluster};
use kit::front_end::backend::Backend;
use kit::front_end::front::{Authority, get1};
use kit::machine::{DEADLINE, Machine, Process};
use kit::member::{Member, in_pod, service};
use kit::stock;
use kit::tailnet::{Control, Tailnet};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::{AT_ONCE, SLICE, Slice, add, ask, count, rates, slice};
use crate::operators::processor;
use crate::support::{Sheet, ratios};

/// How long is waited for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon one is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// Where the backend listens in its machine.
const PORT: u16 = 8080;

/// Labels of the proxies, and their names in the rows.
const PROXIES: [(&str, &str); 3] = [("ours", "our replica"), ("kernel", "our replica with kernel TCP"), ("stock", "the stock proxy")];

/// One of the proxies: its name, its address and its processes.
#[derive(Clone)]
struct Site {
    name: String,
    vips: Vec<IpAddr>,
    at: SocketAddr,
    tls: tokio_rustls::TlsConnector,
    /// Its processes, tailscaled's last.
    pids: Vec<u32>,
}

/// Seconds of processor time since the start.
#[derive(Debug, Clone, Copy)]
struct Clock {
    pod: f64,
    daemon: f64,
}

/// Measurements of one kind of work at one proxy.
#[derive(Default)]
struct Work {
    slices: Vec<Slice>,
    /// Seconds of processor time by unit of work.
    processor: Vec<f64>,
    /// As `processor`, of tailscaled.
    daemon: Vec<f64>,
}

impl Work {
    fn add(&mut self, slice: Slice, before: Clock, after: Clock) {
        let units = count(slice.latencies.len());
        self.processor.push((after.pod - before.pod) / units);
        self.daemon.push((after.daemon - before.daemon) / units);
        self.slices.push(slice);
    }
}

/// A step towards a connection, in which it may fail.
#[derive(Debug, Clone, Copy)]
enum Step {
    Tcp,
    Tls,
}

/// The handshakes of one measurement.
struct Handshakes {
    slice: Slice,
    /// How many failed in each step.
    failed: [usize; Step::ALL.len()],
}

impl Step {
    const ALL: [Self; 2] = [Self::Tcp, Self::Tls];
}

/// Measures all alternately, in this number of rounds.
pub(crate) fn compare(rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let mut outcome = Ok(());
    let measured = &mut outcome;
    cluster(async move |cluster| *measured = all(&cluster, rounds, sheet).await);
    outcome
}

async fn all(cluster: &Cluster, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let tailnet = Tailnet::start_with([10, 98, 0], Control::Hosted);
    tailnet.plug_in(10);
    let authority = Authority::new();
    let (asking, _tailscaled) = tailnet.node("client");
    let behind = tailnet.machine("backend");
    let to = SocketAddr::new(behind.address, PORT);
    let site = |label: &str| {
        let (name, tls) = (tailnet.name_of(label).trim_end_matches('.').to_owned(), authority.client("http/1.1").clone());
        let vips = service(&tailnet, &format!("svc:{label}"));
        Site { name, at: SocketAddr::new(vips[0], 443), vips, tls, pids: Vec::new() }
    };
    let mut sites = PROXIES.map(|(label, _)| site(label));
    tailnet.set_cert_domains(&sites.each_ref().map(|site| site.name.as_str()));
    // A rule has one Role, for the objects of both.
    let labels = [PROXIES[0].0, PROXIES[1].0];
    cluster.allow("secrets", &labels.map(secret_of).each_ref().map(String::as_str), &["get", "list", "watch"]).await;
    cluster.allow("configmaps", &labels, &["get", "list", "watch"]).await;
    let [forwarded, kernel, stock] = &mut sites;
    let forwarding = ours(&tailnet, cluster, &authority, (PROXIES[0].0, forwarded), to, false).await;
    let terminating = ours(&tailnet, cluster, &authority, (PROXIES[1].0, kernel), to, true).await;
    let stocks = theirs(&tailnet, &authority, (&stock.name, to));
    let pids =
        |machine: &Machine| ["tailyard", "tailscaled"].into_iter().filter_map(|name| machine.pid_of(name)?.try_into().ok()).collect();
    (forwarded.pids, kernel.pids, stock.pids) = (pids(&forwarding.machine), pids(&terminating.machine), pids(&stocks.0));
    ensure!(sites.each_ref().map(|site| site.pids.len()) == [2, 2, 1], "a process is missing");
    asking.node.ns.run(|| {
        let (clients, backends) = (inside(&asking)?, behind.node.ns.run(|| inside(&behind))??);
        let _backend = behind.node.ns.run(|| backends.block_on(Backend::at(to, "a", None)))?;
        clients.block_on(measure(sites, rounds, sheet))
    })?
}

/// A runtime in a machine's namespace.
fn inside(machine: &Machine) -> Result<Runtime> {
    Ok(Builder::new_multi_thread().thread_name(machine.node.name.clone()).enable_all().build()?)
}

fn secret_of(label: &str) -> String {
    format!("{label}-certificate")
}

/// Our replica: its config and its certificate are those of a cluster.
async fn ours(
    tailnet: &Tailnet,
    cluster: &Cluster,
    authority: &Authority,
    (label, Site { name, vips, .. }): (&'static str, &Site),
    to: SocketAddr,
    kernel: bool,
) -> Member {
    let (secret, published) = (secret_of(label), format!("svc:{label}"));
    let pair = authority.pair(name);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    cluster.make_secret(&secret, &[("tls.crt", &text(&pair.chain)), ("tls.key", &text(&pair.key))]).await;
    let backend = json!({"namespace": "ts", "service": "web", "address": to.to_string(), "protocol": "http"});
    let site = json!({"hosts": {name: {"secret": secret}}, "listeners": {"443": "https"}, "addresses": vips,
        "routes": [{"path": "/", "backend": backend}]});
    let routes = json!({&published: site}).to_string();
    let serve = serve(&published, name, to).to_string();
    let keys = [("serve-config.json", serve.as_str()), ("tailyard-routes.json", &routes), ("ingress-config.json", "{}")];
    cluster.write_config(label, &keys).await;
    let account = cluster.service_account();
    let conf = json!({"AdvertiseServices": [published]});
    let member = Member::launch(tailnet, label, &conf, &json!({}), Some(&json!({})), |machine| {
        let kernel = ("TAILYARD_KERNEL_TCP", kernel.to_string());
        in_pod(machine, &account, &format!("ts/{label}")).into_iter().chain([kernel]).collect()
    })
    .joined();
    member.wait_ready();
    assert!(member.advertised().contains(&published), "{}", member.output());
    let served: Value = serde_json::from_str(&member.machine.tailscale(&["serve", "status", "--json"])).expect("a config");
    assert_eq!(served["Services"][&published]["Tun"].as_bool().unwrap_or_default(), kernel, "{served}");
    member
}

/// The stock proxy's tailscaled, which finds its certificate where it would have stored it.
fn theirs(tailnet: &Tailnet, authority: &Authority, (name, to): (&str, SocketAddr)) -> (Machine, Process) {
    let machine = tailnet.machine("stock");
    let dir = machine.own_dir();
    let path = |file: &str| dir.join(file).display().to_string();
    fs::create_dir_all(dir.join("certs")).expect("made");
    let pair = authority.pair(name);
    fs::write(dir.join(format!("certs/{name}.crt")), &pair.chain).expect("written");
    fs::write(dir.join(format!("certs/{name}.key")), &pair.key).expect("written");
    let authorities = fs::read_to_string(tailnet.dir().join("ca.crt")).expect("the authority of the lab");
    fs::write(dir.join("roots.pem"), authorities + authority.pem()).expect("written");
    let copy = format!("mkdir -p /run/ts && cp -r {} /run/ts/", path("certs"));
    assert!(machine.command(Path::new("sh")).args(["-c", &copy]).status().expect("nsenter").success());
    let tailscaled = stock::start(tailnet, &machine, &[("SSL_CERT_FILE", &path("roots.pem"))]);
    stock::serve(&machine, &serve("svc:stock", name, to), &["svc:stock"]);
    (machine, tailscaled)
}

/// A serve config as the stock proxy has it.
fn serve(service: &str, name: &str, to: SocketAddr) -> Value {
    let web = json!({format!("{name}:443"): {"Handlers": {"/": {"Proxy": format!("http://{to}/")}}}});
    json!({"Services": {service: {"TCP": {"443": {"HTTPS": true}}, "Web": web}}})
}

impl Site {
    /// A connection after its handshake, which is a full one.
    async fn connect(&self) -> Result<TlsStream<TcpStream>, Step> {
        let connected = timeout(PATIENCE, TcpStream::connect(self.at)).await.ok().and_then(Result::ok).ok_or(Step::Tcp)?;
        connected.set_nodelay(true).map_err(|_| Step::Tcp)?;
        let name = ServerName::try_from(self.name.clone()).expect("a name");
        timeout(PATIENCE, self.tls.connect(name, connected)).await.ok().and_then(Result::ok).ok_or(Step::Tls)
    }

    /// The same, tried until it is made.
    async fn reached(&self) -> Result<TlsStream<TcpStream>> {
        let tried = async {
            loop {
                if let Ok(stream) = self.connect().await {
                    return stream;
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        timeout(DEADLINE, tried).await.with_context(|| format!("{} is never reached", self.name))
    }

    async fn handshakes(&self) -> Handshakes {
        let failed = Arc::new(Step::ALL.map(|_| AtomicUsize::new(0)));
        let counted = Arc::clone(&failed);
        let slice = slice(SLICE, vec![self.clone(); AT_ONCE], move |site| {
            let (site, failed) = (site.clone(), Arc::clone(&counted));
            async move {
                let made = site.connect().await;
                if let Err(step) = &made {
                    failed[*step as usize].fetch_add(1, Ordering::Relaxed);
                }
                made.is_ok()
            }
        })
        .await;
        Handshakes { slice, failed: failed.each_ref().map(|count| count.load(Ordering::Relaxed)) }
    }

    /// Reads a body without an end; a latency is that of a MB.
    async fn transfer(&self) -> Result<Slice> {
        let (mut client, connection) = http1::handshake(TokioIo::new(self.reached().await?)).await?;
        tokio::spawn(connection);
        let body = client.send_request(get1(&format!("https://{}/endless", self.name))).await?.into_body();
        let body = Arc::new(Mutex::new(body));
        Ok(slice(SLICE, vec![body], |body: &Arc<Mutex<Incoming>>| {
            let body = Arc::clone(body);
            async move {
                let mut body = body.lock().await;
                let mut rest = 1_000_000_usize;
                while rest > 0 {
                    let Some(Ok(frame)) = body.frame().await else { return false };
                    rest = rest.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                }
                true
            }
        })
        .await)
    }

    async fn requests(&self) -> Result<Slice> {
        let mut clients = Vec::new();
        for _ in 0..AT_ONCE {
            let (client, connection) = http1::handshake(TokioIo::new(self.reached().await?)).await?;
            tokio::spawn(connection);
            clients.push(client);
        }
        let url = format!("https://{}/", self.name);
        Ok(ask(clients, url).await)
    }
}

async fn measure(sites: [Site; 3], rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let mut work: [[Work; 3]; 3] = Default::default();
    let mut failed = [[0; Step::ALL.len()]; 3];
    for site in &sites {
        site.reached().await?;
    }
    for round in 0..=rounds {
        for (at, site) in sites.iter().enumerate() {
            let clock = || {
                Ok::<_, anyhow::Error>(Clock {
                    pod: processor(&site.pids)?.as_secs_f64(),
                    daemon: processor(site.pids.last_chunk::<1>().context("no process")?)?.as_secs_f64(),
                })
            };
            let begun = clock()?;
            let handshakes = site.handshakes().await;
            let shaken = clock()?;
            let requests = site.requests().await?;
            let requested = clock()?;
            let transfer = site.transfer().await?;
            let transferred = clock()?;
            // The first round warms up.
            if round > 0 {
                for step in Step::ALL {
                    failed[at][step as usize] += handshakes.failed[step as usize];
                }
                work[0][at].add(handshakes.slice, begun, shaken);
                work[1][at].add(requests, shaken, requested);
                work[2][at].add(transfer, requested, transferred);
            }
        }
    }
    for (what, proxies) in ["handshakes", "requests, TLS"].into_iter().zip(&work) {
        rows(sheet, what, proxies)?;
        processor_ratios(sheet, what, proxies, "≤ 0.5");
    }
    let [.., transfers] = &work;
    for ((_, proxy), work) in PROXIES.iter().zip(transfers) {
        sheet.add(format!("transfer through the tailnet, {proxy}"), "MB/s", rates(&work.slices), None);
        let seconds = work.processor.iter().map(|seconds| 1e3 * seconds).collect();
        sheet.add(format!("processor time of the Pod for a GB, {proxy}"), "s", seconds, None);
    }
    processor_ratios(sheet, "a GB", transfers, "≤ 0.33");
    for ((_, proxy), failed) in PROXIES.iter().zip(failed) {
        for (how, step) in [("no connection", Step::Tcp), ("connected, no TLS", Step::Tls)] {
            let what = format!("handshakes through the tailnet, {proxy}: failed, {how}");
            sheet.add(what, "count", vec![count(failed[step as usize])], None);
        }
    }
    Ok(())
}

/// Rows of handshakes or requests.
fn rows(sheet: &mut Sheet, what: &str, proxies: &[Work; 3]) -> Result<()> {
    let [.., stock] = proxies;
    for ((_, proxy), work) in PROXIES.iter().zip(proxies) {
        add(sheet, &format!("{what} through the tailnet, {proxy}"), &work.slices);
        ensure!(work.slices.iter().all(|slice| slice.rate > 0.0), "{what}: none was made by {proxy}");
    }
    for ((label, proxy), work) in PROXIES.iter().zip(proxies).take(2) {
        let ratios = ratios(&rates(&work.slices), &rates(&stock.slices));
        let of = if *label == "ours" { String::new() } else { format!(", {proxy},") };
        sheet.add(format!("rate of {what} through the tailnet{of} to the stock proxy's"), "ratio", ratios, None);
    }
    for ((_, proxy), work) in PROXIES.iter().zip(proxies) {
        let failed = work.slices.iter().map(|slice| slice.failed).sum();
        sheet.add(format!("{what} through the tailnet, {proxy}: failed"), "count", vec![count(failed)], None);
        let processor = work.processor.iter().map(|seconds| 1e3 * seconds).collect();
        sheet.add(format!("processor time of the Pod, {what}, {proxy}"), "ms", processor, None);
    }
    Ok(())
}

/// Rows of processor time beside the stock proxy's; the goal is that of kernel TCP.
fn processor_ratios(sheet: &mut Sheet, what: &str, proxies: &[Work; 3], goal: &'static str) {
    let [.., stock] = proxies;
    for ((label, proxy), work) in PROXIES.iter().zip(proxies).take(2) {
        let row = format!("processor time of the Pod, {what}, {proxy} to the stock proxy's");
        sheet.add(row, "ratio", ratios(&work.processor, &stock.processor), (*label == "kernel").then_some(goal));
        sheet.add(format!("of it tailscaled's, {what}, {proxy}"), "ratio", ratios(&work.daemon, &work.processor), None);
    }
}
