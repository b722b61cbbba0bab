//! A real kube-apiserver on a real etcd, in a network namespace, with real RBAC; it can be stopped, continued, killed and started again.
//! Tests of a program share one, in turn: each begins with an empty cluster. It ends with the process.

mod accounts;
mod objects;
mod requests;
mod reuse;
mod snapshot;

use std::fs::{self, DirEntry, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace as KubeNamespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::{AuthInfo, Config, KubeConfigOptions, Kubeconfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tailyard::edge::kube::Cluster as Client;
use tailyard::edge::netns::Namespace;
use tempfile::TempDir;

pub use accounts::read_status;
use reuse::{Home, Idle, remove_at_exit, spawn_for_process};
use snapshot::{ETCD, Snapshot};

use crate::audit_policy;
use crate::logs::print_ends;
use crate::servers::{GARBAGE_COLLECTION, servers};
use crate::wait::{eventually, eventually_async, report_boot};

/// The addresses of the API servers in their namespace; certificates are not possible for a loopback address.
const ADDRESSES: [&str; 2] = ["10.99.0.2", "10.99.0.3"];
/// The Kubernetes namespace of everything in a test.
pub const NAMESPACE: &str = "ts";
/// The reconciler's user: its service account.
pub const RECONCILER: &str = "system:serviceaccount:ts:tailyard-reconciler";
/// Upper bound of every wait on a slow machine.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// Two clusters at once would be too much for a small machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A running control plane: etcd, kube-apiserver and an administrator.
pub struct Cluster {
    place: Arc<TempDir>,
    /// The address of its API server.
    address: &'static str,
    binaries: PathBuf,
    etcd: Option<Child>,
    server: Option<Child>,
    controllers: Option<Child>,
    admin: Option<kube::Client>,
    /// `None`: ends with the value.
    home: Option<Home>,
}

/// Runs a test with an empty cluster, in the namespace where the cluster and all clients are.
pub fn cluster(test: impl AsyncFnOnce(Cluster) + Send) {
    let _turn: MutexGuard<'_, ()> = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = Idle::take();
    let make = || Namespace::make().expect("a network namespace");
    let namespace = idle.as_ref().map_or_else(make, |idle| idle.namespace().clone());
    let home = namespace.clone();
    let work = async move || {
        let cluster = match idle {
            Some(idle) => idle.resume().await,
            None => Cluster::boot(Some(home)).await,
        };
        test(cluster).await;
    };
    namespace.block_on(work).expect("the test's thread");
}

/// Runs work in an existing namespace, with a cluster that no other test uses, and all clients.
pub fn cluster_in(namespace: &Namespace, test: impl AsyncFnOnce(Cluster) + Send) {
    namespace.block_on(async move || test(Cluster::boot(None).await).await).expect("the test's thread");
}

impl Cluster {
    /// Starts one in the calling thread's namespace; with a home, later tests use it too.
    async fn boot(home: Option<Namespace>) -> Self {
        set_addresses();
        let place = new_place();
        if home.is_some() {
            remove_at_exit(place.path());
        }
        let mut cluster = Self::prepare(ADDRESSES[0], place);
        cluster.start().await;
        if let Some(namespace) = home {
            cluster.wait_until_ready().await;
            cluster.home = Some(Home { namespace, content: Snapshot::read() });
        }
        cluster
    }

    /// Makes the present content that of later tests as well, and of this cluster's next ones.
    pub fn keep_content(&mut self) {
        if let Some(home) = &mut self.home {
            home.content = Snapshot::read();
        }
    }

    /// Everything but the processes.
    fn prepare(address: &'static str, place: Arc<TempDir>) -> Self {
        let binaries = servers(&["etcd", "kube-apiserver"]);
        let path = |name: &str| place.path().join(name);
        let accounts = "system:serviceaccounts,system:authenticated";
        let tokens =
            format!("admin-token,admin,1,\"system:masters\"\npod-token,pod,2,\"pods\"\nreconciler-token,{RECONCILER},3,\"{accounts}\"\n");
        fs::write(path("tokens.csv"), tokens).expect("tokens");
        fs::write(path("audit.json"), audit_policy::policy(&["pod", RECONCILER])).expect("policy");
        for (name, token) in [("pod", "pod-token"), ("admin", "admin-token"), ("reconciler", "reconciler-token")] {
            fs::create_dir_all(path(name)).expect("directory");
            fs::write(path(name).join("namespace"), NAMESPACE).expect("namespace");
            fs::write(path(name).join("token"), token).expect("token");
        }
        Self { place, address, binaries, etcd: None, server: None, controllers: None, admin: None, home: None }
    }

    /// The path of a file of the cluster's own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Starts a program that ends with this thread; its output is printed if the test fails.
    pub fn spawn(&self, program: &str, arguments: &[String]) -> Child {
        self.command(program, arguments).spawn().unwrap_or_else(|error| panic!("{program} (and setpriv): {error}"))
    }

    fn spawn_server(&self, program: &str, arguments: &[String]) -> Child {
        spawn_for_process(self.command(program, arguments)).unwrap_or_else(|error| panic!("{program} (and setpriv): {error}"))
    }

    fn command(&self, program: &str, arguments: &[String]) -> Command {
        let log = File::options().create(true).append(true).open(self.path(&format!("{program}.log"))).expect("log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(self.binaries.join(program)).args(arguments);
        command.envs(GARBAGE_COLLECTION).stdin(Stdio::null()).stdout(log.try_clone().expect("log")).stderr(log);
        command
    }

    async fn start(&mut self) {
        let data = self.path("etcd").display().to_string();
        let flags = [
            format!("--data-dir={data}"),
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
            format!("--listen-client-urls={ETCD}"),
            format!("--advertise-client-urls={ETCD}"),
            "--listen-peer-urls=http://127.0.0.1:2380".into(),
        ];
        let begin = Instant::now();
        self.etcd = Some(self.spawn_server("etcd", &flags));
        self.begin().await;
        report_boot("API server", begin);
    }

    /// Another cluster beside this one: its own API server, with a separate key prefix in the same etcd.
    pub async fn second() -> Self {
        let mut second = Self::prepare(ADDRESSES[1], new_place());
        second.begin().await;
        second
    }

    async fn begin(&mut self) {
        self.start_server().await;
        let admin = self.admin();
        let namespace = KubeNamespace { metadata: named(NAMESPACE), ..KubeNamespace::default() };
        Api::all(admin).create(&PostParams::default(), &namespace).await.expect("a namespace");
    }

    /// Starts the API server and waits until it serves, including the default rules for self subject access reviews.
    pub async fn start_server(&mut self) {
        self.launch();
        self.wait_until_served().await;
    }

    async fn wait_until_served(&mut self) {
        for name in ["pod", "admin", "reconciler"] {
            let made = async || fs::copy(self.path("certs/apiserver.crt"), self.path(name).join("ca.crt")).ok();
            eventually_async("a certificate", DEADLINE, made, |copied| copied.is_some_and(|bytes| bytes > 0)).await;
        }
        self.admin = Some(self.client_of("admin").await);
        let api: Api<ClusterRoleBinding> = Api::all(self.admin());
        let served = async || api.get("system:basic-user").await.map(drop).map_err(|error| error.to_string());
        eventually_async("the API serves", DEADLINE, served, Result::is_ok).await.expect("it holds");
    }

    /// Waits for everything that the API server writes by itself after its start.
    async fn wait_until_ready(&self) {
        let request = || http::Request::get("/readyz").body(Vec::new()).expect("a request");
        let ready = async || self.admin().request_text(request()).await.map_err(|error| error.to_string());
        eventually_async("the API server is ready", DEADLINE, ready, Result::is_ok).await.expect("it holds");
    }

    /// Starts the API server and does not wait.
    pub fn launch(&mut self) {
        let path = |name: &str| self.path(name).display().to_string();
        let flags = [
            format!("--etcd-servers={ETCD}"),
            format!("--etcd-prefix=/{}", self.address),
            format!("--advertise-address={}", self.address),
            format!("--bind-address={}", self.address),
            "--secure-port=6443".into(),
            "--endpoint-reconciler-type=none".into(),
            "--allow-privileged=true".into(),
            format!("--cert-dir={}", path("certs")),
            format!("--token-auth-file={}", path("tokens.csv")),
            "--authorization-mode=RBAC".into(),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-key-file={}", path("sa.key")),
            format!("--service-account-signing-key-file={}", path("sa.key")),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            format!("--audit-policy-file={}", path("audit.json")),
            format!("--audit-log-path={}", path("audit.log")),
        ];
        self.server = Some(self.spawn_server("kube-apiserver", &flags));
    }

    /// Starts the controller of `EndpointSlice`s, and no other, with the rate of requests of a usual cluster.
    pub fn start_endpoints(&mut self) {
        servers(&["kube-controller-manager"]);
        let flags = [
            format!("--kubeconfig={}", self.kubeconfig_of("admin").display()),
            "--controllers=endpointslice-controller".into(),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
        ];
        self.controllers = Some(self.spawn("kube-controller-manager", &flags));
    }

    /// Ends the API server at once.
    pub fn kill_server(&mut self) {
        let mut server = self.server.take().expect("a running API server");
        server.kill().expect("killed");
        server.wait().expect("ended");
    }

    /// Freezes the API server: connections stay and nothing answers. On a busy machine a thread may run on for a moment.
    pub fn freeze_server(&self) {
        self.signal(Signal::SIGSTOP);
        let threads = format!("/proc/{}/task", self.server.as_ref().expect("a running API server").id());
        // The state follows the name, which is in brackets.
        let is_stopped = |thread: std::io::Result<DirEntry>| {
            let stat = thread.and_then(|thread| fs::read_to_string(thread.path().join("stat")));
            stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T')))
        };
        eventually("a stopped API server", DEADLINE, || fs::read_dir(&threads).expect("threads").all(is_stopped).then_some(()));
    }

    /// Resumes the API server.
    pub fn thaw_server(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let id = self.server.as_ref().expect("a running API server").id();
        kill(Pid::from_raw(id.try_into().expect("a process id")), signal).expect("signalled");
    }

    /// The URL of the API.
    pub fn url(&self) -> String {
        format!("https://{}:6443", self.address)
    }

    /// Where the Pod finds its service account.
    pub fn service_account(&self) -> PathBuf {
        self.path("pod")
    }

    /// The Pod's own client, as in a Pod.
    pub async fn pod(&self) -> Client {
        Client::in_pod(&self.url(), &self.service_account()).await.expect("a client")
    }

    /// The directory of a `ServiceAccount`'s credentials, as in its Pods, with a token that the API server issues.
    pub async fn account(&self, name: &str) -> PathBuf {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin(), NAMESPACE);
        let request = accounts.create_token_request(name, &PostParams::default(), &TokenRequest::default()).await.expect("a token");
        let directory = self.path(name);
        fs::create_dir_all(&directory).expect("directory");
        fs::write(directory.join("namespace"), NAMESPACE).expect("namespace");
        fs::write(directory.join("token"), request.status.and_then(|status| status.token).expect("a token")).expect("token");
        fs::copy(self.path("admin").join("ca.crt"), directory.join("ca.crt")).expect("a certificate");
        directory
    }

    /// A client of a user whose directory of credentials exists.
    pub async fn client_of(&self, name: &str) -> kube::Client {
        let directory = self.path(name);
        let file: Kubeconfig = serde_json::from_value(kubeconfig(&directory, &self.url())).expect("a kubeconfig");
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a config");
        let token_file = Some(directory.join("token").display().to_string());
        config.auth_info = AuthInfo { token_file, ..AuthInfo::default() };
        kube::Client::try_from(config).expect("a client")
    }

    /// A kubeconfig file of the Pod's user.
    pub fn kubeconfig_file(&self) -> PathBuf {
        self.kubeconfig_of("pod")
    }

    /// A kubeconfig file of a user.
    pub fn kubeconfig_of(&self, user: &str) -> PathBuf {
        let path = self.path(&format!("kubeconfig-{user}"));
        // Replaced as a whole: a program that was started just before may be reading it.
        let next = path.with_extension("next");
        fs::write(&next, kubeconfig(&self.path(user), &self.url()).to_string()).expect("written");
        fs::rename(&next, &path).expect("renamed");
        path
    }

    /// The administrator's client.
    pub fn admin(&self) -> kube::Client {
        self.admin.clone().expect("a started cluster")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.store_for_reuse();
        for child in [self.controllers.take(), self.server.take(), self.etcd.take()].into_iter().flatten() {
            end(child);
        }
        if std::thread::panicking() {
            print_ends(self.place.path(), ".log", |_| true);
        }
    }
}

/// Gives the loopback link of the calling thread's namespace the addresses of the API servers, and no others.
fn set_addresses() {
    let addresses = ADDRESSES.map(|address| format!("{address}/32"));
    for arguments in [
        &["link", "set", "lo", "up"][..],
        &["address", "flush", "dev", "lo", "scope", "global"],
        &["address", "add", &addresses[0], "dev", "lo"],
        &["address", "add", &addresses[1], "dev", "lo"],
    ] {
        assert!(Command::new("ip").args(arguments).status().expect("the ip command").success());
    }
}

/// A directory with a key of service accounts.
fn new_place() -> Arc<TempDir> {
    let place = TempDir::new().expect("a directory");
    let key = Command::new("openssl").args(["genrsa", "-out"]).arg(place.path().join("sa.key")).arg("2048").stderr(Stdio::null()).status();
    assert!(key.expect("openssl").success());
    Arc::new(place)
}

fn end(mut child: Child) {
    if child.kill().and_then(|()| child.wait()).is_err() {
        println!("process {} could not be ended", child.id());
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

fn kubeconfig(directory: &Path, url: &str) -> Value {
    let token = fs::read_to_string(directory.join("token")).expect("a token");
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": directory.join("ca.crt")}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": NAMESPACE}}]})
}
