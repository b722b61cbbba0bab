//! Rates of Events: one for each namespace, and one for all together.
//!
//! Each Event is an object for an hour, and its writer stores it for minutes, so these rates bound both. A part of each namespace's rate is
//! reserved: however many Events the others have, a few of its own are written.

use std::collections::HashMap;
use std::time::Duration;

use crate::model::base::rate::TokenBucket;

/// Events of a namespace at once; then so many a second.
const BURST: u32 = 100;
const PER_SECOND: f64 = 1.0;
/// Those of them that the total does not limit: at once; then three a minute.
const RESERVED_BURST: u32 = 10;
const RESERVED_PER_SECOND: f64 = 0.05;
/// Events of all namespaces without reserved ones.
const TOTAL_BURST: u32 = 500;
const TOTAL_PER_SECOND: f64 = 10.0;
/// Interval after which unused namespaces are forgotten.
const SWEEP_INTERVAL: Duration = Duration::from_mins(10);

/// Time is an argument, as of [`TokenBucket`].
#[derive(Debug)]
pub struct EventRates {
    total: TokenBucket,
    /// Only those that are used up in part.
    namespaces: HashMap<String, NamespaceRate>,
    swept: Duration,
}

#[derive(Debug, Clone, Copy)]
struct NamespaceRate {
    all: TokenBucket,
    reserved: TokenBucket,
}

impl Default for EventRates {
    fn default() -> Self {
        Self { total: TokenBucket::new(TOTAL_BURST, TOTAL_PER_SECOND), namespaces: HashMap::new(), swept: Duration::ZERO }
    }
}

impl EventRates {
    /// Takes an Event from the rates, if they have one.
    pub fn try_take(&mut self, namespace: &str, now: Duration) -> bool {
        if now.abs_diff(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.namespaces.retain(|_, rate| !(rate.all.is_full(now) && rate.reserved.is_full(now)));
        }
        let full =
            || NamespaceRate { all: TokenBucket::new(BURST, PER_SECOND), reserved: TokenBucket::new(RESERVED_BURST, RESERVED_PER_SECOND) };
        let rate = self.namespaces.entry(namespace.to_owned()).or_insert_with(full);
        if !rate.all.try_take(now) {
            return false;
        }
        let is_taken = self.total.try_take(now) || rate.reserved.try_take(now);
        if !is_taken {
            rate.all.refund();
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn flood_of_other_namespaces_leaves_the_reserved_events() {
        let mut rates = EventRates::default();
        let mut taken =
            |namespace: &str, count: usize, second| (0..count).filter(|_| rates.try_take(namespace, Duration::from_secs(second))).count();
        let flood: Vec<_> = (0..20).map(|number| taken(&format!("n{number}"), 1_000, 0)).collect();
        assert_eq!((flood[0], flood[19], flood.iter().sum::<usize>()), (100, 10, 5 * 100 + 15 * 10));
        assert_eq!(taken("quiet", 20, 0), 10);
        assert_eq!((taken("n0", 1_000, 10), taken("n1", 1_000, 10), taken("n2", 1_000, 11)), (10, 10, 11), "each has its own rate");
        for second in (600..900).step_by(20) {
            for number in 0..20 {
                taken(&format!("n{number}"), 100, second);
            }
            assert_eq!(taken("quiet", 1, second), 1, "three a minute, at {second} s");
        }
    }

    #[test]
    fn unused_namespaces_are_forgotten() {
        let mut rates = EventRates::default();
        for number in 0..1_000 {
            rates.try_take(&format!("n{number}"), Duration::ZERO);
        }
        rates.try_take("n0", SWEEP_INTERVAL);
        assert_eq!(rates.namespaces.len(), 1);
    }

    proptest! {
        /// The numbers of Events in any six minutes, which a writer stores: of a namespace, and of all.
        #[test]
        fn events_of_six_minutes_are_bounded_whatever_is_requested(
            bursts in proptest::collection::vec((0..8_usize, 0..300_usize, 0..60_u64), 1..40),
        ) {
            let (mut rates, mut now, mut written) = (EventRates::default(), Duration::ZERO, Vec::new());
            for (namespace, count, pause) in bursts {
                now += Duration::from_secs(pause);
                let taken = (0..count).filter(|_| rates.try_take(&namespace.to_string(), now)).count();
                written.push((now, namespace, taken));
            }
            for (begin, ..) in &written {
                let window = written.iter().filter(|(at, ..)| (*begin..*begin + Duration::from_mins(6)).contains(at));
                let counted = |of: Option<usize>| {
                    window.clone().filter(|(_, namespace, _)| of.is_none_or(|of| of == *namespace)).map(|(.., taken)| taken).sum::<usize>()
                };
                prop_assert!(counted(None) <= 500 + 10 * 360 + 8 * (10 + 18));
                for namespace in 0..8 {
                    prop_assert!(counted(Some(namespace)) <= 100 + 360);
                }
            }
        }
    }
}
