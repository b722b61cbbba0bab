//! Everything around the Pods: the API server, the tailnet, the target in it, the client.

use std::net::{IpAddr, SocketAddr};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result};
use kit::apiserver::{Cluster, cluster};
use kit::machine::{Machine, Process};
use kit::servers::{servers, tailscale_release};
use kit::tailnet::Tailnet;
use tailyard::demo::services::{FIRST_TARGET_PORT, TARGET_PORTS};
use tailyard::demo::target::DemoTarget;

use crate::support::{Args, Sheet};

use super::system::System;

/// The network of Pods, client and control server; the API server is plugged into it.
const NETWORK: [u8; 3] = [10, 98, 0];
/// The last byte of the API server's address there.
const API: u8 = 10;

/// The stage.
pub(crate) struct Stage {
    /// The client.
    pub(crate) client: Machine,
    /// The target's address in the tailnet.
    pub(crate) target: IpAddr,
    /// The target's machine.
    pub(crate) behind: Machine,
    /// The API server, and where it is.
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) api: SocketAddr,
    /// The directory of a Pod's service account.
    pub(crate) account: PathBuf,
    machines: AtomicUsize,
    _target: (DemoTarget, Process),
    pub(crate) tailnet: Tailnet,
}

/// Runs a benchmark on the stage; returns its sheet.
pub(crate) fn on_stage(args: &Args, question: &str, measure: impl FnOnce(&Stage, &Args, &mut Sheet) -> Result<()> + Send) -> Result<Sheet> {
    stage(|stage| {
        let mut sheet = Sheet::new(question);
        sheet.version("containerboot and tailscaled", tailscale_release());
        measure(stage, args, &mut sheet)?;
        Ok(sheet)
    })
}

/// Sets the stage for a benchmark.
fn stage<T: Send>(bench: impl FnOnce(&Stage) -> Result<T> + Send) -> Result<T> {
    servers(&["containerboot", "headscale", "tailscaled", "tailscale"]);
    let measured = Mutex::new(None);
    cluster(async |cluster| {
        grant(&cluster).await;
        let cluster = Arc::new(cluster);
        // In the same network, but in no runtime: benchmarks have their own.
        let work = || Stage::set(Arc::clone(&cluster)).and_then(|stage| bench(&stage));
        let done = thread::scope(|scope| scope.spawn(work).join());
        *measured.lock().expect("no panic under the lock") = Some(done);
    });
    let done = measured.into_inner().expect("no panic under the lock").context("the stage's work did not end")?;
    done.unwrap_or_else(|panic| resume_unwind(panic))
}

impl Stage {
    fn set(cluster: Arc<Cluster>) -> Result<Self> {
        let tailnet = Tailnet::start(NETWORK);
        tailnet.plug_in(API);
        let (mut machine, tailscaled) = tailnet.node("db");
        let target = machine.tailnet_addresses().into_iter().find(IpAddr::is_ipv4).context("the target has an address")?;
        // The target's tailnet address must not be reachable outside the tailnet.
        machine.node.sysctl("net.ipv4.conf.all.arp_ignore", "1");
        let served = DemoTarget::start(&machine.node.ns, 0, FIRST_TARGET_PORT..FIRST_TARGET_PORT + TARGET_PORTS)?;
        let client = tailnet.machine("client");
        Ok(Self {
            client,
            target,
            behind: machine,
            api: cluster.url().trim_start_matches("https://").parse()?,
            account: cluster.service_account(),
            cluster,
            machines: AtomicUsize::new(0),
            _target: (served, tailscaled),
            tailnet,
        })
    }

    /// A name for a machine that no other has.
    pub(crate) fn unique(&self, name: &str) -> String {
        format!("{name}-{}", self.machines.fetch_add(1, Ordering::Relaxed))
    }
}

/// The state Secrets, and the rights that the Tailscale operator gives to the replicas of a group.
async fn grant(cluster: &Cluster) {
    let names = System::ALL.map(|system| system.pod);
    for name in names {
        cluster.make_secret(name, &[]).await;
    }
    cluster.allow("secrets", &names, &["get", "patch", "update"]).await;
    cluster.allow("secrets", &[], &["list", "watch"]).await;
    cluster.allow("events", &[], &["create", "patch", "get"]).await;
}
