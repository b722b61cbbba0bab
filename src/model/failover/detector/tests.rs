//! Tests of the detector's rules: times are milliseconds since the start of a test.

use super::*;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::objects::labels_of;

mod partitions;

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
        group: "g".into(),
        node: format!("n{number}"),
        target: SocketAddr::from(([10, 1, 0, u8::try_from(number).expect("few replicas")], 9002)),
        readiness: ReplicaReadiness::Ready,
    }
}

/// A Pod as the API server returns it.
fn object(pod: &ReplicaPod) -> Value {
    let (status, reason) = match pod.readiness {
        ReplicaReadiness::Ready => ("True", Value::Null),
        ReplicaReadiness::NotReady => ("False", Value::Null),
        ReplicaReadiness::Lost => ("False", json!(reason::UNREACHABLE)),
    };
    let labels = labels_of(&WorkloadKey::of_label(&pod.group));
    let probe = json!({"httpGet": {"port": pod.target.port()}});
    json!({
        "metadata": {"name": pod.name, "uid": pod.uid, "resourceVersion": "7", "labels": labels},
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

    fn observe(&mut self, time: u64) -> Vec<ReplicaPod> {
        self.detector.observe(self.pods.clone(), self.at(time))
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

    /// Name of the replica that a read at this time confirms as lost.
    fn confirmed(&self, begun: u64, now: u64) -> Option<String> {
        let mark = self.detector.confirm(&self.pods[0].group, self.pods.iter().map(object).collect(), self.at(begun), self.at(now));
        mark.map(|mark| mark.pod.name)
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
    scene.pods[1].group = "h".into();
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
    assert!(scene.detector.confirm("g", vec![Value::Null, json!({"status": 1})], scene.at(3000), scene.at(3000)).is_none());
}

#[test]
fn several_lost_replicas_are_marked_while_one_answers() {
    let mut scene = Scene::answering(3, 1000);
    assert_eq!(scene.run(1050..=3000, &["u1"]), Some(2000));
    assert_eq!(scene.confirmed(3000, 3000), Some("g-0".to_owned()));
    scene.detector.marked("u0", scene.at(3000));
    assert_eq!(scene.confirmed(3001, 3001), Some("g-2".to_owned()), "after a second read");
}

#[test]
fn restored_replica_is_marked_again_only_after_30_seconds_or_an_answer() {
    let mut scene = Scene::answering(2, 1000);
    scene.run(1050..=3000, &["u1"]);
    scene.detector.marked("u0", scene.at(3000));
    assert_eq!((scene.run(3050..=32_900, &["u1"]), scene.confirmed(32_900, 32_900)), (None, None));
    assert!(scene.turn(32_950, |uid| uid == "u1").wants_lease, "it is still suspected");
    assert_eq!(scene.run(33_000..=33_000, &["u1"]), Some(33_000));
    scene.detector.marked("u0", scene.at(33_000));
    scene.run(33_050..=34_000, &["u0", "u1"]);
    assert_eq!(scene.run(34_050..=35_500, &["u1"]), Some(35_000), "it answered meanwhile");
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
    scene.run(1050..=3000, &["u1"]);
    scene.detector.marked("u0", scene.at(3000));
    scene.pods[0].readiness = ReplicaReadiness::Lost;
    assert!(scene.observe(3000).is_empty());
    scene.pods[0].readiness = ReplicaReadiness::Ready;
    assert!(scene.observe(3400).is_empty(), "restored, but it does not answer");
    scene.run(3450..=3700, &["u0", "u1"]);
    assert_eq!(scene.observe(3700), [scene.pods[0].clone()]);
    assert!(scene.observe(3750).is_empty());
}

#[test]
fn waiting_pod_of_a_standalone_proxy_is_a_survivor_and_is_not_marked() {
    let waiting = |lost: usize| {
        let mut scene = Scene::answering(2, 1000);
        scene.pods.iter_mut().for_each(|pod| pod.group = "service/default/web".into());
        scene.pods[1].readiness = ReplicaReadiness::NotReady;
        scene.observe(1000);
        let suspected = scene.run(1050..=3000, if lost == 0 { &["u1"] } else { &["u0"] });
        (suspected, scene.confirmed(3000, 3000))
    };
    assert_eq!(waiting(0), (Some(2000), Some("g-0".to_owned())), "the active Pod");
    assert_eq!(waiting(1), (None, None), "the waiting Pod");
}

#[test]
fn probes_of_standalone_proxies_delay_none_of_a_group() {
    let mut detector = Detector::default();
    let begin = Instant::now();
    let standalone = (2..250).map(|number| ReplicaPod { group: format!("service/default/s{}", number / 2), ..pod(number) });
    detector.observe((0..2).map(pod).chain(standalone).collect(), begin);
    let turns = (0..100).map(|turn| detector.turn(begin + Duration::from_millis(50) * turn).probes);
    let probes: Vec<_> = turns.flatten().map(|probe| probe.uid).collect();
    let of_group = probes.iter().filter(|uid| ["u0", "u1"].contains(&uid.as_str())).count();
    assert!((38..=42).contains(&of_group) && (1_900..=2_100).contains(&(probes.len() - of_group)), "{of_group} of {}", probes.len());
}

#[test]
fn groups_with_one_replica_are_not_probed() {
    let mut scene = Scene { detector: Detector::default(), begin: Instant::now(), pods: vec![pod(0)] };
    scene.observe(0);
    assert!(scene.turn(0, |_| true).probes.is_empty() && scene.turn(250, |_| true).probes.is_empty());
}

#[test]
fn probes_are_spread_and_limited_to_400_a_second() {
    for (replicas, expected) in [(2, 40..=41), (100, 1960..=2000), (200, 1960..=2000)] {
        let mut detector = Detector::default();
        let begin = Instant::now();
        detector.observe((0..replicas).map(pod).collect(), begin);
        let mut counts = vec![0; replicas];
        for turn in 0..100 {
            for probe in detector.turn(begin + Duration::from_millis(50) * turn).probes {
                counts[probe.uid[1..].parse::<usize>().expect("a number")] += 1;
            }
        }
        let (total, fewest, most) = (counts.iter().sum::<i32>(), counts.iter().min(), counts.iter().max());
        assert!(expected.contains(&total), "{replicas} replicas: {total}");
        assert!(most.zip(fewest).is_some_and(|(most, fewest)| most - fewest <= 1), "{counts:?}");
    }
}

#[test]
fn patch_changes_only_the_condition_ready_of_the_version_that_was_read() {
    let mut scene = Scene::answering(2, 1000);
    scene.run(1050..=3000, &["u1"]);
    let mark = scene.detector.confirm("g", scene.pods.iter().map(object).collect(), scene.at(3000), scene.at(3000));
    let patch = mark.expect("a lost replica").patch("r-1", "2026-01-01T00:10:03.4Z".parse().expect("a time"));
    let message = "no answer to health probes since 2026-01-01T00:10:01Z; r-1 made the Pod unready; a living kubelet restores it";
    let expected = json!({
        "metadata": {"uid": "u0", "resourceVersion": "7"},
        "status": {"conditions": [
            {"type": "PodScheduled", "status": "True", "observedGeneration": 1},
            {"type": "Ready", "status": "False", "reason": "TailyardUnreachable", "message": message, "lastTransitionTime": "2026-01-01T00:10:03Z"},
        ]},
    });
    assert_eq!(patch, expected);
}
