//! charts/tailyard as the pinned helm renders it: golden objects, the permissions of config/rbac, the definitions of config/crd, settings
//! that the program accepts, and invalid values that are rejected before any object is created.
//!
//! `UPDATE_GOLDEN=1 cargo test --test package chart` rewrites the golden files. Objects are compared, not texts: the order and the comments
//! of a rendered chart depend on helm's version. Needs the program of `tests/servers/build helm`, and promtool.

mod alerts;
mod documents;
mod metrics;
mod operator_values;

use kit::golden::{assert_golden, is_updating};
use kit::servers::servers;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tailyard::api::proxygroup::ApiServerMode;
use tailyard::model::settings::Flags;
use tailyard::model::settings::reconciler::{DefaultCredentials, Reconciler};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/tailyard");
/// Names of the values files and of the golden files rendered with them.
const CASES: [&str; 4] = ["default", "headscale", "identity", "everything"];

/// A path in the repository.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Values file of a case.
fn values(case: &str) -> String {
    path("tests/golden/chart").join(format!("{case}.values.yaml")).display().to_string()
}

/// Runs the pinned helm, isolated from this machine's repositories, plugins and clusters.
fn helm(args: &[&str]) -> Output {
    let directory = servers(&["helm"]);
    let home = tempfile::TempDir::new().expect("a directory");
    let mut helm = Command::new(directory.join("helm"));
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HELM_PLUGINS"] {
        helm.env(variable, home.path());
    }
    helm.env("KUBECONFIG", home.path().join("none")).args(args).output().expect("helm")
}

/// Output of helm, which must succeed.
fn printed(args: &[&str]) -> String {
    let output = helm(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Arguments that render the chart, independent of helm's own Kubernetes version.
fn template(namespace: &str) -> [&str; 7] {
    ["template", "tailyard", CHART, "--namespace", namespace, "--kube-version", "1.36.0"]
}

/// Objects rendered with these flags in the namespace tailscale.
fn rendered_with(flags: &[&str]) -> BTreeMap<String, Value> {
    objects(&printed(&[&template("tailscale")[..], flags].concat()))
}

/// Chart rendered with the values of a case.
fn rendered(case: &str, namespace: &str) -> String {
    printed(&[&template(namespace)[..], &["--values", &values(case)]].concat())
}

/// Objects of a file with several documents, by kind, namespace and name.
fn objects(text: &str) -> BTreeMap<String, Value> {
    let text = format!("\n{text}");
    let documents = text.split("\n---\n").filter(|text| text.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#')));
    let mut all = BTreeMap::new();
    for document in documents {
        let object: Value = serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error} in\n{document}"));
        let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned();
        let key = format!("{} {}/{}", word("/kind"), word("/metadata/namespace"), word("/metadata/name"));
        assert!(all.insert(key.clone(), object).is_none(), "{key} is there twice");
    }
    all
}

/// The reconciler's Deployment among rendered objects.
fn deployment(case: &str) -> Value {
    let mut all = objects(&rendered(case, "tailscale"));
    all.remove("Deployment tailscale/tailyard-reconciler").expect("the Deployment")
}

#[test]
fn helm_lint_passes() {
    for case in CASES {
        printed(&["lint", "--strict", CHART, "--values", &values(case)]);
    }
}

#[test]
fn rendered_chart_matches_golden_files() {
    for case in CASES {
        let text = rendered(case, "tailscale");
        let file = format!("tests/golden/chart/{case}.yaml");
        if is_updating() {
            assert_golden(&file, &text);
        }
        let (made, expected) = (objects(&text), objects(&kit::golden::read(&file)));
        assert!(made.keys().eq(expected.keys()), "{case}: {:?} for {:?}", made.keys(), expected.keys());
        for (key, object) in &made {
            assert_eq!(*object, expected[key], "{case}: {key} (UPDATE_GOLDEN=1 writes it anew)");
        }
    }
}

/// RBAC objects, without the labels that every object of a chart has.
fn rights(objects: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    of_api(objects, "rbac.authorization.k8s.io/v1")
}

/// Objects of an API version, without the labels that every object of a chart has.
fn of_api(objects: BTreeMap<String, Value>, version: &str) -> BTreeMap<String, Value> {
    let chosen = objects.into_iter().filter(|(_, object)| object["apiVersion"] == version);
    let plain = chosen.map(|(key, mut object)| {
        object["metadata"].as_object_mut().expect("metadata").remove("labels");
        (key, object)
    });
    plain.collect()
}

/// Objects of a file of config/rbac, for another namespace of the reconciler.
fn config(file: &str, namespace: &str) -> BTreeMap<String, Value> {
    let text = read(&path("config/rbac").join(file));
    let text = text.replace("namespace: tailscale\n", &format!("namespace: {namespace}\n"));
    objects(&text.replace("kubernetes.io/metadata.name: tailscale\n", &format!("kubernetes.io/metadata.name: {namespace}\n")))
}

#[test]
fn sample_manifest_equals_the_rendered_chart() {
    let mut chart = objects(&rendered("sample", "tailscale"));
    let sample = objects(&read(&path("config/samples/reconciler.yaml")));
    chart.retain(|key, _| sample.contains_key(key));
    for object in chart.values_mut() {
        let labels = object["metadata"]["labels"].as_object_mut().expect("labels");
        labels.retain(|key, _| !matches!(key.as_str(), "helm.sh/chart" | "app.kubernetes.io/managed-by"));
    }
    assert_eq!((sample.len(), &sample), (2, &chart));
}

/// Secrets that a document's commands create, with their keys.
fn made_secrets(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let commands = text.split("create secret generic ").skip(1).filter_map(|rest| rest.lines().next()).map(str::split_whitespace);
    let secret = |mut words: std::str::SplitWhitespace<'_>| {
        let name = words.next().expect("a name").to_owned();
        let keys = words.filter_map(|word| word.strip_prefix("--from-literal=")?.split('=').next());
        (name, keys.map(str::to_owned).collect())
    };
    commands.map(secret).collect()
}

#[test]
fn documented_secrets_are_those_the_chart_mounts() {
    for document in ["docs/headscale.md", "docs/quickstart.md", "charts/tailyard/README.md"] {
        let text = read(&path(document));
        let secrets = made_secrets(&text);
        let values = text.split(char::is_whitespace).map(|word| word.trim_matches('`'));
        let values: Vec<_> = values.filter(|word| word.starts_with("controlPlane.credentials.")).collect();
        assert!(!values.is_empty(), "{document} installs the chart");
        for value in values {
            let (_, name) = value.split_once("existingSecret=").expect("a Secret");
            let made = rendered_with(&["--set", value, "--set", "controlPlane.url=https://control.example.com"]);
            let volume = &made["Deployment tailscale/tailyard-reconciler"]["spec"]["template"]["spec"]["volumes"][0]["secret"];
            let keys: BTreeSet<_> = volume["items"].as_array().expect("items").iter().filter_map(|item| item["key"].as_str()).collect();
            let of_document = secrets.get(name).unwrap_or_else(|| panic!("{document} makes no Secret {name}"));
            assert_eq!((&volume["secretName"], keys), (&Value::from(name), of_document.iter().map(String::as_str).collect()), "{document}");
        }
    }
}

#[test]
fn user_labels_do_not_replace_chart_labels() {
    const NAME: &str = "app\\.kubernetes\\.io/name=mine";
    let labels = ["podLabels", "metrics.serviceMonitor.labels", "prometheusRule.labels", "dashboard.labels"];
    let labels = labels.map(|of| format!("{of}.{NAME},{of}.team=net")).join(",");
    let enabled = "metrics.serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true";
    let made = rendered_with(&["--set", &labels, "--set", enabled]);
    let found = |key: &str, pointer: &str| {
        let labels = made[key].pointer(pointer).expect("labels");
        let label = |name: &str| labels[name].as_str().unwrap_or_default().to_owned();
        (label("app.kubernetes.io/name"), label("app.kubernetes.io/component"), label("team"))
    };
    let expected = |component: &str| ("tailyard".to_owned(), component.to_owned(), "net".to_owned());
    assert_eq!(found("Deployment tailscale/tailyard-reconciler", "/spec/template/metadata/labels"), expected("reconciler"));
    assert_eq!(found("ServiceMonitor tailscale/tailyard-reconciler", "/metadata/labels"), expected("reconciler"));
    assert_eq!(found("PrometheusRule tailscale/tailyard", "/metadata/labels"), expected("monitoring"));
    assert_eq!(found("ConfigMap tailscale/tailyard-dashboard", "/metadata/labels"), expected("monitoring"));
}

#[test]
fn security_contexts_can_be_replaced_or_omitted() {
    let pod = |flags: &[&str]| rendered_with(flags)["Deployment tailscale/tailyard-reconciler"]["spec"]["template"]["spec"].clone();
    let own = pod(&["--set-json", "podSecurityContext={}", "--set-json", r#"securityContext={"privileged":false}"#]);
    assert_eq!(own["securityContext"], Value::Null, "left to the platform");
    assert_eq!(own["containers"][0]["securityContext"], serde_json::json!({"privileged": false}), "nothing of the chart's is merged");
    assert_eq!(pod(&[])["securityContext"]["runAsUser"], 65532);
}

#[test]
fn chart_rbac_equals_config_rbac() {
    for namespace in ["tailscale", "elsewhere"] {
        let (own, mut cluster) = (config("namespace.yaml", namespace), config("cluster.yaml", namespace));
        let everywhere: BTreeMap<_, _> = own.clone().into_iter().chain(cluster.clone()).collect();
        assert_eq!(rights(objects(&rendered("default", namespace))), everywhere);

        cluster.retain(|key, _| !key.ends_with("tailyard-reconciler-services"));
        assert_eq!(cluster.len(), 3, "objects without a namespace are read with either");
        let watched: BTreeMap<_, _> = own.into_iter().chain(cluster).chain(config("watched.yaml", namespace)).collect();
        assert_eq!(rights(objects(&rendered("headscale", namespace))), watched);
    }
}

#[test]
fn impersonation_is_granted_as_the_values_permit() {
    const ROLE: &str = "ClusterRole -/tailyard-reconciler-impersonation";
    let of = |flags: &[&str]| {
        let objects = rendered_with(flags);
        let is_on = read_settings(&objects["Deployment tailscale/tailyard-reconciler"], "flags").grants_impersonation();
        let rights: BTreeMap<_, _> = rights(objects).into_iter().filter(|(key, _)| key.ends_with("-impersonation")).collect();
        assert_eq!(is_on, !rights.is_empty(), "{flags:?}");
        rights
    };
    assert_eq!(of(&[]), BTreeMap::new());
    assert_eq!(of(&["--set-string", "apiServerProxyConfig.allowImpersonation=false"]), BTreeMap::new());
    assert_eq!(of(&["--set-string", "apiServerProxyConfig.allowImpersonation=true"]), config("impersonation.yaml", "tailscale"));
    assert_eq!(of(&["--set-string", "apiServerProxyConfig.mode=true"]), config("impersonation.yaml", "tailscale"));
    assert_eq!(of(&["--set-string", "apiServerProxyConfig.mode=noauth"]), BTreeMap::new());
    let few = of(&[
        "--set-string",
        "apiServerProxyConfig.mode=true",
        "--set-json",
        r#"apiServerProxyConfig.impersonation={"users":["a@example.com"]}"#,
    ]);
    assert_eq!(few[ROLE]["rules"][1]["resourceNames"], serde_json::json!(["a@example.com"]), "no others than the listed ones");
    let masters = r#"apiServerProxyConfig.impersonation={"groups":["system:masters"]}"#;
    let flags = ["--set-string", "apiServerProxyConfig.allowImpersonation=true", "--set-json", masters];
    assert_eq!(of(&flags), config("impersonation.yaml", "tailscale"));
    let env =
        rendered_with(&flags)["Deployment tailscale/tailyard-reconciler"]["spec"]["template"]["spec"]["containers"][0]["env"].to_string();
    assert!(env.contains(r#""*,system:masters""#), "{env}");
    let listed = of(&["--set-json", r#"apiServerProxyConfig.impersonation={"users":["*"],"groups":["viewers","tag:ops"]}"#]);
    let rules = &listed[ROLE]["rules"];
    assert_eq!((&rules[1]["resources"][0], &rules[1]["resourceNames"]), (&"users".into(), &Value::Null));
    assert_eq!((&rules[2]["resources"][0], &rules[2]["resourceNames"]), (&"groups".into(), &serde_json::json!(["viewers", "tag:ops"])));
}

#[test]
fn rights_on_admission_objects_are_granted_with_the_policies() {
    let of = |flags: &[&str]| {
        let objects = rendered_with(flags);
        let is_on = read_settings(&objects["Deployment tailscale/tailyard-reconciler"], "flags").group_policies;
        let rights: BTreeMap<_, _> = rights(objects).into_iter().filter(|(key, _)| key.ends_with("-policies")).collect();
        assert_eq!(is_on, !rights.is_empty(), "{flags:?}");
        rights
    };
    assert_eq!(of(&[]), BTreeMap::new());
    assert_eq!(of(&["--set", "proxyGroupPolicies.enabled=true"]), config("proxygrouppolicies.yaml", "tailscale"));
}

#[test]
fn rights_on_the_nameserver_are_granted_with_dns_configs() {
    let of = |flags: &[&str]| {
        let objects = rendered_with(flags);
        let is_on = read_settings(&objects["Deployment tailscale/tailyard-reconciler"], "flags").dns_configs;
        let rights: BTreeMap<_, _> = rights(objects).into_iter().filter(|(key, _)| key.ends_with("-dns")).collect();
        assert_eq!(is_on, !rights.is_empty(), "{flags:?}");
        rights
    };
    assert_eq!(of(&[]), BTreeMap::new());
    assert_eq!(of(&["--set", "dnsConfigs.enabled=true"]), config("dnsconfigs.yaml", "tailscale"));
}

#[test]
fn mode_of_the_operators_device_permits_no_proxy_group_to_impersonate() {
    type Permitted = (Vec<String>, Vec<String>);
    let of = |flags: &[&str]| -> (Permitted, Permitted) {
        let flags = [&["--set-string", "apiServerProxyConfig.mode=true"], flags].concat();
        let made = rendered_with(&flags).remove("Deployment tailscale/tailyard-reconciler").expect("the Deployment");
        let settings = read_settings(&made, "flags");
        let device = settings.operator_device.expect("a device").impersonation;
        ((device.users, device.groups), (settings.workloads.impersonation.users, settings.workloads.impersonation.groups))
    };
    let names = |users: &[&str], groups: &[&str]| -> Permitted {
        [users, groups].map(|names| names.iter().map(|name| (*name).to_owned()).collect()).into()
    };
    let (all, none, listed) = (names(&["*"], &["*"]), names(&[], &[]), names(&["a@example.com"], &["viewers"]));
    assert_eq!(of(&[]), (all.clone(), none));
    assert_eq!(of(&["--set-string", "apiServerProxyConfig.allowImpersonation=true"]), (all.clone(), all));
    let lists = r#"apiServerProxyConfig.impersonation={"users":["a@example.com"],"groups":["viewers"]}"#;
    assert_eq!(of(&["--set-json", lists]), (listed.clone(), listed));
}

#[test]
fn api_server_proxy_has_the_settings_of_the_tailscale_operators_chart() {
    let of = |flags: &[&str]| {
        let made = rendered_with(flags).remove("Deployment tailscale/tailyard-reconciler").expect("the Deployment");
        read_settings(&made, "flags").operator_device
    };
    assert_eq!([&[][..], &["--set-string", "apiServerProxyConfig.mode=false"]].map(of), [None, None]);
    let device = |flags: &[&str]| of(flags).expect("a device");
    let usual = device(&["--set-string", "apiServerProxyConfig.mode=true"]);
    assert_eq!((usual.mode, usual.hostname.as_str(), usual.is_http), (ApiServerMode::Auth, "tailscale-operator", false));
    assert_eq!((usual.tags, usual.certificate), (vec!["tag:k8s-operator".to_owned()], None));
    let own = "apiServerProxyConfig.mode=noauth,apiServerProxyConfig.http=true,operatorConfig.hostname=kube,operatorConfig.defaultTags={tag:a,tag:b}";
    let own = device(&["--set", own]);
    assert_eq!((own.mode, own.hostname.as_str(), own.is_http, own.tags.len()), (ApiServerMode::NoAuth, "kube", true, 2));
    let certified = device(&["--set", "apiServerProxyConfig.mode=true,apiServerProxyConfig.certificateSecret=own"]);
    assert_eq!(certified.certificate.as_deref(), Some("own"));
}

#[test]
fn chart_admission_policy_equals_config_rbac() {
    const VERSION: &str = "admissionregistration.k8s.io/v1";
    for namespace in ["tailscale", "elsewhere"] {
        let expected = config("policy.yaml", namespace);
        let selected = &expected["ValidatingAdmissionPolicyBinding -/tailyard-proxy-secrets"]["spec"]["matchResources"];
        assert_eq!(selected["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], namespace);
        assert_eq!(of_api(objects(&rendered("default", namespace)), VERSION), expected);
    }
    let policies = |flags: &[&str]| of_api(rendered_with(flags), VERSION).len();
    assert_eq!(policies(&["--set", "admissionPolicy.enabled=false"]), 0);
    assert_eq!(["1.29.9", "1.30.0", "1.30.2-gke.1"].map(|version| policies(&["--kube-version", version])), [0, 2, 2]);
}

#[test]
fn each_watched_namespace_has_its_role() {
    let found = rights(objects(&rendered("identity", "tailscale")));
    for key in ["Role shop", "RoleBinding shop", "Role stock", "RoleBinding stock"] {
        assert!(found.contains_key(&format!("{key}/tailyard-reconciler-services")), "{key} in {:?}", found.keys());
    }
    assert!(!found.contains_key("ClusterRole -/tailyard-reconciler-services"), "Roles are enough");
}

#[test]
fn chart_crds_equal_config_crd() {
    let all = |directory: &Path| -> BTreeMap<_, _> {
        let files = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        files.map(|file| file.expect("a file")).map(|file| (file.file_name(), read(&file.path()))).collect()
    };
    let (ours, config) = (all(&Path::new(CHART).join("crds")), all(&path("config/crd")));
    assert!(ours.keys().eq(config.keys()), "{:?} for {:?}", ours.keys(), config.keys());
    for (name, text) in config {
        assert!(ours[&name] == text, "{} is stale: cp config/crd/*.yaml charts/tailyard/crds/", name.display());
    }
}

/// Settings that the program reads from the chart's environment variables.
fn settings(case: &str) -> Reconciler {
    read_settings(&deployment(case), case)
}

/// Settings that the program reads from the variables of a Deployment.
fn read_settings(deployment: &Value, case: &str) -> Reconciler {
    let variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().expect("an environment");
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    for variable in variables {
        let name = variable["name"].as_str().expect("a name").to_owned();
        let value = variable["value"].as_str().unwrap_or("from-the-pod").to_owned();
        assert!(env.insert(name.clone(), value).is_none(), "{case}: {name} is there twice");
    }
    for (name, value) in [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")] {
        env.insert(name.to_owned(), value.to_owned());
    }
    Reconciler::read(&env, &Flags::reconciler()).unwrap_or_else(|faults| panic!("{case}: {faults}"))
}

#[test]
fn program_accepts_the_rendered_settings() {
    for case in CASES {
        assert_eq!(settings(case).notes, Vec::<String>::new(), "{case}");
    }
    let default = settings("default");
    let cluster = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
    let untold = cluster.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let untold = Reconciler::read(&untold, &Flags::reconciler()).expect("settings");
    assert_eq!(default.workloads.image, untold.workloads.image, "the chart's version is the program's");
    assert_eq!((default.workloads.tags, default.workloads.firewall), (untold.workloads.tags, untold.workloads.firewall));
    assert_eq!((default.workers, default.workloads.ports), (untold.workers, untold.workloads.ports));
    assert_eq!(default.workloads.drain_timeout, untold.workloads.drain_timeout);
    assert_eq!((default.control, default.service_namespaces), (untold.control, untold.service_namespaces));
    let everything = settings("everything");
    let workloads = everything.workloads;
    assert_eq!((workloads.image.as_str(), workloads.image_pull_secrets), ("tailscale/tailscale:v1.102.5", vec!["pull".to_owned()]));
    assert_eq!((workloads.tags, everything.workers), (vec!["tag:k8s".to_owned(), "tag:prod".to_owned()], 8));
    assert_eq!((everything.default_class.as_deref(), workloads.firewall.as_deref()), (Some("prod"), Some("nftables")));
    let tenants = workloads.standalone_tenants;
    assert_eq!((tenants.len(), tenants[0].funnel, tenants[0].max_names), (1, true, Some(5)));
    let groups = everything.default_groups;
    assert_eq!((groups.ingress.as_deref(), groups.egress.as_deref()), (Some("web"), Some("eg")));
    assert_eq!((workloads.drain_timeout.as_secs(), everything.cluster_domain.as_deref()), (90, Some("example.org")));
    let headscale = settings("headscale");
    assert_eq!(
        (headscale.control.url.as_str(), headscale.service_namespaces),
        ("https://headscale.example.com:8443", vec!["watched".to_owned()])
    );
}

#[test]
fn files_are_mounted_where_the_program_reads_them() {
    for case in CASES {
        let (deployment, control) = (deployment(case), settings(case).control);
        let mut files: Vec<PathBuf> = match control.credentials {
            Some(DefaultCredentials::OAuth { id, secret }) => vec![id, secret],
            Some(DefaultCredentials::Identity { token, .. }) => vec![token],
            Some(DefaultCredentials::Headscale { key }) => vec![key],
            None => vec![],
        };
        files.extend(control.ca);
        let spec = &deployment["spec"]["template"]["spec"];
        let mut mounted = BTreeSet::new();
        for mount in spec["containers"][0]["volumeMounts"].as_array().into_iter().flatten() {
            let volume = spec["volumes"].as_array().into_iter().flatten().find(|volume| volume["name"] == mount["name"]);
            let volume = volume.expect("the volume of a mount");
            let place = Path::new(mount["mountPath"].as_str().expect("a path"));
            let items =
                ["/secret/items", "/configMap/items"].into_iter().filter_map(|pointer| volume.pointer(pointer)?.as_array()).flatten();
            let names = items.map(|item| &item["path"]).chain(volume.pointer("/projected/sources/0/serviceAccountToken/path"));
            mounted.extend(names.map(|name| place.join(name.as_str().expect("a name"))));
        }
        assert_eq!(mounted, files.into_iter().collect::<BTreeSet<_>>(), "{case}");
    }
}

/// Metric names in a text, without the suffixes of histograms.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_').filter(|word| word.starts_with("tailyard_"));
    words.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

#[test]
fn dashboard_and_alerts_use_existing_metrics() {
    let exist = metrics(&read(&path("docs/metrics.md")));
    for file in ["alerts.yaml", "dashboard.json"] {
        let named = metrics(&read(&Path::new(CHART).join("files").join(file)));
        assert!(named.len() > 5, "{file} names {named:?}");
        let missing: Vec<_> = named.difference(&exist).collect();
        assert!(missing.is_empty(), "{file}: docs/metrics.md has no {missing:?}");
    }
    let dashboard: Value = serde_json::from_str(&read(&Path::new(CHART).join("files/dashboard.json"))).expect("JSON");
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 5));
    let alerts: Value = serde_saphyr::from_str(&read(&Path::new(CHART).join("files/alerts.yaml"))).expect("YAML");
    let groups = alerts["groups"].as_array().expect("groups");
    for rule in groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")) {
        let has = |pointer: &str| rule.pointer(pointer).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
        assert!(["/alert", "/expr", "/labels/severity", "/annotations/summary"].into_iter().all(has), "{rule}");
    }
}

/// Rejected values, each with a corrected one that is accepted.
const REFUSED: [(&str, &str); 29] = [
    ("replica=2", "replicas=2"),
    ("replicas=0", "replicas=1"),
    ("replicas=two", "replicas=2"),
    ("admissionPolicy.enabled=sometimes", "admissionPolicy.enabled=false"),
    ("firewallMode=pf", "firewallMode=iptables"),
    ("defaultProxyGroups.egress=Eg.1", "defaultProxyGroups.egress=eg-1"),
    ("tags={k8s}", "tags={tag:k8s}"),
    ("matchPortRange=10000", "matchPortRange=10000-10999"),
    ("drainTimeout=45x", "drainTimeout=45s"),
    ("workers=65", "workers=64"),
    ("targets.allowed={10.0.0.0/99}", "targets.allowed={10.0.0.0/32}"),
    ("targets.denied={fd00::/129}", "targets.denied={fd00::/128}"),
    ("watchNamespaces={Shop}", "watchNamespaces={shop}"),
    ("image.digest=abc", "image.digest="),
    ("image.pullPolicy=Sometimes", "image.pullPolicy=Never"),
    ("log.format=xml", "log.format=json"),
    ("securityContext=none", "securityContext.privileged=false"),
    ("proxyImagePullSecrets={pull}", "proxyImagePullSecrets[0].name=pull"),
    ("networkPolicy.egressPorts={70000}", "networkPolicy.egressPorts={7000}"),
    ("networkPolicy.proxies.enabled=sometimes", "networkPolicy.proxies.enabled=true"),
    ("controlPlane.url=headscale", "controlPlane.url=https://headscale"),
    ("controlPlane.ca.key=a", "controlPlane.ca.key=a,controlPlane.ca.secret=b"),
    ("controlPlane.ca.configMap=a,controlPlane.ca.secret=b", "controlPlane.ca.configMap=a"),
    (
        "controlPlane.credentials.headscale.existingSecret=a",
        "controlPlane.credentials.headscale.existingSecret=a,controlPlane.url=https://headscale",
    ),
    (
        "controlPlane.credentials.workloadIdentity.clientId=a",
        "controlPlane.credentials.workloadIdentity.clientId=a,controlPlane.credentials.workloadIdentity.audience=b",
    ),
    (
        "controlPlane.url=https://a,controlPlane.credentials.oauth.existingSecret=a,controlPlane.credentials.headscale.existingSecret=b",
        "controlPlane.url=https://a,controlPlane.credentials.oauth.existingSecret=a",
    ),
    (
        "controlPlane.credentials.oauth.existingSecret=a,controlPlane.credentials.oauth.volume.csi.driver=b",
        "controlPlane.credentials.oauth.volume.csi.driver=b",
    ),
    ("image.repository=r.example/tailscale", "image.repository=r.example/tailyard"),
    ("extraEnv[0].name=PROXY_TAGS,extraEnv[0].value=tag:a", "extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=http://a"),
];

#[test]
fn invalid_values_are_rejected() {
    for (bad, good) in REFUSED {
        let taken = |set: &str| helm(&[&template("tailscale")[..], &["--set", set]].concat()).status.success();
        assert!(!taken(bad), "{bad} is taken");
        assert!(taken(good), "{good} is refused");
    }
}

#[test]
fn install_notes_show_the_next_step() {
    let install = |case: &str, flags: &[&str]| {
        let values = values(case);
        let install = ["install", "tailyard", CHART, "--namespace", "tailscale", "--dry-run=client", "--values", &values];
        printed(&[&install[..], flags].concat())
    };
    let notes = |case: &str| install(case, &[]);
    let namespace = |case: &str| match case {
        "headscale" => "watched",
        "identity" => "shop",
        _ => "default",
    };
    for case in CASES {
        let (notes, namespace) = (notes(case), namespace(case));
        let (look, type_) = if case == "everything" { ("describe ingress web", "ingress") } else { ("get service db", "egress") };
        let next = [
            format!("tailscale.com/proxy-group: {type_}\n"),
            format!("  spec:\n    type: {type_}\n"),
            format!("kubectl {look} -n {namespace}"),
            format!("namespace: {namespace}\n"),
            "kubectl -n tailscale rollout status deployment/tailyard-reconciler".to_owned(),
            "pod-security.kubernetes.io/enforce=privileged".to_owned(),
        ];
        assert!(next.iter().all(|line| notes.contains(line)), "{case}: {next:?} in {notes}");
        assert_eq!(notes.contains("No credentials are set"), !matches!(case, "headscale" | "identity" | "everything"), "{case}: {notes}");
        assert_eq!(notes.contains("make image"), case != "everything", "{case}: {notes}");
    }
    let notes = install("headscale", &["--set", "proxyGroupTypes={ingress}"]);
    assert!(notes.contains("kubectl annotate service web -n watched") && !notes.contains("defaultBackend"), "no certificates: {notes}");
}
