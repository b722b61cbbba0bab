//! The certificates: until when they serve, what keeps others from being had, and how many orders there were.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{Snapshot, flag, number, one, size};
use crate::model::issuance::usable;
use crate::runtime::metrics::{Kind, Page, Registry, Sampled};

/// The time over which an ACME server counts certificates.
const WEEK: SignedDuration = SignedDuration::from_hours(7 * 24);

#[derive(Debug)]
pub(super) struct Certs {
    loaded: Sampled<1>,
    expiry: Sampled<1>,
    failures: Sampled<1>,
    error: Sampled<2>,
    orders: Sampled<1>,
    restored: Sampled<0>,
    week: Sampled<0>,
    issuer: Sampled<0>,
}

impl Certs {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let (gauge, counter) = (Kind::Gauge, Kind::Counter);
        Self {
            loaded: registry.sampled("tailyard_certificate_loaded", gauge, "1 while a certificate for the name serves", ["name"]),
            expiry: registry.sampled(
                "tailyard_certificate_expiry_timestamp_seconds",
                gauge,
                "When the certificate that is loaded for the name ends",
                ["name"],
            ),
            failures: registry.sampled(
                "tailyard_certificate_order_failures",
                gauge,
                "Orders for the name that failed in a row, at any replica",
                ["name"],
            ),
            error: registry.sampled(
                "tailyard_certificate_error",
                gauge,
                "1 for what is wrong with the certificate's Secret, for the newest failure of an order, and for `Unpermitted` while the control server allows the name no certificate",
                ["name", "kind"],
            ),
            orders: registry.sampled("tailyard_certificate_orders_total", counter, "Orders of this replica that came to an end", ["result"]),
            restored: registry.sampled(
                "tailyard_certificates_restored_total",
                counter,
                "Certificates that were stored again because their Secret had lost them",
                [],
            ),
            week: registry.sampled(
                "tailyard_certificates_issued_last_week",
                gauge,
                "Certificates of the group's own names that began in the last seven days: what the ACME server counts against its limit",
                [],
            ),
            issuer: registry.sampled("tailyard_certificate_issuer", gauge, "1 while this replica is the one that orders", []),
        }
    }

    pub(super) fn write(&self, page: &mut Page, snapshot: &Snapshot) {
        let Some(certs) = &snapshot.certs else { return };
        let (now, names) = (Timestamp::now(), &certs.state.names);
        let held = || names.iter().filter_map(|(name, state)| Some((name.as_str(), state.certificate.as_ref()?)));
        let serves = |name: &str| names[name].certificate.as_ref().is_some_and(|held| usable(held, now));
        page.write(&self.loaded, names.keys().map(|name| ([name.as_str()], flag(serves(name)))));
        #[allow(clippy::cast_precision_loss, reason = "a time of this century is far below 2^53")]
        page.write(&self.expiry, held().map(|(name, held)| ([name], held.until.as_second() as f64)));
        let failures = names.iter().filter(|(_, state)| state.issue);
        page.write(&self.failures, failures.map(|(name, state)| ([name.as_str()], f64::from(state.note.failures))));
        let errors = names.iter().flat_map(|(name, state)| {
            let reason = Some(state.note.reason.as_str()).filter(|reason| !reason.is_empty());
            let unpermitted = (state.issue && !state.permitted).then_some("Unpermitted");
            state.fault.into_iter().chain(reason).chain(unpermitted).map(|kind| ([name.as_str(), kind], 1.0))
        });
        page.write(&self.error, errors);
        page.write(&self.orders, certs.state.orders.iter().map(|(result, count)| ([*result], number(*count))));
        one(page, &self.restored, number(certs.state.restored));
        let young = |held: &crate::model::issuance::Certificate| now.duration_since(held.from) < WEEK;
        one(page, &self.week, size(held().filter(|(name, held)| names[*name].issue && young(held)).count()));
        one(page, &self.issuer, flag(certs.leads));
    }
}
