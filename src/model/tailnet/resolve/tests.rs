use proptest::prelude::*;

use super::*;

/// A schedule with a manual clock and constant randomness.
struct Lab {
    schedule: ResolveSchedule,
    start: Instant,
    now: Instant,
    random: f64,
}

fn lab(limit: usize) -> Lab {
    let now = Instant::now();
    Lab { schedule: ResolveSchedule::new(limit), start: now, now, random: 1.0 }
}

fn ips(list: &[&str]) -> BTreeSet<IpAddr> {
    list.iter().map(|ip| ip.parse().expect("an address")).collect()
}

fn records(list: &[&str], ttl: u64) -> FamilyRecords {
    FamilyRecords { addresses: ips(list), ttl: Duration::from_secs(ttl) }
}

fn v4(list: &[&str], ttl: u64) -> LookupOutcome {
    LookupOutcome { v4: Ok(records(list, ttl)), v6: Ok(records(&[], 0)) }
}

fn failed(failure: LookupFailure) -> LookupOutcome {
    LookupOutcome { v4: Err(failure), v6: Err(failure) }
}

impl Lab {
    fn step(&mut self, event: ResolveEvent) -> Actions {
        let random = self.random;
        self.schedule.step(event, self.now, &mut || random)
    }

    fn want(&mut self, names: &[&str]) -> Actions {
        self.step(ResolveEvent::Wanted(names.iter().map(|name| (*name).to_owned()).collect()))
    }

    fn answer(&mut self, name: &str, outcome: LookupOutcome) -> Actions {
        self.step(ResolveEvent::Answered(name.into(), outcome))
    }

    /// Advances to the next wake and returns the passed time.
    fn wake(&mut self, actions: &Actions) -> (Duration, Actions) {
        let wake = actions.wake.expect("a wake");
        let passed = wake - self.now;
        self.now = wake;
        (passed, self.step(ResolveEvent::Tick))
    }

    fn addresses(&self, name: &str) -> BTreeSet<IpAddr> {
        self.schedule.answers().remove(name).unwrap_or_default()
    }
}

#[test]
fn answer_is_refreshed_when_its_ttl_expires() {
    let mut lab = lab(1);
    assert_eq!(lab.want(&["a"]).lookup, ["a".into()]);
    let actions = lab.answer("a", v4(&["10.0.0.1"], 30));
    assert!(actions.changed && actions.lookup.is_empty());
    let (passed, actions) = lab.wake(&actions);
    assert_eq!((passed, actions.lookup.as_slice()), (Duration::from_secs(30), &["a".into()][..]));
    assert!(!lab.answer("a", v4(&["10.0.0.1"], 30)).changed, "the same answer");
    assert_eq!(lab.addresses("a"), ips(&["10.0.0.1"]));
}

#[test]
fn ttls_are_bounded() {
    for (ttl, random, expected) in [(0, 0.0, 5.0), (0, 1.0, 5.5), (86_400, 1.0, 600.0), (86_400, 0.0, 540.0), (100, 0.5, 95.0)] {
        let delay = until_next(Duration::from_secs(ttl), random).as_secs_f64();
        assert!((delay - expected).abs() < 1e-6, "ttl {ttl} random {random}: {delay}");
    }
}

#[test]
fn last_good_answer_survives_every_failure() {
    for failure in LookupFailure::ALL {
        let mut lab = lab(1);
        lab.want(&["a"]);
        let actions = lab.answer("a", v4(&["10.0.0.1"], 5));
        let answered = lab.now;
        let (_, actions) = lab.wake(&actions);
        assert_eq!(actions.lookup.len(), 1);
        let actions = lab.answer("a", failed(failure));
        assert!(!actions.changed);
        assert_eq!(lab.addresses("a"), ips(&["10.0.0.1"]), "{failure}");
        let status = lab.schedule.statuses().remove("a").expect("known");
        assert_eq!((status.answered, status.failure), (Some(answered), Some(failure)));
        assert_eq!(lab.schedule.failures()[&failure], 1);
    }
}

#[test]
fn failed_lookups_back_off_until_success() {
    let mut lab = lab(1);
    lab.random = 0.0;
    lab.want(&["a"]);
    let mut delays = Vec::new();
    for _ in 0..8 {
        let actions = lab.answer("a", failed(LookupFailure::Timeout));
        let (passed, actions) = lab.wake(&actions);
        assert_eq!(actions.lookup.len(), 1);
        delays.push(passed.as_secs());
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    lab.answer("a", v4(&["10.0.0.1"], 100));
    let status = lab.schedule.statuses().remove("a").expect("known");
    assert_eq!(status.failure, None);
    lab.now += MAX_INTERVAL;
    lab.step(ResolveEvent::Tick);
    let actions = lab.answer("a", failed(LookupFailure::Timeout));
    assert_eq!(lab.wake(&actions).0, Duration::from_secs(1), "the count starts again");
}

#[test]
fn empty_answer_is_a_failure_unless_one_family_has_addresses() {
    let mut lab = lab(1);
    lab.want(&["a"]);
    let actions = lab.answer("a", LookupOutcome { v4: Ok(records(&["10.0.0.1"], 5)), v6: Ok(records(&["fd00::1"], 50)) });
    let (passed, _) = lab.wake(&actions);
    assert!(passed < Duration::from_secs(6), "the shorter TTL counts");
    lab.answer("a", v4(&[], 300));
    assert_eq!(lab.addresses("a"), ips(&["10.0.0.1", "fd00::1"]));
    assert_eq!(lab.schedule.failures()[&LookupFailure::Empty], 1);
    lab.now += MAX_INTERVAL;
    lab.step(ResolveEvent::Tick);
    assert!(lab.answer("a", LookupOutcome { v4: Ok(records(&[], 0)), v6: Ok(records(&["fd00::1"], 300)) }).changed);
    assert_eq!(lab.addresses("a"), ips(&["fd00::1"]));
}

#[test]
fn failed_family_keeps_its_last_addresses() {
    let mut lab = lab(1);
    lab.want(&["a"]);
    lab.answer("a", LookupOutcome { v4: Ok(records(&["10.0.0.1"], 300)), v6: Ok(records(&["fd00::1"], 300)) });
    lab.now += MAX_INTERVAL;
    lab.step(ResolveEvent::Tick);
    let actions = lab.answer("a", LookupOutcome { v4: Ok(records(&["10.0.0.2"], 300)), v6: Err(LookupFailure::Server) });
    assert_eq!(lab.addresses("a"), ips(&["10.0.0.2", "fd00::1"]));
    assert!(lab.wake(&actions).0 <= Duration::from_secs(1), "retried as a failure is");
    let actions = lab.answer("a", LookupOutcome { v4: Err(LookupFailure::Timeout), v6: Ok(records(&["fd00::2"], 300)) });
    assert_eq!(lab.addresses("a"), ips(&["10.0.0.2", "fd00::2"]));
    lab.wake(&actions);
    lab.answer("a", LookupOutcome { v4: Ok(records(&["10.0.0.2"], 300)), v6: Err(LookupFailure::NoName) });
    assert_eq!(lab.addresses("a"), ips(&["10.0.0.2"]), "no such name in one family means no addresses in it");
}

#[test]
fn concurrent_lookups_are_bounded_and_ordered() {
    let mut lab = lab(2);
    let actions = lab.want(&["a", "b", "c", "d", "e"]);
    assert_eq!((actions.lookup.as_slice(), actions.wake), (&["a".into(), "b".into()][..], None));
    assert_eq!(lab.step(ResolveEvent::Tick).lookup, Vec::<Arc<str>>::new());
    assert_eq!(lab.answer("b", failed(LookupFailure::Server)).lookup, ["c".into()]);
    assert_eq!(lab.answer("a", v4(&["10.0.0.1"], 60)).lookup, ["d".into()]);
    // A retry that is due does not overtake a name that has waited longer.
    lab.now += Duration::from_mins(1);
    assert_eq!(lab.answer("c", v4(&["10.0.0.1"], 60)).lookup, ["e".into()]);
    assert_eq!(lab.answer("d", v4(&["10.0.0.1"], 60)).lookup, ["b".into()]);
}

#[test]
fn unwanted_names_are_dropped() {
    let mut lab = lab(4);
    lab.want(&["a", "b"]);
    lab.answer("a", v4(&["10.0.0.1"], 60));
    let actions = lab.want(&["b"]);
    assert!(actions.changed);
    assert_eq!((lab.schedule.answers().len(), lab.schedule.statuses().len()), (0, 1));
    // A late answer for a removed name changes nothing; a second one for the same lookup neither.
    lab.want(&[]);
    assert_eq!(lab.answer("b", v4(&["10.0.0.2"], 60)), Actions::default());
    assert_eq!(lab.answer("b", v4(&["10.0.0.2"], 60)), Actions::default());
    assert!(!lab.want(&[]).changed);
}

#[test]
fn name_wanted_again_during_its_lookup_is_not_looked_up_twice() {
    let mut lab = lab(4);
    lab.want(&["a"]);
    lab.want(&[]);
    assert_eq!(lab.want(&["a"]).lookup, Vec::<Arc<str>>::new());
    lab.answer("a", v4(&["10.0.0.1"], 60));
    assert_eq!(lab.addresses("a"), ips(&["10.0.0.1"]));
}

fn any_outcome() -> impl Strategy<Value = LookupOutcome> {
    let family = |prefix: &'static str| {
        prop_oneof![
            (prop::collection::btree_set(0..4_u8, 0..3), 0..100_000_u64).prop_map(move |(hosts, ttl)| Ok(FamilyRecords {
                addresses: hosts.into_iter().map(|host| format!("{prefix}{host}").parse().expect("an address")).collect(),
                ttl: Duration::from_secs(ttl),
            })),
            prop::sample::select(&LookupFailure::ALL[..]).prop_map(Err),
        ]
    };
    (family("10.0.0."), family("fd00::")).prop_map(|(v4, v6)| LookupOutcome { v4, v6 })
}

proptest! {
    /// Invariants: a requested name is always in progress or due, not earlier than the minimum retry delay and not later than the ceiling;
    /// the limit of lookups in progress holds; a known address is removed only by an answer.
    #[test]
    fn every_wanted_name_is_in_progress_or_due(steps in prop::collection::vec((0..4_u8, any_outcome(), 0..700_u64, 0.0..=1.0_f64), 1..60)) {
        let mut lab = lab(2);
        let names = ["a", "b", "c"];
        lab.want(&names);
        for (choice, outcome, seconds, random) in steps {
            lab.random = random;
            lab.now += Duration::from_secs(seconds);
            let before = lab.schedule.answers();
            let flying = lab.schedule.flying.clone();
            match names.get(usize::from(choice)) {
                Some(name) => drop(lab.answer(name, outcome)),
                None => drop(lab.step(ResolveEvent::Tick)),
            }
            prop_assert!(lab.schedule.flying.len() <= 2);
            prop_assert_eq!(lab.schedule.flying.len() + lab.schedule.queue.len(), names.len());
            for (due, name) in &lab.schedule.queue {
                prop_assert!(*due <= lab.now + MAX_INTERVAL, "{} due in {:?}", name, *due - lab.now);
            }
            for name in before.keys() {
                prop_assert!(!lab.addresses(name).is_empty(), "{} lost its addresses", name);
                prop_assert!(flying.contains(name.as_str()) || lab.addresses(name) == before[name]);
            }
        }
        prop_assert!(lab.now >= lab.start);
    }
}
