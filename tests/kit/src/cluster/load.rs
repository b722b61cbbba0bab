//! `tailyard load` in a Pod of the image under test: measures connections to a Service as a client.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::images::TAILYARD;
use super::{Cluster, DEADLINE, pods};
use crate::wait::eventually;

/// Failure reason of attempts that the generator did not send.
const NOT_SENT: &str = "not_sent";

/// A running load.
pub struct Load<'a> {
    cluster: &'a Cluster,
    name: String,
    uid: String,
}

/// The JSON lines of a load run.
pub struct LoadReport {
    lines: Vec<Value>,
}

impl<'a> Load<'a> {
    /// Starts `tailyard load` with these arguments in a Pod of this name, on a node if one is given, and waits for its first second.
    pub fn begin(cluster: &'a Cluster, name: &str, node: Option<&str>, args: &[&str]) -> Self {
        let command = [&["tailyard", "load", "--duration", "1h"], args].concat();
        // The proxies that it measures must not keep it from sending.
        let container = json!({"name": "load", "image": TAILYARD, "imagePullPolicy": "Never", "command": command,
            "resources": {"requests": {"cpu": "500m"}}});
        let spec = json!({"restartPolicy": "Never", "nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]});
        cluster.apply(&[json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})]);
        let load = Self { cluster, name: name.to_owned(), uid: pods::uid(cluster, "default", name) };
        eventually("the load is under way", DEADLINE, || load.lines().iter().any(|line| line["event"] == "second").then_some(()));
        load
    }

    /// The report up to now.
    pub fn so_far(&self) -> LoadReport {
        LoadReport { lines: self.lines() }
    }

    /// Ends the load and deletes its Pod.
    pub fn end(self) -> LoadReport {
        pods::signal(&self.uid, Some("tailyard"), Signal::SIGTERM);
        let report = eventually("the balance of the load", DEADLINE, || {
            let lines = self.lines();
            lines.last().is_some_and(|line| line["event"] == "summary").then_some(LoadReport { lines })
        });
        self.cluster.kubectl(&["delete", "pod", &self.name, "--now"]);
        report
    }

    fn lines(&self) -> Vec<Value> {
        let output = self.cluster.try_kubectl(&["logs", &self.name]);
        LoadReport::read(&String::from_utf8_lossy(&output.stdout)).lines
    }
}

impl LoadReport {
    /// Parses the output of the last run in a log; an incomplete last line is ignored.
    pub fn read(output: &str) -> Self {
        let mut lines: Vec<Value> = output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let last = lines.iter().rposition(|line: &Value| line["event"] == "start").unwrap_or_default();
        Self { lines: lines.split_off(last) }
    }

    /// The report without failures of attempts over IPv6.
    #[must_use]
    pub fn by_ipv4(mut self) -> Self {
        let is_ipv4 = |line: &Value| line["to"].as_str().and_then(|to| to.parse().ok()).is_none_or(|to: SocketAddr| to.is_ipv4());
        self.lines.retain(|line| line["event"] != "fault" || is_ipv4(line));
        self
    }

    /// Attempts answered so far, in steps of a second.
    pub fn answered_so_far(&self) -> u64 {
        self.events("second").last().and_then(|line| line["answered"].as_u64()).unwrap_or_default()
    }

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

    /// Time from the start of the load to a moment.
    pub fn since_begun(&self, moment: SystemTime) -> Duration {
        moment.duration_since(self.begun()).unwrap_or_default()
    }

    /// Attempts that failed in the network.
    fn faults(&self) -> impl Iterator<Item = &Value> {
        self.events("fault").filter(|line| line["failure"] != NOT_SENT)
    }

    /// Scheduled times of the attempts that failed in the network.
    pub fn failures(&self) -> Vec<SystemTime> {
        self.faults().map(|line| self.begun() + seconds(&line["at"])).collect()
    }

    /// Of these, those due after a moment; the last of them, from that moment on.
    pub fn last_failure_after(&self, moment: SystemTime) -> Duration {
        self.failures().into_iter().filter_map(|due| due.duration_since(moment).ok()).max().unwrap_or_default()
    }

    /// Number of attempts that failed in the network.
    pub fn failed(&self) -> usize {
        self.faults().count()
    }

    /// Number of attempts that the generator did not send in time, for lack of capacity or processor time. They are no evidence about the
    /// network.
    pub fn unsent(&self) -> usize {
        self.events("fault").count() - self.failed()
    }

    /// Number of attempts answered by the expected target.
    pub fn answered(&self) -> u64 {
        self.summary()["answered"].as_object().expect("counts").values().filter_map(Value::as_u64).sum()
    }

    /// Attempts answered up to a moment, in steps of a second.
    pub fn answered_by(&self, moment: SystemTime) -> u64 {
        let up_to = self.since_begun(moment);
        let seconds = self.events("second").take_while(|line| seconds(&line["at"]) <= up_to);
        seconds.last().and_then(|line| line["answered"].as_u64()).unwrap_or_default()
    }

    /// Longest time without an answer in a period, in steps of a second.
    pub fn longest_silence(&self, from: SystemTime, to: SystemTime) -> usize {
        let period = self.since_begun(from)..self.since_begun(to);
        let within = self.events("second").filter(|line| period.contains(&seconds(&line["at"])));
        let counts: Vec<u64> = within.filter_map(|line| line["answered"].as_u64()).collect();
        counts.chunk_by(|one, next| one == next).map(|silence| silence.len() - 1).max().unwrap_or_default()
    }

    /// The long-lived flows whose server sees one of these tailnet addresses as the source.
    pub fn flows_via(&self, addresses: &[String]) -> Vec<u64> {
        let opened = self.events("flow").filter_map(|line| Some((line["flow"].as_u64()?, line["what"]["open"]["said"].as_str()?)));
        opened.filter(|(_, greeting)| addresses.iter().any(|address| greeting.contains(&address[..]))).map(|(flow, _)| flow).collect()
    }

    /// How a connection that was held open ended at first, and when.
    pub fn end_of(&self, flow: u64) -> Option<(String, SystemTime)> {
        let mut of = self.events("flow").filter(|line| line["flow"] == flow);
        of.find_map(|line| Some((line["what"]["ended"].as_str()?.to_owned(), self.begun() + seconds(&line["at"]))))
    }

    /// Number of long-lived connections that ended with a reset.
    pub fn reset(&self) -> u64 {
        self.summary()["flows"]["reset"].as_u64().expect("a count")
    }

    /// 99th percentile of the time until a connection is open.
    pub fn connect_p99(&self) -> Duration {
        Duration::from_secs_f64(self.summary()["connect"]["p99_ms"].as_f64().expect("a time") / 1000.0)
    }

    /// Number of long-lived connections without answers.
    pub fn hung(&self) -> u64 {
        self.summary()["flows"]["hung"].as_u64().expect("a count")
    }

    /// Fails if more than one of a hundred attempts failed.
    pub fn assert_few_failures(&self, what: &str) {
        self.assert_few_failures_after(SystemTime::UNIX_EPOCH, what);
    }

    /// Fails if of the attempts due after a moment more than one of a hundred of all failed.
    pub fn assert_few_failures_after(&self, moment: SystemTime, what: &str) {
        self.measured(what);
        let late = self.failures().iter().filter(|due| **due > moment).count();
        assert!(u64::try_from(late).expect("small") * 100 <= self.answered(), "{what}: {late} failed late: {self}");
    }

    /// Fails unless every attempt that was sent was answered by the intended target.
    pub fn assert_no_failures(&self, what: &str) {
        self.measured(what);
        assert!(self.failed() == 0, "{what}: {self}");
    }

    /// Fails if nothing was measured, or if the generator did not send more than one of ten attempts.
    pub fn measured(&self, what: &str) {
        let unsent = u64::try_from(self.unsent()).expect("small");
        assert!(unsent * 10 <= self.answered() && self.answered() > 0, "{what}: the generator could not send {unsent}: {self}");
    }
}

fn seconds(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().expect("a time"))
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = self.summary();
        let (connect, resent) = (&summary["connect"], &summary["resent"]);
        write!(f, "{} answered, {} failed, {} not sent {}", self.answered(), self.failed(), self.unsent(), summary["failed"])?;
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
        for line in self.faults() {
            *by_second.entry(seconds(&line["at"]).as_secs()).or_default() += 1;
        }
        write!(f, ", failed by second {by_second:?}")?;
        for line in self.faults().take(5) {
            write!(f, "\n  {line}")?;
        }
        write!(f, ", begun {:?}, held {}", self.begun(), summary["flows"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_the_longest_run_of_seconds_without_an_answer() {
        let second = |(at, answered): (usize, u64)| format!("{{\"event\":\"second\",\"at\":{at},\"answered\":{answered}}}\n");
        let counts = [1, 2, 2, 3, 3, 3, 4, 4, 4, 4];
        let seconds: String = (1..).zip(counts).map(second).collect();
        let report = LoadReport::read(&format!("{{\"event\":\"start\",\"unix\":0.0}}\n{seconds}"));
        let silence = |from, to| {
            let [from, to] = [from, to].map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(at));
            report.longest_silence(from, to)
        };
        assert_eq!([silence(0, 8), silence(0, 20), silence(2, 4), silence(30, 40)], [2, 3, 1, 0]);
    }

    #[test]
    fn report_is_of_the_last_run_in_a_log() {
        let run = |answered: u32| format!("{{\"event\":\"start\",\"unix\":1.5}}\n{{\"event\":\"second\",\"answered\":{answered}}}\n");
        let log = [&*run(7), "not JSON\n", &run(3), "{\"event\":"].concat();
        assert_eq!(LoadReport::read(&log).answered_so_far(), 3);
    }
}
