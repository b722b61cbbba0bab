//! Schedule of the probes, and the evidence that a probe gives.

use super::*;

#[test]
fn probe_is_a_proof_if_it_comes_from_another_node_or_from_a_process_that_reaches_one() {
    let proofs = |node: &str, answers: &[&str]| {
        let mut scene = Scene::answering(2, 1000);
        scene.detector.node = Some(node.to_owned());
        scene.run(1050..=2000, answers);
        let probes: Vec<Probe> = (2050..=2300).step_by(50).flat_map(|time| scene.detector.turn(scene.at(time)).probes).collect();
        let is_proof = |uid: &str| probes.iter().find(|probe| probe.uid == uid).map(|probe| probe.is_proof);
        (is_proof("u0"), is_proof("u1"))
    };
    assert_eq!(proofs("n9", &[]), (Some(true), Some(true)));
    assert_eq!(proofs("n0", &["u0"]), (Some(false), Some(true)));
    assert_eq!(proofs("n0", &["u0", "u1"]), (Some(true), Some(true)));
}

#[test]
fn probes_of_standalone_proxies_delay_none_of_a_group() {
    let mut detector = Detector::default();
    let begin = Instant::now();
    let standalone = (2..250).map(|number| ReplicaPod { workload: format!("default/s{}", number / 2).as_str().into(), ..pod(number) });
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
