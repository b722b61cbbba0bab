//! Control plane client policy: request rate, capabilities and access token expiry.
//!
//! Pure: sends nothing, and time is an argument, measured from any fixed moment.

use std::time::Duration;

/// An access token is renewed this long before it expires: longer than a request takes.
const TOKEN_MARGIN: Duration = Duration::from_mins(2);
/// Assumed lifetime of a token whose response has no `expires_in`.
const TOKEN_DEFAULT: Duration = Duration::from_mins(30);

/// Optional features of a control plane. Unsupported ones are reported in a condition and not retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Tailscale Services: addresses that several devices serve.
    pub services: bool,
    /// Answers ACME DNS challenges for names of the tailnet.
    pub certificates: bool,
}

impl Capabilities {
    pub const TAILSCALE: Self = Self { services: true, certificates: true };
    pub const HEADSCALE: Self = Self { services: false, certificates: false };

    /// Description of the missing features; `None` if there are none.
    pub fn lacking(self) -> Option<&'static str> {
        match (self.services, self.certificates) {
            (true, true) => None,
            (false, true) => Some("it has no Tailscale Services, which egress does not need"),
            (true, false) => Some("it issues no certificates, which egress does not need"),
            (false, false) => Some("it has no Tailscale Services and issues no certificates, neither of which egress needs"),
        }
    }
}

/// Token bucket: a burst, and a sustained rate per second.
#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    burst: f64,
    per_second: f64,
    tokens: f64,
    at: Duration,
}

impl Bucket {
    /// A full bucket. The burst is at least 1, the rate at least 0.001.
    pub fn new(burst: u32, per_second: f64) -> Self {
        let burst = f64::from(burst.max(1));
        Self { burst, per_second: per_second.max(0.001), tokens: burst, at: Duration::ZERO }
    }

    /// Takes the next token and returns the time until it may be used. Tokens are handed out in order.
    pub fn take(&mut self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst) - 1.0;
        if self.tokens >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-self.tokens / self.per_second) }
    }

    /// Returns an unused token.
    pub fn give_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.burst);
    }
}

/// The time until which an access token received at `now` is used; `expires_in` is in seconds.
pub fn token_end(now: Duration, expires_in: Option<u64>) -> Duration {
    let holds = expires_in.map_or(TOKEN_DEFAULT, Duration::from_secs);
    // A short-lived token is used for half of its lifetime.
    now + holds.saturating_sub(TOKEN_MARGIN).max(holds / 2)
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
        let mut bucket = Bucket::new(2, 0.5);
        assert_eq!([bucket.take(s(0)), bucket.take(s(0))], [s(0), s(0)]);
        assert_eq!([bucket.take(s(0)), bucket.take(s(0))], [s(2), s(4)]);
        assert_eq!(bucket.take(s(10)), s(0));
    }

    #[test]
    fn returned_token_is_available_again() {
        let mut bucket = Bucket::new(1, 1.0);
        assert_eq!(bucket.take(s(0)), s(0));
        assert_eq!(bucket.take(s(0)), s(1));
        bucket.give_back();
        assert_eq!(bucket.take(s(0)), s(1));
    }

    #[test]
    fn tokens_are_renewed_before_they_end() {
        assert_eq!(token_end(s(10), Some(3600)), s(10 + 3600 - 120));
        assert_eq!(token_end(s(10), Some(60)), s(40));
        assert_eq!(token_end(s(10), None), s(10 + 1800 - 120));
    }

    proptest! {
        #[test]
        fn bucket_never_exceeds_burst_and_rate(asks in proptest::collection::vec(0_u64..5000, 1..200), burst in 1_u32..20) {
            let (mut bucket, mut now, rate) = (Bucket::new(burst, 2.0), Duration::ZERO, 2.0);
            let mut turns = Vec::new();
            for pause in asks {
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
