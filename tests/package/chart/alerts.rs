//! Alerts and panels, evaluated by promtool on series with the labels that the Prometheus operator gives to scraped targets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use kit::golden::assert_golden;
use serde_json::{Value, json};

use super::{CHART, objects, path, read, rendered, rendered_with};

/// Labels of a target: a replica behind the metrics Service of its group.
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
/// Labels of a target that texts may name: the others do not identify the subject of a metric.
const TELLING: [&str; 2] = ["namespace", "pod"];
/// Length of the series in minutes, and evaluation time.
const MINUTES: u32 = 120;
const AT: &str = "110m";

type Labels = BTreeMap<String, String>;

/// Labels of a series as Prometheus stores it: a metric's own label that the target has, too, is renamed.
fn stored(own: &[(&str, &str)]) -> Labels {
    let target: Labels = TARGET.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let renamed = |name: &str| if target.contains_key(name) { format!("exported_{name}") } else { name.to_owned() };
    let own: Vec<_> = own.iter().map(|(name, value)| (renamed(name), (*value).to_owned())).collect();
    target.into_iter().chain(own).collect()
}

/// Input series of promtool: `values` is one value, or `start+step`.
fn series(family: &str, labels: &Labels, values: &str) -> Value {
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    json!({"series": format!("{family}{{{}}}", labels.join(",")), "values": format!("{values}x{MINUTES}")})
}

/// Family, its own labels and its values.
type Input = (&'static str, Vec<(&'static str, &'static str)>, &'static str);

/// An alert, series on which it fires, series on which it does not, and the labels of the sample that it names.
struct Case {
    alert: &'static str,
    input: Vec<Input>,
    quiet: Vec<Input>,
    /// Labels that the alert keeps of a series; all if the list is empty.
    labels: &'static [&'static str],
}

impl Case {
    /// An alert on one family, which does not fire on `quiet` values.
    fn new(
        alert: &'static str,
        family: &'static str,
        own: &[(&'static str, &'static str)],
        values: &'static str,
        quiet: &'static str,
    ) -> Self {
        let input = |values| vec![(family, own.to_vec(), values)];
        Self { alert, input: input(values), quiet: input(quiet), labels: &[] }
    }

    /// Adds another series to both inputs.
    fn beside(mut self, family: &'static str, own: &[(&'static str, &'static str)], values: &'static str) -> Self {
        for input in [&mut self.input, &mut self.quiet] {
            input.push((family, own.to_vec(), values));
        }
        self
    }
}

fn cases() -> Vec<Case> {
    let new = Case::new;
    let rejected = [("proxied_service", "default-db"), ("reason", "Unresolved")];
    let site = [("proxied_service", "svc:web"), ("name", "web.example")];
    let (by_name, by_service) = (&["namespace", "name"], &["namespace", "proxied_service"]);
    let expiry = "tailyard_certificate_expiry_timestamp_seconds";
    let requests = |code| [("proxied_service", "svc:web"), ("code", code)];
    let mut cases =
        vec![
            Case { input: vec![], labels: &["namespace"], ..new("TailyardReconcilerAbsent", "tailyard_leader", &[], "", "0") },
            Case { labels: &["cluster", "namespace"], ..new("TailyardNoLeader", "tailyard_leader", &[("cluster", "b")], "0", "1") },
            new("TailyardReconcilerUnsynced", "tailyard_caches_synced", &[], "0", "1"),
            new("TailyardReconcileFails", "tailyard_workqueue_depth", &[("state", "failing")], "2", "0"),
            new("TailyardControlPlaneUnusable", "tailyard_control_plane_ready", &[("tailnet", "lab")], "0", "1"),
            Case {
                labels: &["cluster", "namespace", "proxygroup"],
                ..new("TailyardReplicaLost", "tailyard_lost_replicas", &[("cluster", "b"), ("proxygroup", "eg")], "1", "0")
            },
            new("TailyardServiceNotAdvertised", "tailyard_advertised_services", &[("proxygroup", "web"), ("state", "pending")], "2", "0"),
            new("TailyardIngressFault", "tailyard_ingress_faults", &[("reason", "InvalidIngress")], "2", "0"),
            new("TailyardStandaloneProxyUnserved", "tailyard_standalone_proxies", &[("kind", "Ingress"), ("state", "pending")], "2", "0")
                .beside("tailyard_standalone_proxies", &[("kind", "Ingress"), ("state", "rejected")], "3"),
            new("TailyardConnectorUnready", "tailyard_connectors", &[("state", "pending")], "2", "0"),
            new("TailyardCertificateUnhealthy", "tailyard_certificates", &[("proxygroup", "web"), ("state", "failing")], "2", "0"),
            new("TailyardReconcilerSlow", "tailyard_workqueue_oldest_item_age_seconds", &[], "90", "30"),
            new("TailyardReplicaUnready", "tailyard_ready", &[], "0", "1"),
            new("TailyardTaskStalled", "tailyard_task_stalled", &[("task", "dns")], "1", "0"),
            new("TailyardRulesetLag", "tailyard_ruleset_lag_seconds", &[], "20", "2"),
            new("TailyardServiceRejected", "tailyard_service_rejected", &rejected, "1", "0"),
            new("TailyardConfigInvalid", "tailyard_config_error", &[("config", "egress"), ("reason", "Parse")], "1", "0"),
            // 3,300 s ago, as series begin at time 0; and 600 s ago.
            new("TailyardStateSecretFails", "tailyard_state_secret_error_timestamp_seconds", &[("reason", "Forbidden")], "3300", "6400"),
            new("TailyardDNSStale", "tailyard_dns_last_success_timestamp_seconds", &[("name", "db.example")], "3300", "6000"),
            new("TailyardConntrackFull", "tailyard_conntrack_entries", &[], "90", "50").beside("tailyard_conntrack_limit", &[], "100"),
            new("TailyardTailscaledRestarts", "tailyard_tailscaled_restarts_total", &[], "0+1", "5"),
            new("TailyardSupervisorRestarted", "tailyard_supervisor_restarts_total", &[], "0+1", "5"),
            new("TailyardRulesetDrift", "tailyard_ruleset_drift_repairs_total", &[], "0+1", "5"),
            // A week, 30 days; a day, a week.
            Case { labels: by_name, ..new("TailyardCertificateExpiring", expiry, &site[1..], "604800", "2592000") },
            Case { labels: by_name, ..new("TailyardCertificateExpiresSoon", expiry, &site[1..], "86400", "604800") },
            Case { labels: by_name, ..new("TailyardCertificateOrdersFail", "tailyard_certificate_order_failures", &site[1..], "3", "2") },
            new("TailyardCertificateMissing", "tailyard_certificate_missing", &site, "1", "0"),
            new("TailyardListenerError", "tailyard_http_listener_error", &[("proxied_service", "svc:web"), ("port", "443")], "1", "0"),
            new(
                "TailyardEndpointWatchFails",
                "tailyard_endpointslice_watch_error",
                &[("backend_namespace", "shop"), ("reason", "Forbidden")],
                "1",
                "0",
            ),
            Case { labels: by_service, ..new("TailyardHTTPErrors", "tailyard_http_requests_total", &requests("5xx"), "0+60", "0+1") }
                .beside("tailyard_http_requests_total", &requests("2xx"), "0+60"),
            Case {
                labels: by_service,
                ..new("TailyardBackendUnreachable", "tailyard_http_clusterip_fallbacks_total", &site[..1], "0+60", "5")
            },
        ];
    cases.extend(api_server_cases());
    cases
}

fn api_server_cases() -> [Case; 3] {
    let new = Case::new;
    let (api_requests, api_latency) = ("tailyard_api_server_requests_total", "tailyard_api_server_request_duration_seconds_bucket");
    let api = |code| [("verb", "get"), ("resource", "pods"), ("code", code)];
    [
        Case { labels: &["namespace"], ..new("TailyardAPIServerErrors", api_requests, &api("503"), "0+60", "0+1") }.beside(
            api_requests,
            &api("200"),
            "0+60",
        ),
        Case {
            labels: &["namespace", "reason"],
            ..new("TailyardAPIServerRequestsRefused", "tailyard_api_server_requests_refused_total", &[("reason", "Grants")], "0+60", "5")
        }
        .beside("tailyard_api_server_requests_refused_total", &[("reason", "UnknownClient")], "0+60"),
        Case { labels: &["namespace"], ..new("TailyardAPIServerSlow", api_latency, &[("verb", "get"), ("le", "2.5")], "5", "0+60") }
            .beside(api_latency, &[("verb", "get"), ("le", "10")], "0+60")
            .beside(api_latency, &[("verb", "get"), ("le", "+Inf")], "0+60"),
    ]
}

/// Rules of the chart by name, and the spec that is rendered for "everything".
fn rules() -> (Value, BTreeMap<String, Value>) {
    let spec = objects(&rendered("everything", "tailscale"))["PrometheusRule tailscale/tailyard"]["spec"].clone();
    let all = spec["groups"].as_array().expect("groups").iter().flat_map(|group| group["rules"].as_array().expect("rules").clone());
    let named = all.map(|rule| (rule["alert"].as_str().expect("a name").to_owned(), rule)).collect();
    (spec, named)
}

/// Runs these promtool tests against these rules.
fn promtool(rules: &Value, tests: &[Value]) {
    let directory = tempfile::TempDir::new().expect("a directory");
    let write = |name: &str, value: &Value| fs::write(directory.path().join(name), value.to_string()).expect("written");
    write("rules.yaml", rules);
    write("tests.yaml", &json!({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}));
    let output = Command::new("promtool").args(["test", "rules", "tests.yaml"]).current_dir(directory.path()).output();
    let output = output.expect("promtool (tests/setup installs it)");
    let printed_text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{printed_text}");
}

/// Annotation with the labels and the value of a sample filled in.
fn annotation(text: &str, labels: &Labels, value: &str) -> String {
    let mut parts = text.split("{{");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (expression, rest) = part.split_once("}}").expect("a whole expression");
        let printed_text = match expression.trim().strip_prefix("$labels.") {
            Some(label) => {
                assert!(TELLING.contains(&label) || TARGET.iter().all(|(name, _)| *name != label), "{label} is the target's: {part}");
                labels.get(label).unwrap_or_else(|| panic!("the sample has no label {label}, only {labels:?}"))
            }
            None => value,
        };
        text + printed_text + rest
    })
}

/// promtool test: with this input the alert is in this state.
fn alert_test(case: &Case, input: &[Input], expected: &[Value]) -> Value {
    let series = input.iter().map(|(family, own, values)| series(family, &stored(own), values));
    json!({"interval": "1m", "input_series": series.collect::<Vec<_>>(),
        "alert_rule_test": [{"eval_time": AT, "alertname": case.alert, "exp_alerts": expected}]})
}

/// promtool test: the alert fires once, and its texts name the subject of the series.
fn fires(case: &Case, rule: &Value) -> Value {
    let first = case.input.first();
    let mut labels = stored(first.map_or(&[][..], |(_, own, _)| own));
    labels.retain(|name, _| case.labels.is_empty() || case.labels.contains(&name.as_str()));
    let texts = rule["annotations"].as_object().expect("annotations").iter();
    let texts =
        texts.map(|(name, text)| (name, annotation(text.as_str().expect("a text"), &labels, first.map_or("1", |(_, _, values)| values))));
    let texts: BTreeMap<_, _> = texts.collect();
    for (name, value) in rule["labels"].as_object().expect("labels") {
        labels.insert(name.clone(), value.as_str().expect("a text").to_owned());
    }
    alert_test(case, &case.input, &[json!({"exp_labels": labels, "exp_annotations": texts})])
}

#[test]
fn each_alert_fires_and_names_what_it_is_about_and_is_quiet_otherwise() {
    let (spec, rules) = rules();
    let cases = cases();
    let tested: BTreeSet<_> = cases.iter().map(|case| case.alert).collect();
    assert!(rules.keys().map(String::as_str).eq(tested), "{:?}", rules.keys());
    let tests = cases.iter().flat_map(|case| [fires(case, &rules[case.alert]), alert_test(case, &case.quiet, &[])]);
    promtool(&spec, &tests.collect::<Vec<_>>());
}

#[test]
fn rules_are_valid_and_each_alert_has_a_runbook() {
    let (spec, rules) = rules();
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), spec.to_string()).expect("written");
    let output = Command::new("promtool").args(["check", "rules"]).arg(file.path()).output().expect("promtool (tests/setup installs it)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = page();
    for (name, rule) in &rules {
        let annotation = |name: &str| rule["annotations"][name].as_str().unwrap_or_default();
        assert_eq!(annotation("runbook_url"), format!("https://docs.example.com/alerts#{}", name.to_lowercase()));
        assert!(page.contains(&format!("\n### {name}\n")) && !annotation("description").is_empty(), "{name}");
        assert!(annotation("summary").len() < 70 && !annotation("summary").ends_with('.'), "{name}: one short line");
        assert_eq!(rule["labels"]["team"], "net", "{name}: labels of the user");
    }
}

#[test]
fn alerts_are_left_out_by_name() {
    let set = "prometheusRule.enabled=true,prometheusRule.disabled={TailyardServiceRejected}";
    let spec = rendered_with(&["--set", set])["PrometheusRule tailscale/tailyard"].to_string();
    assert!(!spec.contains("\"TailyardServiceRejected\"") && spec.contains("\"TailyardConfigInvalid\""), "{spec}");
}

/// docs/alerts.md: a section for each alert of the chart.
fn page() -> String {
    let alerts: Value = serde_saphyr::from_str(&read(&std::path::Path::new(CHART).join("files/alerts.yaml"))).expect("YAML");
    let plain = |text: &str| {
        let mut parts = text.split("{{");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            let (expression, rest) = part.split_once("}}").expect("a whole expression");
            let name = expression.trim().trim_start_matches("$labels.").trim_start_matches('$');
            format!("{text}\\<{name}>{rest}")
        })
    };
    let section = |rule: &Value| {
        let text = |pointer: &str| rule.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let waits = if text("/for").is_empty() { String::new() } else { format!(", for {}", text("/for")) };
        let [alert, expr, summary, severity, description] =
            ["/alert", "/expr", "/annotations/summary", "/labels/severity", "/annotations/description"].map(text);
        let (expr, description) = (expr.replace("RELEASE_NAMESPACE", "tailscale"), plain(description));
        format!("\n### {alert}\n\n{summary} ({severity}{waits})\n\n```promql\n{expr}\n```\n\n{description}\n")
    };
    let group = |group: &Value| {
        let title = TITLES.iter().find(|(name, _)| group["name"] == *name).expect("a title").1;
        let sections: String = group["rules"].as_array().expect("rules").iter().map(section).collect();
        format!("\n## {title}\n{sections}")
    };
    let groups: String = alerts["groups"].as_array().expect("groups").iter().map(group).collect();
    format!("{PAGE}{groups}")
}

const PAGE: &str = "# Prometheus alerts\n\nThe chart installs these alerts with `prometheusRule.enabled`. They need the metrics of \
                    [metrics.md](metrics.md);\nthose of proxies also a ProxyClass with `spec.metrics: {enable: true, serviceMonitor: {enable: true}}`, \
                    for all of them as the chart's\n`defaultProxyClass`.\n\n```console\n$ helm upgrade tailyard charts/tailyard --namespace tailscale \
                    --reset-then-reuse-values \\\n    --set prometheusRule.enabled=true,metrics.serviceMonitor.enabled=true\n```\n";
const TITLES: [(&str, &str); 4] = [
    ("tailyard-reconciler", "Reconciler"),
    ("tailyard-proxy", "Replicas"),
    ("tailyard-ingress", "Ingress replicas"),
    ("tailyard-api-server", "API server proxy"),
];

#[test]
fn the_page_of_alerts_is_made_from_the_chart() {
    assert_golden("docs/alerts.md", &page());
}

#[test]
fn missing_leader_is_detected_per_cluster() {
    let (spec, rules) = rules();
    let cases = cases();
    let case = cases.iter().find(|case| case.alert == "TailyardNoLeader").expect("a case");
    let mut test = fires(case, &rules[case.alert]);
    let other = series("tailyard_leader", &stored(&[("cluster", "a")]), "1");
    test["input_series"].as_array_mut().expect("series").push(other);
    promtool(&spec, &[test]);
}

#[test]
fn absent_metrics_alert_requires_a_scrape_config() {
    let defaults = rendered_with(&["--set", "prometheusRule.enabled=true"]);
    assert!(!defaults["PrometheusRule tailscale/tailyard"].to_string().contains("absent"), "it would always fire");
}

/// Labels of each family in docs/metrics.md.
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
fn panel_legends_use_existing_labels() {
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
fn panels_separate_services_of_one_group() {
    let services = ["default-db", "shop-web"];
    let by_service = panels().into_iter().filter(|(expr, legend)| legend.contains("{{proxied_service}}") && !expr.contains("_bucket{"));
    let by_service: Vec<_> = by_service.collect();
    assert_eq!(by_service.len(), 6, "{by_service:?}");
    let tests: Vec<_> = by_service
        .iter()
        .map(|(expr, legend)| {
            let family = families().into_keys().find(|name| expr.contains(&format!("{name}{{"))).expect("a family");
            let counted = expr.contains("rate(");
            let own = |service| {
                let more = ["code", "reason"].into_iter().filter(|label| legend.contains(&format!("{{{{{label}}}}}")));
                more.map(|label| (label, "R")).chain([("proxied_service", service)]).collect::<Vec<_>>()
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
