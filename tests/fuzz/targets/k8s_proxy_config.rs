//! Arbitrary bytes as the Tailscale operator's config of an API server proxy, after any other: no panic, and an accepted one is a config of
//! tailscaled and of the front end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::api::routes;
use tailyard::model::front_end::vhosts;
use tailyard::model::k8s_proxy::reference::K8sProxyReference;
use tailyard::model::k8s_proxy::{K8sProxyConfig, translation};
use tailyard::model::tailnet::supervise::conffile;

fuzz_target!(|data: &[u8]| {
    if let Some(reference) = std::str::from_utf8(data).ok().and_then(K8sProxyReference::parse) {
        assert!(!reference.to_string().is_empty());
    }
    let first = br#"{"Version":"v1alpha1","APIServerProxy":{"Enabled":true,"ServiceName":"svc:kube"}}"#;
    let first = K8sProxyConfig::parse(first).expect("valid");
    let Ok(newer) = K8sProxyConfig::parse(data) else { return };
    let _ = first.unapplied(&newer);
    let config = first.reloaded(newer);
    assert_eq!(config.api_server.mode, first.api_server.mode);
    conffile::check(&translation::daemon_config(&config)).expect("a config of tailscaled");
    let values = translation::serve_values(&config, Some("tail1234.ts.net")).expect("a domain");
    let read = vhosts::read(values.get(routes::KEY).map(Vec::as_slice), None).expect("routes");
    assert!(read.faults.is_empty() && read.sites.len() <= 1);
});
