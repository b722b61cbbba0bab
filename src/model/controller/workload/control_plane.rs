//! Control plane client policy: capabilities and access token expiry.
//!
//! Pure: sends nothing, and time is an argument, measured from any fixed moment.

use std::time::Duration;

/// An access token is renewed this long before it expires: longer than a request takes.
const MIN_TOKEN_LIFETIME: Duration = Duration::from_mins(2);
/// Assumed lifetime of a token whose response has no `expires_in`.
const DEFAULT_TOKEN_LIFETIME: Duration = Duration::from_mins(30);

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
    fn tokens_are_renewed_before_they_end() {
        assert_eq!(token_end(s(10), Some(3600)), s(10 + 3600 - 120));
        assert_eq!(token_end(s(10), Some(60)), s(40));
        assert_eq!(token_end(s(10), None), s(10 + 1800 - 120));
    }
}
