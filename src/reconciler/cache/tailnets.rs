//! Which workloads are in one tailnet. Several Tailnet objects can be of one: each has an OAuth client of its own, with other tags.

use std::collections::BTreeSet;

use serde_json::Value;

use super::ClusterCache;
use crate::api::connector::Connector;
use crate::api::names;
use crate::api::proxygroup::ProxyGroup;
use crate::model::controller::key::{PublishSource, WorkloadKey};
use crate::model::controller::workload::device_index::{OtherTailnets, TAILSCALE, login_server};

impl ClusterCache {
    /// Whether two workloads are in one tailnet: that of one Tailnet object, else of one login server and one domain in device records. A group
    /// that does not exist is in none.
    pub(super) fn is_same_tailnet(&self, one: &WorkloadKey, other: &WorkloadKey) -> bool {
        let named = self.tailnet_of(one).zip(self.tailnet_of(other));
        named.is_some_and(|(one_name, other_name)| {
            one_name == other_name || !self.recorded_tailnets(one).is_disjoint(&self.recorded_tailnets(other))
        })
    }

    /// Whether standalone proxies are in the tailnet of a workload, as by [`Self::is_same_tailnet`], at little cost for each of many.
    pub(super) fn proxies_of_tailnet(&self, of: &WorkloadKey) -> impl Fn(&WorkloadKey) -> bool {
        let proxy = WorkloadKey::of_object(PublishSource::Service, "", "");
        let is_default = self.tailnet_of(of) == self.tailnet_of(&proxy);
        let [own, usual] = [of, &proxy].map(|key| if is_default { BTreeSet::new() } else { self.recorded_tailnets(key) });
        let is_of = move |recorded: BTreeSet<_>| !own.is_disjoint(if recorded.is_empty() { &usual } else { &recorded });
        move |other| is_default || is_of(self.domains(other))
    }

    /// Workloads that are not in the tailnet of this one.
    pub(super) fn other_tailnets(&self, of: &WorkloadKey) -> OtherTailnets {
        let others = self.tailnet_names().map(|(key, _)| key).filter(|key| !self.is_same_tailnet(of, key));
        let proxy = WorkloadKey::of_object(PublishSource::Service, "", "");
        OtherTailnets { workloads: others.collect(), standalone: !self.is_same_tailnet(of, &proxy) }
    }

    /// Name of a workload's Tailnet object, empty for the default tailnet. `None` for a group or Connector that does not exist.
    pub(in crate::reconciler) fn tailnet_of(&self, key: &WorkloadKey) -> Option<&str> {
        match key {
            WorkloadKey::ProxyGroup(name) => self.get::<ProxyGroup>(name).map(|group| tailnet_name(group.spec.tailnet.as_ref())),
            WorkloadKey::Connector(name) => self.get::<Connector>(name).map(|connector| tailnet_name(connector.spec.tailnet.as_ref())),
            WorkloadKey::Service(..) | WorkloadKey::Ingress(..) => Some(""),
        }
    }

    /// Groups and Connectors, each with the name of its Tailnet object.
    fn tailnet_names(&self) -> impl Iterator<Item = (WorkloadKey, &str)> {
        let groups = self.groups().map(|(name, group)| (WorkloadKey::of_group(name), tailnet_name(group.spec.tailnet.as_ref())));
        groups.chain(self.connectors().map(|(key, connector)| (key, tailnet_name(connector.spec.tailnet.as_ref()))))
    }

    /// Login servers and domains by the device records of a workload, else of another one of its Tailnet object.
    fn recorded_tailnets(&self, key: &WorkloadKey) -> BTreeSet<(String, &str)> {
        let own = self.domains(key);
        let Some(tailnet) = self.tailnet_of(key).filter(|_| own.is_empty()) else { return own };
        let same = self.tailnet_names().filter(|(_, name)| *name == tailnet);
        let mut same = same.map(|(key, _)| self.domains(&key)).filter(|domains| !domains.is_empty());
        // Tenants create proxies: the first one with a record is looked up.
        let proxy = || self.indices.domains.range(WorkloadKey::of_object(PublishSource::Service, "", "")..).next();
        let of_proxy = || proxy().filter(|_| tailnet.is_empty()).map(|(key, _)| self.domains(key));
        same.next().or_else(of_proxy).unwrap_or_default()
    }

    /// Whether a certificate can be of a workload: of a name in its tailnet, or labelled as the group's, as after a change of the domain.
    pub(super) fn is_certificate_name(&self, key: &WorkloadKey, dns: &str, secret: &Value) -> bool {
        let tailnets = self.recorded_tailnets(key);
        let is_in_domain = dns.split_once('.').is_some_and(|(_, domain)| tailnets.iter().any(|(_, of)| *of == domain));
        let is_labelled = || key.group().is_some_and(|group| secret["metadata"]["labels"][names::PROXY_GROUP] == *group);
        is_in_domain || tailnets.is_empty() || key.is_standalone() || is_labelled()
    }

    /// Login servers and domains in the device records of a workload.
    fn domains(&self, key: &WorkloadKey) -> BTreeSet<(String, &str)> {
        let replicas = self.indices.workloads.get(key).into_iter().flat_map(|members| members.replicas.values());
        let records = replicas.filter_map(|replica| {
            let entry = replica.config.as_ref()?.entry();
            let server = login_server(if entry.server.is_empty() { TAILSCALE } else { entry.server });
            Some((server, entry.record?.domain.as_deref()?))
        });
        records.collect()
    }
}

fn tailnet_name(tailnet: Option<&String>) -> &str {
    tailnet.map_or("", String::as_str)
}
