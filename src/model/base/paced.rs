//! Newest values of keys, at a rate for each key. A value beyond the rate waits, and is replaced by a newer one of its key: only the
//! newest waits, and it is never lost.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::base::rate::TokenBucket;

/// Interval after which keys that are within their burst are forgotten.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Paced<K, V> {
    full: TokenBucket,
    buckets: BTreeMap<K, TokenBucket>,
    /// Time when a value is due, and the value.
    waiting: BTreeMap<K, (Duration, V)>,
    swept: Duration,
}

impl<K: Ord + Clone, V> Paced<K, V> {
    /// Each key has this burst and rate.
    pub fn new(burst: u32, per_second: f64) -> Self {
        let full = TokenBucket::new(burst, per_second);
        Self { full, buckets: BTreeMap::new(), waiting: BTreeMap::new(), swept: Duration::ZERO }
    }

    /// Returns the value if its key is within the rate; else it waits in place of an older one.
    pub fn offer(&mut self, key: &K, value: V, now: Duration) -> Option<V> {
        if let Some((_, waiting)) = self.waiting.get_mut(key) {
            *waiting = value;
            return None;
        }
        if now.saturating_sub(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        let wait = self.buckets.entry(key.clone()).or_insert(self.full).take(now);
        if wait.is_zero() {
            return Some(value);
        }
        self.waiting.insert(key.clone(), (now + wait, value));
        None
    }

    /// The time when the next value is due.
    pub fn next_due(&self) -> Option<Duration> {
        self.waiting.values().map(|(due, _)| *due).min()
    }

    /// Takes a value that is due.
    pub fn due(&mut self, now: Duration) -> Option<V> {
        let key = self.waiting.iter().find(|(_, (due, _))| *due <= now).map(|(key, _)| key.clone())?;
        self.waiting.remove(&key).map(|(_, value)| value)
    }

    /// Drops all values that wait.
    pub fn clear(&mut self) {
        while let Some((key, _)) = self.waiting.pop_first() {
            self.refund(&key);
        }
    }

    /// Drops the value of a key that waits, if it is this one.
    pub fn forget(&mut self, key: &K, is_gone: impl FnOnce(&V) -> bool) {
        if self.waiting.get(key).is_some_and(|(_, waiting)| is_gone(waiting)) {
            self.waiting.remove(key);
            self.refund(key);
        }
    }

    /// Returns the token of a dropped value: else the next one would wait for both.
    fn refund(&mut self, key: &K) {
        if let Some(bucket) = self.buckets.get_mut(key) {
            bucket.refund();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn value_beyond_the_rate_waits_and_a_newer_one_replaces_it() {
        let mut paced = Paced::new(2, 2.0);
        assert_eq!([1, 2, 3, 4].map(|value| paced.offer(&"a", value, ms(0))), [Some(1), Some(2), None, None]);
        assert_eq!(paced.offer(&"b", 9, ms(0)), Some(9), "another key has its own rate");
        assert_eq!((paced.next_due(), paced.due(ms(499))), (Some(ms(500)), None));
        assert_eq!((paced.due(ms(500)), paced.due(ms(500)), paced.next_due()), (Some(4), None, None));
        assert_eq!(paced.offer(&"a", 5, ms(600)), None);
        paced.forget(&"a", |value| *value == 4);
        assert_eq!(paced.waiting.len(), 1, "another one waits");
        paced.forget(&"a", |value| *value == 5);
        assert_eq!((paced.due(ms(5_000)), paced.next_due()), (None, None));
    }

    #[test]
    fn keys_within_their_burst_are_forgotten() {
        let mut paced = Paced::new(2, 2.0);
        for key in 0..1_000 {
            paced.offer(&key, (), ms(0));
        }
        paced.offer(&0, (), ms(10_000));
        assert_eq!(paced.buckets.len(), 1);
    }

    proptest! {
        #[test]
        fn value_waits_at_most_one_interval_whatever_was_dropped(steps in proptest::collection::vec((0_u8..3, 0_u64..300), 1..200)) {
            let (mut paced, mut now) = (Paced::new(3, 2.0), ms(0));
            for (step, pause) in steps {
                now += ms(pause);
                while paced.due(now).is_some() {}
                match step {
                    0 => paced.forget(&"a", |()| true),
                    1 => paced.clear(),
                    _ => drop(paced.offer(&"a", (), now)),
                }
                let due = paced.next_due();
                prop_assert!(due.is_none_or(|due| due <= now + ms(500)), "{due:?} at {now:?}");
            }
        }

        /// The newest value of each key is delivered in the end, and no key exceeds its rate.
        #[test]
        fn newest_value_is_delivered_within_the_rate(offers in proptest::collection::vec((0_u8..3, 0_u64..300), 1..200)) {
            let (mut paced, mut now) = (Paced::new(3, 2.0), ms(0));
            let (mut newest, mut delivered) = (BTreeMap::new(), BTreeMap::<u8, Vec<(Duration, usize)>>::new());
            for (number, (key, pause)) in offers.into_iter().enumerate() {
                now += ms(pause);
                while let Some((key, value)) = paced.due(now) {
                    delivered.entry(key).or_default().push((now, value));
                }
                newest.insert(key, number);
                if let Some((key, value)) = paced.offer(&key, (key, number), now) {
                    delivered.entry(key).or_default().push((now, value));
                }
            }
            while let Some(due) = paced.next_due() {
                now = now.max(due);
                if let Some((key, value)) = paced.due(now) {
                    delivered.entry(key).or_default().push((now, value));
                }
            }
            for (key, newest) in newest {
                let times = &delivered[&key];
                prop_assert_eq!(times.last().map(|(_, value)| *value), Some(newest));
                prop_assert!(times.is_sorted_by_key(|(_, value)| *value), "in order");
                for (first, (from, _)) in times.iter().enumerate() {
                    let second = times[first..].iter().filter(|(at, _)| *at < *from + ms(1_000)).count();
                    prop_assert!(second <= 3 + 2 + 1, "{}", second);
                }
            }
        }
    }
}
