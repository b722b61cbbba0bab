//! Load balancing and outlier ejection: selects the endpoint of an upstream for a request.
//!
//! Power of two choices, endpoints of the own zone first: nearly as even as comparing all, at the cost of two. A zone that is too small for
//! its requests spills over: an endpoint of another zone is chosen once it has [`SPILL`] fewer active requests. An unreachable endpoint is
//! ejected for a time that doubles; afterwards a request tries it again, without active probes. Pure: time and random numbers are
//! arguments.

use std::time::Duration;

/// Lead in active requests that an endpoint of the own zone may have over one elsewhere and still be preferred.
const SPILL: usize = 16;
/// Ejection time after the first failure.
const FIRST_EJECTION_PERIOD: Duration = Duration::from_secs(1);
const MAX_EJECTION: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointCandidate {
    pub near: bool,
    /// Number of our active requests to it.
    pub busy: usize,
    pub ejected: bool,
}

/// Recent health of an endpoint. Times are durations since any fixed moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointHealth {
    failures: u32,
    until: Option<Duration>,
}

impl EndpointHealth {
    pub fn answered(&mut self) {
        *self = Self::default();
    }

    /// Records a connect failure. Failures during an ejection belong to earlier requests and do not count again.
    pub fn failed(&mut self, now: Duration) {
        if !self.is_ejected(now) {
            let rest = FIRST_EJECTION_PERIOD.saturating_mul(2_u32.saturating_pow(self.failures)).min(MAX_EJECTION);
            self.failures = self.failures.saturating_add(1);
            self.until = Some(now.saturating_add(rest));
        }
    }

    pub fn is_ejected(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

/// Candidates in the order to try: at most `tries`, no ejected ones. `random` returns numbers from 0 to 1.
pub fn order(candidates: &[EndpointCandidate], tries: usize, mut random: impl FnMut() -> f64) -> Vec<usize> {
    let (mut near, mut far): (Vec<usize>, Vec<usize>) =
        (0..candidates.len()).filter(|index| !candidates[*index].ejected).partition(|index| candidates[*index].near);
    let mut order = Vec::with_capacity(tries);
    while order.len() < tries {
        let here = less_busy(&near, candidates, &mut random);
        let busy = here.map_or(usize::MAX, |here| candidates[near[here]].busy);
        // Endpoints elsewhere are considered only if one may be preferred.
        let there = if busy > SPILL { less_busy(&far, candidates, &mut random) } else { None };
        let chosen = match (here, there) {
            (Some(here), there) if there.is_none_or(|there| busy <= candidates[far[there]].busy + SPILL) => near.swap_remove(here),
            (_, Some(there)) => far.swap_remove(there),
            (_, None) => break,
        };
        order.push(chosen);
    }
    order
}

/// Index of the less busy of two random candidates.
fn less_busy(among: &[usize], candidates: &[EndpointCandidate], random: &mut impl FnMut() -> f64) -> Option<usize> {
    let first = pick(among.len(), random())?;
    let second = pick(among.len(), random())?;
    let busy = |at: usize| candidates[among[at]].busy;
    Some(if busy(second) < busy(first) { second } else { first })
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a short list")]
fn pick(length: usize, random: f64) -> Option<usize> {
    let last = length.checked_sub(1)?;
    Some(((random.clamp(0.0, 1.0) * length as f64) as usize).min(last))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate(near: bool, busy: usize, ejected: bool) -> EndpointCandidate {
        EndpointCandidate { near, busy, ejected }
    }

    #[test]
    fn own_zone_comes_first_and_ejected_endpoints_never() {
        let all = [candidate(false, 0, false), candidate(true, 9, false), candidate(true, 0, true), candidate(false, 5, false)];
        assert_eq!(order(&all, 9, || 0.0)[0], 1);
        for draw in [0.0, 0.5, 0.9] {
            let mut tried = order(&all, 9, || draw);
            tried.sort_unstable();
            assert_eq!(tried, [0, 1, 3], "all others, each once ({draw})");
        }
        assert_eq!(order(&[], 3, || 0.0), [0; 0]);
    }

    #[test]
    fn overloaded_zone_spills_over_to_others() {
        let all = |busy| [candidate(true, busy, false), candidate(false, 1, false)];
        assert_eq!(order(&all(1 + SPILL), 2, || 0.5), [0, 1]);
        assert_eq!(order(&all(2 + SPILL), 2, || 0.5), [1, 0]);
    }

    #[test]
    fn less_busy_of_two_random_endpoints_is_chosen() {
        let all = [candidate(true, 7, false), candidate(true, 3, false)];
        let mut draws = [0.0, 0.99].into_iter().cycle();
        assert_eq!(order(&all, 1, || draws.next().unwrap_or_default()), [1]);
    }

    proptest! {
        #[test]
        fn no_endpoint_is_tried_twice(all in prop::collection::vec((any::<bool>(), 0..5usize, any::<bool>()), 0..20), tries in 0..5usize, seed: u64) {
            let all: Vec<_> = all.into_iter().map(|(near, busy, ejected)| candidate(near, busy, ejected)).collect();
            let mut rng = fastrand::Rng::with_seed(seed);
            let chosen = order(&all, tries, || rng.f64());
            let healthy = all.iter().filter(|candidate| !candidate.ejected).count();
            prop_assert_eq!(chosen.len(), tries.min(healthy));
            let mut unique = chosen.clone();
            unique.sort_unstable();
            unique.dedup();
            prop_assert_eq!(unique.len(), chosen.len());
        }
    }

    #[test]
    fn failures_eject_longer_each_time_and_one_answer_resets() {
        let mut health = EndpointHealth::default();
        let second = Duration::from_secs(1);
        health.failed(Duration::ZERO);
        health.failed(second / 2);
        assert!(health.is_ejected(second / 2) && !health.is_ejected(second));
        health.failed(second);
        assert!(health.is_ejected(second * 2) && !health.is_ejected(second * 3));
        for step in 0..20 {
            health.failed(second * 100 * (step + 1));
        }
        assert!(!health.is_ejected(second * 2031));
        health.answered();
        assert_eq!(health, EndpointHealth::default());
    }
}
