//! Mode `noauth`: the proxy adds no identity.

use serde_json::{Value, json};

use super::stage::{RENAMED, Stage};

/// Requests pass with a token of their own, and without one get 401. No grant is needed, and the Pods impersonate no more.
pub(crate) fn requests_have_their_own_credentials(stage: &Stage) {
    stage.mallory.configure(RENAMED);
    stage.patch(&json!({"spec": {"kubeAPIServer": {"mode": "noauth"}}}));
    stage.cluster.kubectl(&["create", "serviceaccount", "reader"]);
    let token = stage.cluster.kubectl(&["create", "token", "reader"]);
    let bearer = format!("Authorization: Bearer {}", token.trim());
    let (user, took) = Stage::timed("the identity of the token", || {
        let user = stage.mallory.identity(RENAMED, &["-H", &bearer]).ok()?;
        (user["username"] == "system:serviceaccount:default:reader").then_some(user)
    });
    println!("mode noauth after {took:?}: {user}");
    stage.is_ready(&stage.url(RENAMED));
    let token = format!("--token={}", token.trim());
    let whoami = stage.mallory.kubectl(&[&token, "auth", "whoami", "-o", "json"]);
    let whoami: Value = serde_json::from_str(&whoami).expect("JSON");
    assert_eq!(whoami["status"]["userInfo"]["username"], "system:serviceaccount:default:reader", "{whoami}");
    stage.cluster.kubectl(&["create", "rolebinding", "reader", "--clusterrole=edit", "--serviceaccount=default:reader", "-n", "default"]);
    let kubectl = |args: &[&str]| stage.mallory.kubectl(&[&[&*token, "--namespace=default"], args].concat());
    kubectl(&["create", "configmap", "own", "--from-literal=key=one"]);
    kubectl(&["patch", "configmap", "own", "--type=merge", "--patch", r#"{"data":{"key":"two"}}"#]);
    assert_eq!(kubectl(&["get", "configmap", "own", "-o", "jsonpath={.data.key}"]), "two");
    kubectl(&["delete", "configmap", "own", "--timeout=60s"]);
    let gone = stage.mallory.refused(&[&token, "--namespace=default", "get", "configmap", "own"]);
    assert!(gone.contains("NotFound"), "{gone}");
    for args in [&[][..], &["-H", "Authorization: Bearer unused"]] {
        let answer = stage.alice.ask(RENAMED, "/api/v1/namespaces/default/pods", args).expect("an answer");
        assert_eq!((answer.status, answer.json()["kind"].take()), (if args.is_empty() { 403 } else { 401 }, json!("Status")), "{answer:?}");
    }
    // The token of Tailscale's kubeconfig.
    let refused = stage.alice.refused(&["get", "pods"]);
    assert!(refused.contains("Unauthorized") || refused.contains("logged in"), "{refused}");
    assert_eq!(stage.cluster_roles(), "", "no role of the group impersonates");
}
