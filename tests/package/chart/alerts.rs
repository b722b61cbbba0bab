//! Alerts and panels, evaluated by promtool on series with the labels that the Prometheus operator gives to scraped targets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::{CHART, objects, path, read, rendered, rendered_with};

/// The labels of a target: a replica behind the metrics Service of its group.
const TARGET: [(&str, &str); 9] = [
    ("container", "tailscale"),
    ("endpoint", "metrics"),
    ("instance", "10.244.1.7:9002"),
    ("job", "ts_proxygroup_eg"),
    ("namespace", "tailscale"),
    ("pod", "eg-0"),
    ("service", "eg-metrics"),
    ("ts_proxy_parent_name", "eg"),
    ("ts_proxy_type", "proxygroup"),
];
/// Labels of a target that texts may name: the others say nothing of what a metric is about.
const TELLING: [&str; 2] = ["namespace", "pod"];
/// How long series are, in minutes, and when they are looked at.
const MINUTES: u32 = 60;
const AT: &str = "50m";

type Labels = BTreeMap<String, String>;

/// The labels of a series as Prometheus stores it: a metric's own label that the target has, too, is renamed.
fn stored(own: &[(&str, &str)]) -> Labels {
    let target: Labels = TARGET.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let renamed = |name: &str| if target.contains_key(name) { format!("exported_{name}") } else { name.to_owned() };
    let own: Vec<_> = own.iter().map(|(name, value)| (renamed(name), (*value).to_owned())).collect();
    target.into_iter().chain(own).collect()
}

/// An input series of promtool: `values` is one value, or `start+step`.
fn series(family: &str, labels: &Labels, values: &str) -> Value {
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    json!({"series": format!("{family}{{{}}}", labels.join(",")), "values": format!("{values}x{MINUTES}")})
}

/// A family, its own labels and its values.
type Input = (&'static str, Vec<(&'static str, &'static str)>, &'static str);

/// An alert, what it fires on, and the labels of the sample that it names.
struct Case {
    alert: &'static str,
    input: Vec<Input>,
    /// The labels that are left of a series; all if none are named.
    left: &'static [&'static str],
}

impl Case {
    fn new(alert: &'static str, family: &'static str, own: &[(&'static str, &'static str)], values: &'static str) -> Self {
        Self { alert, input: vec![(family, own.to_vec(), values)], left: &[] }
    }
}

fn cases() -> Vec<Case> {
    let new = Case::new;
    let rejected = [("proxied_service", "default-db"), ("reason", "Unresolved")];
    vec![
        Case { left: &["cluster", "namespace"], ..new("TailyardNoLeader", "tailyard_leader", &[("cluster", "b")], "0") },
        new("TailyardReconcilerUnsynced", "tailyard_caches_synced", &[], "0"),
        new("TailyardReconcileFails", "tailyard_workqueue_depth", &[("state", "failing")], "2"),
        new("TailyardControlPlaneUnusable", "tailyard_control_plane_ready", &[("tailnet", "lab")], "0"),
        new("TailyardServiceNotAdvertised", "tailyard_advertised_services", &[("proxygroup", "web"), ("state", "rejected")], "2"),
        new("TailyardReconcilerSlow", "tailyard_workqueue_oldest_item_age_seconds", &[], "90"),
        new("TailyardReplicaUnready", "tailyard_ready", &[], "0"),
        new("TailyardRulesetLag", "tailyard_ruleset_lag_seconds", &[], "20"),
        new("TailyardServiceRejected", "tailyard_service_rejected", &rejected, "1"),
        // 1,500 s ago, as series begin at time 0.
        new("TailyardDNSStale", "tailyard_dns_last_success_timestamp_seconds", &[("name", "db.example")], "1500"),
        Case {
            input: vec![("tailyard_conntrack_entries", vec![], "90"), ("tailyard_conntrack_limit", vec![], "100")],
            ..new("TailyardConntrackFull", "", &[], "")
        },
        new("TailyardTailscaledRestarts", "tailyard_tailscaled_restarts_total", &[], "0+1"),
        new("TailyardSupervisorRestarted", "tailyard_supervisor_restarts_total", &[], "0+1"),
        new("TailyardRulesetDrift", "tailyard_ruleset_drift_repairs_total", &[], "0+1"),
        Case { alert: "TailyardReconcilerAbsent", input: vec![], left: &["namespace"] },
    ]
}

/// The rules of the chart by name, with what is rendered for "everything".
fn rules() -> (Value, BTreeMap<String, Value>) {
    let spec = objects(&rendered("everything", "tailscale"))["PrometheusRule tailscale/tailyard"]["spec"].clone();
    let all = spec["groups"].as_array().expect("groups").iter().flat_map(|group| group["rules"].as_array().expect("rules").clone());
    let named = all.map(|rule| (rule["alert"].as_str().expect("a name").to_owned(), rule)).collect();
    (spec, named)
}

/// Runs promtool with these tests over these rules.
fn promtool(rules: &Value, tests: &[Value]) {
    let directory = tempfile::TempDir::new().expect("a directory");
    let write = |name: &str, value: &Value| fs::write(directory.path().join(name), value.to_string()).expect("written");
    write("rules.yaml", rules);
    write("tests.yaml", &json!({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}));
    let output = Command::new("promtool").args(["test", "rules", "tests.yaml"]).current_dir(directory.path()).output();
    let output = output.expect("promtool (tests/setup installs it)");
    let told = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{told}");
}

/// An annotation with the labels and the value of a sample in it.
fn annotation(text: &str, labels: &Labels, value: &str) -> String {
    let mut parts = text.split("{{");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (expression, rest) = part.split_once("}}").expect("a whole expression");
        let told = match expression.trim().strip_prefix("$labels.") {
            Some(label) => {
                assert!(TELLING.contains(&label) || TARGET.iter().all(|(name, _)| *name != label), "{label} is the target's: {part}");
                labels.get(label).unwrap_or_else(|| panic!("the sample has no label {label}, only {labels:?}"))
            }
            None => value,
        };
        text + told + rest
    })
}

/// A test of promtool: the alert fires once, and its text names what the series is about.
fn fires(case: &Case, rule: &Value) -> Value {
    let input = case.input.iter().map(|(family, own, values)| series(family, &stored(own), values));
    let first = case.input.first();
    let mut labels = stored(first.map_or(&[][..], |(_, own, _)| own));
    labels.retain(|name, _| case.left.is_empty() || case.left.contains(&name.as_str()));
    let text = rule["annotations"]["summary"].as_str().expect("a summary");
    let text = annotation(text, &labels, first.map_or("1", |(_, _, values)| values));
    labels.insert("severity".to_owned(), rule["labels"]["severity"].as_str().expect("a severity").to_owned());
    let expected = json!([{"exp_labels": labels, "exp_annotations": {"summary": text}}]);
    json!({"interval": "1m", "input_series": input.collect::<Vec<_>>(),
        "alert_rule_test": [{"eval_time": AT, "alertname": case.alert, "exp_alerts": expected}]})
}

#[test]
fn each_alert_fires_and_names_what_it_is_about() {
    let (spec, rules) = rules();
    let cases = cases();
    let tested: BTreeSet<_> = cases.iter().map(|case| case.alert).collect();
    assert!(rules.keys().map(String::as_str).eq(tested), "{:?}", rules.keys());
    let tests: Vec<_> = cases.iter().map(|case| fires(case, &rules[case.alert])).collect();
    promtool(&spec, &tests);
}

#[test]
fn a_cluster_without_a_leader_is_not_hidden_by_another() {
    let (spec, rules) = rules();
    let mut test = fires(&cases()[0], &rules["TailyardNoLeader"]);
    let other = series("tailyard_leader", &stored(&[("cluster", "a")]), "1");
    test["input_series"].as_array_mut().expect("series").push(other);
    promtool(&spec, &[test]);
}

#[test]
fn nothing_is_missed_where_nothing_is_known_to_scrape() {
    let alone = rendered_with(&["--set", "prometheusRule.enabled=true"]);
    assert!(!alone["PrometheusRule tailscale/tailyard"].to_string().contains("absent"), "it would always fire");
}

/// The labels of each family, of docs/metrics.md.
fn families() -> BTreeMap<String, BTreeSet<String>> {
    let text = read(&path("docs/metrics.md"));
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `tailyard_")?.split_once('`'));
    rows.map(|(name, rest)| {
        let labels = rest.split('|').nth(2).unwrap_or_default().split('`').skip(1).step_by(2).map(str::to_owned);
        (format!("tailyard_{name}"), labels.collect())
    })
    .collect()
}

/// Each expression of the dashboard with its legend.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read(&std::path::Path::new(CHART).join("files/dashboard.json"))).expect("JSON");
    let targets =
        dashboard["panels"].as_array().expect("panels").iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let text = |target: &Value, key: &str| target[key].as_str().unwrap_or_default().to_owned();
    let plain = |expr: String| expr.replace("$namespace", ".*").replace("$__rate_interval", "10m");
    targets.map(|target| (plain(text(target, "expr")), text(target, "legendFormat"))).collect()
}

#[test]
fn panels_draw_by_labels_that_their_series_have() {
    let families = families();
    for (expr, legend) in panels() {
        let family = families.iter().find(|(name, _)| expr.contains(&format!("{name}{{")) || expr.contains(&format!("{name}_bucket{{")));
        let (_, own) = family.unwrap_or_else(|| panic!("{expr} has no family"));
        let grouped = expr.split("by (").nth(1).and_then(|rest| rest.split(')').next()).unwrap_or_default().split(", ");
        let drawn = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
        for label in grouped.chain(drawn).filter(|label| !matches!(*label, "" | "le")) {
            assert!(own.contains(label) || TELLING.contains(&label), "{expr}, {legend}: no label {label}");
        }
    }
}

#[test]
fn services_of_one_group_are_drawn_apart() {
    let services = ["default-db", "shop-web"];
    let by_service: Vec<_> = panels().into_iter().filter(|(_, legend)| legend.contains("{{proxied_service}}")).collect();
    assert_eq!(by_service.len(), 3, "{by_service:?}");
    let tests: Vec<_> = by_service
        .iter()
        .map(|(expr, legend)| {
            let family = families().into_keys().find(|name| expr.contains(&format!("{name}{{"))).expect("a family");
            let counted = expr.contains("rate(");
            let own = |service| {
                if legend.contains("reason") {
                    vec![("proxied_service", service), ("reason", "R")]
                } else {
                    vec![("proxied_service", service)]
                }
            };
            let input = services.map(|service| series(&family, &stored(&own(service)), if counted { "0+60" } else { "1" }));
            let name = |service| own(service).iter().map(|(name, value)| format!("{name}={value:?}")).collect::<Vec<_>>().join(",");
            let expected = services.map(|service| json!({"labels": format!("{{{}}}", name(service)), "value": 1}));
            json!({"interval": "1m", "input_series": input,
                "promql_expr_test": [{"expr": expr, "eval_time": AT, "exp_samples": expected}]})
        })
        .collect();
    promtool(&json!({"groups": []}), &tests);
}
