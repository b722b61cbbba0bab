//! A group of replicas, the API server and an ACME server, with crashes, delays and partitions: what must never happen.

use proptest::prelude::*;

use super::*;

const DAY: i64 = 86_400;

/// Who does what, and what of it arrives when.
struct World {
    now: i64,
    records: BTreeMap<String, Record>,
    versions: u64,
    replicas: Vec<Replica>,
    orders: u64,
    /// The ACME server answers.
    acme: bool,
    /// How long an order takes.
    slow: i64,
    random: u64,
}

struct Replica {
    issuer: Issuer,
    begun: i64,
    alive: bool,
    /// It can reach the API server.
    linked: bool,
    /// What is under way: when it ends, and what it is.
    under_way: Vec<(i64, Action)>,
    /// Certificates that were issued and not stored.
    issued: BTreeMap<String, Certificate>,
    wanted: BTreeSet<String>,
    leads: bool,
}

fn wall(now: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + now).expect("a time")
}

fn name(replica: usize) -> String {
    format!("g-{replica}")
}

impl World {
    fn new(replicas: usize, names: usize) -> Self {
        let wanted: BTreeSet<_> = (0..names).map(|n| format!("n{n}.tail1234.ts.net")).collect();
        let records = wanted.iter().map(|name| (name.clone(), Record { version: "0".into(), ..Record::default() })).collect();
        let mut world = Self { now: 0, records, versions: 0, replicas: Vec::new(), orders: 0, acme: true, slow: 20, random: 7 };
        for ordinal in 0..replicas {
            world.replicas.push(Replica {
                issuer: Issuer::new(name(ordinal), Terms::ACME),
                begun: 0,
                alive: false,
                linked: true,
                under_way: Vec::new(),
                issued: BTreeMap::new(),
                wanted: wanted.clone(),
                leads: false,
            });
            world.start(ordinal);
        }
        world
    }

    fn start(&mut self, ordinal: usize) {
        let replica = &mut self.replicas[ordinal];
        replica.issuer = Issuer::new(name(ordinal), Terms::ACME);
        (replica.alive, replica.begun, replica.leads) = (true, self.now, false);
        replica.under_way.clear();
        replica.issued.clear();
        let wanted = replica.wanted.clone();
        self.tell(ordinal, Event::Wanted(wanted));
        self.show(ordinal);
    }

    /// A replica's watch brings what there is.
    fn show(&mut self, ordinal: usize) {
        for (name, record) in self.records.clone() {
            self.tell(ordinal, Event::Seen(name, Some(record)));
        }
    }

    fn lead(&mut self, ordinal: usize, leads: bool) {
        self.replicas[ordinal].leads = leads;
        self.tell(ordinal, Event::Leads(leads));
    }

    fn chance(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.random >> 33).expect("31 bits")) / f64::from(1_u32 << 31)
    }

    fn tell(&mut self, ordinal: usize, event: Event) {
        let (random, now) = (self.chance(), self.now);
        let replica = &mut self.replicas[ordinal];
        if !replica.alive {
            return;
        }
        let at = Duration::from_secs(u64::try_from(now - replica.begun).expect("time goes on"));
        let actions = replica.issuer.step(event, Moment { at, wall: wall(now) }, random);
        for action in actions {
            let takes = match &action {
                Action::Order { .. } => {
                    self.orders += 1;
                    self.slow
                }
                Action::Abandon(name) => {
                    let of = |action: &Action| matches!(action, Action::Order { name: other, .. } if other == name);
                    self.replicas[ordinal].under_way.retain(|(_, action)| !of(action));
                    continue;
                }
                _ => 1,
            };
            self.replicas[ordinal].under_way.push((now + takes, action));
        }
        self.check();
    }

    fn check(&self) {
        for name in self.records.keys() {
            let ordering = |replica: &&Replica| {
                let of = |(_, action): &(i64, Action)| matches!(action, Action::Order { name: other, .. } if other == name);
                replica.alive && replica.under_way.iter().any(of)
            };
            assert!(self.replicas.iter().filter(ordering).count() <= 1, "two orders of {name} at {}", self.now);
        }
        for replica in self.replicas.iter().filter(|replica| replica.alive) {
            for name in &replica.wanted {
                let serves = replica.issuer.serves(name, wall(self.now));
                let ever = replica.issuer.certificate(name).is_some();
                assert!(!serves || ever, "{name} is advertised without a certificate");
            }
        }
    }

    /// A second passes.
    fn second(&mut self) {
        self.now += 1;
        for ordinal in 0..self.replicas.len() {
            let now = self.now;
            let (ends, stay) = std::mem::take(&mut self.replicas[ordinal].under_way).into_iter().partition(|(end, _)| *end <= now);
            self.replicas[ordinal].under_way = stay;
            let ends: Vec<(i64, Action)> = ends;
            for (_, action) in ends {
                self.end(ordinal, action);
            }
            let replica = &self.replicas[ordinal];
            let at = Duration::from_secs(u64::try_from(now - replica.begun).expect("time goes on"));
            if replica.issuer.wake().is_some_and(|wake| wake <= at) {
                self.tell(ordinal, Event::Tick);
            }
        }
    }

    /// Something that a replica did comes to its end.
    fn end(&mut self, ordinal: usize, action: Action) {
        let event = match action {
            Action::Claim { name, version, note } => {
                let written = self.write(ordinal, &name, &version, |record| record.note = note);
                Event::Claimed(name, written)
            }
            Action::Store { name, version } => {
                let certificate = self.replicas[ordinal].issued.get(&name).cloned();
                let written =
                    self.write(ordinal, &name, &version, |record| (record.certificate, record.note) = (certificate, Note::default()));
                Event::Stored(name, written)
            }
            Action::Release { name, version, note } => {
                let written = self.write(ordinal, &name, &version, |record| record.note = note);
                Event::Stored(name, written)
            }
            Action::Order { name, .. } if self.acme => {
                let until = wall(self.now + 90 * DAY);
                let certificate = Certificate { id: format!("{name} {}", self.orders), from: wall(self.now), until };
                self.replicas[ordinal].issued.insert(name.clone(), certificate.clone());
                Event::Ended(name, Ok(certificate))
            }
            Action::Order { name, .. } => Event::Ended(name, Err(Failed::default())),
            Action::Suggest { name, .. } => Event::Suggested(name, None, None),
            Action::Abandon(_) => return,
        };
        self.tell(ordinal, event);
    }

    fn write(&mut self, ordinal: usize, name: &str, version: &str, change: impl FnOnce(&mut Record)) -> Written {
        if !self.replicas[ordinal].linked {
            return Written::Failed;
        }
        let record = self.records.get_mut(name).expect("a record");
        if record.version != version {
            return Written::Conflict;
        }
        self.versions += 1;
        change(record);
        record.version = self.versions.to_string();
        let record = record.clone();
        for other in 0..self.replicas.len() {
            if other != ordinal && self.replicas[other].linked {
                self.tell(other, Event::Seen(name.to_owned(), Some(record.clone())));
            }
        }
        Written::Done(record)
    }

    fn run(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.second();
        }
    }

    fn all_serve(&self) -> bool {
        self.records.values().all(|record| record.certificate.as_ref().is_some_and(|held| usable(held, wall(self.now))))
    }
}

#[test]
fn every_name_is_ordered_once_and_some_at_a_time() {
    let mut world = World::new(2, 50);
    world.lead(0, true);
    world.run(5);
    assert_eq!(world.orders, 8);
    world.run(400);
    assert_eq!(world.orders, 50);
    assert!(world.all_serve() && world.replicas[1].issuer.serves("n7.tail1234.ts.net", wall(world.now)), "the others read");
}

#[test]
fn starts_anew_order_nothing() {
    let mut world = World::new(2, 20);
    world.lead(0, true);
    world.run(200);
    for _ in 0..20 {
        world.start(0);
        world.lead(0, true);
        world.run(10);
    }
    assert_eq!(world.orders, 20);
}

#[test]
fn an_order_of_one_who_died_is_made_again_by_him_at_once_and_by_another_when_it_must_be_dead() {
    for successor in [0, 1] {
        let mut world = World::new(2, 1);
        world.lead(0, true);
        world.run(10);
        assert_eq!(world.orders, 1);
        world.replicas[0].alive = false;
        world.replicas[0].under_way.clear();
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
fn failures_are_remembered_by_all() {
    let mut world = World::new(2, 1);
    world.acme = false;
    world.lead(0, true);
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
    assert_eq!(world.records.values().next().expect("a record").note, Note::default());
}

#[test]
fn a_servers_pause_is_kept() {
    let mut issuer = Issuer::new("g-0", Terms::ACME);
    let at = |seconds: u64| Moment { at: Duration::from_secs(seconds), wall: wall(i64::try_from(seconds).expect("small")) };
    issuer.step(Event::Wanted(["a".to_owned()].into()), at(0), 0.5);
    issuer.step(Event::Leads(true), at(0), 0.5);
    let claim = issuer.step(Event::Seen("a".into(), Some(Record { version: "1".into(), ..Record::default() })), at(0), 0.5);
    let Some(Action::Claim { note, .. }) = claim.first() else { panic!("{claim:?}") };
    let mine = Record { version: "2".into(), note: note.clone(), ..Record::default() };
    let order = issuer.step(Event::Claimed("a".into(), Written::Done(mine)), at(1), 0.5);
    assert_eq!(order, [Action::Order { name: "a".into(), replaces: None }]);
    let failed = Failed { retry_after: Some(Duration::from_hours(3)), outage: false };
    let release = issuer.step(Event::Ended("a".into(), Err(failed)), at(2), 0.5);
    let Some(Action::Release { note, version, .. }) = release.first() else { panic!("{release:?}") };
    assert_eq!((version.as_str(), note.not_before, note.failures), ("2", Some(wall(2 + 3 * 3600)), 1));
}

#[test]
fn an_outage_makes_no_long_pauses_and_forgets_no_longer_one() {
    let issuer = Issuer::new("g-0", Terms::ACME);
    let pause = |failures, outage| {
        let before = Note { failures, ..Note::default() };
        let note = issuer.after(&before, wall(0), Failed { retry_after: None, outage }, 0.0);
        (note.failures, note.not_before.expect("a time").duration_since(wall(0)).as_secs() / 60)
    };
    assert_eq!([0, 1, 2, 3].map(|failures| pause(failures, true)), [(1, 1), (2, 2), (3, 4), (3, 4)]);
    assert_eq!(pause(5, true), (5, 16), "the server refused before it went away");
    assert_eq!(pause(5, false), (6, 32));
}

#[test]
fn a_certificate_that_cannot_be_stored_is_not_ordered_again() {
    let mut world = World::new(1, 1);
    world.lead(0, true);
    world.run(10);
    world.replicas[0].linked = false;
    world.run(3600);
    world.replicas[0].linked = true;
    world.run(10);
    assert!(world.all_serve());
    assert_eq!(world.orders, 1);
}

#[test]
fn a_lifetime_ends_at_two_thirds_or_where_the_server_wants_it() {
    let certificate = |id: &str| Certificate { id: id.into(), from: wall(0), until: wall(90 * DAY) };
    let days = |at: Timestamp| (at.as_second() - wall(0).as_second()) / DAY;
    let all: BTreeSet<_> = (0..50).map(|n| days(renew_at(&certificate(&n.to_string()), None))).collect();
    assert!(all.iter().all(|day| (54..=60).contains(day)) && all.len() > 3, "not all at once: {all:?}");
    let window = Window { start: wall(30 * DAY), end: wall(32 * DAY) };
    assert!((30..=32).contains(&days(renew_at(&certificate("a"), Some(window)))));
    let late = Window { start: wall(300 * DAY), end: wall(320 * DAY) };
    assert_eq!(days(renew_at(&certificate("a"), Some(late))), 75, "a server does not talk anybody into an expired certificate");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever crashes, is slow or cut off: one order of a name at a time; and once all is well again, all names serve.
    #[test]
    fn one_order_of_a_name_is_under_way(faults in prop::collection::vec((0..3_usize, 0..8_u8, 1..900_i64), 1..40)) {
        let mut world = World::new(3, 3);
        world.lead(0, true);
        for (replica, fault, pause) in faults {
            match fault {
                0 => {
                    world.replicas[replica].alive = false;
                    world.replicas[replica].under_way.clear();
                }
                1 => if !world.replicas[replica].alive { world.start(replica) },
                2 => world.replicas[replica].linked = false,
                3 => { world.replicas[replica].linked = true; world.show(replica) }
                4 => world.acme = !world.acme,
                5 => world.slow = pause,
                // Two may believe that they lead.
                6 => world.lead(replica, true),
                _ => world.lead(replica, false),
            }
            world.run(pause);
        }
        (world.acme, world.slow) = (true, 20);
        for replica in 0..3 {
            if !world.replicas[replica].alive { world.start(replica) }
            world.replicas[replica].linked = true;
            world.show(replica);
        }
        world.lead(0, true);
        world.run(14 * 3600);
        prop_assert!(world.all_serve(), "{:?}", world.records);
    }
}
