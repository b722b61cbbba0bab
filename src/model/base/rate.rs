//! Token bucket: a burst, and a sustained rate per second.
//!
//! Time is an argument, measured from any fixed moment.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct TokenBucket {
    burst: f64,
    per_second: f64,
    tokens: f64,
    at: Duration,
}

impl TokenBucket {
    /// A full bucket. The burst is at least 1, the rate at least 0.001.
    pub fn new(burst: u32, per_second: f64) -> Self {
        let burst = f64::from(burst.max(1));
        Self { burst, per_second: per_second.max(0.001), tokens: burst, at: Duration::ZERO }
    }

    /// Takes the next token and returns the time until it may be used. Tokens are handed out in order.
    pub fn take(&mut self, now: Duration) -> Duration {
        self.refill(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-self.tokens / self.per_second) }
    }

    /// Takes a token if there is one.
    pub fn try_take(&mut self, now: Duration) -> bool {
        self.refill(now);
        let is_left = self.tokens >= 1.0;
        self.tokens -= if is_left { 1.0 } else { 0.0 };
        is_left
    }

    /// Raises the burst to at least this one, by new tokens. A lower burst changes nothing, so that raising it again adds none.
    pub fn grow(&mut self, burst: u32) {
        let more = (f64::from(burst) - self.burst).max(0.0);
        self.burst += more;
        self.tokens += more;
    }

    /// Returns an unused token.
    pub fn refund(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.burst);
    }

    pub fn is_full(mut self, now: Duration) -> bool {
        self.refill(now);
        self.tokens >= self.burst
    }

    /// Adds the tokens since the last call. A time that is earlier by more than the bucket takes to fill is a clock that was set back: the
    /// bucket is full.
    fn refill(&mut self, now: Duration) {
        let filling = Duration::from_secs_f64(self.burst / self.per_second);
        if self.at.saturating_sub(now) > filling {
            (self.tokens, self.at) = (self.burst, now);
        }
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn requests_beyond_the_burst_wait_for_the_rate() {
        let mut bucket = TokenBucket::new(2, 0.5);
        assert_eq!([bucket.take(s(0)), bucket.take(s(0))], [s(0), s(0)]);
        assert_eq!([bucket.take(s(0)), bucket.take(s(0))], [s(2), s(4)]);
        assert_eq!(bucket.take(s(10)), s(0));
    }

    #[test]
    fn returned_token_is_available_again() {
        let mut bucket = TokenBucket::new(1, 1.0);
        assert_eq!(bucket.take(s(0)), s(0));
        assert_eq!(bucket.take(s(0)), s(1));
        bucket.refund();
        assert_eq!(bucket.take(s(0)), s(1));
    }

    #[test]
    fn higher_burst_adds_tokens_once() {
        let mut bucket = TokenBucket::new(1, 0.5);
        assert_eq!(bucket.take(s(0)), s(0));
        for burst in [3, 1, 3] {
            bucket.grow(burst);
        }
        assert_eq!([bucket.take(s(0)), bucket.take(s(0)), bucket.take(s(0))], [s(0), s(0), s(2)]);
    }

    #[test]
    fn refused_token_costs_nothing() {
        let mut bucket = TokenBucket::new(1, 1.0);
        assert!(bucket.try_take(s(0)) && !bucket.try_take(s(0)) && !bucket.try_take(s(0)));
        assert!(!bucket.is_full(s(0)) && bucket.is_full(s(1)) && bucket.try_take(s(1)));
    }

    #[test]
    fn clock_that_is_set_back_fills_the_bucket_and_a_late_call_does_not() {
        let mut bucket = TokenBucket::new(2, 0.5);
        assert!(bucket.try_take(s(1_000)) && bucket.try_take(s(1_000)));
        assert!(!bucket.try_take(s(997)), "calls that overtake each other keep the rate");
        assert!(bucket.try_take(s(10)) && bucket.try_take(s(10)) && !bucket.try_take(s(10)));
    }

    proptest! {
        #[test]
        fn bucket_never_exceeds_burst_and_rate(pauses in proptest::collection::vec(0_u64..5000, 1..200), burst in 1_u32..20) {
            let (mut bucket, mut now, rate) = (TokenBucket::new(burst, 2.0), Duration::ZERO, 2.0);
            let mut turns = Vec::new();
            for pause in pauses {
                now += Duration::from_millis(pause);
                turns.push(now + bucket.take(now));
            }
            for (first, start) in turns.iter().enumerate() {
                for (last, end) in turns.iter().enumerate().skip(first) {
                    let within = end.saturating_sub(*start).as_secs_f64();
                    let most = f64::from(burst) + within * rate + 1.0;
                    prop_assert!(f64::from(u32::try_from(last - first).expect("few")) <= most + 1e-6, "{first}..{last}");
                }
            }
        }
    }
}
