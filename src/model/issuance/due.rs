//! When a certificate is to be replaced, and whether it serves.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::model::objects::sha256;

/// A certificate, as far as deciding goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// What the ACME server knows it by (RFC 9773), which no other certificate has.
    pub id: String,
    /// It is valid from this time.
    pub from: Timestamp,
    /// It is valid until this time.
    pub until: Timestamp,
}

/// When an ACME server suggests that a certificate be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Not before this time.
    pub start: Timestamp,
    /// Not after this time.
    pub end: Timestamp,
}

/// Whether a certificate serves.
#[must_use]
pub fn usable(certificate: &Certificate, wall: Timestamp) -> bool {
    certificate.from <= wall && wall < certificate.until
}

/// When a certificate is to be replaced: at its own point of the window that is suggested, else between three fifths and two
/// thirds of its lifetime. Never later than that, whatever is suggested.
#[must_use]
pub fn renew_at(certificate: &Certificate, window: Option<Window>) -> Timestamp {
    let lifetime = certificate.until.duration_since(certificate.from);
    let latest = part(certificate.from, lifetime, 5.0 / 6.0);
    let own = chance(&certificate.id);
    let at = match window {
        Some(window) => part(window.start, window.end.duration_since(window.start), own),
        None => part(certificate.from, lifetime, 2.0 / 3.0 - own / 15.0),
    };
    at.min(latest)
}

fn part(from: Timestamp, span: SignedDuration, share: f64) -> Timestamp {
    from.checked_add(span.max(SignedDuration::ZERO).mul_f64(share)).unwrap_or(from)
}

/// From 0 to 1, the same for a certificate at every replica and after every start.
fn chance(id: &str) -> f64 {
    let number = u32::from_str_radix(&sha256(id.as_bytes())[..8], 16).unwrap_or_default();
    f64::from(number) / f64::from(u32::MAX)
}
