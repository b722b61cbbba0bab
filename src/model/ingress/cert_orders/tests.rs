//! Invariant tests: a group of replicas, the API server and an ACME server under crashes, delays and partitions.

use proptest::prelude::*;

use super::*;

use world::{DAY, World, serves, wall};

mod world;

fn at(seconds: i64) -> Moment {
    Moment { at: Duration::from_secs(seconds.unsigned_abs()), wall: wall(seconds) }
}

/// Leader of a group that needs a certificate for `a`.
fn leader() -> Issuer {
    let mut issuer = Issuer::new("g-0", OrderTerms::ACME);
    issuer.step(OrderEvent::Wanted(["a".to_owned()].into()), at(0), 0.5);
    issuer.step(OrderEvent::Leads(true), at(0), 0.5);
    issuer
}

#[test]
fn every_name_is_ordered_once_with_bounded_concurrency() {
    let mut world = World::new(2, 50);
    world.run(5);
    assert_eq!(world.orders, 8);
    world.run(400);
    assert_eq!(world.orders, 50);
    assert!(world.all_serve() && serves(&world.replicas[1].issuer, "n7.tail1234.ts.net", wall(world.now)), "the others read");
}

#[test]
fn restarts_order_nothing() {
    let mut world = World::new(2, 20);
    world.run(200);
    for _ in 0..20 {
        world.start(0);
        world.lead(0, true);
        world.run(10);
    }
    assert_eq!(world.orders, 20);
}

#[test]
fn order_of_a_dead_replica_is_repeated_at_once_by_itself_and_later_by_others() {
    for successor in [0, 1] {
        let mut world = World::new(2, 1);
        world.run(10);
        assert_eq!(world.orders, 1);
        world.kill(0);
        if successor == 0 {
            world.start(0);
        }
        world.lead(successor, true);
        world.run(60);
        assert_eq!(world.all_serve(), successor == 0);
        world.run(500);
        assert!(world.all_serve());
        assert_eq!(world.orders, 2);
    }
}

#[test]
fn order_backoff_survives_restarts() {
    let mut world = World::new(2, 1);
    world.acme = false;
    world.run(3600);
    let orders = world.orders;
    assert!((4..8).contains(&orders), "{orders} in the first hour");
    for _ in 0..50 {
        world.start(0);
        world.lead(0, true);
        world.run(5);
    }
    assert!(world.orders <= orders + 2, "a crash loop tries no more often: {} after {orders}", world.orders);
    let note = &world.records.values().next().expect("a record").note;
    assert!(note.failures >= 4, "{note:?}");
    world.acme = true;
    world.run(2 * 3600);
    assert!(world.all_serve());
    assert_eq!(world.records.values().next().expect("a record").note, OrderNote::default());
}

#[test]
fn acme_outage_of_an_hour_delays_orders_by_minutes() {
    let mut world = World::new(2, 2);
    world.away = true;
    world.run(3600);
    let notes: Vec<_> = world.records.values().map(|record| record.note.failures).collect();
    assert!(notes.iter().all(|failures| (1..=3).contains(failures)), "an outage makes no long pauses: {notes:?}");
    assert!((20..=60).contains(&world.orders), "{} orders", world.orders);
    world.away = false;
    world.run(4 * 60 + 60);
    assert!(world.all_serve(), "{:?}", world.records);
    let orders = world.orders;
    world.lifetime = 7200;
    world.run(3600);
    assert_eq!(world.orders, orders, "and nothing is ordered that is not due");
}

#[test]
fn retry_after_of_the_server_is_respected() {
    let mut issuer = leader();
    let claim = issuer.step(OrderEvent::Seen("a".into(), Some(NameRecord { version: "1".into(), ..NameRecord::default() })), at(0), 0.5);
    let Some(OrderAction::Claim { note, .. }) = claim.first() else { panic!("{claim:?}") };
    let mine = NameRecord { version: "2".into(), note: note.clone(), ..NameRecord::default() };
    let order = issuer.step(OrderEvent::Claimed("a".into(), WriteResult::Done(mine)), at(1), 0.5);
    assert_eq!(order, [OrderAction::Order { name: "a".into(), replaces: None }]);
    let failed = OrderFailure { retry_after: Some(Duration::from_hours(3)), outage: false };
    let release = issuer.step(OrderEvent::Ended("a".into(), Err(failed)), at(2), 0.5);
    let Some(OrderAction::Release { note, version, .. }) = release.first() else { panic!("{release:?}") };
    assert_eq!((version.as_str(), note.not_before, note.failures), ("2", Some(wall(2 + 3 * 3600)), 1));
}

#[test]
fn late_conflict_after_a_newer_record_is_ignored() {
    let mut issuer = leader();
    let record = |version: &str, by: &str| NameRecord {
        version: version.to_owned(),
        note: OrderNote { by: by.to_owned(), ..OrderNote::default() },
        ..NameRecord::default()
    };
    assert_eq!(issuer.step(OrderEvent::Seen("a".into(), Some(record("1", ""))), at(0), 0.5).len(), 1, "it is claimed");
    issuer.step(OrderEvent::Seen("a".into(), Some(record("2", "g-1"))), at(1), 0.5);
    issuer.step(OrderEvent::Claimed("a".into(), WriteResult::Conflict), at(2), 0.5);
    let wake = issuer.wake().expect("the other may be gone");
    let claim = issuer.step(OrderEvent::Tick, Moment { at: wake, ..at(500) }, 0.5);
    assert!(matches!(&claim[..], [OrderAction::Claim { version, .. }] if version == "2"), "{claim:?}");
}

#[test]
fn postponed_order_wakes_at_the_end_of_its_delay() {
    let certificate = || Some(Certificate { id: "old".into(), from: wall(-80 * DAY), until: wall(10 * DAY) });
    let own = |seconds| OrderNote { failures: 1, not_before: Some(wall(seconds)), ..OrderNote::default() };
    let foreign = || OrderNote { by: "g-1".into(), ..OrderNote::default() };
    for certificate in [None, certificate()] {
        for (note, end) in [(own(600), 600), (foreign(), 7 * 60)] {
            let mut issuer = leader();
            let record = NameRecord { version: "1".into(), certificate: certificate.clone(), note };
            issuer.step(OrderEvent::Seen("a".into(), Some(record)), at(0), 0.5);
            // A response about an earlier certificate.
            issuer.step(OrderEvent::Suggested("a".into(), None, Some(Duration::ZERO)), at(1), 0.5);
            for now in [61, 200, end - 1] {
                issuer.step(OrderEvent::Tick, at(now), 0.5);
                assert_eq!(issuer.wake(), Some(at(end).at), "{certificate:?} {now}");
            }
            assert!(claims(&issuer.step(OrderEvent::Tick, at(end), 0.5)));
        }
    }
}

#[test]
fn outage_backoff_is_short_and_keeps_a_longer_pause() {
    let issuer = Issuer::new("g-0", OrderTerms::ACME);
    let pause = |failures, outage| {
        let before = OrderNote { failures, ..OrderNote::default() };
        let note = issuer.after(&before, wall(0), OrderFailure { retry_after: None, outage }, 0.0);
        (note.failures, note.not_before.expect("a time").duration_since(wall(0)).as_secs() / 60)
    };
    assert_eq!([0, 1, 2, 3].map(|failures| pause(failures, true)), [(1, 1), (2, 2), (3, 4), (3, 4)]);
    assert_eq!(pause(5, true), (5, 16), "the server refused before it went away");
    assert_eq!(pause(5, false), (6, 32));
}

/// Moment `seconds` after the start, with a wall clock that is `ahead` seconds fast.
fn after(seconds: i64, ahead: i64) -> Moment {
    Moment { at: Duration::from_secs(seconds.unsigned_abs()), wall: wall(ahead + seconds) }
}

/// Leader of a group whose certificate of `a` was renewed at second 10.
fn renewed() -> Issuer {
    let mut issuer = leader();
    let record = |version: &str, id: &str| NameRecord {
        version: version.to_owned(),
        certificate: Some(Certificate { id: id.to_owned(), from: wall(0), until: wall(90 * DAY) }),
        ..NameRecord::default()
    };
    issuer.step(OrderEvent::Seen("a".into(), Some(record("1", "old"))), at(0), 0.5);
    issuer.step(OrderEvent::Seen("a".into(), Some(record("2", "new"))), at(10), 0.5);
    issuer
}

fn claims(actions: &[OrderAction]) -> bool {
    actions.iter().any(|action| matches!(action, OrderAction::Claim { .. }))
}

#[test]
fn new_certificate_is_not_renewed_within_a_day() {
    let mut issuer = renewed();
    let past = RenewalWindow { start: wall(-2 * DAY), end: wall(-DAY) };
    assert!(!claims(&issuer.step(OrderEvent::Suggested("a".into(), Some(past), None), after(20, 0), 0.5)));
    assert!(!claims(&issuer.step(OrderEvent::Tick, after(DAY, 0), 0.5)));
    let wake = issuer.wake().expect("it is due").as_secs().max(DAY.unsigned_abs() + 10);
    let wake = i64::try_from(wake).expect("small");
    assert!(claims(&issuer.step(OrderEvent::Tick, after(wake, 0), 0.5)), "a day later it is replaced");
}

#[test]
fn new_certificate_is_not_replaced_for_a_day_by_a_clock_that_is_years_ahead() {
    let (mut issuer, years) = (renewed(), 10 * 365 * DAY);
    assert!(!claims(&issuer.step(OrderEvent::Suggested("a".into(), None, None), after(20, years), 0.5)));
    assert!(!claims(&issuer.step(OrderEvent::Tick, after(DAY, years), 0.5)));
    assert!(claims(&issuer.step(OrderEvent::Tick, after(DAY + 10, years), 0.5)), "a day later it is replaced");
}

#[test]
fn server_is_asked_for_its_window_at_most_once_a_minute_and_at_least_once_a_day() {
    for (wanted, expected) in [(Duration::ZERO, 60), (Duration::from_hours(1), 3600), (Duration::MAX, 86_400)] {
        let mut issuer = renewed();
        let suggested = RenewalWindow { start: wall(60 * DAY), end: wall(61 * DAY) };
        issuer.step(OrderEvent::Suggested("a".into(), Some(suggested), Some(wanted)), after(20, 0), 0.5);
        let suggests = |actions: &[OrderAction]| actions.iter().any(|action| matches!(action, OrderAction::Suggest { .. }));
        assert!(!suggests(&issuer.step(OrderEvent::Tick, after(20 + expected - 1, 0), 0.5)), "{wanted:?}");
        assert!(suggests(&issuer.step(OrderEvent::Tick, after(20 + expected, 0), 0.5)), "{wanted:?}");
    }
}

#[test]
fn unstored_certificate_is_not_ordered_again() {
    let mut world = World::new(1, 1);
    world.run(10);
    world.replicas[0].linked = false;
    world.run(3600);
    world.replicas[0].linked = true;
    world.run(10);
    assert!(world.all_serve());
    assert_eq!(world.orders, 1);
}

#[test]
fn renewal_is_due_at_two_thirds_or_in_the_suggested_window() {
    let certificate = |id: &str| Certificate { id: id.into(), from: wall(0), until: wall(90 * DAY) };
    let days = |at: Timestamp| (at.as_second() - wall(0).as_second()) / DAY;
    let all: BTreeSet<_> = (0..50).map(|n| days(renew_at(&certificate(&n.to_string()), None))).collect();
    assert!(all.iter().all(|day| (54..=60).contains(day)) && all.len() > 3, "not all at once: {all:?}");
    let window = RenewalWindow { start: wall(30 * DAY), end: wall(32 * DAY) };
    assert!((30..=32).contains(&days(renew_at(&certificate("a"), Some(window)))));
    let late = RenewalWindow { start: wall(300 * DAY), end: wall(320 * DAY) };
    assert_eq!(days(renew_at(&certificate("a"), Some(late))), 75, "a late renewal window does not delay the order past expiry");
    let inverted = RenewalWindow { start: wall(32 * DAY), end: wall(30 * DAY) };
    assert_eq!(days(renew_at(&certificate("a"), Some(inverted))), 32, "a window that ends before it starts is its start");
    let empty = RenewalWindow { start: wall(30 * DAY), end: wall(30 * DAY) };
    assert_eq!(days(renew_at(&certificate("a"), Some(empty))), 30);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// With certificates of a few hours, under crashes, outages, delays and partitions: while a replica and the ACME server work, no
    /// renewal exceeds its due time, or the end of a retry delay, by more than the bound.
    #[test]
    fn renewals_meet_their_deadline_under_faults(faults in prop::collection::vec((0..3_usize, 0..9_u8, 1..1200_i64), 1..20)) {
        let mut world = World::new(3, 3);
        world.lifetime = 3 * 3600;
        for (replica, fault, pause) in faults {
            match fault {
                0 => world.kill(replica),
                1 | 2 => world.revive(replica),
                3 => world.replicas[replica].linked = false,
                4 => world.link(replica),
                5 => world.away = !world.away,
                6 => world.slow = pause.min(240),
                7 => world.lead(replica, true),
                _ => world.lead(replica, false),
            }
            for _ in 0..pause {
                world.run(1);
                let late = world.late();
                prop_assert!(late.is_empty(), "{late:?} at {}: {:?}", world.now, world.records);
            }
        }
    }

    /// Under crashes, delays and partitions there is at most one order per name; after recovery all names have valid certificates.
    #[test]
    fn at_most_one_order_per_name_is_in_progress(faults in prop::collection::vec((0..3_usize, 0..8_u8, 1..900_i64), 1..40)) {
        let mut world = World::new(3, 3);
        for (replica, fault, pause) in faults {
            match fault {
                0 => world.kill(replica),
                1 => world.revive(replica),
                2 => world.replicas[replica].linked = false,
                3 => world.link(replica),
                4 => world.acme = !world.acme,
                5 => world.slow = pause,
                // Two replicas may consider themselves leader.
                6 => world.lead(replica, true),
                _ => world.lead(replica, false),
            }
            world.run(pause);
        }
        (world.acme, world.slow) = (true, 20);
        for replica in 0..3 {
            world.revive(replica);
            world.link(replica);
        }
        world.lead(0, true);
        world.run(14 * 3600);
        prop_assert!(world.all_serve(), "{:?}", world.records);
    }
}
