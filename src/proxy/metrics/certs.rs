//! Certificates: expiry, errors and ACME orders.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{Snapshot, flag, number, one, size};
use crate::model::ingress::cert_orders::usable;
use crate::runtime::metrics::Page;

/// Window of an ACME server's rate limit.
const WEEK: SignedDuration = SignedDuration::from_hours(7 * 24);

families! {
    CertMetrics {
        loaded: Gauge "tailyard_certificate_loaded" ["name"] "1 while a valid certificate of the name is loaded",
        expiry: Gauge "tailyard_certificate_expiry_timestamp_seconds" ["name"] "When the loaded certificate of the name expires",
        failures: Gauge "tailyard_certificate_order_failures" ["name"] "Consecutive failed orders of the name, of all replicas",
        error: Gauge "tailyard_certificate_error" ["name", "reason"]
            "1 for an error of the certificate's Secret, for the last failed order, and for `Unpermitted` while the control plane does not allow a certificate for the name",
        orders: Counter "tailyard_certificate_orders_total" ["result"] "Completed orders of this replica",
        restored: Counter "tailyard_certificates_restored_total" []
            "Certificates that were written again after their Secret was deleted or changed",
        week: Gauge "tailyard_certificates_issued_last_week" []
            "Certificates of the group's names issued in the last seven days, which the ACME server counts against its rate limit",
        leader: Gauge "tailyard_certificate_leader" [] "1 while this replica is the cert leader, which orders certificates",
    }
}

impl CertMetrics {
    pub(super) fn write(&self, page: &mut Page, snapshot: &Snapshot) {
        let Some(certs) = &snapshot.certs else { return };
        let (now, names) = (Timestamp::now(), &certs.state.names);
        let certificates = || names.iter().filter_map(|(name, state)| Some((name.as_str(), state.certificate.as_ref()?)));
        let serves = |name: &str| names[name].certificate.as_ref().is_some_and(|certificate| usable(certificate, now));
        page.write(&self.loaded, names.keys().map(|name| ([name.as_str()], flag(serves(name)))));
        #[allow(clippy::cast_precision_loss, reason = "a time of this century is far below 2^53")]
        page.write(&self.expiry, certificates().map(|(name, existing)| ([name], existing.until.as_second() as f64)));
        let failures = names.iter().filter(|(_, state)| state.issue);
        page.write(&self.failures, failures.map(|(name, state)| ([name.as_str()], f64::from(state.note.failures))));
        let errors = names.iter().flat_map(|(name, state)| {
            let reason = Some(state.note.reason.as_str()).filter(|reason| !reason.is_empty());
            let unpermitted = (state.issue && !state.permitted).then_some("Unpermitted");
            state.fault.into_iter().chain(reason).chain(unpermitted).map(|reason| ([name.as_str(), reason], 1.0))
        });
        page.write(&self.error, errors);
        page.write(&self.orders, certs.state.orders.iter().map(|(result, count)| ([*result], number(*count))));
        one(page, &self.restored, number(certs.state.restored));
        let young = |found: &crate::model::ingress::cert_orders::Certificate| now.duration_since(found.from) < WEEK;
        one(page, &self.week, size(certificates().filter(|(name, entry)| names[*name].issue && young(entry)).count()));
        one(page, &self.leader, flag(certs.leads));
    }
}
