//! `DNSConfigs`, the objects of their nameserver, and the objects of users that have records. One work key stands for all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;

use super::WatchedKind;
use crate::api::dnsconfig::DNSConfig;
use crate::api::names;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::kinds::nameserver;
use crate::model::controller::kinds::nameserver::inputs::{KINDS, NameserverInputs, is_named, object};
use crate::model::controller::kinds::nameserver::records::{RecordRank, RequestedRecord, records};
use crate::model::controller::policy::annotations::{annotation, is_on};
use crate::model::controller::policy::requests::directions;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::readiness::{is_ready, pod_addresses};
use crate::model::controller::workload::settings::GroupSettings;
use crate::reconciler::cache::{ClusterCache, Id, WatchRole, WorkKey};

impl WatchedKind for DNSConfig {
    type Object = Self;

    fn prune(config: Self) -> Option<Self> {
        Some(config)
    }

    fn keys(&self, _cache: &ClusterCache, id: &Id) -> BTreeSet<WorkKey> {
        Self::own_key(id).into_iter().collect()
    }

    fn own_key(_: &Id) -> Option<WorkKey> {
        Some(WorkKey::Nameserver)
    }

    fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

impl ClusterCache {
    /// The work key, if a change may concern a nameserver or a record of it.
    pub(in crate::reconciler::cache) fn nameserver_key(&self, role: WatchRole, (_, name): &Id) -> Option<WorkKey> {
        let is_its_own = || matches!(role, WatchRole::Owned(kind) if is_named(kind, name));
        let has_records = matches!(
            role,
            WatchRole::Service
                | WatchRole::Ingress
                | WatchRole::Pod
                | WatchRole::IngressClass
                | WatchRole::Namespace
                | WatchRole::Owned(Kind::Service)
        );
        let serves = self.has(WatchRole::DnsConfig);
        let concerns = serves && (is_its_own() || (has_records && self.all_of::<DNSConfig>().next().is_some()));
        concerns.then_some(WorkKey::Nameserver)
    }

    /// The work key, if there are objects of a nameserver, also without a `DNSConfig`.
    pub(in crate::reconciler::cache) fn nameserver_leftovers(&self) -> Option<WorkKey> {
        let mut existing = self.nameserver_objects(self.namespace.as_deref()?).into_values();
        existing.any(|value| nameserver::is_labelled(&value)).then_some(WorkKey::Nameserver)
    }

    fn nameserver_objects(&self, namespace: &str) -> BTreeMap<ObjectRef, Arc<serde_json::Value>> {
        let kinds = KINDS.into_iter().filter(|_| self.has(WatchRole::DnsConfig));
        let all = kinds.map(|kind| object(kind, namespace));
        all.filter_map(|object| self.owned_object(&object).cloned().map(|value| (object, value))).collect()
    }

    /// All `DNSConfigs`, and what the nameserver is built from. In an uninstall none is effective, so that the nameserver is deleted.
    pub fn nameserver_inputs(&self, settings: &GroupSettings) -> (Vec<Arc<DNSConfig>>, NameserverInputs) {
        let configs: Vec<_> = self.all_of::<DNSConfig>().map(|(_, config)| Arc::clone(config)).collect();
        let wants_records = !configs.is_empty() && !self.is_uninstall_requested();
        let requested = || self.egress_records().chain(self.ingress_records());
        let inputs = NameserverInputs {
            namespace: settings.namespace.clone(),
            image: settings.image.clone(),
            pull_secrets: settings.image_pull_secrets.clone(),
            records: if wants_records { records(requested()) } else { records([]) },
            existing: self.nameserver_objects(&settings.namespace),
        };
        (configs, inputs)
    }

    /// Names of the targets of Services: at the child's address of a group, else at those of the proxy's Pod.
    fn egress_records(&self) -> impl Iterator<Item = RequestedRecord> {
        let of_groups = self.indices.child_owners.iter().filter_map(|(child, owner)| {
            let service = super::CachedKind::of(self.one(WatchRole::Service, &owner.parent)?).filter(|service| is_target(service))?;
            let namespace = self.namespace.as_deref().unwrap_or_default();
            let child = self.owned_object(&ObjectRef::new(Kind::Service, namespace, &**child))?;
            let addresses = child["spec"]["clusterIPs"].as_array().into_iter().flatten();
            let addresses = addresses.filter_map(|ip| ip.as_str()?.parse().ok()).collect();
            egress_record(service, addresses)
        });
        let services = self.all_of::<Service>().filter(|(_, service)| is_target(service) && self.assignment.is_standalone(service));
        let standalone = services.filter_map(|((namespace, name), service)| {
            egress_record(service, self.pod_addresses(&WorkloadKey::Service(namespace.clone(), name.clone())))
        });
        of_groups.chain(standalone)
    }

    /// Names of Ingresses that serve the cluster at their proxy's Pod.
    fn ingress_records(&self) -> impl Iterator<Item = RequestedRecord> {
        let all = self.all_of::<Ingress>().filter(|(_, ingress)| {
            is_on(ingress.metadata.annotations.as_ref(), names::FORWARD_CLUSTER_TRAFFIC) && self.assignment.is_standalone_ingress(ingress)
        });
        all.filter_map(|((namespace, name), ingress)| {
            let status = ingress.status.as_ref()?.load_balancer.as_ref()?;
            let host = status.ingress.as_ref()?.first()?.hostname.clone()?;
            let addresses = self.pod_addresses(&WorkloadKey::Ingress(namespace.clone(), name.clone()));
            Some(RequestedRecord { name: host, rank: RecordRank::new(false, &ingress.metadata), addresses })
        })
    }

    /// Addresses of a proxy's Pods that get traffic.
    fn pod_addresses(&self, key: &WorkloadKey) -> Vec<IpAddr> {
        let replicas = self.indices.workloads.get(key).into_iter().flat_map(|members| members.replicas.values());
        let pods = replicas.filter_map(|replica| replica.pod.as_ref()).filter(|pod| is_ready(pod));
        pods.flat_map(|pod| pod_addresses(pod)).collect()
    }
}

/// Whether a Service only requests a target in the tailnet.
fn is_target(service: &Service) -> bool {
    directions(service) == (false, true)
}

fn egress_record(service: &Service, addresses: Vec<IpAddr>) -> Option<RequestedRecord> {
    let metadata = &service.metadata;
    let name = annotation(metadata.annotations.as_ref(), names::TAILNET_FQDN)?.to_owned();
    let is_live = metadata.deletion_timestamp.is_none();
    is_live.then(|| RequestedRecord { name, rank: RecordRank::new(true, metadata), addresses })
}
