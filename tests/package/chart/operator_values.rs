//! Values of the Tailscale operator's chart: our chart refuses each with what replaces it, and renders what `tailyard migrate values` prints.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Output};

use kit::definitions::their_chart;
use kit::golden::assert_golden;
use serde_json::{Map, Value, json};
use tailyard::api::proxygroup::ApiServerMode;
use tailyard::model::diagnostics::migration::planned;
use tailyard::model::diagnostics::migration::table::{Replacement, VALUES, VARIABLES, refusals};
use tailyard::model::diagnostics::migration::values::parse;
use tailyard::model::settings::reconciler::{DefaultCredentials, Reconciler};

use super::{CASES, CHART, deployment, helm, objects, printed, read, read_settings, template, values};

const DEPLOYMENT: &str = "Deployment tailscale/tailyard-reconciler";

/// Runs `tailyard migrate values` for a file of the Tailscale operator's chart.
fn migrated(theirs: &str) -> Output {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), theirs).expect("written");
    Command::new(kit::tailyard()).args(["migrate", "values"]).arg(file.path()).output().expect("the compiled binary")
}

/// Our chart rendered with the converted values, the settings that the program reads from it, and the warnings.
fn converted(theirs: &str) -> (BTreeMap<String, Value>, Reconciler, String) {
    let output = migrated(theirs);
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(output.status.success(), "{stderr}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), &stdout).expect("written");
    let rendered = objects(&printed(&[&template("tailscale")[..], &["--values", &file.path().display().to_string()]].concat()));
    let settings = read_settings(&rendered[DEPLOYMENT], &stdout);
    assert_eq!(settings.notes, [""; 0], "{stdout}");
    assert_eq!(compared(&settings), compared(&settings_of_operator(theirs)), "{theirs}");
    (rendered, settings, stderr)
}

/// Settings that the Tailscale operator's chart, rendered with its own values, gives to the operator.
fn settings_of_operator(theirs: &str) -> Reconciler {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), theirs).expect("written");
    let (chart, file) = (their_chart().display().to_string(), file.path().display().to_string());
    let mut arguments = template("tailscale");
    [arguments[1], arguments[2]] = ["tailscale-operator", &chart];
    let rendered = printed(&[&arguments[..], &["--values", &file, "--show-only", "templates/deployment.yaml"]].concat());
    let env = objects(&rendered).into_values().flat_map(|deployment| variables(&deployment));
    Reconciler::of_environment(&env.filter_map(|(name, value)| Some((name, value.as_str()?.to_owned()))).collect())
}

/// Settings that both operators have.
fn compared(settings: &Reconciler) -> impl PartialEq + std::fmt::Debug + use<> {
    let device = settings.operator_device.as_ref().map(|device| (device.mode.clone(), device.hostname.clone(), device.tags.clone()));
    let workloads = &settings.workloads;
    let of_proxies = (workloads.tags.clone(), workloads.firewall.clone(), workloads.shared_account.unwrap_or_default());
    let credentials = settings.control.credentials.as_ref().map(|credentials| match credentials {
        DefaultCredentials::Identity { id, .. } => Some(id.clone()),
        _ => None,
    });
    let of_cluster = (settings.default_class.clone(), settings.ingress_class.clone(), settings.control.url.clone());
    (device, of_proxies, credentials, of_cluster, settings.operator_device.is_some().then(|| settings.operator_secret.clone()))
}

/// Keys of values that are no mapping, or that the table has.
fn leaves(prefix: &str, values: &Map<String, Value>) -> Vec<String> {
    let keys = values.iter().flat_map(|(name, value)| {
        let key = format!("{prefix}{name}");
        match value {
            Value::Object(fields) if !fields.is_empty() && VALUES.iter().all(|upstream| upstream.key != key) => {
                leaves(&format!("{key}."), fields)
            }
            _ => vec![key],
        }
    });
    keys.collect()
}

#[test]
fn table_has_exactly_the_values_and_variables_of_the_published_chart() {
    let chart = their_chart();
    let mut keys: BTreeSet<String> = leaves("", &parse(&read(&chart.join("values.yaml"))).expect("YAML")).into_iter().collect();
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(chart.join("templates")).expect("templates") {
        let text = read(&entry.expect("an entry").path());
        let end = |c: char| !(c.is_ascii_alphanumeric() || c == '.');
        keys.extend(text.split(".Values.").skip(1).filter_map(|rest| rest.split(end).next()).map(str::to_owned));
        names.extend(
            text.lines().filter_map(|line| line.trim().strip_prefix("- name: ")).filter(|name| name.contains('_')).map(str::to_owned),
        );
    }
    let is_parent = |key: &String| VALUES.iter().any(|upstream| upstream.key.starts_with(&format!("{key}.")));
    keys.retain(|key| !is_parent(key));
    assert_eq!(keys, VALUES.iter().map(|upstream| upstream.key.to_owned()).collect());
    assert!(names.len() > 15, "{names:?}");
    let unknown: Vec<_> = names.iter().filter(|name| VARIABLES.iter().all(|variable| variable.name != *name)).collect();
    assert_eq!(unknown, [""; 0]);
    converted(&read(&chart.join("values.yaml")));
}

fn pod(rendered: &BTreeMap<String, Value>) -> &Value {
    &rendered[DEPLOYMENT]["spec"]["template"]["spec"]
}

/// All values with the defaults of the Tailscale operator's chart.
const DEFAULTS: &str = "
nameOverride: ''
fullnameOverride: ''
oauth: {clientId: '', clientSecret: '', audience: ''}
loginServer: ''
oauthSecretVolume: {}
installCRDs: true
operatorConfig:
  defaultTags: ['tag:k8s-operator']
  image: {repository: tailscale/k8s-operator, tag: '', digest: '', pullPolicy: Always}
  logging: info
  hostname: tailscale-operator
  nodeSelector: {kubernetes.io/os: linux}
  resources: {}
  annotations: {}
  podAnnotations: {}
  podLabels: {}
  serviceAccountAnnotations: {}
  tolerations: []
  affinity: {}
  priorityClassName: ''
  podSecurityContext: {}
  securityContext: {}
  extraEnv: []
  sharedACMEAccountKey: false
ingressClass: {name: tailscale, enabled: true}
proxyConfig:
  image: {repository: tailscale/tailscale, tag: '', digest: ''}
  defaultTags: 'tag:k8s'
  firewallMode: auto
  defaultProxyClass: ''
apiServerProxyConfig: {allowImpersonation: 'false', mode: 'false'}
imagePullSecrets: []
";

#[test]
fn default_values_of_the_operator_are_those_of_the_chart() {
    let (rendered, settings, _) = converted(DEFAULTS);
    let default = super::settings("default");
    let secret = &pod(&rendered)["volumes"][0]["secret"]["secretName"];
    assert_eq!((secret, &pod(&rendered)["nodeSelector"]), (&json!("operator-oauth"), &json!({"kubernetes.io/os": "linux"})));
    assert_eq!((settings.workloads.tags, settings.workloads.image), (default.workloads.tags, default.workloads.image));
    assert_eq!((settings.ingress_class, settings.default_class), (default.ingress_class, None));
    assert_eq!((settings.operator_device, settings.log), (None, default.log));
    assert!(rendered.contains_key("IngressClass -/tailscale"));
}

#[test]
fn oauth_client_of_the_operator_is_used_by_value_by_secret_and_by_volume() {
    let by_value = "fullnameOverride: acme\noauth: {clientId: k1, clientSecret: tskey-client-secret}\n";
    let (rendered, settings, warnings) = converted(by_value);
    assert_eq!(pod(&rendered)["volumes"][0]["secret"]["secretName"], "acme-oauth");
    assert!(matches!(settings.control.credentials, Some(DefaultCredentials::OAuth { .. })));
    assert!(warnings.contains("kubectl create secret generic acme-oauth") && !warnings.contains("tskey"), "{warnings}");
    assert!(!String::from_utf8_lossy(&migrated(by_value).stdout).contains("tskey"), "no secret is copied");
    let csi =
        "oauthSecretVolume:\n  csi: {driver: secrets-store.csi.k8s.io, readOnly: true, volumeAttributes: {secretProviderClass: ts}}\n";
    let (rendered, settings, _) = converted(csi);
    let volume = &pod(&rendered)["volumes"][0];
    assert_eq!((&volume["name"], &volume["csi"]["driver"]), (&json!("credentials"), &json!("secrets-store.csi.k8s.io")));
    assert_eq!(volume["secret"], Value::Null);
    let files = DefaultCredentials::OAuth {
        id: "/etc/tailyard/credentials/client_id".into(),
        secret: "/etc/tailyard/credentials/client_secret".into(),
    };
    assert_eq!(settings.control.credentials, Some(files), "the names of the volume's files");
    assert_eq!(pod(&rendered)["containers"][0]["volumeMounts"][0]["mountPath"], "/etc/tailyard/credentials");
    let secret = "oauthSecretVolume: {secret: {secretName: mine}}\noauth: {clientId: a, audience: b}\n";
    assert_eq!(pod(&converted(secret).0)["volumes"][0]["secret"]["secretName"], "mine", "the volume comes first");
}

#[test]
fn federated_identity_and_control_plane_of_the_operator_are_used() {
    let (rendered, settings, warnings) =
        converted("loginServer: https://control.example.com/\noauth: {clientId: k1, audience: api.tailscale.com/k1}\n");
    assert_eq!(settings.control.url, "https://control.example.com");
    assert!(matches!(settings.control.credentials, Some(DefaultCredentials::Identity { ref id, .. }) if id == "k1"), "{settings:?}");
    let token = &pod(&rendered)["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!(token["audience"], "api.tailscale.com/k1");
    assert!(warnings.contains(":tailyard-reconciler"), "{warnings}");
}

#[test]
fn api_server_proxy_of_the_operator_keeps_its_mode() {
    let mode = |text: &str| {
        let theirs = format!("apiServerProxyConfig: {{mode: {text}, allowImpersonation: 'true'}}\noperatorConfig: {{hostname: kube}}\n");
        let (_, settings, warnings) = converted(&theirs);
        assert!(warnings.contains("apiServerProxyConfig.impersonation"), "{warnings}");
        (settings.operator_device.map(|device| (device.mode, device.hostname)), settings.workloads.impersonation.users)
    };
    let every = vec!["*".to_owned()];
    assert_eq!(mode("'true'"), (Some((ApiServerMode::Auth, "kube".to_owned())), every.clone()));
    assert_eq!(mode("true"), mode("'true'"), "without quotes");
    assert_eq!(mode("noauth"), (Some((ApiServerMode::NoAuth, "kube".to_owned())), every.clone()));
    assert_eq!(mode("'false'"), (None, every));
}

#[test]
fn proxy_settings_of_the_operator_are_those_of_the_reconciler() {
    let (_, settings, warnings) = converted(
        "proxyConfig:\n  image: {repository: mirror.example/tailscale, tag: v1.104.7}\n  defaultTags: 'tag:a, tag:b'\n  \
         firewallMode: nftables\n  defaultProxyClass: prod\n",
    );
    let workloads = settings.workloads;
    assert_eq!(
        (workloads.image.as_str(), workloads.tags),
        ("mirror.example/tailscale:v1.104.7", vec!["tag:a".to_owned(), "tag:b".to_owned()])
    );
    assert_eq!((workloads.firewall.as_deref(), settings.default_class.as_deref()), (Some("nftables"), Some("prod")));
    assert!(warnings.contains("remove proxyImage"), "{warnings}");
    let digest = format!("proxyConfig: {{image: {{repo: a/tailscale, tag: b, digest: 'sha256:{}'}}}}\n", "0".repeat(64));
    assert!(converted(&digest).1.workloads.image.starts_with("a/tailscale@sha256:0"), "the digest and the former key come first");
}

#[test]
fn ingress_class_of_the_operator_is_not_created() {
    let (rendered, settings, _) = converted("ingressClass: {name: inside, enabled: false}\n");
    assert_eq!(settings.ingress_class, "inside");
    assert!(rendered.keys().all(|key| !key.starts_with("IngressClass")), "{:?}", rendered.keys());
}

#[test]
fn pod_of_the_operator_is_that_of_the_reconciler() {
    let texts = r#"{"on": "on", "yes": "no", octal: "012", exponent: "1e3", base: "1:30", "null": "null", empty: "", line: "a\nb # c"}"#;
    let theirs = format!(
        "operatorConfig:\n  extraEnv: [{{name: HTTPS_PROXY, value: 'http://proxy:3128'}}, {{name: PROXY_TAGS, value: 'tag:env'}}]\n  \
         nodeSelector: {{disk: 'true'}}\n  tolerations: [{{key: a, operator: Exists}}]\n  affinity: {{podAntiAffinity: {{}}}}\n  \
         priorityClassName: high\n  resources: {{limits: {{memory: 1Gi}}}}\n  podLabels: {{team: net}}\n  podAnnotations: {texts}\n  \
         serviceAccountAnnotations: {{a: b}}\n  podSecurityContext: {{runAsUser: 7}}\n  securityContext: {{privileged: false}}\n  \
         logging: debug\n  image: {{pullPolicy: Always}}\nimagePullSecrets: [{{name: pull}}]\n"
    );
    let (rendered, settings, _) = converted(&theirs);
    let (template, pod) = (&rendered[DEPLOYMENT]["spec"]["template"], pod(&rendered));
    let env = pod["containers"][0]["env"].as_array().expect("an environment");
    assert!(env.contains(&json!({"name": "HTTPS_PROXY", "value": "http://proxy:3128"})), "{env:?}");
    assert_eq!(settings.workloads.tags, ["tag:env"], "a later variable wins there");
    assert_eq!(
        (&pod["nodeSelector"], &pod["tolerations"][0]["key"], &pod["priorityClassName"]),
        (&json!({"disk": "true"}), &json!("a"), &json!("high"))
    );
    assert_eq!(pod["affinity"], json!({"podAntiAffinity": {}}));
    assert_eq!((&pod["securityContext"], &pod["imagePullSecrets"]), (&json!({"runAsUser": 7}), &json!([{"name": "pull"}])));
    let container = &pod["containers"][0];
    assert_eq!((&container["securityContext"], &container["imagePullPolicy"]), (&json!({"privileged": false}), &json!("Always")));
    assert_eq!(container["resources"]["limits"]["memory"], "1Gi");
    assert_eq!(template["metadata"]["labels"]["team"], "net");
    let expected = json!({"on": "on", "yes": "no", "octal": "012", "exponent": "1e3", "base": "1:30", "null": "null", "empty": "", "line": "a\nb # c"});
    assert_eq!(template["metadata"]["annotations"], expected, "no text becomes another value");
    assert_eq!(rendered["ServiceAccount tailscale/tailyard-reconciler"]["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!((settings.log.filter, settings.workloads.image_pull_secrets), ("debug".to_owned(), vec!["pull".to_owned()]));
}

#[test]
fn unknown_and_inconvertible_values_fail_and_are_named() {
    for (theirs, expected) in [
        ("operatorConfig: {replicas: 2}", "operatorConfig.replicas is not converted"),
        ("operatorConfig: {extraEnv: [{name: PROXY_PRIORITY_CLASS_NAME, value: high}]}", "set priorityClassName in a ProxyClass"),
        ("proxyConfig: tag", "proxyConfig is not converted: it must be a mapping"),
        ("a: [", "not valid YAML"),
        ("- a", "it is no mapping"),
    ] {
        let output = migrated(theirs);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && stderr.contains(expected), "{theirs}: {stderr}");
    }
}

#[test]
fn file_of_refused_values_is_that_of_the_table() {
    let text = serde_json::to_string_pretty(&refusals()).expect("JSON");
    assert_golden("charts/tailyard/files/operator-values.json", &format!("{text}\n"));
}

#[test]
fn chart_refuses_values_of_the_operator_with_what_replaces_them() {
    let error = |set: &str| {
        let output = helm(&[&template("tailscale")[..], &["--set", set]].concat());
        (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let refusals = refusals();
    for value in VALUES {
        let set = format!("{}=x", value.key);
        match (refusals.get(value.key), value.answer) {
            (Some(sentence), _) => {
                let error = error(&set).unwrap_or_else(|| panic!("{set} is accepted"));
                assert!(error.contains(&format!("{}: {sentence}", value.key)), "{set}: {error}");
            }
            (None, Replacement::Key(ours, _)) => assert_eq!(ours, value.key, "the same value"),
            (None, answer) => panic!("{set}: {answer:?}"),
        }
    }
    for unknown in ["oauth.id=x", "proxyConfig.image.name=x", "operatorConfig.image.name=x", "ingressClass.class=x"] {
        assert!(error(unknown).is_some_and(|error| error.contains("not allowed")), "{unknown}");
    }
    let default = tempfile::NamedTempFile::new().expect("a file");
    fs::write(default.path(), DEFAULTS).expect("written");
    let output = helm(&[&template("tailscale")[..], &["--values", &default.path().display().to_string()]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("tailyard migrate values") && error.contains("proxyConfig.defaultTags: use tags"), "{error}");
}

/// Variables of a Deployment's container with their texts.
fn variables(deployment: &Value) -> BTreeMap<String, Value> {
    let env = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().cloned().unwrap_or_default();
    env.into_iter().map(|variable| (variable["name"].as_str().unwrap_or_default().to_owned(), variable["value"].clone())).collect()
}

#[test]
fn planned_reconciler_has_the_variables_of_the_chart() {
    let file = |path: &std::path::Path| parse(&read(path)).expect("YAML");
    let of_default = variables(&deployment("default"));
    for case in CASES {
        let planned = variables(&planned::deployment(&file(std::path::Path::new(&values(case))), "tailscale"));
        let rendered = variables(&deployment(case));
        for (_, name) in planned::SERVING {
            let is_set = rendered.get(name) != of_default.get(name);
            assert!(
                !is_set || planned.get(name) == rendered.get(name),
                "{case}: {name}: {:?} for {:?}",
                planned.get(name),
                rendered.get(name)
            );
        }
    }
    let planned = variables(&planned::deployment(&file(&std::path::Path::new(CHART).join("values.yaml")), "tailscale"));
    // The chart writes variables of the operator's device only if its mode is on.
    let is_device = |name: &str| matches!(name, "OPERATOR_HOSTNAME" | "OPERATOR_INITIAL_TAGS" | "OPERATOR_SECRET" | "APISERVER_PROXY");
    let differing: Vec<_> = planned.iter().filter(|(name, value)| !is_device(name) && of_default.get(*name) != Some(value)).collect();
    assert_eq!(differing, [], "the defaults of the chart");
}
