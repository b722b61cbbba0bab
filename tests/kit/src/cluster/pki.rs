//! The certificates of a cluster, made by openssl, and the kubeconfigs that go with them. All end after two days.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::text;

/// Minimal openssl configuration: adds nothing to the request.
const CONFIG: &str = "[req]\ndistinguished_name = name\n[name]\n";

/// A directory of keys and certificates.
pub struct Pki {
    dir: PathBuf,
}

/// Subject and use of a certificate.
pub struct Leaf<'a> {
    /// The name of its files.
    pub file: &'a str,
    /// The name of the authority's files.
    pub authority: &'a str,
    /// The name, such as `/O=system:nodes/CN=system:node:n1`.
    pub subject: &'a str,
    /// Subject alternative names of a server; empty for a client.
    pub names: &'a [String],
}

impl Pki {
    /// Makes the directory.
    pub fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).expect("a directory");
        fs::write(dir.join("openssl.cnf"), CONFIG).expect("written");
        Self { dir }
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes an authority.
    pub fn authority(&self, file: &str) {
        let extensions = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"];
        self.request(file, &format!("/CN={file}"), &extensions.map(str::to_owned), None);
    }

    /// Makes a certificate, good for a client, and for a server if it has names.
    pub fn leaf(&self, leaf: &Leaf<'_>) {
        let usage = if leaf.names.is_empty() { "clientAuth" } else { "serverAuth,clientAuth" };
        let mut extensions = vec![
            "basicConstraints=critical,CA:FALSE".to_owned(),
            "keyUsage=critical,digitalSignature".to_owned(),
            format!("extendedKeyUsage={usage}"),
        ];
        if !leaf.names.is_empty() {
            extensions.push(format!("subjectAltName={}", leaf.names.join(",")));
        }
        self.request(leaf.file, leaf.subject, &extensions, Some(leaf.authority));
    }

    fn request(&self, file: &str, subject: &str, extensions: &[String], authority: Option<&str>) {
        let path = |end: &str| self.path(&format!("{file}.{end}"));
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", subject]);
        command.arg("-config").arg(self.path("openssl.cnf")).arg("-keyout").arg(path("key")).arg("-out").arg(path("crt"));
        for extension in extensions {
            command.args(["-addext", extension]);
        }
        if let Some(authority) = authority {
            command.arg("-CA").arg(self.path(&format!("{authority}.crt"))).arg("-CAkey").arg(self.path(&format!("{authority}.key")));
        }
        run(&mut command);
    }

    /// Generates the key pair for service account tokens.
    pub fn token_key(&self, file: &str) {
        let (private, public) = (self.path(&format!("{file}.key")), self.path(&format!("{file}.pub")));
        run(Command::new("openssl").args(["genrsa", "-out"]).arg(&private).arg("2048"));
        run(Command::new("openssl").args(["rsa", "-pubout", "-in"]).arg(&private).arg("-out").arg(public));
    }

    /// Makes a client's certificate and its kubeconfig; returns the path of the latter.
    pub fn client(&self, file: &str, subject: &str, server: &str) -> PathBuf {
        self.leaf(&Leaf { file, authority: "ca", subject, names: &[] });
        self.kubeconfig(file, server)
    }

    /// Writes the kubeconfig of an existing certificate.
    pub fn kubeconfig(&self, file: &str, server: &str) -> PathBuf {
        let path = |end: &str| text(&self.path(&format!("{file}.{end}")));
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority": text(&self.path("ca.crt"))}}],
            "users": [{"name": "lab", "user": {"client-certificate": path("crt"), "client-key": path("key")}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}]});
        let out = self.path(&format!("{file}.kubeconfig"));
        fs::write(&out, config.to_string()).expect("written");
        out
    }
}

/// How a certificate names an address.
pub fn ip_name(address: IpAddr) -> String {
    format!("IP:{address}")
}

/// How a certificate names a name.
pub fn dns_name(name: &str) -> String {
    format!("DNS:{name}")
}

fn run(command: &mut Command) {
    let output = command.output().expect("openssl");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The file of a certificate or key as a flag's value.
pub fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}
