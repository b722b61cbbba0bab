//! DNS resolution with a real server, in each test's own namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailyard::edge::dns::Client;
use tailyard::edge::netns::Namespace;
use tailyard::model::tailnet::resolve::{LookupFailure, LookupOutcome};
use tailyard::proxy::forwarding::resolve::{self, Inputs, ResolveReport, ResolvedNames};
use tailyard::runtime::tasks::{Stopper, stop};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

use kit::dns::{Dns, Fault};

const DEADLINE: Duration = Duration::from_secs(20);

/// A server, and a `resolv.conf` with its address.
struct Lab {
    dns: Dns,
    dir: TempDir,
}

/// Runs a test in a namespace with a server on 127.0.0.1.
fn lab(test: impl AsyncFnOnce(Lab) + Send) {
    let namespace = Namespace::make().expect("a namespace");
    let up = || std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(namespace.run(up).expect("a thread in the namespace").expect("the ip command").success());
    let work = async move || {
        let lab = Lab { dns: Dns::start("127.0.0.1").await, dir: tempfile::tempdir().expect("a directory") };
        lab.resolv_conf("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n");
        test(lab).await;
    };
    namespace.block_on(work).expect("the test's thread");
}

impl Lab {
    fn path(&self) -> PathBuf {
        self.dir.path().join("resolv.conf")
    }

    fn resolv_conf(&self, text: &str) {
        std::fs::write(self.path(), text).expect("written");
    }

    async fn client(&self) -> Arc<Client> {
        tailyard::edge::dns::Dns::new(&self.path()).client().await.expect("servers")
    }

    async fn lookup(&self, name: &str) -> LookupOutcome {
        self.client().await.lookup(name).await
    }

    /// Starts the task that resolves names and refreshes them.
    fn keep(&self, names: &[&str], in_flight: usize) -> Kept {
        let (stopper, stop) = stop();
        let (wanted, receiver) = watch::channel(set(names));
        let (outputs, names, report) = resolve::outputs();
        let inputs = Inputs { resolv_conf: self.path(), wanted: receiver, in_flight };
        tokio::spawn(resolve::run(inputs, outputs, stop));
        Kept { wanted, names, report, stopper }
    }
}

/// Task that resolves names, and its outputs.
struct Kept {
    wanted: watch::Sender<BTreeSet<String>>,
    names: watch::Receiver<ResolvedNames>,
    report: watch::Receiver<Arc<ResolveReport>>,
    stopper: Stopper,
}

impl Kept {
    async fn until(&mut self, what: &str, good: impl Fn(&BTreeMap<String, BTreeSet<IpAddr>>) -> bool) {
        let waited = timeout(DEADLINE, self.names.wait_for(|names| good(names))).await;
        drop(waited.unwrap_or_else(|_| panic!("{what} did not come true: {:?}", self.report)).expect("running"));
    }

    async fn reports(&mut self, failure: LookupFailure) {
        let reported = self.report.wait_for(|report| report.names.values().any(|status| status.failure == Some(failure)));
        drop(timeout(DEADLINE, reported).await.unwrap_or_else(|_| panic!("{failure} was never reported")).expect("running"));
    }
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn ips(list: &[&str]) -> BTreeSet<IpAddr> {
    list.iter().map(|ip| ip.parse().expect("an address")).collect()
}

/// Addresses of an outcome, and the shortest TTL of the families with addresses.
fn found(outcome: LookupOutcome) -> (BTreeSet<IpAddr>, u64) {
    let records = [outcome.v4, outcome.v6].map(|family| family.expect("an answer"));
    let ttl = records.iter().filter(|records| !records.addresses.is_empty()).map(|records| records.ttl).min();
    let addresses = records.into_iter().flat_map(|records| records.addresses).collect();
    (addresses, ttl.unwrap_or_default().as_secs())
}

#[test]
fn every_address_of_both_families_is_used() {
    lab(async |lab| {
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "fd00::1"];
        lab.dns.set("db.test", 77, &all).await;
        assert_eq!(found(lab.lookup("db.test").await), (ips(&all), 77));
    });
}

#[test]
fn large_dns_answers_use_tcp() {
    lab(async |lab| {
        let many: Vec<String> = (1..=100).map(|host| format!("10.0.1.{host}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        lab.dns.set("db.test", 60, &many).await;
        assert_eq!(found(lab.lookup("db.test").await).0, ips(&many));
    });
}

#[test]
fn cname_chains_are_followed_with_their_minimum_ttl() {
    lab(async |lab| {
        lab.dns.alias("a.test", 300, "b.test").await;
        lab.dns.alias("b.test", 7, "c.test").await;
        lab.dns.set("c.test", 60, &["10.0.0.9"]).await;
        let outcome = lab.lookup("a.test").await;
        assert_eq!(found(outcome), (ips(&["10.0.0.9"]), 7));
    });
}

#[test]
fn name_with_one_address_family_is_a_complete_answer() {
    lab(async |lab| {
        lab.dns.set("six.test", 60, &["fd00::6"]).await;
        assert_eq!(found(lab.lookup("six.test").await).0, ips(&["fd00::6"]));
        lab.dns.set("four.test", 60, &["10.0.0.4"]).await;
        assert_eq!(found(lab.lookup("four.test").await).0, ips(&["10.0.0.4"]));
    });
}

#[test]
fn lookup_failures_have_different_reasons() {
    lab(async |lab| {
        let both = |outcome: LookupOutcome| (outcome.v4.expect_err("a failure"), outcome.v6.expect_err("a failure"));
        assert_eq!(both(lab.lookup("none.test").await), (LookupFailure::NoName, LookupFailure::NoName));
        lab.dns.fault("bad.test", Some(Fault::ServFail));
        assert_eq!(both(lab.lookup("bad.test").await), (LookupFailure::Server, LookupFailure::Server));
        lab.dns.fault("mute.test", Some(Fault::Silent));
        let before = Instant::now();
        assert_eq!(both(lab.lookup("mute.test").await), (LookupFailure::Timeout, LookupFailure::Timeout));
        assert!(before.elapsed() < Duration::from_secs(9), "the file's timeout counts, not {:?}", before.elapsed());
        lab.dns.set("empty.test", 60, &[]).await;
        assert_eq!(found(lab.lookup("empty.test").await).0, ips(&[]));
        assert_eq!(both(lab.lookup("not a..name").await), (LookupFailure::Name, LookupFailure::Name));
        lab.resolv_conf("nameserver 127.0.0.99\noptions timeout:1 attempts:1\n");
        let (v4, _) = both(lab.lookup("db.test").await);
        assert!(matches!(v4, LookupFailure::Network | LookupFailure::Timeout), "{v4}");
    });
}

#[test]
fn ip_address_resolves_to_itself() {
    lab(async |lab| {
        assert_eq!(found(lab.lookup("10.9.9.9").await).0, ips(&["10.9.9.9"]));
        assert_eq!(found(lab.lookup("fd00::9").await).0, ips(&["fd00::9"]));
    });
}

#[test]
fn search_list_is_ignored() {
    lab(async |lab| {
        lab.resolv_conf("nameserver 127.0.0.1\nsearch svc.test\noptions ndots:5 timeout:1 attempts:1\n");
        lab.dns.set("db.test.svc.test", 60, &["10.96.0.1"]).await;
        assert_eq!(lab.lookup("db.test").await.v4, Err(LookupFailure::NoName));
        assert_eq!(lab.dns.queries("db.test.svc.test"), 0);
        for name in ["db.test.svc.test", "db.test.svc.test."] {
            assert_eq!(found(lab.lookup(name).await).0, ips(&["10.96.0.1"]), "{name}");
        }
    });
}

#[test]
fn changed_resolv_conf_is_used_at_once() {
    lab(async |lab| {
        let other = Dns::start("127.0.0.2").await;
        lab.dns.set("db.test", 60, &["10.0.0.1"]).await;
        other.set("db.test", 60, &["10.0.0.2"]).await;
        let mut dns = tailyard::edge::dns::Dns::new(&lab.path());
        let client = dns.client().await.expect("servers");
        assert_eq!(found(client.lookup("db.test").await).0, ips(&["10.0.0.1"]));
        lab.resolv_conf("nameserver 127.0.0.2\n");
        let client = dns.client().await.expect("servers");
        assert_eq!(found(client.lookup("db.test").await).0, ips(&["10.0.0.2"]));
        std::fs::remove_file(lab.path()).expect("removed");
        let client = dns.client().await.expect("the last servers");
        assert_eq!(found(client.lookup("db.test").await).0, ips(&["10.0.0.2"]));
    });
}

#[test]
fn answer_is_refreshed_when_its_ttl_expires() {
    lab(async |lab| {
        lab.dns.set("short.test", 1, &["10.0.0.1"]).await;
        lab.dns.set("long.test", 600, &["10.0.1.1"]).await;
        let mut resolver = lab.keep(&["short.test", "long.test"], 4);
        let before = Instant::now();
        resolver.until("both names", |names| names.len() == 2).await;
        lab.dns.set("short.test", 1, &["10.0.0.2", "10.0.0.3"]).await;
        lab.dns.set("long.test", 600, &["10.0.1.2"]).await;
        resolver.until("the new addresses", |names| names["short.test"] == ips(&["10.0.0.2", "10.0.0.3"])).await;
        assert!(before.elapsed() >= Duration::from_secs(5), "not before the floor of 5 s");
        assert_eq!((lab.dns.queries("short.test"), lab.dns.queries("long.test")), (4, 2));
        resolver.wanted.send_replace(set(&["long.test"]));
        resolver.until("the name's end", |names| *names == BTreeMap::from([("long.test".to_owned(), ips(&["10.0.1.1"]))])).await;
        resolver.stopper.stop();
    });
}

#[test]
fn last_good_answer_survives_every_failure() {
    lab(async |lab| {
        lab.dns.set("db.test", 1, &["10.0.0.1"]).await;
        let mut resolver = lab.keep(&["db.test"], 4);
        resolver.until("the first answer", |names| names.contains_key("db.test")).await;
        // Each retry's delay is at most twice the last one, so this order keeps the test short.
        lab.dns.fault("db.test", Some(Fault::ServFail));
        resolver.reports(LookupFailure::Server).await;
        lab.dns.fault("db.test", None);
        lab.dns.clear("db.test").await;
        resolver.reports(LookupFailure::NoName).await;
        lab.dns.set("db.test", 1, &[]).await;
        resolver.reports(LookupFailure::Empty).await;
        lab.dns.fault("db.test", Some(Fault::Silent));
        resolver.reports(LookupFailure::Timeout).await;
        assert_eq!(resolver.names.borrow()["db.test"], ips(&["10.0.0.1"]));
        let report = Arc::clone(&resolver.report.borrow());
        let status = report.names.values().next().expect("one name");
        assert!(status.answered.is_some_and(|answered| answered.elapsed() > Duration::from_secs(4)), "its age grows: {status:?}");
        assert!(
            [LookupFailure::Server, LookupFailure::NoName, LookupFailure::Empty, LookupFailure::Timeout]
                .iter()
                .all(|failure| report.failures[failure] > 0)
        );
    });
}

#[test]
fn five_hundred_names_are_resolved_with_bounded_concurrency() {
    lab(async |lab| {
        let names: Vec<String> = (0..500).map(|host| format!("h{host}.test")).collect();
        for (host, name) in names.iter().enumerate() {
            lab.dns.set(name, 600, &[&format!("10.1.{}.{}", host / 250, host % 250 + 1)]).await;
        }
        lab.dns.latency(Duration::from_millis(10));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut resolver = lab.keep(&names, 8);
        resolver.until("all names", |names| names.len() == 500).await;
        let most = lab.dns.most_at_once();
        assert!((2..=16).contains(&most), "8 names of two families at a time, not {most} queries");
        assert!(names.iter().all(|name| lab.dns.queries(name) == 2), "each name is asked for once in each family");
    });
}
