use serde_json::json;

use super::*;
use crate::model::failover::ReplicaReadiness;

/// A change of a Pod with these conditions.
fn change(step: NoteStep, conditions: &Value) -> Value {
    let pod = ReplicaPod {
        uid: "u0".into(),
        name: "g-0".into(),
        workload: "g".into(),
        node: "n0".into(),
        target: "10.1.0.1:9002".parse().expect("an address"),
        readiness: ReplicaReadiness::Ready,
        note: None,
    };
    let object = json!({"metadata": {"resourceVersion": "7"}, "status": {"conditions": conditions}});
    let change = PodChange { pod, step, silence: Duration::from_secs(2), connected: true, object };
    change.patch("r-1", "2026-01-01T00:10:03.4Z".parse().expect("a time"))
}

fn scheduled() -> Value {
    json!({"type": "PodScheduled", "status": "True", "observedGeneration": 1})
}

fn ready() -> Value {
    json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

#[test]
fn mark_changes_only_the_note_and_the_condition_ready_of_the_version_that_was_read() {
    let message = "no answer to health probes since 2026-01-01T00:10:01Z; r-1 made the Pod unready until it answers again";
    let note = r#"{"connected":true,"process":"r-1","since":"2026-01-01T00:10:01Z","stage":"lost","time":"2026-01-01T00:10:03.400Z"}"#;
    let expected = json!({
        "metadata": {"uid": "u0", "resourceVersion": "7", "annotations": {"tailyard.io/unreachable": note}},
        "status": {"conditions": [
            scheduled(),
            {"type": "Ready", "status": "False", "reason": "TailyardUnreachable", "message": message, "lastTransitionTime": "2026-01-01T00:10:03Z"},
        ]},
    });
    assert_eq!(change(NoteStep::MakeUnready, &json!([ready(), scheduled()])), expected);
}

#[test]
fn suspicion_and_renewal_change_no_condition() {
    for (step, stage) in [(NoteStep::Suspect, "suspected"), (NoteStep::Renew, "lost")] {
        let patch = change(step, &json!([ready(), scheduled()]));
        assert_eq!(patch.get("status"), None, "{step:?}");
        let note = patch["metadata"]["annotations"]["tailyard.io/unreachable"].as_str().expect("a note");
        assert!(note.contains(&format!(r#""stage":"{stage}""#)), "{note}");
    }
}

#[test]
fn withdrawal_restores_the_readiness_that_only_failover_took() {
    let containers = |status: &str| json!({"type": "ContainersReady", "status": status});
    let unready = |reason: &str| json!({"type": "Ready", "status": "False", "reason": reason});
    let withdrawal = |conditions: Value| change(NoteStep::Withdraw { is_reached: true }, &conditions);
    let restored = withdrawal(json!([containers("True"), unready("TailyardUnreachable")]));
    let expected = json!([containers("True"), {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:10:03Z"}]);
    assert_eq!(restored["status"]["conditions"], expected);
    assert_eq!(restored["metadata"]["annotations"], json!({"tailyard.io/unreachable": null}));
    let unreached = change(NoteStep::Withdraw { is_reached: false }, &json!([containers("True"), unready("TailyardUnreachable")]));
    assert_eq!(unreached.get("status"), None);
    for conditions in [
        json!([containers("False"), unready("TailyardUnreachable")]),
        json!([containers("True"), unready("ContainersNotReady")]),
        json!([containers("True"), ready()]),
    ] {
        assert_eq!(withdrawal(conditions).get("status"), None);
    }
}
