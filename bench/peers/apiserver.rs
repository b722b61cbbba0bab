//! What does the proxy of the Kubernetes API server cost, and what do its clients experience, compared with the stock `k8s-proxy`?
//!
//! Both are groups of two replicas in mode `auth`, each with a Tailscale Service in one tailnet, before one kube-apiserver. A third node
//! sends the requests, in turn, and also to the API server directly. The control plane is the stand-in of the tests, and the kubelet is one
//! that sends bytes; all else is real. Needs root and `tests/servers/build etcd kube-apiserver hosted tailscaled tailscale k8s-proxy`.

mod client;
mod content;
mod group;
mod load;
mod report;
mod samples;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kit::apiserver::{Cluster, cluster};
use kit::front_end::backend::Backend;
use kit::front_end::front::{Authority, client};
use kit::member::service;
use kit::servers::{servers, tailscale_release};
use kit::tailnet::{Control, Tailnet};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use crate::support::{Args, Sheet, in_turn};

use client::Site;
use group::{Group, System};
use samples::Samples;

/// The network of replicas, client and control server, and the API server's address in it.
const NETWORK: [u8; 3] = [10, 98, 0];
const API: u8 = 10;
/// Port of the kubelet.
const KUBELET: u16 = 10250;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) rounds: usize,
    /// Rounds with a rolling restart, which takes the stock proxy most of a minute.
    pub(crate) restarts: usize,
    /// Duration of one measurement.
    pub(crate) slice: Duration,
    /// How long the load goes on after a kill.
    pub(crate) after_kill: Duration,
    pub(crate) pods: usize,
    pub(crate) watches: usize,
    /// Bytes of a long session.
    pub(crate) session: usize,
}

const FULL: Extent = Extent {
    rounds: 5,
    restarts: 3,
    slice: Duration::from_secs(3),
    after_kill: Duration::from_secs(15),
    pods: 10_000,
    watches: 500,
    session: 64 << 20,
};
const QUICK: Extent = Extent {
    rounds: 1,
    restarts: 0,
    slice: Duration::from_millis(300),
    after_kill: Duration::from_secs(4),
    pods: 300,
    watches: 50,
    session: 4 << 20,
};

/// A way to the API server, with its samples.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) site: Site,
    /// The proxies, if there are any.
    pub(crate) group: Option<Group>,
    pub(crate) samples: Samples,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let whole = if args.quick { QUICK } else { FULL };
    let extent = Extent { rounds: args.rounds.unwrap_or(whole.rounds), ..whole };
    servers(&["etcd", "kube-apiserver", "hosted", "tailscaled", "tailscale", "k8s-proxy"]);
    let mut sheet = Sheet::new("The proxy of the Kubernetes API server beside the stock k8s-proxy");
    "client".clone_into(&mut sheet.counts);
    sheet.version("k8s-proxy", tailscale_release());
    let mut outcome = Ok(());
    let (measured, written) = (&mut outcome, &mut sheet);
    cluster(async move |cluster| *measured = all(&cluster, extent, written).await);
    outcome?;
    Ok(sheet)
}

async fn all(cluster: &Cluster, extent: Extent, sheet: &mut Sheet) -> Result<()> {
    let tailnet = Tailnet::start_with(NETWORK, Control::Hosted);
    tailnet.plug_in(API);
    let authority = Authority::new();
    // Without a login of its own its user would have a name in the tailnet's domain, which our proxy refuses.
    tailnet.set_login("client", "alice@example.com");
    let (asking, _tailscaled) = tailnet.node("client");
    let kubelet = tailnet.machine("kubelet");
    let kubelet_at = SocketAddr::new(kubelet.address, KUBELET);
    let names = System::BOTH.map(|system| system.domain(&tailnet));
    let addresses = System::BOTH.map(|system| service(&tailnet, &system.service())[0]);
    tailnet.set_cert_domains(&names.each_ref().map(String::as_str));
    provide(cluster, &authority, &names).await;
    let proxied = |system: System, name: &str, address| {
        let site =
            Site { name: name.to_owned(), at: SocketAddr::new(address, 443), tls: authority.client("http/1.1").clone(), token: None };
        let group = Group::start(system, &tailnet, cluster, &authority)?;
        anyhow::Ok(Side { name: system.name(), site, group: Some(group), samples: Samples::default() })
    };
    let direct = direct(cluster)?;
    let mut sides = [
        proxied(System::Ours, &names[0], addresses[0])?,
        proxied(System::Stock, &names[1], addresses[1])?,
        Side { name: DIRECT, site: direct.clone(), group: None, samples: Samples::default() },
    ];
    // The cluster's own runtime waits meanwhile: clients and kubelet have theirs.
    asking.node.ns.run(|| -> Result<()> {
        let (clients, kubelets) = (runtime("client")?, kubelet.node.ns.run(|| runtime("kubelet"))??);
        let answer = Backend::at(kubelet_at, content::NODE, Some(Backend::untrusted(&["http/1.1"])));
        let _kubelet = kubelet.node.ns.run(|| kubelets.block_on(answer))?;
        clients.block_on(async {
            content::fill(&direct, extent.pods, kubelet_at).await?;
            measure(&mut sides, &direct, extent).await
        })
    })??;
    report::add(sheet, &sides);
    Ok(())
}

/// Name of the direct way in the report.
const DIRECT: &str = "plain HTTPS to the API server";

fn runtime(name: &str) -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build()?)
}

/// Certificates, config and rights of the replicas.
async fn provide(cluster: &Cluster, authority: &Authority, names: &[String; 2]) {
    let states = System::Stock.replicas();
    let states = states.each_ref().map(String::as_str);
    for state in states {
        cluster.make_secret(state, &[]).await;
    }
    for name in names {
        let pair = authority.pair(name);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        cluster.make_secret(name, &[("tls.crt", &text(&pair.chain)), ("tls.key", &text(&pair.key))]).await;
    }
    let secrets = names.each_ref().map(String::as_str);
    cluster.allow("secrets", &secrets, &["get", "list", "watch"]).await;
    cluster.allow("secrets", &states, &["get", "patch", "update"]).await;
    cluster.allow("events", &[], &["create", "patch", "get"]).await;
    cluster.allow("configmaps", &["ours"], &["get", "list", "watch"]).await;
    let [ours, _] = names;
    let site = json!({"hosts": {ours: {"secret": ours}}, "listeners": {"443": "https"}, "routes": [], "apiServer": {"mode": "auth"}});
    let routes = json!({System::Ours.service(): site}).to_string();
    cluster.write_config("ours", &[("serve-config.json", "{}"), ("tailyard-routes.json", &routes), ("ingress-config.json", "{}")]).await;
}

/// The API server itself, as the administrator.
fn direct(cluster: &Cluster) -> Result<Site> {
    let at: SocketAddr = cluster.url().trim_start_matches("https://").parse()?;
    let certificates = fs::read_to_string(cluster.path("certs/apiserver.crt"))?;
    Ok(Site { name: at.ip().to_string(), at, tls: client(&certificates, "http/1.1"), token: Some("admin-token") })
}

async fn measure(sides: &mut [Side], admin: &Site, extent: Extent) -> Result<()> {
    let mut users = Vec::new();
    for side in sides.iter().filter(|side| side.group.is_some()) {
        side.site.reached("/version").await.inspect_err(|_| eprintln!("{}", side.output()))?;
        users.push(content::user(&side.site).await?);
    }
    users.dedup();
    ensure!(users.len() == 1, "the proxies name different users: {users:?}");
    content::permit(admin, &users[0]).await?;
    for side in &*sides {
        side.requests(1, extent.slice).await.context("warming up")?;
    }
    for round in 0..extent.rounds {
        for side in in_turn(sides.iter_mut(), round) {
            side.turn(admin, extent, round).await.inspect_err(|_| eprintln!("{}", side.output()))?;
        }
    }
    Ok(())
}

impl Side {
    /// Whether its tailscaled is a part of the proxy's process.
    pub(crate) fn includes_tailscaled(&self) -> bool {
        self.name == System::Stock.name()
    }

    fn output(&self) -> String {
        self.group.as_ref().map(Group::output).unwrap_or_default()
    }
}
