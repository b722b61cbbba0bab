//! Manifests and the rendered chart on a real API server: a server-side dry run with strict fields accepts each object.

use std::collections::BTreeSet;
use std::fs;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, ValidationDirective};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use serde_json::{Value, json};

use kit::apiserver::{Cluster, cluster};
use kit::definitions::ours;

use super::kinds::install;

/// API group of the Prometheus Operator, whose kinds the API server of the test does not have.
const NOT_SERVED: &str = "monitoring.coreos.com";

/// Objects of YAML documents, without empty ones.
fn objects(text: &str) -> Vec<Value> {
    let documents = text.split("\n---\n").map(|document| document.trim_start_matches("---\n"));
    let parse = |document: &str| serde_saphyr::from_str::<Value>(document).unwrap_or_else(|error| panic!("{error}:\n{document}"));
    documents.map(parse).filter(|object| !object.is_null()).collect()
}

/// Files of a directory with this ending, with their objects.
fn files(directory: &str, ending: &str) -> Vec<(String, Vec<Value>)> {
    let entries = fs::read_dir(kit::root().join(directory)).expect("a directory").map(|entry| entry.expect("an entry").path());
    let paths = entries.filter(|path| path.extension().is_some_and(|found| found == ending));
    let paths: BTreeSet<_> = paths.filter(|path| !path.to_string_lossy().ends_with(".values.yaml")).collect();
    paths.into_iter().map(|path| (path.display().to_string(), objects(&fs::read_to_string(&path).expect("text")))).collect()
}

/// Applies an object without storing it, like `kubectl apply --server-side --dry-run=server --validate=strict`.
async fn dry_run(cluster: &Cluster, object: &Value) -> Result<(), String> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
    let kind = GroupVersionKind::gvk(group, version, text("/kind"));
    let (resource, capabilities) = pinned_kind(&cluster.admin(), &kind).await.map_err(|error| error.to_string())?;
    let api: Api<DynamicObject> = api(cluster, &resource, &capabilities.scope, text("/metadata/namespace"));
    let strict = ValidationDirective::Strict;
    let parameters = PatchParams { dry_run: true, field_validation: Some(strict), ..PatchParams::apply("test").force() };
    api.patch(text("/metadata/name"), &parameters, &Patch::Apply(object)).await.map(drop).map_err(|error| error.to_string())
}

fn api(cluster: &Cluster, resource: &ApiResource, scope: &Scope, namespace: &str) -> Api<DynamicObject> {
    match (scope, namespace) {
        (Scope::Cluster, _) => Api::all_with(cluster.admin(), resource),
        (Scope::Namespaced, "") => Api::namespaced_with(cluster.admin(), "default", resource),
        (Scope::Namespaced, namespace) => Api::namespaced_with(cluster.admin(), namespace, resource),
    }
}

#[test]
fn manifests_samples_and_chart_pass_a_server_side_dry_run() {
    cluster(async |cluster| {
        install(&cluster, ours()).await;
        let rendered = ["config/crd", "config/rbac", "config/samples", "tests/golden/chart"].map(|directory| files(directory, "yaml"));
        let all: Vec<_> = rendered.into_iter().flatten().collect();
        assert!(all.len() >= 13, "{all:?}");
        let of_namespaces = |object: &Value| object["metadata"]["namespace"].as_str().map(str::to_owned);
        let namespaces: BTreeSet<_> = all.iter().flat_map(|(_, objects)| objects.iter().filter_map(of_namespaces)).collect();
        for name in &namespaces {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            let api: Api<Namespace> = Api::all(cluster.admin());
            api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(&namespace)).await.expect("a namespace");
        }
        let (mut rejected, mut skipped) = (Vec::new(), BTreeSet::new());
        for (path, object) in all.iter().flat_map(|(path, objects)| objects.iter().map(move |object| (path, object))) {
            let (version, kind) = (object["apiVersion"].as_str().unwrap_or_default(), &object["kind"]);
            if version.starts_with(NOT_SERVED) {
                skipped.insert(kind.to_string());
            } else if let Err(error) = dry_run(&cluster, object).await {
                rejected.push(format!("{path}: {kind} {}: {error}", object["metadata"]["name"]));
            }
        }
        assert!(rejected.is_empty(), "{}", rejected.join("\n"));
        assert_eq!(skipped, BTreeSet::from([r#""PrometheusRule""#.to_owned(), r#""ServiceMonitor""#.to_owned()]));
        // The dry run can fail: an unknown field is an error.
        let wrong = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}, "values": {}});
        let error = dry_run(&cluster, &wrong).await.expect_err("a field that ConfigMaps do not have");
        assert!(error.contains("values"), "{error}");
    });
}
