//! `tailyard kubeconfig` as a user runs it: files, links, modes, locks and short names.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const NAME: &str = "kube.tail.ts.net";
const OTHER: &str = "# mine\nclusters:\n- name: other # work\n  cluster: {server: https://other}\ncurrent-context: other\n";

/// A home directory in which the command runs.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn run(&self, kubeconfig: &str, args: &[&str]) -> Output {
        let mut command = Command::new(kit::tailyard());
        command.current_dir(self.0.path()).env("HOME", self.0.path()).env("KUBECONFIG", kubeconfig).env_remove("TS_SOCKET");
        command.arg("kubeconfig").args(args).output().expect("the compiled binary")
    }

    /// Output of a run that succeeds.
    fn printed(&self, kubeconfig: &str, args: &[&str]) -> String {
        let output = self.run(kubeconfig, args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Errors of a run that fails.
    fn refused(&self, kubeconfig: &str, args: &[&str]) -> String {
        let output = self.run(kubeconfig, args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).expect("text")
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.path().join(file), text).expect("written");
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.path().join(file)).expect("a file")
    }

    fn mode(&self, file: &str) -> u32 {
        fs::metadata(self.0.path().join(file)).expect("a file").permissions().mode() & 0o777
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).expect("a directory").map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

#[test]
fn default_file_is_created_for_its_owner_and_not_changed_again() {
    let home = Home::new();
    let printed = home.printed("", &[NAME]);
    let file = home.0.path().join(".kube/config").display().to_string();
    assert_eq!(printed, format!("changed {file}\ncontext {NAME} is for https://{NAME}\n"));
    assert_eq!(home.mode(".kube/config"), 0o600);
    let text = home.read(".kube/config");
    assert_eq!(text, home.printed("", &[NAME, "--print"]), "as printed");
    assert!(home.printed("", &[NAME]).starts_with("nothing to change\n"));
    assert_eq!(home.read(".kube/config"), text);
    home.printed("", &[NAME, "--remove"]);
    assert!(!home.read(".kube/config").contains(NAME));
}

#[test]
fn target_of_a_link_is_replaced_with_its_mode_and_comments() {
    let home = Home::new();
    home.write("dotfile", OTHER);
    fs::set_permissions(home.0.path().join("dotfile"), fs::Permissions::from_mode(0o640)).expect("set");
    symlink("dotfile", home.0.path().join("config")).expect("a link");
    let options = ["--keep-context", "--context", "prod", "--namespace", "shop", "--certificate-authority", "dotfile"];
    home.printed("", &[&[NAME, "--kubeconfig", "config"], &options[..]].concat());
    let text = home.read("dotfile");
    assert!(text.starts_with("# mine\n") && text.contains("name: other # work") && text.contains("namespace: shop"), "{text}");
    let authority = home.0.path().canonicalize().expect("a path").join("dotfile").display().to_string();
    assert!(text.contains(&format!("    certificate-authority: {authority:?}\n    server: https://{NAME}\n")), "{text}");
    assert!(text.contains("current-context: other\n") && text.contains("  name: prod\n"), "{text}");
    assert_eq!(home.mode("dotfile"), 0o640);
    assert_eq!(home.files(), ["config", "dotfile"], "no lock, no temporary file");
    assert_eq!(fs::read_link(home.0.path().join("config")).expect("a link"), Path::new("dotfile"));
}

#[test]
fn files_of_the_variable_are_used_as_kubectl_does() {
    let home = Home::new();
    home.write("second", OTHER);
    home.write("third", &home.printed("", &[NAME, "--print"]));
    assert_eq!(home.printed("absent:second::second:third", &[NAME]), format!("changed second\ncontext {NAME} is for https://{NAME}\n"));
    assert_eq!(home.read("second"), OTHER.replace("context: other", &format!("context: {NAME}")), "the entries are in the third file");
    let removed = home.printed("absent:second:third", &[NAME, "--remove"]);
    assert_eq!(removed, "changed second\nchanged third\n");
    assert_eq!(home.files(), ["second", "third"]);
}

#[test]
fn unusable_or_locked_files_are_not_changed() {
    let home = Home::new();
    home.write("good", OTHER);
    for (bad, word) in [("users: [\n", "bad: not valid YAML"), ("kind: Pod\n", "bad: not a kubeconfig"), ("\u{0}", "bad: ")] {
        home.write("bad", bad);
        let error = home.refused("good:bad", &[NAME]);
        assert!(error.contains(word), "{error}");
        assert_eq!((home.read("good"), home.read("bad")), (OTHER.to_owned(), bad.to_owned()));
    }
    fs::write(home.0.path().join("bad"), [0xff, 0xfe]).expect("written");
    assert!(home.refused("bad", &[NAME]).contains("not UTF-8 text"));
    home.write("good.lock", "");
    assert!(home.refused("good", &[NAME]).contains("good.lock exists"));
    assert_eq!((home.read("good"), home.files()), (OTHER.to_owned(), ["bad", "good", "good.lock"].map(str::to_owned).to_vec()));
    assert!(home.refused("", &["100.64.0.1"]).contains("give the DNS name"));
    assert!(home.refused("good", &[NAME, "--user", "absent", "--kubeconfig", "new"]).contains("no kubeconfig has a user \"absent\""));
}

#[test]
fn short_name_gets_the_domain_from_tailscaled() {
    let home = Home::new();
    assert!(home.refused("", &["kube", "--print", "--socket", "absent"]).contains("use the full DNS name"));
    let listener = UnixListener::bind(home.0.path().join("socket")).expect("a socket");
    let daemon = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = [0; 4096];
        let length = stream.read(&mut request).expect("a request");
        let body = r#"{"BackendState":"Running","Self":{"DNSName":"laptop.tail.ts.net."}}"#;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("answered");
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    assert!(home.printed("", &["kube", "--print", "--socket", "socket"]).contains("server: https://kube.tail.ts.net\n"));
    assert!(daemon.join().expect("it ends").starts_with("GET /localapi/v0/status?peers=false "));
}
