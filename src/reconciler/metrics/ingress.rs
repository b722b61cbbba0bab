//! Metrics of advertised names, certificates, faults of Ingresses, standalone proxies and Connectors: from the newest pass over each
//! workload.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::size;
use crate::model::controller::key::{PublishSource, WorkloadKey};
use crate::model::controller::workload::actions::Notice;
use crate::model::controller::workload::ingress_summary::{Certified, IngressSummary, PublishState};
use crate::model::controller::workload::proxy_state::ProxyState;
use crate::runtime::metrics::{Kind, Page, Registry, Sampled};

#[derive(Debug)]
pub struct IngressMetrics {
    names: Sampled<2>,
    certificates: Sampled<2>,
    faults: Sampled<1>,
    proxies: Sampled<2>,
    connectors: Sampled<1>,
    workloads: Mutex<BTreeMap<WorkloadKey, WorkloadMetrics>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct WorkloadMetrics {
    summary: Option<IngressSummary>,
    /// Ingresses with a lasting fault, by reason.
    faults: BTreeMap<&'static str, usize>,
    /// State of a standalone proxy or a Connector.
    proxy: Option<ProxyState>,
}

impl IngressMetrics {
    pub(super) fn new(r: &mut Registry) -> Self {
        Self {
            names: r.sampled(
                "tailyard_advertised_services",
                Kind::Gauge,
                "Services and Ingresses of a ProxyGroup by state: advertised, partial (by some replicas), pending, rejected",
                ["proxygroup", "state"],
            ),
            certificates: r.sampled(
                "tailyard_certificates",
                Kind::Gauge,
                "Certificates of a ProxyGroup by state: issued, pending, failing; of users: missing, invalid, expiring",
                ["proxygroup", "state"],
            ),
            faults: r.sampled(
                "tailyard_ingress_faults",
                Kind::Gauge,
                "Ingresses with a lasting fault, by the reason of their Events; an Ingress has no conditions",
                ["reason"],
            ),
            proxies: r.sampled(
                "tailyard_standalone_proxies",
                Kind::Gauge,
                "Services and Ingresses with a proxy of their own by state: ready, pending, failed, rejected",
                ["kind", "state"],
            ),
            connectors: r.sampled("tailyard_connectors", Kind::Gauge, "Connectors by state: ready, pending, failed, rejected", ["state"]),
            workloads: Mutex::default(),
        }
    }

    /// Sets the publication summary of a workload; `None` if it publishes nothing.
    pub fn publishes(&self, key: &WorkloadKey, summary: Option<&IngressSummary>) {
        self.set(key, |workload| workload.summary = summary.cloned());
    }

    /// Counts the Ingresses with a lasting fault; `faults` are all current ones of the workload.
    pub fn faults(&self, key: &WorkloadKey, faults: &[Notice]) {
        let about = faults.iter().filter(|fault| fault.warning && matches!(fault.subject, WorkloadKey::Ingress(..)));
        let distinct: BTreeSet<_> = about.map(|fault| (fault.reason, &fault.subject)).collect();
        let mut counts = BTreeMap::new();
        for (reason, _) in distinct {
            *counts.entry(reason).or_default() += 1;
        }
        self.set(key, |workload| workload.faults = counts);
    }

    /// Sets the state of a standalone proxy or a Connector; `None` if it has ended.
    pub fn proxy(&self, key: &WorkloadKey, state: Option<ProxyState>) {
        self.set(key, |workload| workload.proxy = state);
    }

    /// Forgets workloads that no longer exist: one that ended while another process was the leader has no later pass here.
    pub fn retain(&self, keys: &BTreeSet<WorkloadKey>) {
        self.workloads().retain(|key, _| keys.contains(key));
    }

    pub(super) fn write(&self, page: &mut Page) {
        let workloads = self.workloads();
        let labelled = workloads.iter().filter_map(|(key, workload)| Some((key.label(), workload.summary.as_ref()?)));
        let labelled: BTreeMap<String, &IngressSummary> = labelled.collect();
        let count = |count: Option<&usize>| size(count.copied().unwrap_or_default());
        let names = labelled.iter().flat_map(|(group, counts)| {
            PublishState::ALL.map(|state| ([group.as_str(), state.name()], count(counts.published.get(&state))))
        });
        page.write(&self.names, names);
        let certificates = labelled
            .iter()
            .flat_map(|(group, counts)| Certified::ALL.map(|state| ([group.as_str(), state.name()], count(counts.certified.get(&state)))));
        page.write(&self.certificates, certificates);
        let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
        for (reason, count) in workloads.values().flat_map(|workload| &workload.faults) {
            *faults.entry(reason).or_default() += count;
        }
        page.write(&self.faults, faults.iter().map(|(reason, count)| ([*reason], size(*count))));
        let kinds = [PublishSource::Service.kind(), PublishSource::Ingress.kind()];
        let mut proxies: BTreeMap<(&str, ProxyState), usize> =
            kinds.into_iter().flat_map(|kind| ProxyState::ALL.map(|state| ((kind, state), 0))).collect();
        let mut connectors: BTreeMap<ProxyState, usize> = ProxyState::ALL.map(|state| (state, 0)).into();
        for (key, state) in workloads.iter().filter_map(|(key, workload)| Some((key, workload.proxy?))) {
            let count =
                if key.is_standalone() { proxies.entry((key.kind(), state)).or_default() } else { connectors.entry(state).or_default() };
            *count += 1;
        }
        page.write(&self.connectors, connectors.iter().map(|(state, count)| ([state.name()], size(*count))));
        page.write(&self.proxies, proxies.iter().map(|((kind, state), count)| ([*kind, state.name()], size(*count))));
    }

    fn set(&self, key: &WorkloadKey, change: impl FnOnce(&mut WorkloadMetrics)) {
        let mut workloads = self.workloads();
        let mut workload = workloads.remove(key).unwrap_or_default();
        change(&mut workload);
        if workload != WorkloadMetrics::default() {
            workloads.insert(key.clone(), workload);
        }
    }

    fn workloads(&self) -> MutexGuard<'_, BTreeMap<WorkloadKey, WorkloadMetrics>> {
        self.workloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
