//! When a certificate is to be replaced, and whether it serves.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::model::base::hash::sha256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// What the ACME server knows it by (RFC 9773), which no other certificate has.
    pub id: String,
    pub from: Timestamp,
    pub until: Timestamp,
}

/// When an ACME server suggests that a certificate be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenewalWindow {
    pub start: Timestamp,
    pub end: Timestamp,
}

/// Longest time before a new certificate is replaced, whatever the clock and the server's window say; at most one 24th of its lifetime, as
/// a replica counts it from when it sees the certificate, which may be late.
const MIN_RENEWAL_PAUSE: SignedDuration = SignedDuration::from_hours(24);

/// How long a new certificate is not replaced.
pub(super) fn min_pause(certificate: &Certificate) -> Duration {
    let part = certificate.until.duration_since(certificate.from) / 24;
    Duration::try_from(part.min(MIN_RENEWAL_PAUSE)).unwrap_or_default()
}

pub fn usable(certificate: &Certificate, wall: Timestamp) -> bool {
    certificate.from <= wall && wall < certificate.until
}

/// How a certificate stands that somebody else renews.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// It is not valid before this time.
    Early(Timestamp),
    Valid,
    /// It is valid until this time, and should have been renewed by now.
    Ending(Timestamp),
    /// It was valid until this time.
    Ended(Timestamp),
}

/// Before its end somebody should have renewed a certificate by this long, however long it is valid.
const NOTICE: SignedDuration = SignedDuration::from_hours(14 * 24);

impl Validity {
    /// How it stands, and when that changes by itself.
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

/// When a certificate is to be replaced at the latest, whatever is suggested: at five sixths of its lifetime.
fn latest(certificate: &Certificate) -> Timestamp {
    part(certificate.from, certificate.until.duration_since(certificate.from), 5.0 / 6.0)
}

/// When a certificate is to be replaced: at its own point of the window that is suggested, else between three fifths and two
/// thirds of its lifetime. Never later than that, whatever is suggested.
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

/// From 0 to 1, the same for a certificate at every replica and after every start.
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
        // Of a year, of ninety days, of six days and of six hours: from when on it should have been renewed.
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
