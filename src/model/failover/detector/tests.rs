//! Tests of the detector's rules: times are milliseconds since the start of a test.

use serde_json::json;

use super::*;
use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::workload::objects::labels_of;

mod partitions;
mod probes;

/// A detector with the replicas `g-0`, `g-1`, ... on nodes of their own, in milliseconds since its start.
struct Scene {
    detector: Detector,
    begin: Instant,
    pods: Vec<ReplicaPod>,
}

fn pod(number: usize) -> ReplicaPod {
    ReplicaPod {
        uid: format!("u{number}"),
        name: format!("g-{number}"),
        workload: "g".into(),
        node: format!("n{number}"),
        target: SocketAddr::from(([10, 1, 0, u8::try_from(number).expect("few replicas")], 9002)),
        readiness: ReplicaReadiness::Ready,
        note: None,
    }
}

#[allow(clippy::unnecessary_wraps, reason = "as the field of a Pod")]
fn note(stage: UnreachableStage, process: &str, connected: bool) -> Option<UnreachableNote> {
    Some(UnreachableNote { stage, process: process.into(), time: String::new(), since: String::new(), connected })
}

/// A Pod as the API server returns it.
fn object(pod: &ReplicaPod) -> Value {
    let (status, reason) = match pod.readiness {
        ReplicaReadiness::Ready => ("True", Value::Null),
        ReplicaReadiness::NotReady => ("False", Value::Null),
        ReplicaReadiness::Lost => ("False", json!(reason::UNREACHABLE)),
    };
    let labels = labels_of(&pod.workload);
    let probe = json!({"httpGet": {"port": pod.target.port()}});
    let annotations = json!({names::UNREACHABLE: pod.note.as_ref().map(|note| json!(note).to_string())});
    let annotations = pod.note.as_ref().map_or(Value::Null, |_| annotations);
    json!({
        "metadata": {"name": pod.name, "uid": pod.uid, "resourceVersion": "7", "labels": labels, "annotations": annotations},
        "spec": {"nodeName": pod.node, "containers": [{"name": "tailscale", "readinessProbe": probe}]},
        "status": {"phase": "Running", "podIP": pod.target.ip(), "conditions": [
            {"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "PodScheduled", "status": "True", "observedGeneration": 1},
        ]},
    })
}

impl Scene {
    /// Replicas that have answered from the start until `until`.
    fn answering(count: usize, until: u64) -> Self {
        let mut scene = Self { detector: Detector::default(), begin: Instant::now(), pods: (0..count).map(pod).collect() };
        scene.observe(0);
        for time in (0..=until).step_by(50) {
            scene.turn(time, |_| true);
        }
        scene
    }

    fn at(&self, time: u64) -> Instant {
        self.begin + Duration::from_millis(time)
    }

    fn observe(&mut self, time: u64) -> Observation {
        self.detector.observe(self.pods.clone(), self.at(time))
    }

    /// Notes the change that a read at this time confirms, as the API server does; returns its step and replica.
    fn write(&mut self, time: u64) -> Option<(NoteStep, String)> {
        let change = self.confirmed_change(time, time)?;
        let (step, process) = (change.step, self.detector.process.clone());
        let pod = self.pods.iter_mut().find(|pod| pod.uid == change.pod.uid).expect("a replica");
        pod.note = match step {
            NoteStep::Suspect => note(UnreachableStage::Suspected, &process, change.connected),
            NoteStep::MakeUnready | NoteStep::Renew => note(UnreachableStage::Lost, &process, change.connected),
            NoteStep::Withdraw { .. } => None,
        };
        if step == NoteStep::MakeUnready {
            pod.readiness = ReplicaReadiness::Lost;
        } else if step == NoteStep::Suspect {
            self.detector.suspected(&change.pod.uid, self.at(time));
        }
        self.observe(time);
        Some((step, change.pod.name))
    }

    /// Runs a turn; results of its probes are recorded at once, missed ones with their send time.
    fn turn(&mut self, time: u64, answers: impl Fn(&str) -> bool) -> DetectorTurn {
        let now = self.at(time);
        let turn = self.detector.turn(now);
        for probe in &turn.probes {
            self.detector.record(&probe.uid, now, answers(&probe.uid), now);
        }
        turn
    }

    /// Runs turns with only these replicas answering; returns the time of the first turn that suspects the group.
    fn run(&mut self, times: std::ops::RangeInclusive<u64>, answers: &[&str]) -> Option<u64> {
        let mut suspected = None;
        for time in times.step_by(50) {
            let turn = self.turn(time, |uid| answers.contains(&uid));
            suspected = suspected.or((!turn.suspected.is_empty()).then_some(time));
        }
        suspected
    }

    fn confirmed_change(&self, begun: u64, now: u64) -> Option<PodChange> {
        self.detector.confirm(&self.pods[0].workload, self.pods.iter().map(object).collect(), self.at(begun), self.at(now))
    }

    /// Name of the replica that a read at this time confirms as lost.
    fn confirmed(&self, begun: u64, now: u64) -> Option<String> {
        self.confirmed_change(begun, now).map(|change| change.pod.name)
    }

    /// Steps of a replica whose silence began at 1 s, until it is unready.
    fn lose(&mut self) {
        self.run(1050..=2500, &["u1", "u2"]);
        assert_eq!(self.write(2500), Some((NoteStep::Suspect, "g-0".into())));
        self.run(2550..=2800, &["u1", "u2"]);
        assert_eq!(self.write(2800), Some((NoteStep::MakeUnready, "g-0".into())));
    }
}

#[test]
fn silent_replica_is_lost_after_a_second_and_three_missed_probes() {
    let mut scene = Scene::answering(2, 1000);
    assert_eq!(scene.run(1050..=3000, &["u1"]), Some(2000));
    assert_eq!(scene.confirmed(3000, 3000), Some("g-0".to_owned()));
    assert!(scene.turn(3050, |_| true).wants_lease);
}

#[test]
fn lost_replica_needs_a_survivor_on_another_node() {
    let mut scene = Scene::answering(2, 1000);
    assert_eq!(scene.run(1050..=3000, &[]), None, "nothing answers: the fault may be this process");
    let mut scene = Scene::answering(2, 1000);
    scene.pods[1].node = "n0".into();
    scene.observe(1000);
    assert_eq!(scene.run(1050..=3000, &["u1"]), None, "the same node");
    let mut scene = Scene::answering(2, 1000);
    scene.pods[1].readiness = ReplicaReadiness::NotReady;
    scene.observe(1000);
    assert_eq!(scene.run(1050..=3000, &["u1"]), None, "not ready");
    let mut scene = Scene::answering(2, 1000);
    scene.pods[1].workload = "h".into();
    scene.observe(1000);
    assert_eq!(scene.run(1050..=3000, &["u1"]), None, "another group");
}

#[test]
fn answers_to_earlier_probes_are_no_evidence_of_a_survivor() {
    let mut scene = Scene::answering(2, 1000);
    scene.run(1050..=2200, &[]);
    let now = scene.at(2250);
    scene.detector.record("u1", scene.at(1000), true, now);
    assert_eq!(scene.turn(2250, |_| false).suspected.len(), 0, "an answer that waited in a buffer");
    let now = scene.at(2300);
    scene.detector.record("u1", scene.at(2000), true, now);
    assert_eq!(scene.turn(2300, |_| false).suspected.len(), 1);
    assert_eq!(scene.confirmed(2800, 2801), None, "half a second later");
}

#[test]
fn replica_that_never_answered_is_not_lost() {
    let mut scene = Scene { detector: Detector::default(), begin: Instant::now(), pods: vec![pod(0), pod(1)] };
    scene.observe(0);
    assert_eq!(scene.run(0..=5000, &["u1"]), None);
    let mut scene = Scene::answering(2, 1000);
    scene.pods[0].uid = "u5".into();
    scene.observe(1000);
    assert_eq!(scene.run(1050..=3000, &["u1"]), None, "a new Pod of that name");
}

#[test]
fn any_answer_ends_the_silence() {
    let mut scene = Scene::answering(2, 1000);
    scene.run(1050..=1900, &["u1"]);
    scene.detector.record("u0", scene.at(1700), true, scene.at(1950));
    assert_eq!(scene.run(1950..=2900, &["u1"]), None);
    assert_eq!(scene.confirmed(2900, 2900), None);
}

#[test]
fn paused_process_discards_the_silence() {
    let mut scene = Scene::answering(2, 1000);
    let turn = scene.turn(4000, |uid| uid == "u1");
    assert_eq!((turn.paused, turn.suspected.len()), (Some(Duration::from_secs(3)), 0));
    // Probes of before the pause time out after it.
    for sent in [800, 900, 950] {
        scene.detector.record("u0", scene.at(sent), false, scene.at(4000));
    }
    assert_eq!(scene.run(4050..=4950, &["u1"]), None);
    assert_eq!(scene.run(5000..=5300, &["u1"]), Some(5000));
}

#[test]
fn only_pods_as_read_from_the_api_server_are_marked() {
    let mut scene = Scene::answering(3, 1000);
    assert_eq!(scene.run(1050..=3000, &["u1", "u2"]), Some(2000));
    assert_eq!(scene.confirmed(900, 3000), None, "a read from before the last answer");
    scene.pods[0].readiness = ReplicaReadiness::NotReady;
    assert_eq!(scene.confirmed(3000, 3000), None, "unready already");
    scene.pods[0].readiness = ReplicaReadiness::Ready;
    scene.pods[1].readiness = ReplicaReadiness::Lost;
    assert_eq!(scene.confirmed(3000, 3000), Some("g-0".to_owned()));
    scene.pods[2].readiness = ReplicaReadiness::NotReady;
    assert_eq!(scene.confirmed(3000, 3000), None, "the other survivors have been made unready meanwhile");
    scene.pods[2] = ReplicaPod { uid: "u9".into(), ..pod(2) };
    assert_eq!(scene.confirmed(3000, 3000), None, "a new Pod has not answered");
    assert!(scene.detector.confirm(&"g".into(), vec![Value::Null, json!({"status": 1})], scene.at(3000), scene.at(3000)).is_none());
}

#[test]
fn several_lost_replicas_are_marked_while_one_answers() {
    let mut scene = Scene::answering(3, 1000);
    assert_eq!(scene.run(1050..=3000, &["u1"]), Some(2000));
    assert_eq!(scene.write(3000), Some((NoteStep::Suspect, "g-0".into())));
    assert_eq!(scene.write(3000), Some((NoteStep::Suspect, "g-2".into())), "after a second read");
    assert_eq!(scene.write(3200), None, "not before the time for objections is over");
    scene.run(3250..=3250, &["u1"]);
    assert_eq!(scene.write(3250), Some((NoteStep::MakeUnready, "g-0".into())));
    assert_eq!(scene.write(3250), Some((NoteStep::MakeUnready, "g-2".into())));
    assert_eq!(scene.write(3250), None);
}

#[test]
fn restored_replica_is_marked_again_at_once_while_it_is_noted() {
    let mut scene = Scene::answering(2, 1000);
    scene.lose();
    assert_eq!(scene.run(2850..=9000, &["u1"]), None, "nothing to do");
    scene.pods[0].readiness = ReplicaReadiness::Ready;
    scene.observe(9000);
    assert_eq!(scene.run(9050..=9050, &["u1"]), Some(9050));
    assert_eq!(scene.write(9050), Some((NoteStep::MakeUnready, "g-0".into())));
    scene.pods[0].readiness = ReplicaReadiness::Ready;
    scene.pods[1].readiness = ReplicaReadiness::NotReady;
    assert_eq!(scene.confirmed(9100, 9100), None, "the last ready one");
}

#[test]
fn note_of_a_lost_replica_is_renewed_by_any_process() {
    let mut scene = Scene::answering(2, 1000);
    scene.lose();
    assert_eq!((scene.run(2850..=122_750, &["u1"]), scene.write(122_750)), (None, None));
    assert_eq!(scene.run(122_800..=122_800, &["u1"]), Some(122_800));
    assert_eq!(scene.write(122_800), Some((NoteStep::Renew, "g-0".into())));
    // A process that never had an answer of the lost replica.
    let mut other = Scene { detector: Detector::new("new", None), begin: scene.begin, pods: scene.pods.clone() };
    other.observe(123_000);
    assert_eq!(other.run(123_000..=243_000, &["u1"]), Some(243_000));
    assert_eq!(other.write(243_000), Some((NoteStep::Renew, "g-0".into())));
}

#[test]
fn disputed_suspicion_is_repeated_only_after_30_seconds_or_an_answer() {
    let mut scene = Scene::answering(2, 1000);
    scene.run(1050..=2500, &["u1"]);
    assert_eq!(scene.write(2500), Some((NoteStep::Suspect, "g-0".into())));
    scene.pods[0].note = None;
    assert_eq!(scene.write(2800), None, "another process has removed the note");
    assert_eq!(scene.observe(2800).disputed, [scene.pods[0].clone()]);
    assert!(scene.observe(2800).disputed.is_empty(), "reported once");
    assert!(!scene.turn(2800, |uid| uid == "u1").wants_lease, "the other process may need it");
    assert_eq!(scene.run(2850..=32_750, &["u1"]), None);
    assert_eq!(scene.run(32_800..=32_800, &["u1"]), Some(32_800));
    assert_eq!(scene.write(32_800), Some((NoteStep::Suspect, "g-0".into())));
    scene.pods[0].note = None;
    scene.observe(32_900);
    scene.run(32_950..=34_000, &["u0", "u1"]);
    assert!(scene.run(34_050..=35_500, &["u1"]).is_some(), "it answered meanwhile");
}

/// Who may remove a note: (node of the process, whether it reaches another node, whether the note's process does), expected.
#[test]
fn note_is_removed_by_a_process_that_reaches_the_replica_or_shares_its_node_and_reaches_others() {
    let cases = [
        (Some("n9"), true, true, true),
        (Some("n9"), false, true, true),
        (None, false, true, true),
        (Some("n0"), true, true, true),
        (Some("n0"), false, true, false),
        (Some("n0"), false, false, true),
    ];
    for (node, reaches_others, connected, expected) in cases {
        for stage in [UnreachableStage::Suspected, UnreachableStage::Lost] {
            let mut scene = Scene::answering(2, 1000);
            scene.detector.node = node.map(str::to_owned);
            let answers: &[&str] = if reaches_others { &["u0", "u1"] } else { &["u0"] };
            scene.run(1050..=3000, answers);
            scene.pods[0].note = note(stage, "other", connected);
            scene.observe(3010);
            assert!(scene.detector.turn(scene.at(3010)).refuted.is_empty(), "an answer to an earlier probe");
            scene.run(3050..=3600, answers);
            let is_refuted = !scene.detector.turn(scene.at(3650)).refuted.is_empty();
            assert_eq!(is_refuted, expected, "{node:?} {reaches_others} {connected} {stage:?}");
            let pods: Vec<_> = scene.pods.iter().map(object).collect();
            let withdrawn = scene.detector.withdrawal(&"g".into(), pods.clone(), scene.at(3650)).map(|change| change.step);
            assert_eq!(withdrawn, expected.then_some(NoteStep::Withdraw { is_reached: true }));
            scene.pods[0].note = note(stage, "newer", connected);
            let newer: Vec<_> = scene.pods.iter().map(object).collect();
            assert_eq!(scene.detector.withdrawal(&"g".into(), newer, scene.at(3650)), None, "a note that was not answered");
        }
    }
}

#[test]
fn note_of_the_last_hope_is_removed() {
    let mut scene = Scene::answering(2, 1000);
    scene.lose();
    assert!(scene.turn(2850, |uid| uid == "u1").refuted.is_empty());
    scene.pods[1].readiness = ReplicaReadiness::NotReady;
    scene.observe(2900);
    assert_eq!(scene.turn(2900, |_| false).refuted, ["g".into()].into());
    scene.pods[0].note = None;
    assert!(scene.observe(2950).disputed.is_empty(), "that was no objection");
    // The other one was deleted: the group is not probed any more.
    scene.pods[0].note = note(UnreachableStage::Lost, "other", true);
    scene.pods.truncate(1);
    scene.observe(3000);
    assert_eq!(scene.turn(3000, |_| false).refuted, ["g".into()].into());
}

#[test]
fn noted_replica_is_no_survivor() {
    let mut scene = Scene::answering(2, 1000);
    scene.pods[1].note = note(UnreachableStage::Lost, "other", true);
    scene.observe(1000);
    assert_eq!(scene.run(1050..=3000, &["u1"]), None);
}

#[test]
fn lease_is_wanted_until_ten_seconds_after_the_last_suspicion() {
    let mut scene = Scene::answering(2, 1000);
    assert!(!scene.turn(1050, |_| true).wants_lease);
    scene.run(1100..=3000, &["u1"]);
    scene.pods[0].readiness = ReplicaReadiness::Lost;
    scene.observe(3000);
    assert!(scene.turn(3050, |_| true).wants_lease);
    scene.run(3100..=12_900, &["u0", "u1"]);
    assert!(scene.turn(12_950, |_| true).wants_lease);
    assert!(!scene.turn(13_000, |_| true).wants_lease);
}

#[test]
fn lost_replica_returns_once_when_it_is_ready_and_answers() {
    let mut scene = Scene::answering(2, 1000);
    scene.lose();
    scene.pods[0].readiness = ReplicaReadiness::Ready;
    assert!(scene.observe(3400).returned.is_empty(), "restored, but it does not answer");
    scene.run(3450..=3700, &["u0", "u1"]);
    assert!(scene.observe(3700).returned.is_empty(), "it is noted");
    scene.pods[0].note = None;
    assert_eq!(scene.observe(3700).returned, [scene.pods[0].clone()]);
    assert!(scene.observe(3750).returned.is_empty());
}

#[test]
fn waiting_pod_of_a_standalone_proxy_is_a_survivor_and_is_not_marked() {
    let waiting = |lost: usize| {
        let mut scene = Scene::answering(2, 1000);
        scene.pods.iter_mut().for_each(|pod| pod.workload = "default/web".into());
        scene.pods[1].readiness = ReplicaReadiness::NotReady;
        scene.observe(1000);
        let suspected = scene.run(1050..=3000, if lost == 0 { &["u1"] } else { &["u0"] });
        (suspected, scene.confirmed(3000, 3000))
    };
    assert_eq!(waiting(0), (Some(2000), Some("g-0".to_owned())), "the active Pod");
    assert_eq!(waiting(1), (None, None), "the waiting Pod");
}
