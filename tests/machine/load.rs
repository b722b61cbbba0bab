//! `tailyard load` as a user runs it: the compiled binary against real servers in the test's own network namespace.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use kit::netns::Node;
use kit::wait::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;
use tailyard::edge::tls::Certificates;
use tailyard::model::ingress::certificate::Pair;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Address of the tests' servers.
const PORT: u16 = 7000;
const TO: &str = "127.0.0.1:7000";
/// Longer than any operation on a busy machine.
const DEADLINE: Duration = Duration::from_mins(1);

fn start(node: &Node, args: &[&str]) -> Child {
    let mut command = Command::new(kit::tailyard());
    command.arg("load").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    node.ns.run(|| command.spawn()).expect("the namespace").expect("the compiled binary")
}

fn run(node: &Node, args: &[&str]) -> (Output, Vec<Value>) {
    let output = start(node, args).wait_with_output().expect("a child");
    let lines = String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    (output, lines)
}

fn events<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == event).collect()
}

fn summary(lines: &[Value]) -> &Value {
    lines.last().filter(|line| line["event"] == "summary").expect("a summary is last")
}

#[test]
fn answers_of_the_expected_server_count_for_all_protocols_and_families() {
    let node = Node::make("db".to_owned());
    let _server = node.serve(PORT);
    let args =
        [TO, "[::1]:7000", "--proto", "both", "--rate", "200", "--duration", "2s", "--expect", "db ", "--active", "2", "--idle", "1"];
    let (output, lines) = run(&node, &args);
    assert!(output.status.success(), "{lines:?} {}", String::from_utf8_lossy(&output.stderr));
    let summary = summary(&lines);
    assert_eq!((&summary["offered"], &summary["answered"]["tcp"], &summary["answered"]["udp"]), (&400.into(), &200.into(), &200.into()));
    let flows: Vec<_> = events(&lines, "flow").iter().map(|line| line["what"].clone()).collect();
    assert_eq!(flows.iter().filter(|what| what["open"]["said"].as_str().is_some_and(|greeting| greeting.starts_with("db "))).count(), 3);
    assert_eq!(flows.iter().filter(|what| **what == "kept").count(), 3, "{flows:?}");
    assert!(summary["flows"]["answered"].as_u64() > Some(3), "active connections ask: {summary}");
}

#[test]
fn answer_of_another_server_is_a_timed_failure() {
    let node = Node::make("cache".to_owned());
    let _server = node.serve(PORT);
    let (output, lines) = run(&node, &[TO, "--proto", "both", "--rate", "20", "--duration", "1s", "--expect", "db "]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(summary(&lines)["failed"]["wrong_target"], 20);
    let due: Vec<f64> = events(&lines, "fault").iter().map(|line| line["at"].as_f64().expect("a time")).collect();
    assert_eq!(due.len(), 20, "each is reported");
    assert_eq!(summary(&lines)["windows"].as_array().map(Vec::len), Some(1), "{lines:?}");
}

#[test]
fn slow_server_does_not_reduce_the_offered_rate() {
    let node = Node::make("slow".to_owned());
    // The kernel accepts connections, but the server never responds.
    let _silent = node.ns.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))).expect("the namespace").expect("a port");
    let (_, lines) = run(&node, &[TO, "--rate", "50", "--duration", "2s", "--timeout", "1s", "--max-in-flight", "20", "--expect", "db "]);
    let failed = &summary(&lines)["failed"];
    let [timeout, not_sent] = ["timeout", "not_sent"].map(|kind| failed[kind].as_u64().unwrap_or_default());
    assert_eq!(timeout + not_sent, 100, "{failed}");
    assert!(not_sent > 0 && timeout >= 20, "what is under way is bounded: {failed}");
    assert_eq!(summary(&lines)["connect"]["count"], timeout, "they stood");
}

#[test]
fn reset_and_hanging_connections_are_reported() {
    let node = Node::make("db".to_owned());
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let silent = node.ns.run(|| TcpListener::bind(at)).expect("the namespace").expect("a port");
    // The first connection with a request is reset, since most of the received data is never read; the second is never answered.
    let serving = std::thread::spawn(move || {
        let asking = || {
            eventually("a question", DEADLINE, || {
                silent.accept().ok().filter(|(stream, _)| (&*stream).read(&mut [0]).is_ok_and(|size| size > 0))
            })
        };
        drop(asking());
        let open = asking();
        (open, silent)
    });
    let (output, lines) = run(&node, &[TO, "--rate", "1", "--duration", "3s", "--active", "1", "--interval", "10ms"]);
    assert_eq!(output.status.code(), Some(1));
    let flows = &summary(&lines)["flows"];
    assert_eq!((&flows["reset"], &flows["hung"]), (&1.into(), &1.into()), "{lines:?}");
    drop(serving.join().expect("no panic"));
}

#[test]
fn signal_ends_the_load_with_a_summary() {
    let node = Node::make("db".to_owned());
    let _server = node.serve(PORT);
    let mut load = start(&node, &[TO, "--duration", "1h", "--rate", "20", "--expect", "db ", "--idle", "1"]);
    let mut lines = BufReader::new(load.stdout.take().expect("piped")).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON") };
    eventually("a second", DEADLINE, || (next()["event"] == "second").then_some(()));
    kill(Pid::from_raw(i32::try_from(load.id()).expect("a process")), Signal::SIGTERM).expect("sent");
    let summary = eventually("the balance", DEADLINE, || Some(next()).filter(|line| line["event"] == "summary"));
    assert!(load.wait().expect("a child").success());
    assert_eq!(summary["ok"], true, "{summary}");
}

/// CA certificate in PEM, and a certificate that it has signed for a name, with its key.
fn signed(name: &str) -> (String, Pair) {
    let mut params = CertificateParams::new(vec![]).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let own = KeyPair::generate().expect("a key");
    let chain = CertificateParams::new(vec![name.to_owned()]).expect("parameters").signed_by(&own, &Issuer::new(params, key));
    let chain = chain.expect("signed").pem();
    (authority, Pair { chain: chain.into_bytes().into(), key: own.serialize_pem().into_bytes().into() })
}

/// Answers each connection over TLS once, with a status and a body; ends with the test.
fn answer_over_tls(node: &Node, name: &str, pair: Pair, answer: &'static str) {
    let listener = node.ns.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))).expect("the namespace").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let names = BTreeSet::from([name.to_owned()]);
    let certificates = Certificates::new().expect("randomness");
    assert!(certificates.load(&[(name.to_owned(), pair)].into(), &names).is_empty());
    let acceptor = certificates.acceptor(names).expect("TLS");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut request = [0; 1024];
                    let size = stream.read(&mut request).await.unwrap_or_default();
                    assert!(request[..size].starts_with(b"GET / HTTP/1.1\r\n"), "it asks");
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
    });
}

/// Report of a load on a server with this answer; `believed`: whether the load trusts the server's CA.
fn over_https(answer: &'static str, believed: bool) -> (Output, Vec<Value>) {
    const NAME: &str = "web.lab";
    let node = Node::make("web".to_owned());
    let (authority, pair) = signed(NAME);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), if believed { authority } else { signed(NAME).0 }).expect("written");
    answer_over_tls(&node, NAME, pair, answer);
    let (to, roots) = (format!("{NAME}:{PORT}"), file.path().display().to_string());
    run(&node, &[&to, "--https", "--ca", &roots, "--connect", "127.0.0.1", "--expect", "hello", "--rate", "20", "--duration", "1s"])
}

#[test]
fn https_checks_name_status_and_body() {
    let (output, lines) = over_https("HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello there\n", true);
    assert!(output.status.success(), "{lines:?} {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(summary(&lines)["answered"]["tcp"], 20);
    let failures = |answer, believed| summary(&over_https(answer, believed).1)["failed"].clone();
    assert_eq!(failures("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbye", true)["wrong_target"], 20);
    assert_eq!(failures("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\nhello\n", true)["wrong_target"], 20);
    assert_eq!(failures("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n", false)["garbled"], 20, "a certificate of another name");
    assert_eq!(failures("", true)["closed"], 20);
}

#[test]
fn unresolvable_target_is_reported_at_once() {
    let node = Node::make("nobody".to_owned());
    let (output, lines) = run(&node, &["nobody.invalid:80"]);
    assert!(lines.is_empty() && output.status.code() == Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nobody.invalid:80"));
}
