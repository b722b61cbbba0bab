//! Ingresses, Services and the Kubernetes API that groups advertise: names in the tailnet, replicas that serve them, and ends of certificates.
//!
//! The config of a group says which objects it advertises. An object that no group advertises is shown if it requests that.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::ingress_faults::reasons;
use super::snapshot::{ClusterView, StatusPart, requests_ingress_group};
use super::{UnhealthyCondition, name};
use crate::api::condition::{API_SERVER_CONFIGURED, API_SERVER_VALID};
use crate::api::names;
use crate::api::proxygroup::ProxyGroup;
use crate::api::routes::Origin;
use crate::model::controller::ingress::advertise::{live, unapproved};
use crate::model::controller::ingress::routes::mapped_routes;
use crate::model::controller::key::{PublishSource, Publisher};
use crate::model::controller::policy::annotations::annotation;
use crate::model::controller::policy::requests::{Parent, directions};
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::certificate::{domain_of, is_certificate_of};
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::observed::replica::ObservedReplica;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedOverview {
    /// `Ingress`, `Service`, or `ProxyGroup` for the Kubernetes API.
    pub kind: String,
    /// Empty for a `ProxyGroup`.
    pub namespace: String,
    pub name: String,
    /// The group that advertises it, else the requested one.
    pub group: Option<String>,
    /// First name or address in its status.
    pub tailnet: Option<String>,
    /// Replicas that advertise it and receive traffic; `None` if unknown.
    pub ready: Option<usize>,
    pub desired: u32,
    /// End of its certificate that proxies order; `None` if unknown.
    pub certificate_expires: Option<String>,
    /// Reason of its fault, or the first condition that is not true.
    pub last_error: Option<String>,
}

/// Configs of the groups of type ingress, by group, with the replicas that receive traffic.
#[derive(Debug, Default)]
pub(super) struct PublishedRecords<'a> {
    groups: BTreeMap<&'a str, (IngressConfigMap, Vec<ObservedReplica>)>,
    /// Group and names of each object.
    owners: BTreeMap<Origin, (&'a str, Vec<String>)>,
}

impl<'a> PublishedRecords<'a> {
    pub(super) fn of(view: &'a ClusterView) -> Self {
        let replica = |group: &str, ordinal| {
            let replica = names::replica(group, ordinal);
            let (pod, state) = (view.pods.get(&replica).cloned(), view.states.get(&replica).cloned());
            ObservedReplica { pod: pod.map(Arc::new), state: state.map(Arc::new), config: None }
        };
        let record = |group: &'a crate::api::proxygroup::ProxyGroup| {
            let config = IngressConfigMap::read(view.configs.get(&names::ingress_config(name(group)))?);
            let replicas = (0..group.spec.desired_replicas()).map(|ordinal| replica(name(group), ordinal));
            Some((name(group), (config, replicas.filter(live).collect())))
        };
        let groups: BTreeMap<&'a str, (IngressConfigMap, Vec<ObservedReplica>)> = view.groups.iter().filter_map(record).collect();
        let mut owners: BTreeMap<Origin, (&'a str, Vec<String>)> = BTreeMap::new();
        for (group, (config, _)) in &groups {
            for (name, owner) in &config.origins {
                let (first, names) = owners.entry(owner.clone()).or_insert((*group, Vec::new()));
                if first == group {
                    names.push(name.clone());
                }
            }
        }
        Self { groups, owners }
    }

    /// Number of names that a replica serves, and of all names of its group; `None` if the group has no config.
    pub(super) fn advertised_by(&self, group: &str, replica: &ObservedReplica) -> Option<(usize, usize)> {
        let (config, _) = self.groups.get(group)?;
        let all = config.names();
        Some((all.iter().filter(|name| replica.is_current() && serves(replica, config, name)).count(), all.len()))
    }

    /// The group that advertises an object, and the number of replicas that do so with all its names.
    fn find(&self, publisher: &Publisher) -> Option<(&'a str, usize)> {
        let (kind, namespace, name) = (publisher.source.kind().to_owned(), publisher.namespace.clone(), publisher.name.clone());
        let origin = Origin { kind, namespace, name };
        let (group, names) = self.owners.get(&origin)?;
        let (config, replicas) = self.groups.get(group)?;
        let count = replicas.iter().filter(|replica| names.iter().all(|name| serves(replica, config, name))).count();
        Some((*group, count))
    }
}

/// Whether a replica serves a name: as a Tailscale Service, by routes, or at its own addresses.
fn serves(replica: &ObservedReplica, config: &IngressConfigMap, name: &str) -> bool {
    if config.serve.contains_key(name) {
        return replica.advertises(name) && !unapproved(replica, name);
    }
    match config.mappings.get(name) {
        Some(mapping) => replica.state.as_ref().is_some_and(|state| mapped_routes(mapping).is_subset(&state.routes)),
        None => config.routes.contains_key(name),
    }
}

pub(super) fn published(view: &ClusterView, records: &PublishedRecords<'_>) -> Vec<PublishedOverview> {
    let faults = reasons(view);
    let ingresses = view.ingresses.iter().flat_map(BTreeMap::values).map(Parent::Ingress);
    let rows = ingresses.chain(view.services.iter().map(Parent::Service)).filter_map(|parent| {
        let publisher = parent.publisher();
        let record = records.find(&publisher);
        let is_shown = record.is_some() || requests_group(parent);
        is_shown.then(|| {
            let fault = faults.get(&(publisher.namespace.as_str(), publisher.name.as_str())).copied();
            row(view, parent, &publisher, record, fault.filter(|_| publisher.source == PublishSource::Ingress))
        })
    });
    let mut rows: Vec<_> = rows.chain(view.groups.iter().filter_map(|group| api_server(view, records, group))).collect();
    rows.sort_by(|one, other| (&one.kind, &one.namespace, &one.name).cmp(&(&other.kind, &other.namespace, &other.name)));
    rows
}

/// Whether a Service is one that a group advertises, and not one with a target in the tailnet.
pub(super) fn is_published(service: &Service) -> bool {
    !directions(service).1 && requests_ingress_group(service)
}

/// Whether an object requests a group of type ingress, or has its finalizer. The setting with default groups is not known here.
fn requests_group(parent: Parent<'_>) -> bool {
    match parent {
        Parent::Service(service) => is_published(service),
        Parent::Ingress(ingress) => {
            let metadata = &ingress.metadata;
            annotation(metadata.annotations.as_ref(), names::PROXY_GROUP).is_some()
                || finalizers::has(metadata, names::INGRESS_FINALIZER)
                || (is_of_class(ingress) && !finalizers::has(metadata, names::FINALIZER))
        }
    }
}

/// Whether an Ingress has the class with the usual name.
fn is_of_class(ingress: &Ingress) -> bool {
    ingress.spec.as_ref().is_some_and(|spec| spec.ingress_class_name.as_deref() == Some("tailscale"))
}

fn row(
    view: &ClusterView,
    parent: Parent<'_>,
    publisher: &Publisher,
    record: Option<(&str, usize)>,
    fault: Option<&str>,
) -> PublishedOverview {
    let named = || annotation(parent.metadata().annotations.as_ref(), names::PROXY_GROUP);
    let group = record.map(|(group, _)| group).or_else(named);
    let desired = view.groups.iter().find(|other| Some(name(other)) == group).map_or(0, |group| group.spec.desired_replicas());
    let complete = [StatusPart::Pods, StatusPart::States, StatusPart::Configs].iter().all(|part| !view.gaps.contains_key(part));
    let is_seen = record.is_some() || !parent.metadata().finalizers.as_deref().unwrap_or_default().is_empty();
    let unseen = || (!is_seen && !view.gaps.contains_key(&StatusPart::Events)).then(|| "no reconciler has looked at it yet".to_owned());
    let last_error = match parent {
        Parent::Ingress(_) => fault.map(str::to_owned).or_else(unseen),
        Parent::Service(service) => unwell(service),
    };
    PublishedOverview {
        kind: publisher.source.kind().to_owned(),
        namespace: publisher.namespace.clone(),
        name: publisher.name.clone(),
        group: group.map(str::to_owned),
        tailnet: shown_name(parent),
        ready: complete.then(|| record.map_or(0, |(_, ready)| ready)),
        desired,
        certificate_expires: certificate_expires(view, parent).map(|end| end.to_string()),
        last_error,
    }
}

/// The Kubernetes API of a group that publishes it. Of one that Tailyard has not written the replicas are not known.
fn api_server(view: &ClusterView, records: &PublishedRecords<'_>, group: &ProxyGroup) -> Option<PublishedOverview> {
    group.api_server_hostname()?;
    let publisher = Publisher { source: PublishSource::ProxyGroup, namespace: String::new(), name: name(group).to_owned() };
    let status = group.status.as_ref();
    let shown = status.and_then(|status| Some(status.url.as_deref()?.split_once("://")?.1));
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let own = |unwell: &UnhealthyCondition| [API_SERVER_VALID, API_SERVER_CONFIGURED].contains(&unwell.type_.as_str());
    let unwell = UnhealthyCondition::of(conditions).into_iter().find(own);
    let complete = [StatusPart::Pods, StatusPart::States, StatusPart::Configs].iter().all(|part| !view.gaps.contains_key(part));
    let mut certificates = view.certificates.iter().filter(|(secret, _)| is_certificate_of(secret, &publisher));
    let certificate = certificates.find(|(secret, _)| domain_of(secret) == shown);
    Some(PublishedOverview {
        kind: publisher.source.kind().to_owned(),
        namespace: String::new(),
        name: publisher.name.clone(),
        group: Some(publisher.name.clone()),
        tailnet: shown.map(str::to_owned),
        ready: records.find(&publisher).map(|(_, ready)| ready).filter(|_| complete),
        desired: group.spec.desired_replicas(),
        certificate_expires: certificate.and_then(|(_, end)| *end).map(|end| end.to_string()),
        last_error: unwell.map(|unwell| format!("{}: {}", unwell.reason, unwell.message)),
    })
}

/// The first condition of a Service that is not true.
fn unwell(service: &Service) -> Option<String> {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let unwell = UnhealthyCondition::of(conditions).into_iter().next().map(|unwell| format!("{}: {}", unwell.reason, unwell.message));
    unwell.or_else(|| conditions.is_empty().then(|| "no reconciler has looked at it yet".to_owned()))
}

/// First name or address in an object's status.
pub(super) fn shown_name(parent: Parent<'_>) -> Option<String> {
    match parent {
        Parent::Service(service) => {
            let entry = service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref()?.first()?;
            entry.hostname.clone().or_else(|| entry.ip.clone())
        }
        Parent::Ingress(ingress) => {
            let entry = ingress.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref()?.first()?;
            entry.hostname.clone().or_else(|| entry.ip.clone())
        }
    }
}

/// End of the certificate of an Ingress for the name in its status; without one, of the first of its certificates to end.
pub(super) fn certificate_expires(view: &ClusterView, parent: Parent<'_>) -> Option<Timestamp> {
    let Parent::Ingress(_) = parent else { return None };
    let (publisher, shown) = (parent.publisher(), shown_name(parent));
    let own = view.certificates.iter().filter(|(secret, _)| is_certificate_of(secret, &publisher));
    let of_name = own.filter(|(secret, _)| shown.as_deref().is_none_or(|shown| domain_of(secret) == Some(shown)));
    of_name.filter_map(|(_, end)| *end).min()
}
