//! Rejections of the API server and the log: one Event for a rejection that each retry meets again, one line for each change of state.

use std::time::Duration;

use serde_json::{Value, json};
use tailyard::api::proxyclass::ProxyClass;

use kit::apiserver::DEADLINE;
use kit::reconciler::{Running, Stage, stage};
use kit::wait::eventually_async;

use super::proxies::SERVICE;
use super::standalone::put;

/// Time of several retries.
const RETRIES: Duration = Duration::from_secs(12);
const READY: &str = "TailscaleProxyReady";

/// Lines of the log about an object, at level INFO.
fn lines(running: &Running, name: &str) -> Vec<String> {
    let log = running.log();
    let about = log.lines().filter(|line| line.contains(" INFO ") && line.contains(&format!("name=\"{name}\"")));
    about.map(str::to_owned).collect()
}

fn balanced() -> Value {
    json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]})
}

/// A class whose Pods the API server rejects.
async fn class_with_requests_above_limits(stage: &Stage) {
    let resources = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "100m"}});
    let class = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass", "metadata": {"name": "toolittle"},
        "spec": {"statefulSet": {"pod": {"tailscaleContainer": {"resources": resources}}}}});
    stage.apply(stage.all::<ProxyClass>(), "toolittle", class).await;
}

#[test]
fn rejection_by_the_api_server_is_one_event_and_one_line() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.class().await;
        stage.backend("web").await;
        class_with_requests_above_limits(&stage).await;
        let class = json!({"tailscale.com/proxy-class": "toolittle"});
        put(&stage, "lb", class.clone(), balanced()).await;
        let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "app", "annotations": class},
            "spec": {"ingressClassName": "tailscale", "tls": [{"hosts": ["shop"]}],
            "defaultBackend": {"service": {"name": "web", "port": {"name": "web"}}}}});
        stage.apply(stage.ingresses(), "app", ingress).await;
        let rejected = async || stage.condition("lb", READY).await;
        eventually_async("it is reported", DEADLINE, rejected, |found| found.starts_with("False ProxyFailed")).await;
        let failed =
            async |name: &str| stage.events(name).await.into_iter().filter(|event| event.contains("ProxyFailed")).collect::<Vec<_>>();
        eventually_async("an Event", DEADLINE, async || failed("app").await, |all| !all.is_empty()).await;
        tokio::time::sleep(RETRIES).await;
        for name in ["lb", "app"] {
            let (events, lines) = (failed(name).await, lines(&running, name));
            assert_eq!(events.len(), 1, "{events:?}");
            let about: Vec<_> = lines.iter().filter(|line| line.contains("ProxyFailed")).collect();
            assert!(about.len() == 1 && about[0].contains("must be less than or equal to cpu limit"), "{lines:?}");
            let other = stage.events(name).await.into_iter().filter(|event| event.contains("ProxyGroup")).collect::<Vec<_>>();
            assert_eq!(other, [""; 0]);
        }
        let state = r#"tailyard_standalone_proxies{kind="Ingress",state="failed"} 1"#;
        assert!(running.get("/metrics").contains(state), "{}", running.get("/metrics"));
        running.kill();
    });
}

#[test]
fn log_has_one_line_for_each_change_of_an_object_and_none_at_rest() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        put(&stage, "lb", json!({}), balanced()).await;
        let workload = SERVICE.join(&stage, "lb", "default-lb").await;
        super::standalone::ready(&stage, "lb").await;
        put(&stage, "wrong", json!({"tailscale.com/hostname": "a.b"}), balanced()).await;
        let refused = async || lines(&running, "wrong").len();
        eventually_async("a line", DEADLINE, refused, |count| *count == 1).await;
        SERVICE.quiet(&stage, &running, &stage.users(), "lb").await;
        let reasons = |name: &str| {
            let reason = |line: &String| line.split("reason=\"").nth(1).and_then(|rest| rest.split('"').next()).map(str::to_owned);
            let mut reasons: Vec<_> = lines(&running, name).iter().filter_map(reason).collect();
            // Its message says what a pending proxy waits for.
            reasons.dedup();
            reasons
        };
        assert_eq!(reasons("wrong"), ["ProxyInvalid"]);
        assert_eq!(reasons("lb"), ["Accepted", "Created", "ProxyPending", "ProxyCreated"], "{:?}", lines(&running, "lb"));
        stage.delete(&stage.users(), "lb").await;
        stage.pod_goes(&format!("{workload}-0")).await;
        stage.gone(&stage.users(), "lb").await;
        eventually_async("its end", DEADLINE, async || reasons("lb"), |all| all.last().is_some_and(|last| last == "Released")).await;
        assert!(!running.log().contains("tskey-"), "no secret");
        running.kill();
    });
}
