//! Groups with a config larger than an object may be.

use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tailyard::model::config::source::{Document, EgressDocument};

use kit::apiserver::DEADLINE;
use kit::reconciler::{Stage, stage};
use kit::wait::eventually_async;

/// Number of Services; with `PORTS` ports each, their uncompressed config exceeds the limit.
const SERVICES: usize = 45;
/// Ports of each Service.
const PORTS: u16 = 400;

async fn make(stage: &Stage, number: usize) {
    let ports: Vec<_> = (1..=PORTS).map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"})).collect();
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{number}"), "annotations": {
        "tailscale.com/proxy-group": "g", "tailscale.com/tailnet-ip": "100.64.0.9"}},
        "spec": {"type": "ExternalName", "externalName": "placeholder.invalid", "ports": ports}});
    let service = serde_json::from_value(object).expect("a Service");
    stage.users().create(&PostParams::default(), &service).await.expect("made");
}

#[test]
fn large_config_is_compressed_and_read_by_a_replica() {
    stage(async |stage| {
        let _running = stage.reconciler_with("one", 9100, &["--tenancy", "open"]);
        stage.group_of("g", json!({"type": "egress", "tailyard": {"matchPortRange": {"start": 10_000, "end": 60_000}}})).await;
        stage.join("g", 2).await;
        let entry_count = async || stage.config("g").await.len();
        for number in 0..SERVICES {
            make(&stage, number).await;
            // A few at a time: hundreds of ports load the API server.
            if number % 5 == 4 {
                eventually_async("the config holds them", DEADLINE, entry_count, |services| *services > number).await;
            }
        }
        let keys = stage.keys("g").await;
        assert!(keys.contains_key("egress-services.gz") && !keys.contains_key("egress-services"), "{:?}", keys.keys());
        let read = EgressDocument::read(&EgressDocument::unpacked(keys), None).expect("the data plane reads it");
        assert_eq!((read.config.services.len(), read.config.malformed.len()), (SERVICES, 0));
        for number in [0, SERVICES - 1] {
            stage.served(&format!("s{number}"), "g", 2).await;
        }
        for number in 35..SERVICES {
            stage.users().delete(&format!("s{number}"), &DeleteParams::default()).await.expect("deleted");
        }
        let plain = async || stage.keys("g").await.into_keys().collect::<Vec<_>>();
        eventually_async("what fits again is plain again", DEADLINE, plain, |keys| {
            keys.contains(&"egress-services".to_owned()) && keys.len() == 2
        })
        .await;
        stage.served("s0", "g", 2).await;
    });
}
