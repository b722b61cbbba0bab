//! API requests of the operators of a cluster, counted from the audit log.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::Value;

use super::control::ControlPlane;
use crate::audit_policy;

/// Path of the audit log, on the API server's machine.
pub const LOG: &str = "/run/audit.log";
/// Service accounts whose requests are recorded: our reconciler's and the Tailscale operator's, each in the namespace of both.
const ACCOUNTS: [&str; 2] = ["tailyard-reconciler", "operator"];

/// Requests of one account, without watches and Leases.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RequestCounts {
    /// All of it.
    pub requests: usize,
    /// Requests with a verb that changes objects.
    pub writes: usize,
}

impl RequestCounts {
    /// The requests since an earlier count.
    pub fn since(self, before: Self) -> Self {
        Self { requests: self.requests - before.requests, writes: self.writes - before.writes }
    }
}

/// The audit policy of the cluster.
pub fn policy() -> String {
    let users = ACCOUNTS.map(user);
    audit_policy::policy(&users.each_ref().map(String::as_str))
}

/// The audit log for one service account; each call parses only the appended lines.
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

    /// The account's requests so far.
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

/// Splits appended bytes into complete lines; an incomplete line is buffered for the next call.
#[derive(Debug, Default)]
struct Growing {
    half: Vec<u8>,
}

impl Growing {
    /// The requests of the lines completed by these bytes.
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
fn appended_audit_lines_are_read_once() {
    let (text, mut log) = ("{\"verb\":\"get\"}\n{\"verb\":\"list\"}\n{\"verb\":\"pat", Growing::default());
    let (first, second) = text.split_at(20);
    assert_eq!(log.take(first.as_bytes()), [serde_json::json!({"verb": "get"})]);
    assert_eq!(log.take(second.as_bytes()), [serde_json::json!({"verb": "list"})]);
    assert!(log.take(b"").is_empty());
    assert_eq!(log.take(b"ch\"}\n"), [serde_json::json!({"verb": "patch"})]);
}
