//! The admission policy of config/rbac: accounts of proxies change only data of their Secrets, others everything.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tailyard::api::names::{ACCOUNTS, ISSUANCE};
use tailyard::edge::kube::{Cluster, StateSecret};

use kit::apiserver::{DEADLINE, NAMESPACE};
use kit::hosted::DOMAIN;
use kit::reconciler::{Stage, stage};
use kit::wait::eventually_async;

use super::looking::finds;
use super::standalone_ingress::serve;

/// A label change, in a dry run: admission does the same as without.
fn label() -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"labels": {"tailscale.com/parent-resource": "victim"}}}))
}

/// Tries a patch without effect; the status code and the message of a refusal.
async fn try_patch(client: &Client, secret: &str, patch: &Patch<Value>) -> Result<(), (u16, String)> {
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
    match api.patch(secret, &parameters, patch).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err((status.code, status.message)),
        Err(error) => panic!("{error}"),
    }
}

/// Waits until the policy refuses a change of labels.
async fn in_force(client: &Client, secret: &str) {
    let refused = async || try_patch(client, secret, &label()).await;
    eventually_async("the policy is in force", DEADLINE, refused, |refused| matches!(refused, Err((403, _)))).await.expect_err("a refusal");
}

/// Changes that the policy refuses, each with the field that the message names.
fn refused_changes() -> Vec<(&'static str, Patch<Value>)> {
    let metadata = |field: &str, value: Value| Patch::Merge(json!({"metadata": {field: value}}));
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "3f2b8a4e-0000-4000-8000-000000000000"}]);
    let many: BTreeMap<String, String> = (0..12_000).map(|n| (format!("a{n}"), String::new())).collect();
    vec![
        ("metadata.labels", label()),
        ("metadata.labels", metadata("labels", json!({"tailscale.com/managed": null}))),
        ("metadata.labels", metadata("labels", Value::Null)),
        ("metadata.annotations", metadata("annotations", json!({"tailyard.io/other": "1"}))),
        ("metadata.annotations", metadata("annotations", json!({ISSUANCE: "{}", "tailyard.io/other": "1"}))),
        ("metadata.annotations", metadata("annotations", json!(many))),
        ("metadata.ownerReferences", metadata("ownerReferences", owner)),
        ("metadata.finalizers", metadata("finalizers", json!(["example.com/stay"]))),
        ("metadata.generateName", metadata("generateName", json!("x-"))),
        ("immutable", Patch::Merge(json!({"immutable": true}))),
        (
            "metadata.labels, metadata.finalizers",
            Patch::Merge(json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/stay"]}})),
        ),
    ]
}

/// Creates an account with these rights on Secrets.
async fn account(stage: &Stage, name: &str, verbs: &[&str]) {
    let parameters = PostParams::default();
    let metadata = json!({"name": name});
    let role = json!({"metadata": metadata, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": verbs}]});
    let binding = json!({"metadata": metadata, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]});
    let object = serde_json::from_value(json!({"metadata": metadata})).expect("an account");
    stage.here::<ServiceAccount>().create(&parameters, &object).await.expect("created");
    stage.here::<Role>().create(&parameters, &serde_json::from_value(role).expect("a Role")).await.expect("created");
    stage.here::<RoleBinding>().create(&parameters, &serde_json::from_value(binding).expect("a binding")).await.expect("created");
    stage.cluster.account(name).await;
}

#[test]
fn proxy_changes_only_data_and_the_order_annotation_of_its_secrets() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        let workload = serve(&stage).await;
        let directory = stage.cluster.account(&workload).await;
        let proxy = stage.cluster.client_of(&workload).await;
        let secrets = [format!("{workload}-0"), format!("shop.{DOMAIN}"), ACCOUNTS.to_owned()];
        for secret in &secrets {
            // The API server forgets the policy of an earlier test a moment after its deletion.
            let permitted = async || try_patch(&proxy, secret, &label()).await;
            eventually_async("RBAC alone permits it", DEADLINE, permitted, Result::is_ok).await.expect("permitted");
        }
        stage.admission_policy().await;
        in_force(&proxy, &secrets[0]).await;

        for (secret, (field, patch)) in secrets.iter().flat_map(|secret| refused_changes().into_iter().map(move |change| (secret, change)))
        {
            let (code, message) = try_patch(&proxy, secret, &patch).await.expect_err(field);
            let expected = format!("{workload} cannot change {field} of Secret {secret}: proxies change only data");
            assert!(code == 403 && message.contains(&expected), "{secret} {field}: {code} {message}");
        }
        let (code, _) = try_patch(&proxy, &secrets[0], &Patch::Merge(json!({"type": "example.com/x"}))).await.expect_err("type");
        assert!(matches!(code, 403 | 422), "{code}");

        // What a replica does with our image.
        let cluster = Cluster::in_pod(&stage.cluster.url(), &directory).await.expect("a client");
        let data = BTreeMap::from([("device_id".to_owned(), Some(Bytes::from("napp"))), ("gone".to_owned(), None)]);
        StateSecret::new(cluster.clone(), secrets[0].clone()).patch(&data).await.expect("data");
        for note in [Some("{}".to_owned()), None] {
            for secret in &secrets[1..] {
                let found = cluster.noted(secret).await.expect("an answer").expect("a Secret");
                let values = BTreeMap::from([("field".to_owned(), Bytes::from("v"))]);
                let noted =
                    cluster.note(secret, &found.version, &BTreeMap::from([(ISSUANCE, note.clone())]), &values).await.expect("noted");
                assert_eq!(noted.annotations.get(ISSUANCE), note.as_ref());
            }
        }
        // And tailscaled with the Tailscale operator's image, and an update of the whole object.
        for (secret, fields) in [(&secrets[0], &["_machinekey", "profile-1"]), (&secrets[1], &["tls.crt", "tls.key"])] {
            let url = format!("/api/v1/namespaces/{NAMESPACE}/secrets/{secret}");
            let add = fields.map(|field| json!({"op": "add", "path": format!("/data/{field}"), "value": "bQ=="}));
            let add = json!(add).to_string().into_bytes();
            let request = http::Request::patch(url).header("Content-Type", "application/json-patch+json").body(add).expect("a request");
            proxy.request_text(request).await.expect("data");
        }
        let own: Api<Secret> = Api::namespaced(proxy.clone(), NAMESPACE);
        let mut whole = own.get(&secrets[0]).await.expect("a Secret");
        whole.data.get_or_insert_default().insert("more".to_owned(), k8s_openapi::ByteString(b"v".to_vec()));
        own.replace(&secrets[0], &PostParams::default(), &whole).await.expect("data");
        whole.metadata.resource_version = None;
        whole.metadata.owner_references = None;
        whole.labels_mut().clear();
        assert!(
            matches!(own.replace(&secrets[0], &PostParams::default(), &whole).await, Err(kube::Error::Api(status)) if status.code == 403)
        );
    });
}

#[test]
fn admission_policy_restricts_no_account_that_may_delete_secrets() {
    stage(async |stage| {
        let row = async || finds(&stage, "admin", "admission-policy").await.1.remove(0);
        let (finding, what) = row().await;
        assert!(finding == "warn" && what.ends_with("ValidatingAdmissionPolicy tailyard-proxy-secrets does not exist"), "{what}");
        stage.admission_policy().await;
        let _running = stage.reconciler("one", 9100);
        stage.ready_group().await;
        assert_eq!(row().await, ("ok".to_owned(), "proxies in ts can change only data of Secrets".to_owned()));
        account(&stage, "operator", &["get", "patch", "delete"]).await;
        account(&stage, "patcher", &["get", "patch"]).await;
        let [operator, patcher] = [stage.cluster.client_of("operator").await, stage.cluster.client_of("patcher").await];
        in_force(&patcher, "g-0").await;
        for free in [&operator, &stage.client, &stage.cluster.client_of("reconciler").await] {
            for (field, patch) in refused_changes().into_iter().filter(|(field, _)| *field != "metadata.generateName") {
                try_patch(free, "g-0", &patch).await.unwrap_or_else(|error| panic!("{field}: {error:?}"));
            }
        }
    });
}
