//! An API server for many tests, one after the other: each begins with the same content of etcd.
//!
//! A test that fails, or that ends without a running API server, leaves nothing for the next one, which starts another.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use tailyard::edge::netns::Namespace;
use tempfile::TempDir;

use super::snapshot::Snapshot;
use super::{ADDRESSES, Cluster, DEADLINE, set_addresses};
use crate::wait::until;

/// The API server that no test uses now.
static IDLE: Mutex<Option<Idle>> = Mutex::new(None);

/// Where a cluster can be used again, and what its etcd contains then.
pub(super) struct Home {
    pub(super) namespace: Namespace,
    pub(super) content: Snapshot,
}

pub(super) struct Idle {
    place: Arc<TempDir>,
    etcd: Child,
    server: Child,
    home: Home,
}

impl Idle {
    pub(super) fn take() -> Option<Self> {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn namespace(&self) -> &Namespace {
        &self.home.namespace
    }

    /// A cluster with the content of its first test's begin. For a thread in its namespace.
    pub(super) async fn resume(self) -> Cluster {
        let Self { place, etcd, server, mut home } = self;
        until("the links of the last test are gone", DEADLINE, || links() == ["lo"]);
        set_addresses();
        home.content.restore();
        let mut cluster = Cluster::prepare(ADDRESSES[0], place);
        File::create(cluster.path("audit.log")).expect("an empty log");
        (cluster.etcd, cluster.server, cluster.home) = (Some(etcd), Some(server), Some(home));
        cluster.wait_until_served().await;
        cluster
    }
}

impl Cluster {
    /// Leaves the API server to later tests, if they can use it.
    pub(super) fn store_for_reuse(&mut self) {
        if thread::panicking() || self.controllers.is_some() || self.server.is_none() {
            return;
        }
        let Some(home) = self.home.take() else { return };
        self.thaw_server();
        let (Some(etcd), Some(server)) = (self.etcd.take(), self.server.take()) else { return };
        let idle = Idle { place: Arc::clone(&self.place), etcd, server, home };
        *IDLE.lock().unwrap_or_else(PoisonError::into_inner) = Some(idle);
    }
}

/// Starts a program that ends with this process, not with the calling thread, in the namespace of that thread.
pub(super) fn spawn_for_process(mut command: Command) -> std::io::Result<Child> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let started = command.spawn();
        if sender.send(started).is_ok() {
            loop {
                thread::park();
            }
        }
    });
    receiver.recv().expect("the thread sends")
}

/// Removes a directory after the end of this process, whose statics are never dropped.
pub(super) fn remove_at_exit(directory: &Path) {
    let mut command = Command::new("sh");
    command.args(["-c", "cat; sleep 1; rm -rf \"$0\""]).arg(directory).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("sh");
    let open_until_the_end = child.stdin.take();
    thread::spawn(move || {
        drop(child.wait());
        drop(open_until_the_end);
    });
}

/// Names of the links of the calling thread's namespace.
fn links() -> Vec<String> {
    let output = Command::new("ip").args(["-brief", "link"]).output().expect("the ip command");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}
