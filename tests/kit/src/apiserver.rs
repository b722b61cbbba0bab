//! A real kube-apiserver on a real etcd, in a network namespace of its own, with real RBAC; it can be stopped, continued,
//! killed and started again. Everything ends with the value, or with the test's thread.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace as KubeNamespace, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{AuthInfo, Config, KubeConfigOptions, Kubeconfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tailyard::edge::kube::Cluster as Client;
use tailyard::edge::netns::Namespace;
use tempfile::TempDir;

use crate::audit_policy;
use crate::logs::print_ends;
use crate::servers::servers;
use crate::wait::{eventually_async, report_boot};

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
    place: TempDir,
    /// The address of its API server.
    address: &'static str,
    binaries: PathBuf,
    etcd: Option<Child>,
    server: Option<Child>,
    controllers: Option<Child>,
    admin: Option<kube::Client>,
}

/// Runs a test in a namespace of its own, where the cluster and all clients are.
pub fn cluster(test: impl AsyncFnOnce(Cluster) + Send) {
    let _turn: MutexGuard<'_, ()> = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    cluster_in(&Namespace::make().expect("a network namespace"), test);
}

/// Runs work in an existing namespace, with the cluster and all clients.
pub fn cluster_in(namespace: &Namespace, test: impl AsyncFnOnce(Cluster) + Send) {
    let work = async move || {
        let addresses = ADDRESSES.map(|address| format!("{address}/32"));
        for arguments in [
            &["link", "set", "lo", "up"][..],
            &["address", "add", &addresses[0], "dev", "lo"],
            &["address", "add", &addresses[1], "dev", "lo"],
        ] {
            assert!(Command::new("ip").args(arguments).status().expect("the ip command").success());
        }
        let mut cluster = Cluster::prepare(ADDRESSES[0]);
        cluster.start().await;
        test(cluster).await;
    };
    namespace.block_on(work).expect("the test's thread");
}

impl Cluster {
    /// Everything but the processes.
    fn prepare(address: &'static str) -> Self {
        let binaries = servers(&["etcd", "kube-apiserver"]);
        let place = TempDir::new().expect("a directory");
        let path = |name: &str| place.path().join(name);
        let key = Command::new("openssl").args(["genrsa", "-out"]).arg(path("sa.key")).arg("2048").stderr(Stdio::null()).status();
        assert!(key.expect("openssl").success());
        let accounts = "system:serviceaccounts,system:authenticated";
        let tokens =
            format!("admin-token,admin,1,\"system:masters\"\npod-token,pod,2,\"pods\"\nreconciler-token,{RECONCILER},3,\"{accounts}\"\n");
        fs::write(path("tokens.csv"), tokens).expect("tokens");
        fs::write(path("audit.json"), audit_policy::policy(&["pod", RECONCILER])).expect("policy");
        for (name, token) in [("pod", "pod-token"), ("admin", "admin-token"), ("reconciler", "reconciler-token")] {
            fs::create_dir(path(name)).expect("directory");
            fs::write(path(name).join("namespace"), NAMESPACE).expect("namespace");
            fs::write(path(name).join("token"), token).expect("token");
        }
        Self { place, address, binaries, etcd: None, server: None, controllers: None, admin: None }
    }

    /// The path of a file of the cluster's own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Starts a program that ends with this thread; its output is printed if the test fails.
    pub fn spawn(&self, program: &str, arguments: &[String]) -> Child {
        let log = File::options().create(true).append(true).open(self.path(&format!("{program}.log"))).expect("log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(self.binaries.join(program)).args(arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("log")).stderr(log);
        command.spawn().unwrap_or_else(|error| panic!("{program} (and setpriv): {error}"))
    }

    async fn start(&mut self) {
        let data = self.path("etcd").display().to_string();
        let flags = [
            format!("--data-dir={data}"),
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
            "--listen-client-urls=http://127.0.0.1:2379".into(),
            "--advertise-client-urls=http://127.0.0.1:2379".into(),
            "--listen-peer-urls=http://127.0.0.1:2380".into(),
        ];
        let begin = Instant::now();
        self.etcd = Some(self.spawn("etcd", &flags));
        self.begin().await;
        report_boot("API server", begin);
    }

    /// Another cluster beside this one: its own API server, with a separate key prefix in the same etcd.
    pub async fn second() -> Self {
        let mut second = Self::prepare(ADDRESSES[1]);
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
        for name in ["pod", "admin", "reconciler"] {
            let made = async || fs::copy(self.path("certs/apiserver.crt"), self.path(name).join("ca.crt")).ok();
            eventually_async("a certificate", DEADLINE, made, |copied| copied.is_some_and(|bytes| bytes > 0)).await;
        }
        self.admin = Some(self.client_of("admin").await);
        let api: Api<ClusterRoleBinding> = Api::all(self.admin());
        let served = async || api.get("system:basic-user").await.map(drop).map_err(|error| error.to_string());
        eventually_async("the API serves", DEADLINE, served, Result::is_ok).await.expect("it holds");
    }

    /// Starts the API server and does not wait.
    pub fn launch(&mut self) {
        let path = |name: &str| self.path(name).display().to_string();
        let flags = [
            "--etcd-servers=http://127.0.0.1:2379".into(),
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
        self.server = Some(self.spawn("kube-apiserver", &flags));
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

    /// Freezes the API server: connections stay and nothing answers.
    pub fn freeze_server(&self) {
        self.signal(Signal::SIGSTOP);
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

    async fn client_of(&self, name: &str) -> kube::Client {
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
        fs::write(&path, kubeconfig(&self.path(user), &self.url()).to_string()).expect("written");
        path
    }

    /// The administrator's client.
    pub fn admin(&self) -> kube::Client {
        self.admin.clone().expect("a started cluster")
    }

    /// All `ConfigMap`s, as the administrator.
    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.admin(), NAMESPACE)
    }

    /// All Secrets, as the administrator.
    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.admin(), NAMESPACE)
    }

    /// Makes a `ConfigMap` with these values as the operator does, in `binaryData`, or replaces those of one that exists.
    pub async fn write_config(&self, name: &str, values: &[(&str, &str)]) {
        let binary: BTreeMap<_, _> = values.iter().map(|(key, value)| (*key, k8s_openapi::ByteString(value.as_bytes().to_vec()))).collect();
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "binaryData": binary});
        let parameters = PatchParams::apply("test").force();
        self.config_maps().patch(name, &parameters, &Patch::Apply(object)).await.expect("written");
    }

    /// Deletes a `ConfigMap`.
    pub async fn delete_config(&self, name: &str) {
        self.config_maps().delete(name, &DeleteParams::default()).await.expect("deleted");
    }

    /// Makes a Secret with these values.
    pub async fn make_secret(&self, name: &str, values: &[(&str, &str)]) {
        let data = values.iter().map(|(key, value)| ((*key).to_owned(), k8s_openapi::ByteString(value.as_bytes().to_vec())));
        let secret = Secret { metadata: named(name), data: Some(data.collect()), ..Secret::default() };
        self.secrets().create(&PostParams::default(), &secret).await.expect("a Secret");
    }

    /// Changes these values of a Secret.
    pub async fn patch_secret(&self, name: &str, values: &[(&str, &str)]) {
        let text: BTreeMap<_, _> = values.iter().copied().collect();
        let patch = Patch::Merge(json!({"stringData": text}));
        self.secrets().patch(name, &PatchParams::default(), &patch).await.expect("patched");
    }

    /// Deletes a Secret.
    pub async fn delete_secret(&self, name: &str) {
        self.secrets().delete(name, &DeleteParams::default()).await.expect("deleted");
    }

    /// The field managers of a Secret.
    pub async fn managers(&self, name: &str) -> Vec<String> {
        let metadata = self.secrets().get(name).await.expect("a Secret").metadata;
        metadata.managed_fields.unwrap_or_default().into_iter().filter_map(|entry| entry.manager).collect()
    }

    /// The values of a Secret as text, and its version.
    pub async fn secret(&self, name: &str) -> (BTreeMap<String, String>, String) {
        let secret = self.secrets().get(name).await.expect("a Secret");
        let text = |value: Vec<u8>| String::from_utf8(value).expect("text");
        let values = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, text(value.0))).collect();
        (values, secret.metadata.resource_version.expect("a version"))
    }

    /// Grants the Pod these verbs on the named objects of a resource, and waits until the API server applies the rule.
    pub async fn allow(&self, resource: &str, names: &[&str], verbs: &[&str]) {
        self.allow_in("", resource, names, verbs).await;
    }

    /// The same for an API group; an empty list of names means all objects.
    pub async fn allow_in(&self, group: &str, resource: &str, names: &[&str], verbs: &[&str]) {
        let role = format!("{resource}-{}", verbs.join("-"));
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let granted = PolicyRule {
            api_groups: Some(owned(&[group])),
            resources: Some(owned(&[resource])),
            resource_names: Some(owned(names)).filter(|names| !names.is_empty()),
            verbs: owned(verbs),
            ..PolicyRule::default()
        };
        let made = Role { metadata: named(&role), rules: Some(vec![granted]) };
        Api::<Role>::namespaced(self.admin(), NAMESPACE).create(&PostParams::default(), &made).await.expect("a Role");
        let reference = RoleRef { api_group: Some("rbac.authorization.k8s.io".into()), kind: "Role".into(), name: role.clone() };
        let subject = Subject { kind: "User".into(), name: "pod".into(), ..Subject::default() };
        let binding = RoleBinding { metadata: named(&role), role_ref: reference, subjects: Some(vec![subject]) };
        Api::<RoleBinding>::namespaced(self.admin(), NAMESPACE).create(&PostParams::default(), &binding).await.expect("a RoleBinding");
    }

    /// The writes that the reconciler made, its Lease apart: verb, resource and name.
    pub fn writes(&self) -> Vec<String> {
        let writes = |request: &String| !["get", "list"].iter().any(|verb| request.starts_with(verb));
        self.requests().into_iter().filter(writes).collect()
    }

    /// The requests that the reconciler made, its Lease and watches apart: verb, resource and name.
    pub fn requests(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("audit.log")).unwrap_or_default();
        let own = audit_policy::requests(&log)
            .filter(|event| event["user"]["username"] == RECONCILER && event["objectRef"]["resource"] != "leases");
        let own = own.filter(|event| matches!(event["verb"].as_str(), Some("get" | "list" | "create" | "update" | "patch" | "delete")));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let tell = |event: &Value| {
            let object = &event["objectRef"];
            let resource = format!("{} {}", text(&object["resource"]), text(&object["subresource"]));
            format!("{} {} {} {}", text(&event["verb"]), resource.trim(), text(&object["name"]), event["responseStatus"]["code"])
        };
        own.map(|event| tell(&event)).collect()
    }

    /// How often the Pod did this to such an object and succeeded, according to the API server's audit log.
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        let log = fs::read_to_string(self.path("audit.log")).unwrap_or_default();
        let done =
            |event: &Value| event["verb"] == verb && event["objectRef"]["resource"] == resource && event["responseStatus"]["code"] == 200;
        audit_policy::requests(&log).filter(done).count()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in [self.controllers.take(), self.server.take(), self.etcd.take()].into_iter().flatten() {
            end(child);
        }
        if std::thread::panicking() {
            print_ends(self.place.path());
        }
    }
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
