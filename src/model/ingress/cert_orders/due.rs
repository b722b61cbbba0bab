//! Renewal times and validity of certificates.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::model::base::hash::sha256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Unique ID at the ACME server (RFC 9773).
    pub id: String,
    pub from: Timestamp,
    pub until: Timestamp,
}

/// Renewal window suggested by the ACME server (ARI).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewalWindow {
    pub start: Timestamp,
    pub end: Timestamp,
}

/// Upper limit of the minimum time between renewals, whatever the clock and the server's window say. The minimum is a 24th of the lifetime:
/// a replica counts it from when it observes the certificate, which may be late.
const MIN_RENEWAL_PAUSE: SignedDuration = SignedDuration::from_hours(24);

/// Minimum time between the observation of a new certificate and its renewal.
pub(super) fn min_pause(certificate: &Certificate) -> Duration {
    let part = certificate.until.duration_since(certificate.from) / 24;
    Duration::try_from(part.min(MIN_RENEWAL_PAUSE)).unwrap_or_default()
}

pub fn usable(certificate: &Certificate, wall: Timestamp) -> bool {
    certificate.from <= wall && wall < certificate.until
}

/// Validity of a certificate that is renewed outside of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// Not valid before this time.
    Early(Timestamp),
    Valid,
    /// Valid until this time, but overdue for renewal.
    Ending(Timestamp),
    /// Expired at this time.
    Ended(Timestamp),
}

/// Time before expiry at which a renewal is overdue, whatever the lifetime.
const NOTICE: SignedDuration = SignedDuration::from_hours(14 * 24);

impl Validity {
    /// Current validity, and the time of its next change.
    pub fn of(certificate: &Certificate, wall: Timestamp) -> (Self, Option<Timestamp>) {
        let Certificate { from, until, .. } = *certificate;
        let notice = until.checked_sub(NOTICE).unwrap_or(from).max(latest(certificate));
        if wall < from {
            (Self::Early(from), Some(from))
        } else if wall < notice {
            (Self::Valid, Some(notice))
        } else if wall < until {
            (Self::Ending(until), Some(until))
        } else {
            (Self::Ended(until), None)
        }
    }
}

/// Latest renewal time, regardless of suggestions: five sixths of the lifetime.
fn latest(certificate: &Certificate) -> Timestamp {
    part(certificate.from, certificate.until.duration_since(certificate.from), 5.0 / 6.0)
}

/// Renewal time: a fixed random point of the suggested window, else between three fifths and two thirds of the lifetime. Never after five
/// sixths of the lifetime, regardless of suggestions.
pub fn renew_at(certificate: &Certificate, window: Option<RenewalWindow>) -> Timestamp {
    let lifetime = certificate.until.duration_since(certificate.from);
    let own = chance(&certificate.id);
    let at = match window {
        Some(window) => part(window.start, window.end.duration_since(window.start), own),
        None => part(certificate.from, lifetime, 2.0 / 3.0 - own / 15.0),
    };
    at.min(latest(certificate))
}

fn part(from: Timestamp, span: SignedDuration, share: f64) -> Timestamp {
    from.checked_add(span.max(SignedDuration::ZERO).mul_f64(share)).unwrap_or(from)
}

/// Number from 0 to 1 derived from the ID: equal at every replica and after every restart.
fn chance(id: &str) -> f64 {
    let number = u32::from_str_radix(&sha256(id.as_bytes())[..8], 16).unwrap_or_default();
    f64::from(number) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_warning_scales_with_certificate_lifetime() {
        let hour = |hour: i64| Timestamp::from_second(hour * 60 * 60).expect("a time");
        // Lifetimes of a year, ninety days, six days and six hours, each with the start of the warning.
        for (lifetime, announced) in [(365 * 24, 351 * 24), (90 * 24, 76 * 24), (6 * 24, 5 * 24), (6, 5)] {
            let certificate = Certificate { id: String::new(), from: hour(0), until: hour(lifetime) };
            let of = |at| Validity::of(&certificate, hour(at));
            assert_eq!(of(-1), (Validity::Early(hour(0)), Some(hour(0))));
            assert_eq!(of(announced - 1), (Validity::Valid, Some(hour(announced))), "{lifetime} hours");
            assert_eq!(of(announced), (Validity::Ending(hour(lifetime)), Some(hour(lifetime))));
            assert_eq!(of(lifetime), (Validity::Ended(hour(lifetime)), None));
        }
    }
}
