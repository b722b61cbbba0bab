//! Retry backoff: exponential delays with jitter.
//!
//! Pure: clock and random numbers are arguments. The caller gives a server's `Retry-After` precedence.

use std::time::Duration;

/// Delays that double from a minimum to a maximum. Each is shortened at random so that simultaneous failures are not retried
/// simultaneously.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    jitter: f64,
    failures: u32,
}

/// Invalid bounds or jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BackoffError {
    /// A zero minimum would retry without a pause; a minimum above the maximum is contradictory.
    #[error("retry delays must satisfy 0 < minimum <= maximum, not {min:?} and {max:?}")]
    Bounds { min: Duration, max: Duration },
    #[error("retry jitter must be from 0 (none) to 1")]
    Jitter,
}

impl Backoff {
    /// tailscaled and the connection to it: starts at 200 ms so that a crash costs little, at most 30 s.
    pub const DAEMON: Self = Self { min: Duration::from_millis(200), max: Duration::from_secs(30), jitter: 0.2, failures: 0 };

    /// Failed DNS lookups: starts at 1 s because most resolver outages are short, at most 1 min.
    pub const DNS: Self = Self { min: Duration::from_secs(1), max: Duration::from_mins(1), jitter: 0.5, failures: 0 };

    /// Rules rejected by the kernel or a firewall program: starts at 100 ms, at most 10 s.
    pub const KERNEL: Self = Self { min: Duration::from_millis(100), max: Duration::from_secs(10), jitter: 0.2, failures: 0 };

    /// Watches of the Kubernetes API: starts at 100 ms in case the server was replaced, at most 30 s.
    pub const WATCH: Self = Self { min: Duration::from_millis(100), max: Duration::from_secs(30), jitter: 0.5, failures: 0 };

    /// Failed reconciliations: conflicts are retried at once (100 ms), requests that the API rejects twice a minute.
    pub const RECONCILE: Self = Self { min: Duration::from_millis(100), max: Duration::from_secs(30), jitter: 0.2, failures: 0 };

    /// Failed ACME orders: each attempt counts against an hourly or weekly rate limit.
    pub const ACME: Self = Self { min: Duration::from_mins(1), max: Duration::from_hours(12), jitter: 0.2, failures: 0 };

    /// Delays from `min` to `max`, each shortened by up to the fraction `jitter` (0 to 1).
    pub fn new(min: Duration, max: Duration, jitter: f64) -> Result<Self, BackoffError> {
        if min.is_zero() || min > max {
            return Err(BackoffError::Bounds { min, max });
        }
        if !(0.0..=1.0).contains(&jitter) {
            return Err(BackoffError::Jitter);
        }
        Ok(Self { min, max, jitter, failures: 0 })
    }

    /// Delay after this number of consecutive failures (1 after the first).
    pub fn after(mut self, failures: u32, random: f64) -> Duration {
        self.failures = failures.saturating_sub(1);
        self.next(random)
    }

    /// Delay after one more failure. `random` is from 0 to 1; other values are clamped.
    pub fn next(&mut self, random: f64) -> Duration {
        let full = 2_u32.checked_pow(self.failures).and_then(|factor| self.min.checked_mul(factor)).unwrap_or(self.max).min(self.max);
        self.failures = self.failures.saturating_add(1);
        let random = if random.is_nan() { 0.0 } else { random.clamp(0.0, 1.0) };
        full.mul_f64(1.0 - self.jitter * random)
    }

    /// Records a success: the next failure counts as the first.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Number of failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let mut backoff = Backoff::DAEMON;
        let delays: Vec<u128> = (0..10).map(|_| backoff.next(0.0).as_millis()).collect();
        assert_eq!(delays, [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        backoff.reset();
        assert_eq!(backoff.next(1.0), Duration::from_millis(160));
    }

    #[test]
    fn invalid_bounds_are_rejected() {
        let second = Duration::from_secs(1);
        assert!(Backoff::new(Duration::ZERO, second, 0.1).is_err());
        assert!(Backoff::new(second * 2, second, 0.1).is_err());
        assert_eq!(Backoff::new(second, second, f64::NAN), Err(BackoffError::Jitter));
        assert_eq!(Backoff::new(second, second, 1.1), Err(BackoffError::Jitter));
    }

    proptest! {
        #[test]
        fn every_delay_is_within_bounds(min in 1..10_000_u64, more in 0..100_000_u64, jitter in 0.0..=1.0_f64, randoms in prop::collection::vec(-1.0..2.0_f64, 1..80)) {
            let (min, max) = (Duration::from_millis(min), Duration::from_millis(min + more));
            let mut backoff = Backoff::new(min, max, jitter).expect("sensible");
            for random in randoms {
                let delay = backoff.next(random);
                prop_assert!(delay <= max && delay >= min.mul_f64(1.0 - jitter).saturating_sub(Duration::from_nanos(1)));
            }
        }
    }
}
