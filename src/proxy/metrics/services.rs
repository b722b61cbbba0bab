//! Egress services: targets, traffic and errors.

use std::collections::BTreeSet;

use super::errors::LastErrors;
use super::{Snapshot, number, size, tally};
use crate::model::firewall::{Counters, Traffic};
use crate::model::plan::{Egress, Plan, Reason};
use crate::runtime::metrics::{Kind, Page, Registry, Sampled};

#[derive(Debug)]
pub(super) struct Services {
    count: Sampled<1>,
    rejected: Sampled<1>,
    mappings: Sampled<1>,
    targets: Sampled<1>,
    flows: Sampled<1>,
    bytes: Sampled<1>,
    reasons: Sampled<2>,
    last_error: Sampled<2>,
}

impl Services {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let mut gauge = |name, help| registry.sampled(name, Kind::Gauge, help, ["proxied_service"]);
        let mappings = gauge("tailyard_service_mappings", "Match ports of the service in the plan; for L3 ingress its addresses");
        let targets = gauge("tailyard_service_targets", "Target addresses of the service; 0 while its target is unresolved");
        let mut total = |name, help| registry.sampled(name, Kind::Counter, help, ["proxied_service"]);
        let flows = total("tailyard_service_flows_total", "New flows that were DNATed to a target; resets when a mapping is replaced");
        let bytes =
            total("tailyard_service_bytes_total", "Bytes of both directions, including IP headers; resets when a mapping is replaced");
        let pair = ["proxied_service", "reason"];
        Self {
            count: registry.sampled("tailyard_services", Kind::Gauge, "Services that are forwarded, wholly or in part", ["type"]),
            rejected: registry.sampled(
                "tailyard_services_rejected",
                Kind::Gauge,
                "Services that are not forwarded, wholly or in part",
                ["reason"],
            ),
            mappings,
            targets,
            flows,
            bytes,
            reasons: registry.sampled(
                "tailyard_service_rejected",
                Kind::Gauge,
                "1 for each reason why a part of the service is not forwarded",
                pair,
            ),
            last_error: registry.sampled(
                "tailyard_service_last_error_timestamp_seconds",
                Kind::Gauge,
                "When the last error of the service was last in force",
                pair,
            ),
        }
    }

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
