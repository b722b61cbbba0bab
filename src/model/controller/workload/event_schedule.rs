//! Schedule of Events about lasting faults: a fault is an Event at once, again every half hour while it lasts, and an Ingress without faults
//! gets an Event after its last one.
//!
//! An Ingress has no conditions, so its Events are all that its owner sees; Kubernetes keeps them for an hour. The record of emitted Events
//! is in memory: it takes no room of a shared object, and a process that loses it emits each Event once more. Each namespace has a rate of
//! its own over all workloads, so that the faults of one delay only its own Events; Events about changes have other [`EventRates`].
//!
//! A fault ends once it is absent for [`MIN_DURATION`]: if it returns later, it is a new one; if earlier, it is repeated as if it had lasted,
//! so that one that comes and goes emits no more Events than one that lasts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use crate::api::condition::reason;
use crate::model::base::event_rates::EventRates;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::actions::Notice;

/// Time after which a lasting fault is an Event again.
pub const REPEAT_INTERVAL: Duration = Duration::from_mins(30);
/// Absence after which a fault has ended. A new Ingress is reported as not advertised once that has lasted as long.
pub const MIN_DURATION: Duration = Duration::from_mins(3);
/// Time after which the records of a workload without passes are dropped.
const MAX_RECORD_AGE: Duration = Duration::from_hours(1);
/// Requeue delay while Events wait for the rate of their namespace.
const RATE_LIMITED_REQUEUE: Duration = Duration::from_secs(10);

/// Message to an Ingress whose faults have ended.
const RESOLVED: &str = "The faults of earlier Events have ended.";

#[derive(Debug, Default)]
pub struct EventSchedule {
    records: FaultRecords,
    rates: EventRates,
    swept: Option<Duration>,
}

/// Records of faults, by workload.
#[derive(Debug, Default)]
struct FaultRecords {
    by_workload: HashMap<WorkloadKey, BTreeMap<MessageId, FaultRecord>>,
    /// Workloads with records of an object, with their number: an Ingress has one, and former ones.
    by_subject: HashMap<WorkloadKey, BTreeMap<WorkloadKey, usize>>,
}

/// Events of a workload that are due.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DueEvents {
    pub notices: Vec<Notice>,
    /// Of these, faults without an Event before.
    pub new: Vec<Notice>,
    /// Time until the next one, if any fault lasts or may return.
    pub next: Option<Duration>,
}

/// An object, and the hash of a message about it.
type MessageId = (WorkloadKey, u64);

#[derive(Debug, Clone, Copy)]
struct FaultRecord {
    warning: bool,
    /// Since when it exists without interruption.
    since: Duration,
    /// Last Event; `None`: none yet.
    emitted: Option<Duration>,
    /// Last pass with it.
    existed: Duration,
    /// First pass without it; `None` while it exists.
    ended: Option<Duration>,
}

impl EventSchedule {
    /// Faults that are due, those without an Event first, and the end of an Ingress's faults; records them as emitted. `faults` are all
    /// current faults of the workload. `now` is the time since any fixed one: the wall clock, which may be set back, is not used.
    pub fn due(&mut self, key: &WorkloadKey, faults: Vec<Notice>, now: Duration) -> DueEvents {
        self.sweep(now);
        let mut due = DueEvents::default();
        let current: BTreeMap<MessageId, Notice> = faults.into_iter().map(|fault| (id(&fault), fault)).collect();
        let is_absent = |(id, record): &(&MessageId, &mut FaultRecord)| record.ended.is_none() && !current.contains_key(*id);
        for (_, record) in self.records.by_workload.get_mut(key).into_iter().flatten().filter(is_absent) {
            record.ended = Some(now);
        }
        // The end of a fault that was not repeated is no Event.
        let is_repeated = |at| age(at, now) <= REPEAT_INTERVAL + MIN_DURATION;
        self.records.retain(key, |_, record| record.ended.is_none() || record.emitted.is_some_and(is_repeated));
        let mut waiting = Vec::new();
        for (id, fault) in current {
            let record = self.records.entry(key, &id, || FaultRecord::new(&fault, now));
            record.exists(now);
            match record.rest(fault.reason, now) {
                Duration::ZERO => waiting.push((record.emitted, id, fault)),
                rest => due.wait(rest),
            }
        }
        waiting.sort_by(|(one, first, _), (other, second, _)| (one, first).cmp(&(other, second)));
        for (last, id, fault) in waiting {
            if take(&mut self.rates, &id.0, now) {
                if let Some(record) = self.records.by_workload.get_mut(key).and_then(|records| records.get_mut(&id)) {
                    record.emitted = Some(now);
                }
                due.new.extend(last.is_none().then(|| fault.clone()));
                due.notices.push(fault);
                due.wait(REPEAT_INTERVAL);
            } else {
                due.wait(RATE_LIMITED_REQUEUE);
            }
        }
        self.resolve(key, &mut due, now);
        due
    }

    /// Emits the end of the faults of each Ingress that has none any more, in any workload, and forgets them.
    fn resolve(&mut self, key: &WorkloadKey, due: &mut DueEvents, now: Duration) {
        let ended = |record: &FaultRecord| record.ended.map(|ended| MIN_DURATION.saturating_sub(age(ended, now)));
        let Some(records) = self.records.by_workload.get(key) else { return };
        let mut over = BTreeSet::new();
        for ((subject, _), record) in records {
            match ended(record) {
                Some(Duration::ZERO) => drop(over.insert((subject.clone(), record.warning))),
                Some(rest) => due.wait(rest),
                None => {}
            }
        }
        let (mut forgotten, mut without_rate) = (BTreeSet::new(), BTreeSet::new());
        for (subject, warning) in over {
            if without_rate.contains(subject.namespace()) {
                continue;
            }
            let lasts = self.records.of(&subject).any(|record| ended(record) != Some(Duration::ZERO));
            if warning && !lasts && matches!(subject, WorkloadKey::Ingress(..)) {
                if !take(&mut self.rates, &subject, now) {
                    due.wait(RATE_LIMITED_REQUEUE);
                    without_rate.insert(subject.namespace().to_owned());
                    continue;
                }
                let (reason, message) = (reason::FAULT_RESOLVED, RESOLVED.to_owned());
                due.notices.push(Notice { subject: subject.clone(), warning: false, reason, message });
            }
            forgotten.insert(subject);
        }
        self.records.retain(key, |(subject, _), record| !forgotten.contains(subject) || ended(record) != Some(Duration::ZERO));
    }

    /// Number of recorded faults.
    pub fn len(&self) -> usize {
        self.records.by_workload.values().map(BTreeMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets faults of workloads without passes.
    fn sweep(&mut self, now: Duration) {
        let is_due = self.swept.is_none_or(|swept| age(swept, now) >= REPEAT_INTERVAL);
        if !is_due {
            return;
        }
        self.swept = Some(now);
        for key in self.records.by_workload.keys().cloned().collect::<Vec<_>>() {
            self.records.retain(&key, |_, record| age(record.existed, now) < MAX_RECORD_AGE);
        }
    }
}

impl FaultRecords {
    /// The record of a fault of a workload; a new one if there is none.
    fn entry(&mut self, key: &WorkloadKey, id: &MessageId, new: impl FnOnce() -> FaultRecord) -> &mut FaultRecord {
        self.by_workload.entry(key.clone()).or_default().entry(id.clone()).or_insert_with(|| {
            *self.by_subject.entry(id.0.clone()).or_default().entry(key.clone()).or_default() += 1;
            new()
        })
    }

    /// Drops the other records of a workload.
    fn retain(&mut self, key: &WorkloadKey, mut is_current: impl FnMut(&MessageId, &FaultRecord) -> bool) {
        let Some(records) = self.by_workload.get_mut(key) else { return };
        records.retain(|id, record| {
            let stays = is_current(id, record);
            if !stays && let Some(workloads) = self.by_subject.get_mut(&id.0) {
                match workloads.get_mut(key) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => drop(workloads.remove(key)),
                }
                if workloads.is_empty() {
                    self.by_subject.remove(&id.0);
                }
            }
            stays
        });
        if records.is_empty() {
            self.by_workload.remove(key);
        }
    }

    /// Records of an object, of all workloads.
    fn of(&self, subject: &WorkloadKey) -> impl Iterator<Item = &FaultRecord> {
        let workloads = self.by_subject.get(subject).into_iter().flat_map(BTreeMap::keys);
        let range = (subject.clone(), 0)..=(subject.clone(), u64::MAX);
        workloads
            .filter_map(|key| self.by_workload.get(key))
            .flat_map(move |records| records.range(range.clone()))
            .map(|(_, record)| record)
    }
}

impl DueEvents {
    fn wait(&mut self, rest: Duration) {
        self.next = Some(self.next.map_or(rest, |next| next.min(rest)));
    }
}

impl FaultRecord {
    fn new(fault: &Notice, now: Duration) -> Self {
        Self { warning: fault.warning, since: now, emitted: None, existed: now, ended: None }
    }

    /// Records that a pass has the fault.
    fn exists(&mut self, now: Duration) {
        if let Some(ended) = self.ended.take() {
            self.since = now;
            self.emitted = self.emitted.filter(|_| age(ended, now) < MIN_DURATION);
        }
        self.existed = now;
    }

    /// Time until the next Event.
    fn rest(&self, reason: &str, now: Duration) -> Duration {
        // Each new Ingress waits for its certificate and its approval.
        let begin = if reason == reason::NOT_ADVERTISED { MIN_DURATION } else { Duration::ZERO };
        let repeated = self.emitted.map(|at| REPEAT_INTERVAL.saturating_sub(age(at, now)));
        repeated.unwrap_or_default().max(begin.saturating_sub(age(self.since, now)))
    }
}

/// Takes an Event from the rate of the subject's namespace.
fn take(rates: &mut EventRates, subject: &WorkloadKey, now: Duration) -> bool {
    rates.try_take(subject.namespace(), now)
}

fn age(at: Duration, now: Duration) -> Duration {
    now.saturating_sub(at)
}

fn id(Notice { subject, reason, message, .. }: &Notice) -> MessageId {
    (subject.clone(), BuildHasherDefault::<DefaultHasher>::default().hash_one((reason, message)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(namespace: &str, name: usize, message: &str) -> Notice {
        let subject = WorkloadKey::Ingress(namespace.to_owned(), name.to_string());
        Notice { subject, warning: true, reason: "R", message: message.to_owned() }
    }

    fn at(seconds: i64) -> Duration {
        Duration::from_secs(seconds.unsigned_abs())
    }

    #[test]
    fn lasting_fault_is_repeated_every_half_hour() {
        let mut schedule = EventSchedule::default();
        let mut emitted = |seconds| schedule.due(&"g".into(), vec![fault("a", 1, "x")], at(seconds));
        let all: Vec<_> = (0..=7_200).step_by(60).map(|seconds| (seconds, emitted(seconds))).collect();
        let times = |is_due: fn(&DueEvents) -> bool| all.iter().filter(|(_, due)| is_due(due)).map(|(at, _)| *at).collect::<Vec<_>>();
        assert_eq!(times(|due| !due.notices.is_empty()), [0, 1_800, 3_600, 5_400, 7_200]);
        assert_eq!(times(|due| !due.new.is_empty()), [0], "it is new once");
    }

    #[test]
    fn requeue_is_due_when_the_oldest_event_is() {
        let mut schedule = EventSchedule::default();
        assert_eq!(schedule.due(&"g".into(), Vec::new(), at(0)), DueEvents::default());
        assert_eq!(schedule.due(&"g".into(), vec![fault("a", 1, "x")], at(0)).next, Some(REPEAT_INTERVAL));
        let both = || vec![fault("a", 1, "x"), fault("a", 2, "x")];
        let due = schedule.due(&"g".into(), both(), at(600));
        assert_eq!((due.notices, due.next), (vec![fault("a", 2, "x")], Some(Duration::from_mins(20))));
    }

    #[test]
    fn alternating_messages_are_repeated_no_faster_than_one() {
        let mut schedule = EventSchedule::default();
        let mut emitted = |seconds: i64| {
            schedule.due(&"g".into(), vec![fault("a", 1, if seconds % 2 == 0 { "x" } else { "y" })], at(seconds)).notices.len()
        };
        assert_eq!((0..1_800).map(&mut emitted).sum::<usize>(), 2);
    }

    /// Minutes of Events about a fault that exists at these times, and of its end. `often`: a pass each minute; else at changes, and when due.
    fn minutes(reason: &'static str, times: &[(i64, i64)], often: bool) -> (Vec<i64>, Vec<i64>) {
        let (mut schedule, mut next, mut all) = (EventSchedule::default(), None, (Vec::new(), Vec::new()));
        for minute in 0..120 {
            let is_change = times.iter().any(|(begin, end)| [begin, end].contains(&&minute));
            if !(often || is_change || next.is_some_and(|next| minute >= next)) {
                continue;
            }
            let exists = times.iter().any(|(begin, end)| (begin..end).contains(&&minute));
            let faults = exists.then(|| Notice { reason, ..fault("a", 1, "x") });
            let due = schedule.due(&"g".into(), faults.into_iter().collect(), at(60 * minute));
            next = due.next.map(|rest| minute + i64::try_from(rest.as_secs().div_ceil(60)).expect("small"));
            for notice in due.notices {
                if notice.reason == reason { all.0.push(minute) } else { all.1.push(minute) }
            }
        }
        assert!(schedule.is_empty());
        all
    }

    #[test]
    fn fault_that_returns_is_reported_at_once_if_it_had_ended() {
        type Times = [i64];
        type Case<'a> = (&'static str, &'a [(i64, i64)], &'a Times, &'a Times);
        let flapping: Vec<_> = (0..30).map(|turn| (2 * turn, 2 * turn + 1)).collect();
        // Times of the fault → Events about it, and its end.
        let cases: [Case<'_>; 7] = [
            ("R", &[(0, 90)], &[0, 30, 60], &[93]),
            ("R", &[(0, 2), (10, 20)], &[0, 10], &[5, 23]),
            ("R", &[(0, 2), (4, 40)], &[0, 30], &[43]),
            ("R", &[(0, 1), (4, 5), (8, 9)], &[0, 4, 8], &[12]),
            ("R", &flapping, &[0, 30], &[62]),
            (reason::NOT_ADVERTISED, &[(0, 2), (4, 6)], &[], &[]),
            (reason::NOT_ADVERTISED, &[(0, 40)], &[3, 33], &[43]),
        ];
        for ((reason, times, events, ends), often) in cases.into_iter().flat_map(|case| [(case, true), (case, false)]) {
            assert_eq!(minutes(reason, times, often), (events.to_vec(), ends.to_vec()), "{times:?}, often: {often}");
        }
    }

    #[test]
    fn end_is_reported_once_no_workload_has_a_fault_of_the_ingress() {
        let mut schedule = EventSchedule::default();
        let mut pass = |key: &str, faults: &[&str], minute: i64| {
            let faults = faults.iter().map(|message| fault("a", 1, message)).collect();
            schedule.due(&key.into(), faults, at(60 * minute)).notices.iter().map(|notice| notice.reason).collect::<Vec<_>>()
        };
        assert_eq!(pass("former", &["x", "y"], 0), ["R", "R"]);
        assert_eq!(pass("former", &["y"], 1), [""; 0]);
        assert_eq!(pass("former", &["y"], 5), [""; 0], "another fault lasts");
        assert_eq!((pass("next", &["z"], 6), pass("former", &[], 6)), (vec!["R"], vec![]));
        assert_eq!(pass("former", &[], 9), [""; 0], "the other workload has a fault");
        assert_eq!((pass("next", &[], 10), pass("next", &[], 13), pass("next", &[], 14)), (vec![], vec![reason::FAULT_RESOLVED], vec![]));
    }

    #[test]
    fn faults_of_one_namespace_do_not_delay_those_of_another() {
        let mut schedule = EventSchedule::default();
        let many = || (0..6_500).map(|name| fault("a", name, "x"));
        let due = schedule.due(&"g".into(), many().chain([fault("b", 1, "x")]).collect(), at(0));
        assert_eq!(due.next, Some(RATE_LIMITED_REQUEUE));
        let of = |due: &DueEvents, namespace: &str| due.notices.iter().filter(|notice| notice.subject.namespace() == namespace).count();
        assert_eq!((of(&due, "a"), of(&due, "b")), (100, 1));
        let due = schedule.due(&"h".into(), vec![fault("a", 7_000, "x"), fault("b", 2, "x")], at(0));
        assert_eq!((of(&due, "a"), of(&due, "b")), (0, 1), "the rate holds over all workloads");
        let mut first = due.notices.len();
        for seconds in (10..7_000).step_by(10) {
            first += of(&schedule.due(&"g".into(), many().collect(), at(seconds)), "a");
        }
        assert!(first >= 6_500 && schedule.len() >= 6_500, "each object gets its Event: {first}");
    }

    #[test]
    fn cost_of_ended_faults_is_linear_in_objects_and_workloads() {
        let allocations = |count: usize| {
            let mut schedule = EventSchedule::default();
            let of = |number: usize, message| fault(&format!("n{}", number / 50), number, message);
            for minute in 0..8 {
                schedule.due(&"former".into(), (0..count).map(|number| of(number, "x")).collect(), at(60 * minute));
            }
            for number in 0..count {
                let fault = of(number, "y");
                schedule.due(&fault.subject.clone(), vec![fault], at(500 + i64::try_from(number / 4).expect("small")));
            }
            schedule.due(&"former".into(), Vec::new(), at(701));
            assert_eq!(schedule.len(), 2 * count, "each has an Event");
            let measured = allocation_counter::measure(|| drop(schedule.due(&"former".into(), Vec::new(), at(900))));
            assert_eq!(schedule.len(), count, "those of the other workloads remain");
            measured.count_total
        };
        let (few, many) = (allocations(100), allocations(800));
        assert!(many < 10 * few, "{few} {many}");
    }

    proptest! {
        /// The index of objects has exactly the workloads with records of them, and is empty once all faults have ended.
        #[test]
        fn index_of_objects_follows_the_records(
            passes in proptest::collection::vec((0..3_usize, proptest::collection::vec((0..3_usize, 0..2_usize), 0..4), 0..400_i64), 1..60),
        ) {
            let (mut schedule, mut now) = (EventSchedule::default(), 0);
            for (workload, faults, pause) in passes {
                now += pause;
                let faults = faults.into_iter().map(|(name, message)| fault("a", name, ["x", "y"][message])).collect();
                schedule.due(&["f", "g", "h"][workload].into(), faults, at(now));
                let mut counted: HashMap<WorkloadKey, BTreeMap<WorkloadKey, usize>> = HashMap::new();
                for (key, records) in &schedule.records.by_workload {
                    for (subject, _) in records.keys() {
                        *counted.entry(subject.clone()).or_default().entry(key.clone()).or_default() += 1;
                    }
                }
                prop_assert_eq!(&schedule.records.by_subject, &counted);
            }
            for _ in 0..3 {
                now += 10_000;
                schedule.due(&"f".into(), Vec::new(), at(now));
            }
            prop_assert!(schedule.records.by_subject.is_empty() && schedule.records.by_workload.is_empty());
        }
    }

    #[test]
    fn record_is_bounded_by_the_rate_and_ends_with_the_faults() {
        let mut schedule = EventSchedule::default();
        for second in 0..4_000 {
            schedule.due(
                &"g".into(),
                (0..50).map(|name| fault("a", 50 * usize::try_from(second).expect("a number") + name, "x")).collect(),
                at(second),
            );
        }
        assert!(schedule.len() <= 100 + 2 * 1_800, "{}", schedule.len());
        schedule.due(&"other".into(), Vec::new(), at(10_000));
        assert!(schedule.is_empty());
    }
}
