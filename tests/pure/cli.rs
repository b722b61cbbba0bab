//! `tailyard plan` as a user runs it: golden output, rules that load into an empty namespace, deltas that count their operations.
//!
//! `UPDATE_GOLDEN=1 cargo test --test pure cli` rewrites the golden files.

use kit::golden::assert_golden;
use kit::guide::{Guide, PLAN, QUICKSTART};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tailyard::edge::netns::Namespace;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/plan").join(name)
}

fn plan(args: &[&str]) -> Output {
    Command::new(kit::tailyard()).current_dir(golden("")).arg("plan").args(args).output().expect("the compiled binary")
}

fn printed(args: &[&str]) -> String {
    let output = plan(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Arguments of a plan of the golden config.
const CONFIG: [&str; 3] = ["egress.json", "--netmap", "netmap.json"];

#[test]
fn plan_output_matches_golden_files() {
    for (format, name) in [("json", "plan.json"), ("nft", "rules.nft"), ("iptables", "rules.v4"), ("ip6tables", "rules.v6")] {
        let text = printed(&[&CONFIG[..], &["--format", format]].concat());
        assert_golden(&format!("tests/golden/plan/{name}"), &text);
    }
}

#[test]
fn printed_rules_load_into_an_empty_namespace() {
    let cases: [(&str, &[&str]); 5] = [
        ("nft", &["nft", "-f", "-"]),
        ("iptables", &["iptables-nft-restore", "--noflush"]),
        ("ip6tables", &["ip6tables-nft-restore", "--noflush"]),
        ("iptables", &["iptables-legacy-restore", "--noflush"]),
        ("ip6tables", &["ip6tables-legacy-restore", "--noflush"]),
    ];
    for (format, load) in cases {
        let text = printed(&[&CONFIG[..], &["--format", format]].concat());
        let namespace = Namespace::make().expect("a network namespace (root, or unshare -Urnm)");
        // Twice: the rules must also load over themselves.
        for round in ["an empty namespace", "itself"] {
            let output = namespace.run(|| feed(load, &text)).expect("the namespace");
            assert!(output.status.success(), "{load:?} into {round}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

fn feed(argv: &[&str], input: &str) -> Output {
    let mut child = Command::new(argv[0])
        .args(&argv[1..])
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|fault| panic!("{argv:?}: {fault}"));
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads all");
    child.wait_with_output().expect("it ends")
}

#[test]
fn version_is_printed() {
    let output = Command::new(kit::tailyard()).arg("version").output().expect("the compiled binary");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("tailyard {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_states_scope_precedence_and_defaults() {
    let help = |args: &[&str]| {
        let output = Command::new(kit::tailyard()).args(args).arg("--help").output().expect("the compiled binary");
        String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (args, expected) in [
        (&[][..], "all objects of ProxyGroups and standalone proxies"),
        (&[], "Show ProxyGroups, standalone proxies, replicas, Services and Ingresses"),
        (&["proxy"], "besides the API server, such as those of the cluster's Services; --allowed-targets wins"),
        (&["proxy"], "Tailyard's reconciler sets 45s"),
        (&["reconciler"], "ProxyClass of ProxyGroups, and of Services and Ingresses with a standalone proxy"),
        (&["reconciler"], "kube-system and the reconciler's namespace"),
    ] {
        let help = help(args);
        assert!(help.contains(expected), "{args:?}: no {expected:?} in {help}");
    }
}

#[test]
fn plan_diff_prints_changes_and_operations() {
    let delta: Value =
        serde_json::from_str(&printed(&["--diff", "egress.json", "egress-next.json", "--netmap", "netmap.json"])).expect("JSON");
    let ports: Vec<_> = delta["delta"]["ports"].as_object().expect("ports").keys().cloned().collect();
    assert_eq!(ports, ["tcp/10042", "tcp/10099"], "one retargeted, one new; nothing of what stays");
    assert!(delta["operations"].as_u64().expect("a count") >= 3, "{delta}");
    let none: Value = serde_json::from_str(&printed(&["--diff", "egress.json", "egress.json", "--netmap", "netmap.json"])).expect("JSON");
    assert_eq!(none["operations"], 0, "no change, no operation");
}

#[test]
fn plan_of_the_quickstart_loads() {
    let directory = tempfile::tempdir().expect("a directory");
    let guide = Guide::new(Path::new(kit::tailyard()).parent().expect("a directory"), directory.path());
    let printed = guide.run(QUICKSTART, "$ cat > egress.json", &[]);
    assert!(printed.contains("default-db"), "{printed}");
    guide.finish(PLAN);
}

#[test]
fn rejected_services_are_printed_with_reasons() {
    let plan: Value = serde_json::from_str(&printed(&CONFIG)).expect("JSON");
    let reason = plan["rejected"]["default-typo"][0].as_str().expect("a reason");
    assert!(reason.contains("nobody.tail.lab"), "{reason}");
}

#[test]
fn strict_fails_if_a_service_is_rejected() {
    let code = |args: &[&str]| plan(&[&CONFIG[..], args].concat()).status.code();
    assert_eq!((code(&["-o", "nft"]), code(&["-o", "nft", "--strict"])), (Some(0), Some(1)));
    assert_eq!(plan(&["--diff", "egress.json", "egress-next.json", "--strict"]).status.code(), Some(1));
}

#[test]
fn each_cause_of_a_failure_is_printed_once() {
    let stderr = |mut command: Command| String::from_utf8(command.output().expect("the compiled binary").stderr).expect("text");
    let mut status = Command::new(kit::tailyard());
    status.arg("status").env("KUBECONFIG", "/nonexistent");
    let status = stderr(status);
    assert_eq!((status.matches("No such file").count(), status.matches("kubeconfig").count()), (1, 1), "{status}");
    let torn = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(torn.path(), "{\"a\":").expect("written");
    let mut plan = Command::new(kit::tailyard());
    plan.arg("plan").arg(torn.path());
    let plan = stderr(plan);
    assert_eq!(plan.matches("EOF while parsing").count(), 1, "{plan}");
}

#[test]
fn reader_that_has_enough_is_no_error() {
    let mut crd = Command::new(kit::tailyard());
    let mut crd = crd.arg("crd").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the compiled binary");
    drop(crd.stdout.take());
    let output = crd.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn unusable_files_are_named() {
    for (args, word) in [(["absent.json"], "absent.json"), (["rules.nft"], "not a JSON object")] {
        let output = plan(&args);
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(word), "{args:?}: {stderr}");
    }
}
