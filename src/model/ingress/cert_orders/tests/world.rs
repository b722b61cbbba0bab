//! Simulated group, second by second, with the invariants of each second.

use super::super::*;

pub(super) const DAY: i64 = 86_400;
/// Maximum delay of a renewal: the wait until another replica's order is stale, one order, the minimum pause after a late observation (a
/// 24th of three hours), and some seconds for writes.
const BOUND: i64 = 7 * 60 + 5 * 60 + 3 * 60 * 60 / 24 + 30;

/// Whether a name may be advertised: its certificate is valid now.
pub(super) fn serves(issuer: &Issuer, name: &str, wall: Timestamp) -> bool {
    issuer.certificate(name).is_some_and(|certificate| usable(certificate, wall))
}

/// Simulation of replicas, API server and ACME server, with delayed results.
#[derive(Default)]
pub(super) struct World {
    pub(super) now: i64,
    pub(super) records: BTreeMap<String, NameRecord>,
    versions: u64,
    pub(super) replicas: Vec<Replica>,
    pub(super) orders: u64,
    /// Whether the ACME server accepts orders; else it rejects them.
    pub(super) acme: bool,
    /// Whether the ACME server is unreachable.
    pub(super) away: bool,
    pub(super) slow: i64,
    pub(super) lifetime: i64,
    random: u64,
    /// IDs of all certificates that were ever stored in a Secret.
    stored: BTreeSet<String>,
    /// Time since which the ACME server accepts orders.
    served_since: i64,
    /// Time and author of each record's last change.
    changed: BTreeMap<String, (i64, usize)>,
}

pub(super) struct Replica {
    pub(super) issuer: Issuer,
    begun: i64,
    pub(super) alive: bool,
    /// Whether it can reach the API server.
    pub(super) linked: bool,
    /// Actions in flight, with their end times.
    pub(super) under_way: Vec<(i64, OrderAction)>,
    issued: BTreeMap<String, Certificate>,
    leads: bool,
    /// Time since which it has been alive, leading, and connected to the API server.
    well_since: i64,
}

fn orders(action: &OrderAction, name: &str) -> bool {
    matches!(action, OrderAction::Order { name: other, .. } if other == name)
}

pub(super) fn wall(now: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + now).expect("a time")
}

impl Replica {
    fn started(ordinal: usize, now: i64, linked: bool) -> Self {
        Self {
            issuer: Issuer::new(format!("g-{ordinal}"), OrderTerms::ACME),
            begun: now,
            alive: true,
            linked,
            under_way: Vec::new(),
            issued: BTreeMap::new(),
            leads: false,
            well_since: now,
        }
    }
}

impl World {
    /// A group whose first replica leads.
    pub(super) fn new(replicas: usize, names: usize) -> Self {
        let record = || NameRecord { version: "0".into(), ..NameRecord::default() };
        let records = (0..names).map(|n| (format!("n{n}.tail1234.ts.net"), record())).collect();
        let mut world = Self { records, acme: true, slow: 20, lifetime: 90 * DAY, random: 7, ..Self::default() };
        for ordinal in 0..replicas {
            world.replicas.push(Replica::started(ordinal, 0, true));
            world.start(ordinal);
        }
        world.lead(0, true);
        world
    }

    pub(super) fn start(&mut self, ordinal: usize) {
        self.replicas[ordinal] = Replica::started(ordinal, self.now, self.replicas[ordinal].linked);
        self.step(ordinal, OrderEvent::Wanted(self.records.keys().cloned().collect()));
        self.show(ordinal);
    }

    pub(super) fn kill(&mut self, ordinal: usize) {
        self.replicas[ordinal].alive = false;
        self.replicas[ordinal].under_way.clear();
    }

    pub(super) fn revive(&mut self, ordinal: usize) {
        if !self.replicas[ordinal].alive {
            self.start(ordinal);
        }
    }

    /// Reconnects the replica to the API server; its watch delivers the current records.
    pub(super) fn link(&mut self, ordinal: usize) {
        self.replicas[ordinal].linked = true;
        self.show(ordinal);
    }

    fn show(&mut self, ordinal: usize) {
        for (name, record) in self.records.clone() {
            self.step(ordinal, OrderEvent::Seen(name, Some(record)));
        }
    }

    pub(super) fn lead(&mut self, ordinal: usize, leads: bool) {
        self.replicas[ordinal].leads = leads;
        self.step(ordinal, OrderEvent::Leads(leads));
    }

    fn chance(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.random >> 33).expect("31 bits")) / f64::from(1_u32 << 31)
    }

    fn step(&mut self, ordinal: usize, event: OrderEvent) {
        let (random, now) = (self.chance(), self.now);
        let replica = &mut self.replicas[ordinal];
        if !replica.alive {
            return;
        }
        let at = Duration::from_secs(u64::try_from(now - replica.begun).expect("time goes on"));
        for action in replica.issuer.step(event, Moment { at, wall: wall(now) }, random) {
            let takes = match &action {
                OrderAction::Order { .. } => {
                    self.orders += 1;
                    self.slow
                }
                OrderAction::Abandon(name) => {
                    self.replicas[ordinal].under_way.retain(|(_, action)| !orders(action, name));
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
            let ordering = |replica: &&Replica| replica.alive && replica.under_way.iter().any(|(_, action)| orders(action, name));
            assert!(self.replicas.iter().filter(ordering).count() <= 1, "two orders of {name} at {}", self.now);
        }
        for replica in self.replicas.iter().filter(|replica| replica.alive) {
            for name in self.records.keys().filter(|name| serves(&replica.issuer, name, wall(self.now))) {
                let id = replica.issuer.certificate(name).map(|certificate| &certificate.id);
                assert!(id.is_some_and(|id| self.stored.contains(id)), "{name} is advertised with {id:?}, which no Secret ever held");
            }
        }
    }

    /// Overdue names: they are due, no retry delay applies, and the ACME server and some replica have worked for longer than [`BOUND`]
    /// since another replica's last change.
    pub(super) fn late(&self) -> Vec<&String> {
        let well = |replica: &Replica| replica.alive && replica.linked && replica.leads;
        let late = |(name, record): &(&String, &NameRecord)| {
            let due = record.certificate.as_ref().map_or(0, |certificate| renew_at(certificate, None).as_second() - wall(0).as_second());
            let pause = record.note.not_before.map_or(0, |until| until.as_second() - wall(0).as_second());
            let due_since = self.replicas.iter().enumerate().filter(|(_, replica)| well(replica)).map(|(ordinal, replica)| {
                let others = self.changed.get(*name).filter(|(_, by)| *by != ordinal).map_or(0, |(at, _)| *at);
                replica.well_since.max(others)
            });
            due_since.min().is_some_and(|due_since| self.now - due_since.max(due).max(pause).max(self.served_since) > BOUND)
        };
        self.records.iter().filter(late).map(|(name, _)| name).collect()
    }

    /// Advances the simulation by one second.
    fn second(&mut self) {
        self.now += 1;
        if self.away || !self.acme {
            self.served_since = self.now;
        }
        for replica in self.replicas.iter_mut().filter(|replica| !(replica.alive && replica.linked && replica.leads)) {
            replica.well_since = self.now;
        }
        for ordinal in 0..self.replicas.len() {
            let now = self.now;
            let ended: Vec<_> = self.replicas[ordinal].under_way.extract_if(.., |(end, _)| *end <= now).collect();
            for (_, action) in ended {
                self.end(ordinal, action);
            }
            let replica = &self.replicas[ordinal];
            let at = Duration::from_secs(u64::try_from(now - replica.begun).expect("time goes on"));
            if replica.alive && replica.issuer.wake().is_some_and(|wake| wake <= at) {
                self.step(ordinal, OrderEvent::Tick);
                let wake = self.replicas[ordinal].issuer.wake();
                assert!(wake.is_none_or(|wake| wake > at), "a timer in the past keeps the task busy: {wake:?} at {at:?}");
            }
        }
    }

    /// Completes an action of a replica.
    fn end(&mut self, ordinal: usize, action: OrderAction) {
        let event = match action {
            OrderAction::Claim { name, version, note } => {
                let written = self.write(ordinal, &name, &version, |record| record.note = note);
                OrderEvent::Claimed(name, written)
            }
            OrderAction::Store { name, version } => {
                let certificate = self.replicas[ordinal].issued.get(&name).cloned();
                let written =
                    self.write(ordinal, &name, &version, |record| (record.certificate, record.note) = (certificate, OrderNote::default()));
                OrderEvent::Stored(name, written)
            }
            OrderAction::Release { name, version, note } => {
                let written = self.write(ordinal, &name, &version, |record| record.note = note);
                OrderEvent::Stored(name, written)
            }
            OrderAction::Order { name, .. } if !self.away && self.acme => {
                let until = wall(self.now + self.lifetime);
                let certificate = Certificate { id: format!("{name} {}", self.orders), from: wall(self.now), until };
                self.replicas[ordinal].issued.insert(name.clone(), certificate.clone());
                OrderEvent::Ended(name, Ok(certificate))
            }
            OrderAction::Order { name, .. } => OrderEvent::Ended(name, Err(OrderFailure { outage: self.away, ..OrderFailure::default() })),
            OrderAction::Suggest { name, .. } => OrderEvent::Suggested(name, None, None),
            OrderAction::Abandon(_) => return,
        };
        self.step(ordinal, event);
    }

    fn write(&mut self, ordinal: usize, name: &str, version: &str, change: impl FnOnce(&mut NameRecord)) -> WriteResult {
        if !self.replicas[ordinal].linked {
            return WriteResult::Failed;
        }
        let record = self.records.get_mut(name).expect("a record");
        if record.version != version {
            return WriteResult::Conflict;
        }
        self.versions += 1;
        change(record);
        record.version = self.versions.to_string();
        let record = record.clone();
        self.stored.extend(record.certificate.as_ref().map(|certificate| certificate.id.clone()));
        self.changed.insert(name.to_owned(), (self.now, ordinal));
        for other in 0..self.replicas.len() {
            if other != ordinal && self.replicas[other].linked {
                self.step(other, OrderEvent::Seen(name.to_owned(), Some(record.clone())));
            }
        }
        WriteResult::Done(record)
    }

    pub(super) fn run(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.second();
        }
    }

    pub(super) fn all_serve(&self) -> bool {
        self.records.values().all(|record| record.certificate.as_ref().is_some_and(|certificate| usable(certificate, wall(self.now))))
    }
}
