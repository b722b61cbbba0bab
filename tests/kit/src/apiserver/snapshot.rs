//! The content of etcd, by its JSON gateway (`/v3/kv`, etcd's API reference). Keys and values stay in base64.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// etcd's address in its namespace.
pub(super) const ETCD: &str = "http://127.0.0.1:2379";
/// The key before all others, in base64. As both ends of a range it means all keys.
const ALL: &str = "AA==";
/// Operations of one transaction: etcd accepts 128.
const OPERATIONS: usize = 100;

/// All keys of an etcd.
pub(super) struct Snapshot(BTreeMap<String, Entry>);

struct Entry {
    /// Of the last write.
    revision: String,
    value: String,
}

impl Snapshot {
    /// Reads everything. For a thread in etcd's namespace.
    pub(super) fn read() -> Self {
        let entries = range(false).into_iter().map(|entry| {
            let value = entry["value"].as_str().unwrap_or_default().to_owned();
            (text(&entry["key"]), Entry { revision: text(&entry["mod_revision"]), value })
        });
        Self(entries.collect())
    }

    /// Deletes keys that are not in the snapshot, and writes those back that have changed. For a thread in etcd's namespace.
    pub(super) fn restore(&mut self) {
        let present: BTreeMap<String, String> =
            range(true).into_iter().map(|entry| (text(&entry["key"]), text(&entry["mod_revision"]))).collect();
        let new: Vec<_> = present.keys().filter(|key| !self.0.contains_key(*key)).collect();
        for keys in new.chunks(OPERATIONS) {
            let deletions: Vec<_> = keys.iter().map(|key| json!({"requestDeleteRange": {"key": key}})).collect();
            call("txn", &json!({"success": deletions}));
        }
        for (key, entry) in self.0.iter_mut().filter(|(key, entry)| present.get(*key) != Some(&entry.revision)) {
            let answer = call("put", &json!({"key": key, "value": entry.value}));
            entry.revision = text(&answer["header"]["revision"]);
        }
    }
}

fn range(keys_only: bool) -> Vec<Value> {
    let mut answer = call("range", &json!({"key": ALL, "range_end": ALL, "keys_only": keys_only}));
    let Value::Array(entries) = answer["kvs"].take() else { panic!("etcd has no keys: {answer}") };
    entries
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

fn call(method: &str, body: &Value) -> Value {
    let url = format!("{ETCD}/v3/kv/{method}");
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "30", "--data-binary", "@-", &url]);
    let mut child = curl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("curl");
    child.stdin.take().expect("piped").write_all(body.to_string().as_bytes()).expect("the request");
    let output = child.wait_with_output().expect("curl");
    assert!(output.status.success(), "{url}: {}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{url}: {error}"))
}
