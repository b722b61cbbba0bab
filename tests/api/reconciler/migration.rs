//! `tailyard migrate check` in a cluster with the Tailscale operator.

use std::fs;

use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use kit::apiserver::NAMESPACE;
use kit::reconciler::{Stage, stage};

use super::looking::{deployment, run};

/// Exit code of the check, and finding and text of each of its results.
async fn checked(stage: &Stage, user: &str, more: &[&str]) -> (Option<i32>, Vec<String>) {
    let (code, text, error) = run(stage, user, &[&["migrate", "check", "-o", "json"], more].concat()).await;
    let checks: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|fault| panic!("{fault}: {text}{error}"));
    let part = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    (code, checks.iter().map(|check| ["finding", "name", "what"].map(|key| part(check, key)).join(" ")).collect())
}

async fn create_connector(stage: &Stage) {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tailscale.com", "v1alpha1", "Connector"));
    let api: Api<DynamicObject> = Api::all_with(stage.client.clone(), &kind);
    let connector =
        json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "Connector", "metadata": {"name": "exit"}, "spec": {"exitNode": true}});
    api.create(&PostParams::default(), &serde_json::from_value(connector).expect("a Connector")).await.expect("created");
}

#[test]
fn migration_check_names_what_is_taken_over_and_what_is_lost() {
    stage(async |stage| {
        let nothing = checked(&stage, "admin", &[]).await;
        assert!(nothing.0 == Some(0) && nothing.1[0].contains("nothing to take over"), "{nothing:?}");
        let env = [("OPERATOR_SECRET", "acme"), ("PROXY_TAGS", "tag:k8s,tag:prod"), ("APISERVER_PROXY", "false")];
        let env = env.map(|(name, value)| json!({"name": name, "value": value}));
        let container = json!({"name": "operator", "image": "mirror.example/ts:1", "env": env});
        deployment(&stage, NAMESPACE, "acme", container, json!([])).await;
        stage.class().await;
        stage.group("eg", 1).await;
        stage.service("db", "eg").await;
        let web = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "annotations": {"tailscale.com/expose": "true"}},
            "spec": {"ports": [{"port": 80}]}});
        stage.apply(stage.users(), "web", web).await;
        let has = |found: &(Option<i32>, Vec<String>), text: &str| found.1.iter().any(|line| line.contains(text));
        let ready = checked(&stage, "admin", &[]).await;
        assert_eq!(ready.0, Some(0), "{ready:?}");
        for text in [
            "ok operator ts/acme runs",
            "ok proxygroups taken over: eg",
            "ok services taken over: default/db, default/web",
            r#"warn settings the operator has operatorConfig.secret=acme, tags=["tag:k8s","tag:prod"]"#,
            "ok kinds there are no objects",
        ] {
            assert!(has(&ready, text), "{text}: {ready:?}");
        }
        create_connector(&stage).await;
        let lost = checked(&stage, "admin", &[]).await;
        assert!(lost.0 == Some(1) && has(&lost, "bad kinds off by default: Connector exit"), "{lost:?}");
        let values = tempfile::NamedTempFile::new().expect("a file");
        let ours = "connectors: {enabled: true}\ntags: [tag:k8s, tag:prod]\noperatorConfig: {secret: acme}\n";
        fs::write(values.path(), ours).expect("written");
        let planned = checked(&stage, "admin", &["--values", &values.path().display().to_string()]).await;
        assert!(planned.0 == Some(0) && has(&planned, "ok kinds taken over: Connector exit"), "{planned:?}");
        assert!(has(&planned, "ok settings"), "{planned:?}");
        let (code, text, _) = run(&stage, "admin", &["migrate", "check"]).await;
        assert!(code == Some(1) && text.contains("BAD kinds: set connectors.enabled=true"), "{text}");
        assert_eq!(checked(&stage, "pod", &[]).await.0, Some(2), "without a right");
        let nowhere = stage.tailyard("admin", &["migrate", "check"]).env("KUBECONFIG", "/nowhere").output().await.expect("the binary");
        assert_eq!(nowhere.status.code(), Some(2), "without a cluster");
    });
}
