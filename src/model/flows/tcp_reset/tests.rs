use proptest::prelude::*;

use super::*;
use crate::model::flows::flow::{DST_NAT, SRC_NAT, TcpState, Tuple};

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn flow(port: u16) -> Flow {
    let client = SocketAddr::new(address("10.0.0.9:1").ip(), port);
    let source = SocketAddr::new(address("100.64.0.1:1").ip(), port);
    Flow {
        proto: 6,
        original: Tuple { source: client, destination: address("10.0.0.1:10042") },
        reply: Tuple { source: address("100.64.0.2:80"), destination: source },
        tcp: Some(TcpState::Established),
        status: DST_NAT | SRC_NAT,
        mark: 0,
        timeout: 1,
        id: u32::from(port),
    }
}

fn segment(from: &str, port: u16, end: SegmentSender) -> ObservedSegment {
    ObservedSegment { from: address(from), port, sequence: 1_000, acknowledgment: 2_000, length: 0, end }
}

fn all(resets: &mut PendingResets, now: Duration) -> Vec<Segment> {
    std::iter::from_fn(|| resets.take(now)).collect()
}

#[test]
fn target_answer_resets_both_ends_with_its_sequence_numbers() {
    let mut resets = PendingResets::new([&flow(4_000)], 7);
    assert_eq!(all(&mut resets, ms(0)).iter().map(Segment::to).collect::<Vec<_>>(), [address("100.64.0.2:80")]);
    resets.observe(&segment("100.64.0.2:80", 4_000, SegmentSender::Alive), ms(3));
    let to_target = Segment::reset(address("100.64.0.1:4000"), address("100.64.0.2:80"), 2_000, 1_000);
    let to_client = Segment::reset(address("10.0.0.1:10042"), address("10.0.0.9:4000"), 1_000, 2_000);
    assert_eq!(all(&mut resets, ms(3)), [to_target, to_client]);
    assert!(!resets.is_over(), "each is sent again");
    assert_eq!(all(&mut resets, ms(43)), [to_target, to_client]);
    assert!(!resets.is_over(), "its node's conntrack must see a reset by the client");
    assert_eq!(all(&mut resets, ms(83)), [to_client.without_reset()]);
    assert!(resets.is_over());
    assert_eq!(resets.report(), ResetReport { reset: 1, ..ResetReport::default() });
}

#[test]
fn silent_target_is_probed_again_with_the_client() {
    let mut resets = PendingResets::new([&flow(4_000)], 7);
    assert_eq!(all(&mut resets, ms(0)).len(), 1);
    assert_eq!(all(&mut resets, ms(119)).len(), 0);
    let mut probed: Vec<_> = all(&mut resets, ms(120)).iter().map(Segment::to).collect();
    probed.sort();
    assert_eq!(probed, [address("10.0.0.9:4000"), address("100.64.0.2:80")]);
    assert_eq!(resets.report().unanswered, 1);
    resets.observe(&segment("10.0.0.9:4000", 10_042, SegmentSender::Alive), ms(130));
    let sent = all(&mut resets, ms(130));
    assert!(sent.contains(&Segment::reset(address("10.0.0.1:10042"), address("10.0.0.9:4000"), 2_000, 1_000)), "{sent:?}");
}

#[test]
fn closed_target_causes_a_probe_of_the_client() {
    let mut resets = PendingResets::new([&flow(4_000)], 7);
    all(&mut resets, ms(0));
    resets.observe(&segment("100.64.0.2:80", 4_000, SegmentSender::Gone), ms(1));
    assert_eq!(all(&mut resets, ms(1)).iter().map(Segment::to).collect::<Vec<_>>(), [address("10.0.0.9:4000")]);
    resets.observe(&segment("10.0.0.9:4000", 10_042, SegmentSender::Gone), ms(2));
    assert!(resets.is_over());
    assert_eq!(resets.report().gone, 1);
}

#[test]
fn half_open_flow_probes_only_its_target_briefly() {
    let half_open = Flow { tcp: Some(TcpState::SynSent), ..flow(4_000) };
    let mut resets = PendingResets::new([&half_open], 7);
    for at in [0, 120, 350] {
        assert_eq!(all(&mut resets, ms(at)).iter().map(Segment::to).collect::<Vec<_>>(), [address("100.64.0.2:80")], "at {at} ms");
    }
    assert_eq!(all(&mut resets, ms(700)), []);
    assert!(resets.is_over());
    assert_eq!(resets.report().gone, 1);
    for end in [SegmentSender::Gone, SegmentSender::Alive] {
        let mut resets = PendingResets::new([&half_open], 7);
        all(&mut resets, ms(0));
        resets.observe(&segment("100.64.0.2:80", 4_000, end), ms(3));
        let to: Vec<_> = all(&mut resets, ms(83)).iter().map(Segment::to).collect();
        let (target, client) = (address("100.64.0.2:80"), address("10.0.0.9:4000"));
        assert_eq!(to, if end == SegmentSender::Alive { vec![target, client, target, client, client] } else { vec![] });
        assert!(resets.is_over());
    }
}

#[test]
fn probe_that_cannot_be_sent_is_not_awaited() {
    let mut resets = PendingResets::new([&flow(4_000)], 7);
    let probe = resets.take(ms(0)).expect("a probe");
    resets.failed(&probe);
    assert!(resets.is_over());
    assert_eq!(resets.report().failed, 1);
}

proptest! {
    /// For any received segments, every flow is counted once, no unrelated segment triggers a reset, and the schedule ends.
    #[test]
    fn every_flow_is_counted_once_and_the_reset_ends(
        ports in prop::collection::btree_set(1_u16..50, 1..20),
        talk in prop::collection::vec((1_u16..60, any::<bool>(), any::<bool>(), any::<u32>(), any::<u32>(), 0_u32..3_000), 0..60),
    ) {
        let flows: Vec<_> = ports.iter().map(|port| flow(*port)).collect();
        let mut resets = PendingResets::new(&flows, 1);
        let mut sent = 0;
        for (step, (port, target, alive, sequence, acknowledgment, length)) in talk.into_iter().enumerate() {
            let now = ms(step as u64 * 200);
            sent += all(&mut resets, now).len();
            let end = if alive { SegmentSender::Alive } else { SegmentSender::Gone };
            let (from, to) = if target { (address("100.64.0.2:80"), port) } else { (SocketAddr::new(address("10.0.0.9:1").ip(), port), 10_042) };
            let open = resets.open;
            resets.observe(&ObservedSegment { from, port: to, sequence, acknowledgment, length, end }, now);
            prop_assert!(ports.contains(&port) || resets.open == open);
        }
        sent += all(&mut resets, ms(60_000)).len();
        let report = resets.report();
        prop_assert_eq!(report.reset + report.gone + report.unanswered + report.failed, flows.len());
        prop_assert_eq!(resets.next(), None);
        prop_assert!(sent <= flows.len() * (2 * PROBES.len() + 5 * usize::from(HEEDED) + 1));
    }
}
