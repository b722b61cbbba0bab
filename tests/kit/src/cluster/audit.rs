//! What the operators of a cluster ask of its API server, by its audit log.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::Value;

use super::control::ControlPlane;
use crate::audit_policy;

/// Where the API server keeps it, on its machine.
pub const LOG: &str = "/run/audit.log";
/// Whose requests are kept: our reconciler's and the Tailscale operator's, each in the namespace of both.
const ACCOUNTS: [&str; 2] = ["tailyard-reconciler", "operator"];

/// What somebody has asked for: all but watches and Leases.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RequestCounts {
    /// All of it.
    pub requests: usize,
    /// Of it what was to change something.
    pub writes: usize,
}

impl RequestCounts {
    /// What came after an earlier look.
    pub fn since(self, before: Self) -> Self {
        Self { requests: self.requests - before.requests, writes: self.writes - before.writes }
    }
}

/// What is kept.
pub fn policy() -> String {
    let users = ACCOUNTS.map(user);
    audit_policy::policy(&users.each_ref().map(String::as_str))
}

/// The log, as it is read on behalf of one service account: each look parses only what was appended since the last one.
pub struct Log {
    path: PathBuf,
    file: File,
    growing: Growing,
    user: String,
    counts: RequestCounts,
}

impl Log {
    /// Opens it; nothing is read yet.
    pub fn open(plane: &ControlPlane, account: &str) -> Self {
        let path = PathBuf::from(format!("/proc/{}/root{LOG}", plane.machine.pid()));
        let file = File::open(&path).expect("the API server's audit log");
        Self { path, file, growing: Growing::default(), user: user(account), counts: RequestCounts::default() }
    }

    /// What the account has asked for so far.
    pub fn counts(&mut self) -> RequestCounts {
        let mut appended = Vec::new();
        self.file.read_to_end(&mut appended).expect("a file in memory");
        let number = |metadata: std::io::Result<std::fs::Metadata>| metadata.expect("the audit log").ino();
        assert_eq!(
            number(self.file.metadata()),
            number(self.path.metadata()),
            "the audit log began anew: what was asked meanwhile is lost"
        );
        for entry in self.growing.take(&appended) {
            let verb = entry["verb"].as_str().unwrap_or_default();
            if entry["user"]["username"] == *self.user && verb != "watch" && entry["objectRef"]["resource"] != "leases" {
                self.counts.requests += 1;
                self.counts.writes += usize::from(!matches!(verb, "get" | "list"));
            }
        }
        self.counts
    }
}

/// A log that grows: what was appended since the last look, whole lines only. What is half there is kept for the next look.
#[derive(Debug, Default)]
struct Growing {
    half: Vec<u8>,
}

impl Growing {
    /// The requests whose lines are whole with what was appended.
    fn take(&mut self, appended: &[u8]) -> Vec<Value> {
        self.half.extend_from_slice(appended);
        let whole = self.half.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.half.drain(..whole).collect();
        audit_policy::requests(&String::from_utf8_lossy(&lines)).collect()
    }
}

fn user(account: &str) -> String {
    format!("system:serviceaccount:tailscale:{account}")
}

#[test]
fn what_is_appended_to_an_audit_log_is_read_once_and_whole() {
    let (text, mut log) = ("{\"verb\":\"get\"}\n{\"verb\":\"list\"}\n{\"verb\":\"pat", Growing::default());
    let (first, second) = text.split_at(20);
    assert_eq!(log.take(first.as_bytes()), [serde_json::json!({"verb": "get"})]);
    assert_eq!(log.take(second.as_bytes()), [serde_json::json!({"verb": "list"})]);
    assert!(log.take(b"").is_empty());
    assert_eq!(log.take(b"ch\"}\n"), [serde_json::json!({"verb": "patch"})]);
}
