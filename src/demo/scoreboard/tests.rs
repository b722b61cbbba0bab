use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Replicas of a service's next attempts.
fn replicas_of(board: &mut Scoreboard, service: u16) -> Vec<u8> {
    let lanes = (0..400).filter_map(|number| board.choose(number)).map(|attempt| attempt.lane);
    let mut replicas: Vec<u8> = lanes.filter(|lane| lane.service == u32::from(service)).map(|lane| lane.replica).collect();
    replicas.sort_unstable();
    replicas.dedup();
    replicas
}

#[test]
fn udp_flow_of_a_killed_replica_is_late_only_after_its_restart() {
    let topology = Topology::make(1, 2).expect("namespaces");
    let (old, lane) = (DemoService { number: 0, target: 0 }, Lane { service: 0, replica: 0 });
    let mut board = Scoreboard::new(Instant::now(), &topology, [old]);
    let by = board.identity(old);
    board.write(DemoService { target: 1, ..old });
    board.ledger.settle(lane, board.now());
    let wrong = |board: &Scoreboard, after: Duration| board.wrong_for_flow(lane, board.now() + after, board.now() + after, by).is_some();
    assert!(wrong(&board, MAX_FLOW_LAG * 2) && !wrong(&board, MAX_FLOW_LAG / 2));
    board.open_window(0);
    assert!(!wrong(&board, MAX_FLOW_LAG * 2), "no replica is there to end it");
    board.record_probe(0, board.now(), false);
    board.members[0].life = ReplicaPhase::Restarting;
    board.record_probe(0, board.now(), true);
    board.members[0].back = MAX_FLOW_LAG;
    assert!(!wrong(&board, MAX_FLOW_LAG + SECOND) && wrong(&board, MAX_FLOW_LAG * 3));
}

#[test]
fn service_added_during_a_restart_is_expected_once_the_replica_has_served_it() {
    let topology = Topology::make(2, 1).expect("namespaces");
    let start = Instant::now().checked_sub(MIN_READY_AGE * 2).expect("the machine runs for longer");
    let mut board = Scoreboard::new(start, &topology, [DemoService { number: 0, target: 0 }]);
    board.members[1].life = ReplicaPhase::Leaving;
    board.record_probe(1, board.now(), false);
    assert!(board.can_spare(1) && !board.can_spare(0), "the only one that is ready is not taken away");
    board.members[1].life = ReplicaPhase::Restarting;
    let added = DemoService { number: 1, target: 0 };
    board.write(added);
    board.ledger.settle(Lane { service: 1, replica: 0 }, board.now());
    board.activate(1);
    board.record_probe(1, board.now(), true);
    assert_eq!((board.members[1].life, board.can_spare(0)), (ReplicaPhase::Running, false));
    assert_eq!(replicas_of(&mut board, 0), [0, 1], "the replica is back");
    assert_eq!(replicas_of(&mut board, 1), [0], "its config may be of a moment before");
    board.ledger.settle(Lane { service: 1, replica: 1 }, board.now() + SECOND);
    assert_eq!(replicas_of(&mut board, 1), [0, 1]);
    assert!(board.can_spare(0));
}

#[test]
fn target_by_name_follows_renamed_peers() {
    let topology = Topology::make(1, 3).expect("namespaces");
    let [by_name, by_address] = [DemoService { number: 0, target: 2 }, DemoService { number: 1, target: 2 }];
    let mut board = Scoreboard::new(Instant::now(), &topology, [by_name, by_address]);
    let target = |board: &Scoreboard, service| board.ledger.target(Lane { service, replica: 0 }).map(|identity| identity.target);
    assert_eq!((target(&board, 0), target(&board, 1)), (Some(2), Some(2)));
    assert_eq!(board.rename(), [0]);
    assert_eq!(board.names, [1, 2, 0]);
    assert_eq!((target(&board, 0), target(&board, 1)), (Some(0), Some(2)), "the name is another target's, the address is not");
    let is_settled = |service| board.ledger.is_settled(Lane { service, replica: 0 });
    assert!(!is_settled(0) && is_settled(1));
    assert_eq!(board.rename(), [0]);
    assert_eq!(target(&board, 0), Some(1));
    board.write(DemoService { target: 0, ..by_name });
    assert_eq!(target(&board, 0), Some(2), "a config that is written now is read by the names of now");
}
