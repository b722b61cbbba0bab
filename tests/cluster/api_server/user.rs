//! A user of kubectl on a tailnet client of its own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use kit::cluster::DEADLINE;
use kit::machine::Process;
use kit::tailnet::Tailnet;
use kit::tailnet_client::TailnetClient;
use kit::wait::eventually;
use serde_json::Value;

pub(crate) struct User {
    pub(crate) client: TailnetClient,
    kubeconfig: PathBuf,
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl User {
    /// Joins the tailnet under this name.
    pub(crate) fn join(tailnet: &Arc<Tailnet>, name: &str, args: &[&str]) -> Self {
        let client = TailnetClient::join_as(tailnet, name, args);
        Self { kubeconfig: tailnet.dir().join(format!("{name}.kubeconfig")), client }
    }

    /// Writes a kubeconfig for the Kubernetes API of this name with Tailscale's own command, once a replica serves it.
    pub(crate) fn configure(&self, service: &str) {
        self.client.resolve(service);
        let machine = self.client.machine();
        eventually(&format!("tailscale configure kubeconfig {service}"), DEADLINE, || {
            let mut command = machine.command(&machine.bin().join("tailscale"));
            command.arg(format!("--socket={}", machine.socket().display())).args(["configure", "kubeconfig", service]);
            let output = command.env("KUBECONFIG", &self.kubeconfig).output().expect("nsenter");
            output.status.success().then_some(())
        });
    }

    /// The same with our command, for a name or URL.
    pub(crate) fn configure_by_tailyard(&self, service: &str, address: &str) {
        self.client.resolve(service);
        let machine = self.client.machine();
        let mut command = machine.command(Path::new(kit::tailyard()));
        command.args(["kubeconfig", address, "--namespace", "default", "--kubeconfig"]).arg(&self.kubeconfig);
        printed("tailyard kubeconfig", &command.arg("--socket").arg(machine.socket()).output().expect("nsenter"));
    }

    /// kubectl, to be run.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.client.command(&self.client.machine().bin().join("kubectl"));
        command.env("KUBECONFIG", &self.kubeconfig).env("KUBECACHEDIR", "/run/kubectl");
        command
    }

    pub(crate) fn try_kubectl(&self, args: &[&str]) -> Output {
        self.command().args(args).output().expect("nsenter")
    }

    /// Output of kubectl; a failure panics.
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        printed(&args.join(" "), &self.try_kubectl(args))
    }

    /// Error message of kubectl; a success panics.
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let output = self.try_kubectl(args);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "kubectl {args:?} succeeds: {}{message}", String::from_utf8_lossy(&output.stdout));
        message
    }

    /// Starts kubectl with these variables; its output is that of the process.
    pub(crate) fn start(&self, what: &str, args: &[&str], env: &[(&str, &str)]) -> Process {
        let machine = self.client.machine();
        let program = machine.bin().join("kubectl").display().to_string();
        let (kubeconfig, roots) = (self.kubeconfig.display().to_string(), self.client.roots().display().to_string());
        let own = [("KUBECONFIG", &*kubeconfig), ("KUBECACHEDIR", "/run/kubectl"), ("SSL_CERT_FILE", &*roots)];
        machine.spawn(what, &[&[&*program], args].concat(), &[&own, env].concat())
    }

    /// The answer to a request by curl, with these arguments of it.
    pub(crate) fn ask(&self, service: &str, path: &str, args: &[&str]) -> Result<Answer, String> {
        self.curl(&format!("https://{}{path}", self.client.name(service)), args)
    }

    /// The answer of a URL.
    pub(crate) fn curl(&self, url: &str, args: &[&str]) -> Result<Answer, String> {
        let mut command = self.client.command(Path::new("/usr/bin/curl"));
        command.args(["-sS", "--max-time", "10", "--cacert"]).arg(self.client.roots());
        Answer::read(&command.args(["-w", "\n%{http_code}"]).args(args).arg(url).output().expect("nsenter"))
    }

    /// Identity of this user, as the API server has it, of requests with these arguments of curl.
    pub(crate) fn identity(&self, service: &str, args: &[&str]) -> Result<Value, String> {
        self.identity_at(&format!("https://{}", self.client.name(service)), args)
    }

    /// The same at this URL of the Kubernetes API.
    pub(crate) fn identity_at(&self, url: &str, args: &[&str]) -> Result<Value, String> {
        let review = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
        let json = ["-H", "Content-Type: application/json", "--data", review];
        let answer = self.curl(&format!("{url}/apis/authentication.k8s.io/v1/selfsubjectreviews"), &[&json, args].concat())?;
        if answer.status == 201 { Ok(answer.json()["status"]["userInfo"].take()) } else { Err(format!("{answer:?}")) }
    }
}

impl Answer {
    /// Reads the output of curl, whose last line is the status.
    pub(crate) fn read(output: &Output) -> Result<Self, String> {
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let (body, status) = text.rsplit_once('\n').expect("a status");
        Ok(Self { status: status.parse().expect("a number"), body: body.to_owned() })
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Message of a `Status` object with the code of the response; any other body panics.
    pub(crate) fn message(&self) -> String {
        let status = self.json();
        assert_eq!((&status["kind"], &status["code"]), (&"Status".into(), &self.status.into()), "{self:?}");
        status["message"].as_str().expect("a message").to_owned()
    }
}

/// Output of a command; a failure panics.
pub(crate) fn printed(what: &str, output: &Output) -> String {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{what}: {stdout}{stderr}");
    stdout.into_owned()
}

/// Runs a command with this input.
pub(crate) fn feed(command: &mut Command, input: &[u8]) -> Output {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().write_all(input).expect("written");
    command.stdin(Stdio::from(fs::File::open(file.path()).expect("the file"))).output().expect("nsenter")
}
