//! Arbitrary bytes as the contents of a proxy Pod's state Secret and config Secret, as the note in a Pod, as the text of an Event about it and
//! as the annotation of an uninstall: no panic, no identifier with more than one path segment, and no unbounded text.
#![no_main]

use std::time::Instant;

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use tailyard::api::{egress, ingress, names, state, targets};
use tailyard::model::controller::policy::assignment::uninstall_time;
use tailyard::model::controller::workload::identity::{DeviceId, MAX_ADDRESSES};
use tailyard::model::controller::workload::observed::replica::{ObservedReplica, ReplicaConfig, ReplicaState};
use tailyard::model::controller::workload::pod_fault::CreateFailure;
use tailyard::model::controller::workload::readiness::{is_lost, lost_message, unreachable_note};
use tailyard::model::failover::Reception;

fuzz_target!(|data: &[u8]| {
    let (kind, value) = data.split_first().unwrap_or((&0, data));
    let keys = [
        state::DEVICE_ID,
        state::DEVICE_FQDN,
        state::DEVICE_IPS,
        state::REISSUE_AUTHKEY,
        state::FUNNEL_ERRORS,
        state::CURRENT_PROFILE,
        egress::KEY,
        egress::KEY_COMPRESSED,
        ingress::KEY,
        names::CONFIG_KEY,
        targets::KEY,
        state::ROUTE_OVERLAPS,
        state::REJECTED_TARGET,
    ];
    let key = keys[usize::from(*kind) % keys.len()];
    let annotations = json!({names::DEVICE: String::from_utf8_lossy(value), names::AUTH_KEY_ID: String::from_utf8_lossy(value),
        names::AUTH_KEY: String::from_utf8_lossy(value)});
    let secret = serde_json::from_value::<k8s_openapi::api::core::v1::Secret>(json!({"metadata": {"annotations": annotations}}));
    let mut secret = secret.expect("a Secret");
    let bytes = || k8s_openapi::ByteString(value.to_vec());
    secret.data = Some([(key.to_owned(), bytes()), ("profile-1".to_owned(), bytes())].into());
    let config = ReplicaConfig::read(&secret);
    let replica = ObservedReplica::new(None, Some(&secret), Some(&secret));
    let claimed = ReplicaState::read(&secret).device_id;
    let deleted = DeviceId::read(value);
    for id in claimed.iter().chain(replica.device().map(|record| &record.id)).chain(&deleted) {
        assert!(id.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric()) && !id.as_str().is_empty());
    }
    let recorded = replica.device().map_or(0, |record| record.addresses.iter().count());
    assert!(recorded <= MAX_ADDRESSES && ReplicaState::read(&secret).device_ips.iter().count() <= MAX_ADDRESSES);
    let _ = (config.mint.as_ref().map(|mint| mint.end()), replica.device_hosts().count());
    let _ = (config.auth_key(), config.advertises().count(), config.routes().count());
    let read = ReplicaState::read(&secret);
    assert!(read.overlaps.len() <= 64 && read.rejected_target.is_none_or(|text| text.chars().count() <= 500));
    let text = String::from_utf8_lossy(value);
    let pod =
        json!({"metadata": {"annotations": {names::UNREACHABLE: text}}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let pod = serde_json::from_value(pod).expect("a Pod");
    let note = Reception::default().unreachable(&text, Instant::now());
    assert!(note.is_none() || (unreachable_note(&pod) == note && is_lost(&pod) && lost_message(&pod).is_some()));
    let now = Timestamp::UNIX_EPOCH;
    let requested = uninstall_time(&text, now);
    assert!(requested == now || uninstall_time(&requested.to_string(), now) == requested);
    let about = json!({"kind": "StatefulSet", "name": "g"});
    let event = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "eventTime": null, "reason": CreateFailure::REASON,
        "note": text, "regarding": about});
    let failure = serde_json::from_value::<Event>(event).ok().and_then(|event| CreateFailure::read(&event)).expect("a failure");
    assert!(failure.cause.chars().count() <= 500 && !failure.cause.chars().any(char::is_control));
});
