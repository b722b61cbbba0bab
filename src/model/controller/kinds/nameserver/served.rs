//! Names that proxies serve: from what the reconciler wrote and their Pods report, never from a field that users write.
//!
//! A group serves a name at a child if one entry of its egress config has all match ports of the child. A proxy of a Service serves the name
//! in the environment of its Pod. The proxy of an Ingress serves the name of its device, as the control plane records it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::api::egress::EgressService;
use crate::model::config::fingerprint;
use crate::model::controller::egress::acks::{holds, is_from_pod};
use crate::model::controller::kinds::nameserver::records::{RecordRank, ServedName};
use crate::model::controller::workload::identity::DeviceName;
use crate::model::controller::workload::objects::child::ChildRecord;
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::objects::services::{egress_config, egress_text};
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::pass::is_terminating;
use crate::model::controller::workload::readiness::{is_ready, pod_addresses};

/// Variable of a Pod with the name that it forwards to.
const TARGET: &str = "TS_TAILNET_TARGET_FQDN";
/// Variables of a Pod that serves an Ingress to the cluster, of ours and of the Tailscale operator.
const SERVES_CLUSTER: [&str; 2] = ["TAILYARD_SERVE_ON_POD_ADDRESS", "EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS"];

/// Proxies whose names may have records: their requesting objects exist and are not in deletion.
#[derive(Debug, Clone, Default)]
pub struct ServingProxies {
    /// Groups with children, by name.
    pub groups: BTreeMap<String, ServingGroup>,
    /// Proxies of single Services and Ingresses.
    pub standalone: Vec<ServingProxy>,
}

/// A group of egress Services.
#[derive(Debug, Clone, Default)]
pub struct ServingGroup {
    /// `ConfigMap` of the egress config.
    pub config: Option<Arc<Value>>,
    pub replicas: Vec<ObservedReplica>,
    /// Child Services, each with the rank of the user's Service.
    pub children: Vec<(RecordRank, Arc<Value>)>,
}

/// A proxy of one Service or Ingress.
#[derive(Debug, Clone)]
pub struct ServingProxy {
    pub rank: RecordRank,
    /// Its Pods, with the state that the active one reports.
    pub replicas: Vec<ObservedReplica>,
    /// Of an Ingress.
    pub site: Option<ServingSite>,
}

/// What the proxy of an Ingress serves.
#[derive(Debug, Clone, Default)]
pub struct ServingSite {
    /// Name of its verified device.
    pub device: Option<DeviceName>,
    /// `ConfigMap` of the ingress config.
    pub config: Option<Arc<Value>>,
}

impl ServingProxies {
    /// All names that proxies serve, in no order; one for each child, Pod and Ingress.
    pub fn names(&self) -> Vec<ServedName> {
        let of_groups = self.groups.iter().flat_map(|(name, group)| group.names(name));
        let standalone = self.standalone.iter().flat_map(|proxy| match &proxy.site {
            Some(site) => site.name(proxy).into_iter().collect(),
            None => proxy.targets(),
        });
        of_groups.chain(standalone).collect()
    }
}

/// An egress config, by protocol and match port.
struct TargetsByPort<'a> {
    fingerprint: String,
    entries: BTreeMap<(&'a str, u64), (&'a str, &'a EgressService)>,
}

impl ServingGroup {
    fn names(&self, group: &str) -> Vec<ServedName> {
        let Some(config) = &self.config else { return Vec::new() };
        let entries = egress_config(config);
        let targets = TargetsByPort::new(&entries, fingerprint(&egress_text(config).unwrap_or_default()));
        let one = |(rank, child): &(RecordRank, Arc<Value>)| {
            let record = ChildRecord::read(child, group).filter(|_| !is_terminating(child))?;
            let (name, entry) = targets.of(&record)?;
            let addresses = child["spec"]["clusterIPs"].as_array().into_iter().flatten();
            Some(ServedName {
                name: entry.tailnet_target.fqdn.clone(),
                rank: rank.clone(),
                addresses: addresses.filter_map(|ip| ip.as_str()?.parse().ok()).collect(),
                is_acknowledged: self.acknowledges(&targets.fingerprint, name, entry),
            })
        };
        self.children.iter().filter_map(one).collect()
    }

    /// Whether every Pod that gets traffic forwards an entry, and at least one does.
    fn acknowledges(&self, fingerprint: &str, name: &str, entry: &EgressService) -> bool {
        let acknowledges = |replica: &ObservedReplica, pod: &Pod| {
            let status = replica.state.as_ref().and_then(|state| state.egress.as_ref());
            status.is_some_and(|status| is_from_pod(status, pod) && holds(status, fingerprint, name, entry))
        };
        let ready = self.replicas.iter().filter_map(|replica| Some((replica, ready_pod(replica)?)));
        let mut results = ready.map(|(replica, pod)| acknowledges(replica, pod)).peekable();
        results.peek().is_some() && results.all(|is_acknowledged| is_acknowledged)
    }
}

impl<'a> TargetsByPort<'a> {
    fn new(entries: &'a BTreeMap<String, EgressService>, fingerprint: String) -> Self {
        let named = entries.iter().filter(|(_, entry)| !entry.tailnet_target.fqdn.is_empty());
        let ports = named.flat_map(|(name, entry)| {
            entry.ports.iter().map(move |port| ((port.protocol.as_str(), port.match_port), (name.as_str(), entry)))
        });
        Self { fingerprint, entries: ports.collect() }
    }

    /// The entry to which a child sends all its ports.
    fn of(&self, child: &ChildRecord<'_>) -> Option<(&'a str, &'a EgressService)> {
        let mut found = child.ports.iter().map(|(protocol, _, match_port)| self.entries.get(&(*protocol, u64::from(*match_port))));
        let first = found.next()??;
        found.all(|entry| entry.is_some_and(|entry| entry.0 == first.0)).then_some(*first)
    }
}

impl ServingProxy {
    /// The names in the environments of its Pods, each with the addresses of these.
    fn targets(&self) -> Vec<ServedName> {
        let mut addresses: BTreeMap<&str, Vec<IpAddr>> = BTreeMap::new();
        for replica in &self.replicas {
            let Some(pod) = ready_pod(replica).filter(|_| !rejects_target(replica)) else { continue };
            if let Some(name) = variable(pod, TARGET) {
                addresses.entry(name).or_default().extend(pod_addresses(pod));
            }
        }
        let served = addresses.into_iter();
        served.map(|(name, addresses)| ServedName { name: name.to_owned(), ..ServedName::new(&self.rank, addresses) }).collect()
    }
}

impl ServingSite {
    fn name(&self, proxy: &ServingProxy) -> Option<ServedName> {
        let name = self.device.as_ref()?.as_str();
        let pods = proxy.replicas.iter().filter_map(ready_pod);
        let pods = pods.filter(|pod| SERVES_CLUSTER.iter().any(|key| variable(pod, key) == Some("true")));
        let addresses = pods.flat_map(pod_addresses).collect();
        let sites = self.config.as_ref().map(|config| IngressConfigMap::read(config).routes).unwrap_or_default();
        let is_acknowledged = sites.values().flat_map(|site| site.hosts.keys()).any(|host| host == name);
        Some(ServedName { name: name.to_owned(), is_acknowledged, ..ServedName::new(&proxy.rank, addresses) })
    }
}

impl ServedName {
    fn new(rank: &RecordRank, addresses: Vec<IpAddr>) -> Self {
        Self { name: String::new(), rank: rank.clone(), addresses, is_acknowledged: true }
    }
}

fn ready_pod(replica: &ObservedReplica) -> Option<&Pod> {
    replica.pod.as_deref().filter(|pod| is_ready(pod))
}

/// Whether a Pod reports that it does not serve its target.
fn rejects_target(replica: &ObservedReplica) -> bool {
    replica.is_current() && replica.state.as_ref().is_some_and(|state| state.rejected_target.is_some())
}

/// Value of a variable of the proxy in a Pod.
fn variable<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten()).filter(|variable| variable.name == name);
    variables.find_map(|variable| variable.value.as_deref()).filter(|value| !value.is_empty())
}
