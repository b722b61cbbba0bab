//! Finalizer, conditions and `externalName` of a user's egress Service.
//!
//! `externalName` points to a child only after every awaited replica has acknowledged the Service, and is never removed while it is
//! served. Only the pass of the group that the Service names writes them.

use crate::model::controller::key::WorkloadKey;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use crate::api::condition::{EGRESS_SVC_CONFIGURED, EGRESS_SVC_READY, EGRESS_SVC_VALID, TRUE, reason};
use crate::api::{egress, names};
use crate::model::base::conditions::{self, ConditionStatus};
use crate::model::base::hash::sha256;
use crate::model::controller::egress::acks::{AckSummary, ReplicaAcks};
use crate::model::controller::egress::claims::{ServiceClaim, ServiceKey, ServiceRole};
use crate::model::controller::egress::memo::ServedService;
use crate::model::controller::egress::validate::{annotation, dns_name};
use crate::model::controller::key::PublishSource;
use crate::model::controller::workload::actions::ExternalNameUpdate;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::child::ChildService;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::readiness::{TIMEOUT, elapsed};
use crate::model::controller::workload::service_conditions::ServiceConditions;

/// Time for which a Service waits for its replicas without a condition: most are served earlier, so that this saves a request.
const UNREPORTED_WAIT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) enum ServiceOutcome {
    Known,
    /// New: its child is created by a later pass.
    Later,
    /// Served, or will be after all writes and acknowledgements.
    Served(ServingChild),
    /// Rejected, with reason and action.
    Refused(String),
    Held,
    Released,
}

#[derive(Debug)]
pub(crate) struct ServingChild {
    pub(crate) child: Arc<ChildService>,
    pub(crate) entry: Arc<egress::EgressService>,
    pub(crate) settled: bool,
}

impl ServedService {
    pub(crate) fn serving(&self) -> ServingChild {
        ServingChild { child: Arc::clone(&self.child), entry: Arc::clone(&self.entry), settled: true }
    }
}

/// Cluster DNS name of a child.
pub(crate) fn host(work: &Pass<'_>, child: &str) -> String {
    let settings = &work.observed.settings;
    format!("{child}.{}.svc.{}", settings.namespace, settings.cluster_domain)
}

/// Inputs of a Service's status besides the Service.
#[derive(Debug)]
pub(crate) struct ReportContext<'a> {
    pub(crate) written: bool,
    pub(crate) replica_acks: &'a ReplicaAcks,
    /// Whether they are unchanged since the last pass.
    pub(crate) same: bool,
}

/// Updates the status of one Service. Returns its acknowledgements if `externalName` and status are up to date.
pub(crate) fn update_status(
    work: &mut PlanPart<'_>,
    claim: &ServiceClaim<'_>,
    outcome: &ServiceOutcome,
    context: &ReportContext<'_>,
) -> Option<AckSummary> {
    let service = claim.service?;
    match (outcome, &claim.served) {
        (ServiceOutcome::Known, Some(current)) => {
            return still(current, claim, context).or_else(|| serving(work, claim, &current.serving(), context));
        }
        (ServiceOutcome::Served(served), _) => return serving(work, claim, served, context),
        (ServiceOutcome::Refused(message), _) => refused(work, claim.key, service, claim, message),
        (ServiceOutcome::Held, _) if claim.role == ServiceRole::Hold => invalid(work, claim.key, service, claim),
        (ServiceOutcome::Released, _) if claim.role == ServiceRole::Release => released(work, service, claim),
        (ServiceOutcome::Known | ServiceOutcome::Later | ServiceOutcome::Held | ServiceOutcome::Released, _) => {}
    }
    None
}

/// Acknowledgements of a Service whose status is still up to date.
fn still(served: &ServedService, claim: &ServiceClaim<'_>, context: &ReportContext<'_>) -> Option<AckSummary> {
    let acks = served.acks?;
    let now = if context.same {
        AckSummary { written: context.written, ..acks }
    } else {
        context.replica_acks.to(&claim.name, &served.entry, context.written)
    };
    // A config write changes nothing for a Service that is reported as written.
    (acks == now || acks == AckSummary { written: true, ..now }).then_some(acks)
}

/// The same for a Service whose status is computed now.
fn serving(work: &mut PlanPart<'_>, claim: &ServiceClaim<'_>, serving: &ServingChild, context: &ReportContext<'_>) -> Option<AckSummary> {
    let acks = context.replica_acks.to(&claim.name, &serving.entry, context.written);
    let created = claim.object.and_then(|child| child["metadata"]["creationTimestamp"].as_str()?.parse().ok());
    let waited = created.map_or(Duration::ZERO, |created| elapsed(created, work.observed.now));
    served(work, claim.service?, serving, acks, context.replica_acks, waited).then_some(acks)
}

/// Whether `externalName` and status are up to date. `waited`: age of the child.
fn served(
    work: &mut PlanPart<'_>,
    service: &Service,
    ServingChild { child, settled, .. }: &ServingChild,
    acks: AckSummary,
    replica_acks: &ReplicaAcks,
    waited: Duration,
) -> bool {
    let group = work.observed.key.group_name().to_owned();
    let host = host(work, &child.name);
    let mut conditions = ServiceConditions::new(work, service);
    conditions.set(EGRESS_SVC_VALID, ConditionStatus::True, reason::EGRESS_SVC_VALID, "The Service is valid.".into());
    let points = external_name(service) == host;
    let settled = *settled && acks.written;
    // A name that was pointed at this very config before is restored at once: another tool reverted it, and some replicas serve it.
    let reason = format!("ConfiguredFor:{}", record(service, &group));
    let switch = !points && settled && (acks.all || configured_for(service, &reason));
    if !points && !switch && replica_acks.waiting() {
        work.again(TIMEOUT);
    }
    // The end of readiness at another group is reported at once.
    if !points && !switch && acks.wanted > 0 && waited < UNREPORTED_WAIT && !conditions::is_true(service, EGRESS_SVC_READY) {
        work.again(UNREPORTED_WAIT.saturating_sub(waited));
        return false;
    }
    if (points || switch) && settled {
        conditions.set(EGRESS_SVC_CONFIGURED, ConditionStatus::True, &reason, format!("The Service resolves to {host}."));
    }
    let AckSummary { ready, wanted, .. } = acks;
    let counts = || format!("{ready} out of {wanted} replicas are ready to route traffic");
    let (status, reason, message) = match (ready, wanted) {
        (_, 0) => (ConditionStatus::False, reason::NO_PROXIES, format!("ProxyGroup {group} has no replicas: set its spec.replicas.")),
        _ if !points && !switch => {
            let message = format!("spec.externalName changes to ProxyGroup {group} when all its replicas serve the Service.");
            (ConditionStatus::False, reason::NOT_READY, message)
        }
        (0, _) => (ConditionStatus::False, reason::NOT_READY, counts()),
        _ if ready < wanted => (ConditionStatus::True, reason::PARTIALLY_READY, counts()),
        _ => (ConditionStatus::True, reason::READY, counts()),
    };
    conditions.set(EGRESS_SVC_READY, status, reason, message);
    let external_name = switch.then(|| ExternalNameUpdate { former: own_name(work, service), name: Some(host) });
    !conditions.update(work, true, (external_name, None)) && points
}

fn refused(work: &mut PlanPart<'_>, key: ServiceKey<'_>, service: &Service, claim: &ServiceClaim<'_>, message: &str) {
    let mut conditions = ServiceConditions::new(work, service);
    conditions.set(EGRESS_SVC_VALID, ConditionStatus::True, reason::EGRESS_SVC_VALID, "The Service is valid.".into());
    let reason = format!("ConfigurationFailed:{}", record(service, work.observed.key.group_name()));
    if conditions.set(EGRESS_SVC_CONFIGURED, ConditionStatus::False, &reason, message.to_owned()) {
        work.warn(subject(key), reason::CONFIGURATION_FAILED, message.to_owned());
    }
    conditions.set(EGRESS_SVC_READY, ConditionStatus::False, reason::CLUSTER_RESOURCES_NOT_READY, message.to_owned());
    conditions.update(work, finalized(service, claim), (None, None));
}

/// Reports an invalid Service. It is served as before, unless its group is gone.
pub(crate) fn invalid(work: &mut PlanPart<'_>, key: ServiceKey<'_>, service: &Service, claim: &ServiceClaim<'_>) {
    let message = format!("The Service is not valid: {}", claim.wrong.join(" "));
    let mut conditions = ServiceConditions::new(work, service);
    if conditions.set(EGRESS_SVC_VALID, ConditionStatus::False, reason::EGRESS_SVC_INVALID, message.clone()) {
        work.warn(subject(key), "INVALIDSERVICE", message.clone());
    }
    conditions.remove(EGRESS_SVC_CONFIGURED);
    conditions.set(EGRESS_SVC_READY, ConditionStatus::False, reason::CLUSTER_RESOURCES_NOT_READY, message);
    let external_name = name_without_group(work, service, claim);
    conditions.update(work, finalized(service, claim), (external_name, None));
}

/// Reports to a Service that its group cannot serve it; its objects stay. If the group is deleted, `externalName` is restored.
pub(crate) fn waiting(work: &mut PlanPart<'_>, claim: &ServiceClaim<'_>, service: &Service, message: &str) {
    let mut conditions = ServiceConditions::new(work, service);
    conditions.set(EGRESS_SVC_VALID, ConditionStatus::Unknown, reason::PROXY_GROUP_NOT_READY, message.to_owned());
    conditions.remove(EGRESS_SVC_CONFIGURED);
    conditions.set(EGRESS_SVC_READY, ConditionStatus::False, reason::CLUSTER_RESOURCES_NOT_READY, message.to_owned());
    let external_name = name_without_group(work, service, claim);
    conditions.update(work, finalized(service, claim), (external_name, None));
}

/// The user's `externalName`, if the group is gone and the Service still names its child.
fn name_without_group(work: &Pass<'_>, service: &Service, claim: &ServiceClaim<'_>) -> Option<ExternalNameUpdate> {
    let child = claim.served.as_ref().map(|served| &*served.child.name).or(claim.record.as_ref().map(|record| record.name));
    let dead = work.observed.group.is_none() && child.is_some_and(|child| external_name(service) == host(work, child));
    if dead { restored(work, service) } else { None }
}

/// Releases a Service once its child is deleted.
pub(crate) fn released(work: &mut PlanPart<'_>, service: &Service, claim: &ServiceClaim<'_>) {
    if claim.object.is_some() {
        return;
    }
    let mut conditions = ServiceConditions::new(work, service);
    let mut external_name = None;
    if service.metadata.deletion_timestamp.is_none() {
        // Each is removed, whatever the others are.
        let removed = [EGRESS_SVC_VALID, EGRESS_SVC_CONFIGURED, EGRESS_SVC_READY].map(|kind| conditions.remove(kind)).contains(&true);
        external_name = restored(work, service);
        if external_name.as_ref().is_none_or(|update| update.name.is_none()) {
            dead_name(work, service, removed);
        }
    }
    conditions.update(work, false, (external_name, None));
}

pub(crate) fn external_name(service: &Service) -> &str {
    service.spec.as_ref().and_then(|spec| spec.external_name.as_deref()).unwrap_or_default()
}

pub(crate) fn is_child(work: &Pass<'_>, name: &str) -> bool {
    name.strip_suffix(&host(work, "")).is_some_and(|child| !child.is_empty() && !child.contains('.'))
}

/// The user's `externalName`, to record when ours replaces it. While another child has replaced it, the record stays.
pub(crate) fn own_name(work: &Pass<'_>, service: &Service) -> Option<String> {
    let name = external_name(service);
    let own = if is_child(work, name) { annotation(service, names::FORMER_EXTERNAL_NAME) } else { Some(name) };
    own.filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Restores the recorded `externalName` in place of a child's, and removes the record; `None` if nothing is recorded. The record is a
/// user's text: only a DNS name that is not a child's is restored.
pub(crate) fn restored(work: &Pass<'_>, service: &Service) -> Option<ExternalNameUpdate> {
    service.metadata.annotations.as_ref()?.get(names::FORMER_EXTERNAL_NAME)?;
    let recorded = annotation(service, names::FORMER_EXTERNAL_NAME).filter(|name| dns_name(name) && !is_child(work, name));
    let name = recorded.filter(|_| is_child(work, external_name(service)));
    Some(ExternalNameUpdate { name: name.map(str::to_owned), former: None })
}

/// Emits one Event that a released Service's `externalName` has no target. The name stays: the previous one is unknown.
fn dead_name(work: &mut PlanPart<'_>, service: &Service, is_new: bool) {
    let name = external_name(service);
    if is_new && is_child(work, name) {
        let message = format!(
            "No ProxyGroup serves this Service any more, as its annotations name no group or no target. Its spec.externalName is still \
             {name}, which no longer resolves: annotate it again, set spec.externalName, or delete it."
        );
        let metadata = &service.metadata;
        let key = (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default());
        work.warn(subject(key), "EgressReleased", message);
    }
}

/// Whether the finalizer stays: while a child exists.
fn finalized(service: &Service, claim: &ServiceClaim<'_>) -> bool {
    claim.object.is_some() || finalizers::has(&service.metadata, names::FINALIZER)
}

fn subject((namespace, name): ServiceKey<'_>) -> WorkloadKey {
    WorkloadKey::of_object(PublishSource::Service, namespace, name)
}

/// A port in the Tailscale operator's JSON field order: its hash must be equal.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpelledPort<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    app_protocol: Option<&'a str>,
    port: i32,
    target_port: IntOrString,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_port: Option<i32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigFingerprint<'a> {
    ports: Option<Vec<SpelledPort<'a>>>,
    tailnet_target: egress::EgressTarget,
    proxy_group: &'a str,
}

/// Group and config hash of a Service: the part of the condition's reason that both operators read.
fn record(service: &Service, group: &str) -> String {
    let text = |key: &str| annotation(service, key).unwrap_or_default().to_owned();
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let port = |port: &'_ ServicePort| IntOrString::clone(port.target_port.as_ref().unwrap_or(&IntOrString::Int(0)));
    let config = ConfigFingerprint {
        ports: ports.map(|ports| {
            let filled = |text: &'_ Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
            let ports = ports.iter().map(|mapped| SpelledPort {
                name: mapped.name.as_deref().filter(|_| filled(&mapped.name)),
                protocol: mapped.protocol.as_deref().filter(|_| filled(&mapped.protocol)),
                app_protocol: mapped.app_protocol.as_deref(),
                port: mapped.port,
                target_port: port(mapped),
                node_port: mapped.node_port.filter(|port| *port != 0),
            });
            ports.collect()
        }),
        tailnet_target: egress::EgressTarget { ip: text(names::TAILNET_IP), fqdn: text(names::TAILNET_FQDN) },
        proxy_group: group,
    };
    let hash = sha256(&serde_json::to_vec(&config).unwrap_or_default());
    format!("ProxyGroup:{group}:Config:{hash}")
}

/// Whether the Service's condition records this config.
fn configured_for(service: &Service, reason: &str) -> bool {
    conditions::of_service(service, EGRESS_SVC_CONFIGURED).is_some_and(|condition| condition.status == TRUE && condition.reason == reason)
}

/// Group that a condition's reason records.
pub(crate) fn recorded(service: &Service) -> Option<&str> {
    let mut fields = conditions::of_service(service, EGRESS_SVC_CONFIGURED)?.reason.split(':').skip(1);
    (fields.next() == Some("ProxyGroup")).then(|| fields.next()).flatten().filter(|group| !group.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn config_hash_equals_that_of_the_tailscale_operator() {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"annotations": {"tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"}},
            "spec": {"ports": [{"name": "pg", "protocol": "TCP", "port": 5432, "targetPort": 5432}]},
        }))
        .expect("a Service");
        let text = concat!(
            r#"{"ports":[{"name":"pg","protocol":"TCP","port":5432,"targetPort":5432}],"#,
            r#""tailnetTarget":{"ip":"","fqdn":"db.tail1234.ts.net"},"proxyGroup":"pg"}"#
        );
        assert_eq!(record(&service, "pg"), format!("ProxyGroup:pg:Config:{}", sha256(text.as_bytes())));
    }

    #[test]
    fn group_name_is_read_from_the_condition_reason() {
        let with = |reason: &str| -> Service {
            let condition = json!({"type": EGRESS_SVC_CONFIGURED, "status": "True", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            serde_json::from_value(json!({"status": {"conditions": [condition]}})).expect("a Service")
        };
        assert_eq!(recorded(&with("ConfiguredFor:ProxyGroup:pg:Config:ab")), Some("pg"));
        assert_eq!(recorded(&with("ConfigurationFailed:ProxyGroup:pg:Config:ab")), Some("pg"));
        assert_eq!(recorded(&with("Other")), None);
        assert_eq!(recorded(&Service::default()), None);
    }
}
