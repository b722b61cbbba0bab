//! What do TLS handshakes and requests cost at the terminator, with 100 names, while certificates are swapped, compared with direct
//! requests to the backend, and through a tailnet compared with the stock proxy?

mod tailnet;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kit::front_end::backend::Backend;
use kit::front_end::front::{Front, get1, service};
use kit::servers::tailscale_release;
use serde_json::{Value, json};
use tailyard::edge::netns::Namespace;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::support::{Args, Sheet, ms, ratios};

/// Names with a certificate each.
const NAMES: usize = 100;
/// Clients at once.
const AT_ONCE: usize = 4;
/// Duration of one measurement.
const SLICE: Duration = Duration::from_millis(500);
/// How often a certificate is swapped where that is measured: all of them once a second.
const SWAP: Duration = Duration::from_millis(10);
const SERVICE: &str = "svc:web";

/// The result of one measurement.
#[derive(Default)]
pub(crate) struct Slice {
    pub(crate) latencies: Vec<f64>,
    pub(crate) failed: usize,
    pub(crate) rate: f64,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let mut sheet = Namespace::make()?.run(|| -> Result<Sheet> {
        ensure!(Command::new("ip").args(["link", "set", "lo", "up"]).status()?.success(), "the loopback link is down");
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(terminator(args))
    })??;
    sheet.version("tailscaled", tailscale_release());
    tailnet::compare(args.repetitions(15), &mut sheet)?;
    Ok(sheet)
}

fn name(number: usize) -> String {
    format!("app-{}.tail.ts.net", number % NAMES)
}

fn routes(backend: &Backend) -> Value {
    let hosts: serde_json::Map<_, _> = (0..NAMES).map(|number| (name(number), json!({"secret": "x", "issue": true}))).collect();
    json!({SERVICE: {"hosts": hosts, "listeners": {"443": "https"}, "routes": [{"path": "/", "backend": service(backend.address, "http")}]}})
}

async fn terminator(args: &Args) -> Result<Sheet> {
    let backend = Arc::new(Backend::new("a").await);
    let front = Arc::new(Front::new(routes(&backend)).await);
    let mut sheet = Sheet::new("TLS handshakes and requests at the terminator");
    let (mut calm, mut swapped, mut through, mut direct) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..=args.repetitions(15) {
        let slices = (
            handshakes(&front).await,
            swapping(&front).await,
            requests(Arc::clone(&front), Arc::clone(&backend), false).await,
            requests(Arc::clone(&front), Arc::clone(&backend), true).await,
        );
        // The first round warms up.
        if round > 0 {
            calm.push(slices.0);
            swapped.push(slices.1);
            through.push(slices.2);
            direct.push(slices.3);
        }
    }
    for (what, slices) in [("handshakes", &calm), ("handshakes, 100 certificates swapped each second", &swapped)] {
        add(&mut sheet, what, slices);
        let failed: usize = slices.iter().map(|slice| slice.failed).sum();
        sheet.add(format!("{what}: failed"), "count", vec![count(failed)], Some("≤ 0"));
    }
    add(&mut sheet, "requests through the terminator, TLS", &through);
    add(&mut sheet, "requests to the backend directly, no TLS", &direct);
    sheet.add("rate of handshakes while swapping to that at rest", "ratio", ratios(&rates(&swapped), &rates(&calm)), None);
    sheet.add("rate of requests through the terminator to direct", "ratio", ratios(&rates(&through), &rates(&direct)), None);
    ensure!(calm.iter().chain(&swapped).chain(&through).chain(&direct).all(|slice| slice.rate > 0.0), "nothing was measured");
    Ok(sheet)
}

fn rates(slices: &[Slice]) -> Vec<f64> {
    slices.iter().map(|slice| slice.rate).collect()
}

fn add(sheet: &mut Sheet, what: &str, slices: &[Slice]) {
    sheet.add(format!("{what}: rate, {AT_ONCE} at once"), "1/s", slices.iter().map(|slice| slice.rate).collect(), None);
    sheet.add(format!("{what}: latency"), "ms", slices.iter().flat_map(|slice| slice.latencies.iter().copied()).collect(), None);
}

#[allow(clippy::cast_precision_loss, reason = "small counts")]
fn count(number: usize) -> f64 {
    number as f64
}

/// As many full handshakes as some clients can make one after another, each for the next name; connecting is counted too.
async fn handshakes(front: &Arc<Front>) -> Slice {
    let next = Arc::new(AtomicUsize::new(0));
    slice(SLICE, (0..AT_ONCE).map(|_| (Arc::clone(front), Arc::clone(&next))).collect(), |(front, next)| {
        let (front, name) = (Arc::clone(front), name(next.fetch_add(1, Ordering::Relaxed)));
        async move { front.tls(SERVICE, &name, "http/1.1").await.is_ok() }
    })
    .await
}

/// The same while one certificate after another is replaced.
async fn swapping(front: &Arc<Front>) -> Slice {
    let mut swaps = JoinSet::new();
    let swapped = Arc::clone(front);
    swaps.spawn(async move {
        for number in 0.. {
            swapped.renew(&name(number));
            tokio::time::sleep(SWAP).await;
        }
    });
    handshakes(front).await
}

type Client = http1::SendRequest<http_body_util::Full<bytes::Bytes>>;

/// As many requests as some clients can make one after another, each on its own connection.
async fn requests(front: Arc<Front>, backend: Arc<Backend>, direct: bool) -> Slice {
    let mut clients = Vec::new();
    for _ in 0..AT_ONCE {
        let client = if direct { plain(&backend).await.expect("connected") } else { front.http1(SERVICE, &name(0)).await };
        clients.push(client);
    }
    ask(clients, format!("https://{}/", name(0))).await
}

/// The same for clients that are connected.
async fn ask(clients: Vec<Client>, url: String) -> Slice {
    let clients = clients.into_iter().map(|client| Arc::new(Mutex::new(client))).collect();
    slice(SLICE, clients, move |client: &Arc<Mutex<Client>>| {
        let (client, url) = (Arc::clone(client), url.clone());
        async move {
            let mut client = client.lock().await;
            let request = async {
                client.ready().await?;
                client.send_request(get1(&url)).await?.into_body().collect().await
            };
            request.await.is_ok()
        }
    })
    .await
}

async fn plain(backend: &Backend) -> Result<Client> {
    let stream = TcpStream::connect(backend.address).await.context("the backend is away")?;
    stream.set_nodelay(true)?;
    let (client, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Does the work of each client over and over, for this time.
pub(crate) async fn slice<C, F>(lasts: Duration, clients: Vec<C>, work: impl Fn(&C) -> F + Clone + Send + 'static) -> Slice
where
    C: Send + Sync + 'static,
    F: Future<Output = bool> + Send,
{
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for client in clients {
        let work = work.clone();
        tasks.spawn(async move {
            let mut slice = Slice::default();
            while begun.elapsed() < lasts {
                let due = Instant::now();
                if work(&client).await {
                    slice.latencies.push(ms(due.elapsed()));
                } else {
                    slice.failed += 1;
                }
            }
            slice
        });
    }
    let mut all = Slice::default();
    for slice in tasks.join_all().await {
        all.latencies.extend(slice.latencies);
        all.failed += slice.failed;
    }
    all.rate = count(all.latencies.len()) / begun.elapsed().as_secs_f64();
    all
}
