//! The demo, run for some seconds on each firewall as a user runs it: no connection may be lost or misdelivered.

use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// Long enough for the killed and the drained replica to come back under load.
const DURATION: &str = "10s";
/// Rate that a busy machine sustains even without optimization: a load that waits for the processor does not measure the proxies.
const RATE: &str = "100";

/// One demo at a time: two on a small machine would measure each other.
static TURN: Mutex<()> = Mutex::new(());

fn demo(arguments: &[&str]) -> Output {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(kit::tailyard());
    command.arg("demo").args(arguments).output().expect("the demo starts")
}

fn summary(output: &Output) -> Value {
    let problem = || format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no summary: {}", problem()))
}

/// Runs the demo; none of its 1,000 connections may fail.
fn loses_nothing(backend: &str) {
    let output = demo(&["--json", "--duration", DURATION, "--rate", RATE, "--firewall-mode", backend]);
    let summary = summary(&output);
    let problem = || format!("{summary:#}");
    assert_eq!(summary["ok"], true, "{}", problem());
    assert!(output.status.success(), "{}", problem());
    let connections = &summary["connections"];
    let [tcp, udp, offered] = ["tcp", "udp", "offered"].map(|what| connections[what].as_u64().expect("a count"));
    let lost = connections["lost_in_documented_window"].as_object().expect("counts").values().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!(offered, 1_000, "the load was offered in full: {}", problem());
    assert_eq!(tcp + udp + lost, offered, "{}", problem());
    assert!(tcp > 500 && udp > 100, "{}", problem());
    let flows = &summary["flows"];
    assert_eq!((flows["broken"].as_u64(), flows["wrong_target"].as_u64()), (Some(0), Some(0)), "{}", problem());
    assert!(flows["handed_over"].as_u64() >= Some(1), "the leaving replica ended its connections by reset: {}", problem());
    for change in ["retarget", "add", "remove"] {
        assert!(summary["swaps"][change]["count"].as_u64() >= Some(2), "{change}: {}", problem());
    }
}

#[test]
fn demo_loses_nothing_with_nftables() {
    loses_nothing("nftables");
}

#[test]
fn demo_loses_nothing_with_iptables_nft() {
    loses_nothing("iptables-nft");
}

#[test]
fn demo_loses_nothing_with_iptables_legacy() {
    loses_nothing("iptables-legacy");
}

#[test]
fn demo_without_terminal_prints_a_line_per_second() {
    let output = demo(&["--duration", "2s", "--services", "1", "--rate", "50", "--firewall-mode", "nftables"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains('\x1b'), "no terminal, no colours: {text}");
    assert!(text.lines().filter(|line| line.contains("answered")).count() >= 2, "{text}");
    assert!(text.trim_end().ends_with("Nothing was lost."), "{text}");
}

#[test]
fn invalid_demo_arguments_are_rejected() {
    for arguments in [["--services", "0"], ["--duration", "0s"], ["--rate", "5001"], ["--firewall-mode", "pf"]] {
        let output = demo(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
