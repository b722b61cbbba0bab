//! Egress services: targets, traffic and errors.

use std::collections::BTreeSet;

use super::errors::LastErrors;
use super::{Snapshot, number, size, tally};
use crate::model::firewall::{Counters, Traffic};
use crate::model::plan::{Egress, Plan, Reason};
use crate::runtime::metrics::Page;

families! {
    Services {
        mappings: Gauge "tailyard_service_mappings" ["proxied_service"]
            "Match ports of the service in the plan; for L3 ingress its addresses",
        targets: Gauge "tailyard_service_targets" ["proxied_service"]
            "Target addresses of the service; 0 while its target is unresolved",
        flows: Counter "tailyard_service_flows_total" ["proxied_service"]
            "New flows that were DNATed to a target; resets when a mapping is replaced",
        bytes: Counter "tailyard_service_bytes_total" ["proxied_service"]
            "Bytes of both directions, including IP headers; resets when a mapping is replaced",
        count: Gauge "tailyard_services" ["type"] "Services that are forwarded, wholly or in part",
        rejected: Gauge "tailyard_services_rejected" ["reason"] "Services that are not forwarded, wholly or in part",
        reasons: Gauge "tailyard_service_rejected" ["proxied_service", "reason"]
            "1 for each reason why a part of the service is not forwarded",
        last_error: Gauge "tailyard_service_last_error_timestamp_seconds" ["proxied_service", "reason"]
            "When the last error of the service was last in force",
    }
}

impl Services {
    pub(super) fn write(&self, page: &mut Page, snapshot: &Snapshot, errors: &LastErrors) {
        let Some(planned) = &snapshot.planned else { return };
        let plan = &planned.plan;
        page.write(&self.count, [(["egress"], size(plan.egress.len())), (["ingress"], size(plan.ingress.len()))]);
        let every = plan.rejected.values().flat_map(|reasons| distinct(reasons));
        page.write(&self.rejected, tally(every).into_iter().map(|(reason, count)| ([reason], number(count))));
        self.write_routes(page, plan);
        if let Some(traffic) = &snapshot.traffic {
            let counted = || plan.egress.iter().map(|(name, egress)| (&**name, sum(egress, traffic)));
            page.write(&self.flows, counted().map(|(name, sum)| ([name], number(sum.flows))));
            page.write(&self.bytes, counted().map(|(name, sum)| ([name], number(sum.bytes))));
        }
        let reasons = plan.rejected.iter().flat_map(|(name, reasons)| distinct(reasons).into_iter().map(|reason| ([&**name, reason], 1.0)));
        page.write(&self.reasons, reasons);
        page.write(&self.last_error, errors.ages(snapshot.now).map(|(name, reason, age)| ([name, reason], snapshot.at(age))));
    }

    fn write_routes(&self, page: &mut Page, plan: &Plan) {
        let egress = plan.egress.iter().map(|(name, egress)| (&**name, egress.ports.len(), egress.targets.len()));
        let ingress = plan.ingress.iter().map(|(name, vips)| {
            let behind: BTreeSet<_> = vips.values().flatten().collect();
            (&**name, vips.len(), behind.len())
        });
        let routes: Vec<_> = egress.chain(ingress).collect();
        page.write(&self.mappings, routes.iter().map(|(name, mappings, _)| ([*name], size(*mappings))));
        page.write(&self.targets, routes.iter().map(|(name, _, targets)| ([*name], size(*targets))));
    }
}

/// Distinct names of reasons.
fn distinct(reasons: &[Reason]) -> BTreeSet<&'static str> {
    reasons.iter().map(Reason::reason).collect()
}

/// Sum of the counters of a service's ports.
fn sum(egress: &Egress, traffic: &Traffic) -> Counters {
    let counted = egress.ports.keys().filter_map(|key| traffic.get(key));
    counted.fold(Counters::default(), |sum, port| Counters {
        flows: sum.flows.saturating_add(port.flows),
        packets: sum.packets.saturating_add(port.packets),
        bytes: sum.bytes.saturating_add(port.bytes),
    })
}
