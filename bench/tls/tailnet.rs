//! The same through a tailnet: our replica and the stock proxy's tailscaled, each a node with a Tailscale Service and its certificate; a
//! third node connects over `WireGuard`.
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
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kit::apiserver::{Cluster, cluster};
use kit::front_end::backend::Backend;
use kit::front_end::front::Authority;
use kit::machine::{DEADLINE, Machine, Process};
use kit::member::{Member, in_pod, service};
use kit::stock;
use kit::tailnet::{Control, Tailnet};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::{AT_ONCE, SLICE, Slice, add, ask, count, rates, slice};
use crate::support::{Sheet, ratios};

/// How long is waited for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon one is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// Where the backend listens in its machine.
const PORT: u16 = 8080;

/// One of the two: its name and its address.
#[derive(Clone)]
struct Site {
    name: String,
    at: SocketAddr,
    tls: tokio_rustls::TlsConnector,
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

/// Measures both alternately, in this number of rounds.
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
    let site = |label: &str, vips: &[IpAddr]| {
        let (name, tls) = (tailnet.name_of(label).trim_end_matches('.').to_owned(), authority.client("http/1.1").clone());
        Site { name, at: SocketAddr::new(vips[0], 443), tls }
    };
    let sites = ["ours", "stock"].map(|label| site(label, &service(&tailnet, &format!("svc:{label}"))));
    tailnet.set_cert_domains(&sites.each_ref().map(|site| site.name.as_str()));
    let _ours = ours(&tailnet, cluster, &authority, (&sites[0].name, to)).await;
    let _stock = theirs(&tailnet, &authority, (&sites[1].name, to));
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

/// Our replica: its config and its certificate are those of a cluster.
async fn ours(tailnet: &Tailnet, cluster: &Cluster, authority: &Authority, (name, to): (&str, SocketAddr)) -> Member {
    cluster.allow("secrets", &["own"], &["get", "list", "watch"]).await;
    cluster.allow("configmaps", &["ours"], &["get", "list", "watch"]).await;
    let pair = authority.pair(name);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    cluster.make_secret("own", &[("tls.crt", &text(&pair.chain)), ("tls.key", &text(&pair.key))]).await;
    let backend = json!({"namespace": "ts", "service": "web", "address": to.to_string(), "protocol": "http"});
    let site = json!({"hosts": {name: {"secret": "own"}}, "listeners": {"443": "https"}, "routes": [{"path": "/", "backend": backend}]});
    let routes = json!({"svc:ours": site}).to_string();
    let serve = serve("svc:ours", name, to).to_string();
    let keys = [("serve-config.json", serve.as_str()), ("tailyard-routes.json", &routes), ("ingress-config.json", "{}")];
    cluster.write_config("ours", &keys).await;
    let account = cluster.service_account();
    let conf = json!({"AdvertiseServices": ["svc:ours"]});
    let member =
        Member::launch(tailnet, "ours", &conf, &json!({}), Some(&json!({})), |machine| in_pod(machine, &account, "ts/ours")).joined();
    member.wait_ready();
    assert!(member.advertised().contains("svc:ours"), "{}", member.output());
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

async fn measure(sites: [Site; 2], rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let mut handshakes = [Vec::new(), Vec::new()];
    let mut requests = [Vec::new(), Vec::new()];
    let mut failed = [[0; Step::ALL.len()]; 2];
    for site in &sites {
        site.reached().await?;
    }
    for round in 0..=rounds {
        for (at, site) in sites.iter().enumerate() {
            let measured = (site.handshakes().await, site.requests().await?);
            // The first round warms up.
            if round > 0 {
                for step in Step::ALL {
                    failed[at][step as usize] += measured.0.failed[step as usize];
                }
                handshakes[at].push(measured.0.slice);
                requests[at].push(measured.1);
            }
        }
    }
    for (what, [ours, theirs]) in [("handshakes", &handshakes), ("requests, TLS", &requests)] {
        add(sheet, &format!("{what} through the tailnet, our replica"), ours);
        add(sheet, &format!("{what} through the tailnet, the stock proxy"), theirs);
        sheet.add(format!("rate of {what} through the tailnet to the stock proxy's"), "ratio", ratios(&rates(ours), &rates(theirs)), None);
        for (proxy, slices) in [("our replica", ours), ("the stock proxy", theirs)] {
            let failed = slices.iter().map(|slice| slice.failed).sum();
            sheet.add(format!("{what} through the tailnet, {proxy}: failed"), "count", vec![count(failed)], None);
        }
        ensure!(ours.iter().chain(theirs).all(|slice| slice.rate > 0.0), "{what}: none was made");
    }
    for (proxy, failed) in [("our replica", failed[0]), ("the stock proxy", failed[1])] {
        for (how, step) in [("no connection", Step::Tcp), ("connected, no TLS", Step::Tls)] {
            let what = format!("handshakes through the tailnet, {proxy}: failed, {how}");
            sheet.add(what, "count", vec![count(failed[step as usize])], None);
        }
    }
    Ok(())
}
