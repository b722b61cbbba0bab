//! Control plane client policy: capabilities and access token expiry.
//!
//! Pure: sends nothing, and time is an argument, measured from any fixed moment.

use std::time::Duration;

/// An access token is renewed this long before it expires: longer than a request takes.
const MIN_TOKEN_LIFETIME: Duration = Duration::from_mins(2);
/// Assumed lifetime of a token whose response has no `expires_in`.
const DEFAULT_TOKEN_LIFETIME: Duration = Duration::from_mins(30);

/// Time after which a verdict about a server is confirmed, or changed.
const CONFIRM_INTERVAL: Duration = Duration::from_mins(10);

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

    /// Those of the server that made this access token: only Tailscale's and headscale's begin so.
    pub fn of_token(token: &str) -> Option<Self> {
        let servers = [("tskey-", Self::TAILSCALE), ("hskey-", Self::HEADSCALE)];
        servers.into_iter().find(|(prefix, _)| token.starts_with(prefix)).map(|(_, capabilities)| capabilities)
    }

    /// Whether the session of a deleted device ends, so that it logs in again. headscale leaves it open, without updates.
    pub fn ends_sessions(self) -> bool {
        self.services
    }

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

/// Capabilities of a server, by its answers. Another answer than before counts when it was the only one for
/// [`CONFIRM_INTERVAL`]: a switch withdraws what is served.
#[derive(Debug, Default)]
pub struct CapabilityVerdict {
    current: Option<Capabilities>,
    /// Time of the last answer like it.
    confirmed: Duration,
    /// Time of the first of the other answers since.
    other: Option<Duration>,
}

impl CapabilityVerdict {
    pub fn current(&self) -> Option<Capabilities> {
        self.current
    }

    /// Whether another answer is needed.
    pub fn is_due(&self, now: Duration) -> bool {
        self.current.is_none() || self.other.is_some() || now.saturating_sub(self.confirmed) >= CONFIRM_INTERVAL
    }

    pub fn take(&mut self, answer: Capabilities, now: Duration) {
        let is_confirmed = self.other.is_some_and(|since| now.saturating_sub(since) >= CONFIRM_INTERVAL);
        if self.current.is_none_or(|current| current == answer || is_confirmed) {
            *self = Self { current: Some(answer), confirmed: now, other: None };
        } else {
            self.other.get_or_insert(now);
        }
    }
}

/// The time until which an access token received at `now` is used; `expires_in` is in seconds.
pub fn token_end(now: Duration, expires_in: Option<u64>) -> Duration {
    let holds = expires_in.map_or(DEFAULT_TOKEN_LIFETIME, Duration::from_secs);
    // A short-lived token is used for half of its lifetime.
    now + holds.saturating_sub(MIN_TOKEN_LIFETIME).max(holds / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn tokens_of_known_servers_show_their_capabilities() {
        for (token, wanted) in [
            ("tskey-api-k1-2", Some(Capabilities::TAILSCALE)),
            ("hskey-oauthtok-1", Some(Capabilities::HEADSCALE)),
            ("eyJhbGciOi", None),
            ("", None),
        ] {
            assert_eq!(Capabilities::of_token(token), wanted, "{token}");
        }
    }

    #[test]
    fn verdict_changes_when_one_answer_was_the_only_one_for_an_interval() {
        const T: Capabilities = Capabilities::TAILSCALE;
        const H: Capabilities = Capabilities::HEADSCALE;
        let minutes = |minutes: u64| s(60 * minutes);
        let mut verdict = CapabilityVerdict::default();
        assert!(verdict.current().is_none() && verdict.is_due(s(0)));
        verdict.take(T, s(0));
        assert!(!verdict.is_due(minutes(9)) && verdict.is_due(minutes(10)), "it is confirmed again");
        // A gateway answers for a while, twice.
        for (minute, answer) in [(10, H), (19, H), (20, T), (30, H), (39, H)] {
            verdict.take(answer, minutes(minute));
            assert_eq!((verdict.current(), verdict.is_due(minutes(minute) + s(60))), (Some(T), answer == H), "{minute}");
        }
        verdict.take(H, minutes(40));
        assert_eq!((verdict.current(), verdict.is_due(minutes(41))), (Some(H), false));
    }

    #[test]
    fn tokens_are_renewed_before_they_end() {
        assert_eq!(token_end(s(10), Some(3600)), s(10 + 3600 - 120));
        assert_eq!(token_end(s(10), Some(60)), s(40));
        assert_eq!(token_end(s(10), None), s(10 + 1800 - 120));
    }
}
