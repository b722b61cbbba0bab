//! `tailyard load` in a Pod of the image under test: what those who connect to a Service meet.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::kubernetes::images::TAILYARD;
use crate::kubernetes::{Cluster, eventually};
use crate::{PORT, pods};

/// New connections each second, and as many UDP flows where both are asked for.
const RATE: &str = "200";
/// So few that hardly a source port is used again within two minutes: connection tracking leads a first packet that was never
/// answered to the same endpoint for so long, and a connection from the same port goes there too, however long that endpoint is gone.
pub(crate) const SPARSE: [&str; 2] = ["--rate", "30"];

/// A load under way.
pub(crate) struct Load<'a> {
    cluster: &'a Cluster,
    name: String,
    uid: String,
}

/// What a load told.
pub(crate) struct Told {
    lines: Vec<Value>,
}

impl<'a> Load<'a> {
    /// Begins a load of new connections to the Service `db` in a Pod of this name, on a node if one is named; it is under way.
    pub(crate) fn begin(cluster: &'a Cluster, name: &str, node: Option<&str>, more: &[&str]) -> Self {
        let to = format!("db.default.svc.cluster.local:{PORT}");
        let fixed = ["tailyard", "load", &to, "--seconds", "3600", "--expect", "db "];
        let rate = if more.contains(&"--rate") { &[][..] } else { &["--rate", RATE] };
        let command = [&fixed, rate, more].concat();
        let container = json!({"name": "load", "image": TAILYARD, "imagePullPolicy": "Never", "command": command});
        let spec = json!({"restartPolicy": "Never", "nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]});
        cluster.apply(&[json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})]);
        let load = Self { cluster, name: name.to_owned(), uid: pods::uid(cluster, "default", name) };
        eventually("the load is under way", || load.lines().iter().any(|line| line["event"] == "second").then_some(()));
        load
    }

    /// What it has told so far.
    pub(crate) fn so_far(&self) -> Told {
        Told { lines: self.lines() }
    }

    /// Ends it, and takes its Pod away.
    pub(crate) fn end(self) -> Told {
        pods::signal(&self.uid, Some("tailyard"), Signal::SIGTERM);
        let told = eventually("the balance of the load", || {
            let lines = self.lines();
            lines.last().is_some_and(|line| line["event"] == "summary").then_some(Told { lines })
        });
        self.cluster.kubectl(&["delete", "pod", &self.name, "--now"]);
        told
    }

    fn lines(&self) -> Vec<Value> {
        let output = self.cluster.try_kubectl(&["logs", &self.name]);
        // The last line may be half there.
        String::from_utf8_lossy(&output.stdout).lines().map_while(|line| serde_json::from_str(line).ok()).collect()
    }
}

impl Told {
    fn events(&self, event: &str) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter(move |line| line["event"] == event)
    }

    fn summary(&self) -> &Value {
        self.events("summary").next().expect("a summary")
    }

    fn begun(&self) -> SystemTime {
        let unix = self.events("start").next().and_then(|line| line["unix"].as_f64()).expect("a start");
        SystemTime::UNIX_EPOCH + Duration::from_secs_f64(unix)
    }

    /// How long the load had run at a moment.
    pub(crate) fn since_begun(&self, moment: SystemTime) -> Duration {
        moment.duration_since(self.begun()).unwrap_or_default()
    }

    /// When the attempts were due that failed.
    pub(crate) fn failures(&self) -> Vec<SystemTime> {
        self.events("fault").map(|line| self.begun() + seconds(&line["at"])).collect()
    }

    /// Of the failures, those due after a moment; the last of them, from that moment on.
    pub(crate) fn last_failure_after(&self, moment: SystemTime) -> Duration {
        self.failures().into_iter().filter_map(|due| due.duration_since(moment).ok()).max().unwrap_or_default()
    }

    /// So many attempts failed.
    pub(crate) fn failed(&self) -> usize {
        self.events("fault").count()
    }

    /// So many attempts were answered by the intended target.
    pub(crate) fn answered(&self) -> u64 {
        self.summary()["answered"].as_object().expect("counts").values().filter_map(Value::as_u64).sum()
    }

    /// Of those held open: which stand by which address of the tailnet, as its server sees it.
    pub(crate) fn held_by(&self, addresses: &[String]) -> Vec<u64> {
        let opened = self.events("flow").filter_map(|line| Some((line["flow"].as_u64()?, line["what"]["open"]["said"].as_str()?)));
        opened.filter(|(_, said)| addresses.iter().any(|address| said.contains(&address[..]))).map(|(flow, _)| flow).collect()
    }

    /// How a connection that was held open ended at first, and when.
    pub(crate) fn end_of(&self, flow: u64) -> Option<(String, SystemTime)> {
        let mut of = self.events("flow").filter(|line| line["flow"] == flow);
        of.find_map(|line| Some((line["what"]["ended"].as_str()?.to_owned(), self.begun() + seconds(&line["at"]))))
    }

    /// So many connections that were held open ended with a reset.
    pub(crate) fn reset(&self) -> u64 {
        self.summary()["flows"]["reset"].as_u64().expect("a count")
    }

    /// So many hung.
    pub(crate) fn hung(&self) -> u64 {
        self.summary()["flows"]["hung"].as_u64().expect("a count")
    }

    /// Fails if more than one of a hundred attempts failed.
    pub(crate) fn lost_little(&self, what: &str) {
        self.lost_little_after(SystemTime::UNIX_EPOCH, what);
    }

    /// Fails if of the attempts due after a moment more than one of a hundred of all failed.
    pub(crate) fn lost_little_after(&self, moment: SystemTime, what: &str) {
        let late = self.failures().iter().filter(|due| **due > moment).count();
        assert!(u64::try_from(late).expect("small") * 100 <= self.answered(), "{what}: {late} failed late: {self}");
    }

    /// Fails unless every attempt was answered by the intended target.
    pub(crate) fn lost_nothing(&self, what: &str) {
        assert!(self.answered() > 0 && self.failed() == 0, "{what}: {self}");
    }
}

fn seconds(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().expect("a time"))
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = self.summary();
        let (connect, resent) = (&summary["connect"], &summary["resent"]);
        write!(f, "{} answered, {} failed {}", self.answered(), self.failed(), summary["failed"])?;
        write!(
            f,
            ", resent {resent}, connect {} p50 {} p99 {} max {} ms",
            connect["count"], connect["p50_ms"], connect["p99_ms"], connect["max_ms"]
        )?;
        let answer = &summary["answer"];
        write!(f, ", answer p50 {} p99 {} max {} ms", answer["p50_ms"], answer["p99_ms"], answer["max_ms"])?;
        for window in summary["windows"].as_array().into_iter().flatten() {
            write!(f, ", {} from {} to {} s", window["failed"], window["from"], window["to"])?;
        }
        let mut by_second = BTreeMap::<u64, usize>::new();
        for line in self.events("fault") {
            *by_second.entry(seconds(&line["at"]).as_secs()).or_default() += 1;
        }
        write!(f, ", failed by second {by_second:?}")?;
        for line in self.events("fault").take(5) {
            write!(f, "\n  {line}")?;
        }
        write!(f, ", begun {:?}, held {}", self.begun(), summary["flows"])
    }
}
