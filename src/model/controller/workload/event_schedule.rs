//! Schedule of Events about lasting faults: a fault is an Event at once, and again every half hour while it lasts.
//!
//! An Ingress has no conditions, so its Events are all that its owner sees; Kubernetes keeps them for an hour. The record of emitted Events
//! is in memory: it takes no room of a shared object, and a process that loses it emits each Event once more. Each namespace has a rate of
//! its own over all workloads, so that the faults of one delay only its own Events.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::model::base::rate::TokenBucket;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::actions::Notice;

/// Time after which a lasting fault is an Event again.
pub const REPEAT_INTERVAL: Duration = Duration::from_mins(30);
/// Events of a namespace at once; then so many a second.
const BURST: u32 = 100;
const PER_SECOND: f64 = 1.0;
/// Requeue delay while Events wait for the rate of their namespace.
const RATE_LIMITED_REQUEUE: Duration = Duration::from_secs(10);

/// Emitted Events, by workload.
#[derive(Debug, Default)]
pub struct EventSchedule {
    emitted: HashMap<WorkloadKey, HashMap<MessageId, Emitted>>,
    /// By namespace; only those that are used up in part.
    rates: HashMap<String, TokenBucket>,
    swept: Option<Timestamp>,
}

/// Events of a workload that are due.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DueEvents {
    pub notices: Vec<Notice>,
    /// Of these, faults without an Event before.
    pub new: Vec<Notice>,
    /// Time until the next one, if any fault lasts.
    pub next: Option<Duration>,
}

/// An object, and the hash of a message about it.
type MessageId = (WorkloadKey, u64);

/// Time of the last Event, and time when the fault last existed.
#[derive(Debug, Clone, Copy)]
struct Emitted {
    at: Timestamp,
    existed: Timestamp,
}

impl EventSchedule {
    /// Faults that are due, those without an Event first; records them as emitted. `faults` are all current faults of the workload.
    pub fn due(&mut self, key: &WorkloadKey, faults: Vec<Notice>, now: Timestamp) -> DueEvents {
        self.sweep(now);
        if faults.is_empty() {
            return DueEvents::default();
        }
        let emitted = self.emitted.entry(key.clone()).or_default();
        let mut due = DueEvents::default();
        let mut waiting = Vec::new();
        for fault in faults {
            let id = id(&fault);
            let last = emitted.get_mut(&id).map(|last| {
                last.existed = now;
                last.at
            });
            match last.and_then(|at| REPEAT_INTERVAL.checked_sub(age(at, now))).filter(|rest| !rest.is_zero()) {
                Some(rest) => due.next = Some(due.next.map_or(rest, |next| next.min(rest))),
                None => waiting.push((last, id, fault)),
            }
        }
        waiting.sort_by(|(one, first, _), (other, second, _)| (one, first).cmp(&(other, second)));
        for (last, id, fault) in waiting {
            let rate = self.rates.entry(id.0.namespace().to_owned()).or_insert_with(|| TokenBucket::new(BURST, PER_SECOND));
            if rate.try_take(since_epoch(now)) {
                emitted.insert(id, Emitted { at: now, existed: now });
                due.new.extend(last.is_none().then(|| fault.clone()));
                due.notices.push(fault);
                due.next = Some(due.next.map_or(REPEAT_INTERVAL, |next| next.min(REPEAT_INTERVAL)));
            } else {
                due.next = Some(RATE_LIMITED_REQUEUE);
            }
        }
        due
    }

    /// Number of recorded Events.
    pub fn len(&self) -> usize {
        self.emitted.values().map(HashMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets Events of faults that ended a while ago.
    fn sweep(&mut self, now: Timestamp) {
        let is_due = self.swept.is_none_or(|swept| age(swept, now) >= REPEAT_INTERVAL);
        if !is_due {
            return;
        }
        self.swept = Some(now);
        for emitted in self.emitted.values_mut() {
            emitted.retain(|_, last| age(last.existed, now) < REPEAT_INTERVAL);
        }
        self.emitted.retain(|_, emitted| !emitted.is_empty());
        self.rates.retain(|_, rate| !rate.is_full(since_epoch(now)));
    }
}

fn since_epoch(now: Timestamp) -> Duration {
    now.as_duration().unsigned_abs()
}

/// Age of a time. One in the future, after the clock was set back, is old.
fn age(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at)).unwrap_or(Duration::MAX / 4)
}

fn id(Notice { subject, reason, message, .. }: &Notice) -> MessageId {
    (subject.clone(), BuildHasherDefault::<DefaultHasher>::default().hash_one((reason, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(namespace: &str, name: usize, message: &str) -> Notice {
        let subject = WorkloadKey::Ingress(namespace.to_owned(), name.to_string());
        Notice { subject, warning: true, reason: "R", message: message.to_owned() }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
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
    fn record_is_bounded_by_the_rate_and_ends_with_the_faults() {
        let mut schedule = EventSchedule::default();
        for second in 0..20_000 {
            schedule.due(
                &"g".into(),
                (0..50).map(|name| fault("a", 50 * usize::try_from(second).expect("a number") + name, "x")).collect(),
                at(second),
            );
        }
        assert!(schedule.len() <= 100 + 2 * 1_800, "{}", schedule.len());
        schedule.due(&"other".into(), Vec::new(), at(30_000));
        assert!(schedule.is_empty() && schedule.rates.is_empty());
    }

    #[test]
    fn clock_that_is_set_back_delays_no_event() {
        let mut schedule = EventSchedule::default();
        schedule.due(&"g".into(), vec![fault("a", 1, "x")], at(100_000));
        assert_eq!(schedule.due(&"g".into(), vec![fault("a", 1, "x")], at(0)).notices.len(), 1);
    }
}
