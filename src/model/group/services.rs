//! What a user's Service is told: its finalizer, its conditions, and the name that it stands for.
//!
//! The name is pointed at a child only when every replica that counts has taken the Service up, and is never taken away from
//! one that serves. Written only by the pass of the group that the Service names.

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use super::acks::{PATIENCE, Standing};
use super::claims::{Claim, Key, Role};
use super::egress::{Outcome, host};
use super::validate::annotation;
use super::work::Work;
use super::{ServiceUpdate, Subject};
use crate::api::condition::{EGRESS_SVC_CONFIGURED, EGRESS_SVC_READY, EGRESS_SVC_VALID};
use crate::api::{egress, names};
use crate::model::conditions::{self, Status, Wanted};
use crate::model::objects::{Child, sha256};

/// What the telling depends on beside the Service itself.
#[derive(Debug)]
pub(super) struct Told<'a> {
    /// The Service in the egress config.
    pub(super) key: &'a str,
    /// Its entry there.
    pub(super) entry: Option<&'a egress::Service>,
    /// Whether the config is as it must be.
    pub(super) written: bool,
    /// The replicas.
    pub(super) standing: &'a Standing<'a>,
}

/// A Service while it is told.
struct Telling<'a> {
    service: &'a Service,
    conditions: Vec<Condition>,
    now: k8s_openapi::jiff::Timestamp,
    changed: bool,
}

impl<'a> Telling<'a> {
    fn new(work: &Work<'_>, service: &'a Service) -> Self {
        let conditions = service.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        Self { service, conditions, now: work.observed.now, changed: false }
    }

    fn set(&mut self, kind: &'static str, status: Status, reason: &str, message: String) -> bool {
        let changed = conditions::set(&mut self.conditions, &Wanted { kind, status, reason, message, generation: 0 }, self.now);
        self.changed |= changed;
        changed
    }

    fn remove(&mut self, kind: &str) {
        self.changed |= conditions::remove(&mut self.conditions, kind);
    }

    /// What is to change, if anything.
    fn update(self, work: &mut Work<'_>, finalized: bool, external_name: Option<String>) {
        let metadata = &self.service.metadata;
        let held = metadata.finalizers.as_deref().unwrap_or_default();
        let has = held.iter().any(|held| held == names::FINALIZER);
        let finalizers = (has != finalized).then(|| {
            let others = held.iter().filter(|held| *held != names::FINALIZER).cloned();
            others.chain(finalized.then(|| names::FINALIZER.to_owned())).collect()
        });
        let conditions = self.changed.then_some(self.conditions);
        if finalizers.is_none() && external_name.is_none() && conditions.is_none() {
            return;
        }
        work.pass.services.push(ServiceUpdate {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            finalizers,
            external_name,
            conditions,
        });
    }
}

/// Tells one Service.
pub(super) fn tell(work: &mut Work<'_>, key: Key<'_>, claim: &Claim<'_>, outcome: &Outcome, told: &Told<'_>) {
    let Some(service) = claim.service else { return };
    match outcome {
        Outcome::Served { child, settled } => served(work, service, child, *settled, told),
        Outcome::Refused(message) => refused(work, key, service, claim, message),
        Outcome::Held if claim.role == Role::Hold => invalid(work, key, service, claim),
        Outcome::Released if claim.role == Role::Release => released(work, service, claim),
        Outcome::Held | Outcome::Released => {}
    }
}

fn served(work: &mut Work<'_>, service: &Service, child: &Child, settled: bool, told: &Told<'_>) {
    let (Some(entry), standing) = (told.entry, told.standing) else { return };
    let group = work.observed.name.clone();
    let host = host(work, &child.name);
    let mut telling = Telling::new(work, service);
    telling.set(EGRESS_SVC_VALID, Status::True, "EgressSvcValid", "The Service is valid.".into());
    let points = service.spec.as_ref().and_then(|spec| spec.external_name.as_deref()) == Some(&host);
    let settled = settled && told.written;
    let switch = !points && settled && standing.all(told.key, entry);
    if !points && !switch && standing.waiting() {
        work.again(PATIENCE);
    }
    if (points || switch) && settled {
        let reason = format!("ConfiguredFor:{}", record(service, &group));
        telling.set(EGRESS_SVC_CONFIGURED, Status::True, &reason, format!("The Service stands for {host}."));
    }
    let (ready, wanted) = (standing.ready(told.key, entry), standing.wanted());
    let counts = || format!("{ready} out of {wanted} replicas are ready to route traffic");
    let (status, reason, message) = match (ready, wanted) {
        (_, 0) => (Status::False, "NoProxiesConfigured", format!("ProxyGroup {group} has no replicas: set its spec.replicas.")),
        _ if !points && !switch => {
            let message = format!("The name is pointed at ProxyGroup {group} when all its replicas have taken up the Service.");
            (Status::False, "NotReadyToRouteTraffic", message)
        }
        (0, _) => (Status::False, "NotReadyToRouteTraffic", counts()),
        _ if ready < wanted => (Status::True, "PartiallyReadyToRouteTraffic", counts()),
        _ => (Status::True, "ReadyToRouteTraffic", counts()),
    };
    telling.set(EGRESS_SVC_READY, status, reason, message);
    telling.update(work, true, switch.then_some(host));
}

fn refused(work: &mut Work<'_>, key: Key<'_>, service: &Service, claim: &Claim<'_>, message: &str) {
    let mut telling = Telling::new(work, service);
    telling.set(EGRESS_SVC_VALID, Status::True, "EgressSvcValid", "The Service is valid.".into());
    let reason = format!("ConfigurationFailed:{}", record(service, &work.observed.name));
    if telling.set(EGRESS_SVC_CONFIGURED, Status::False, &reason, message.to_owned()) {
        work.warn(subject(key), "ConfigurationFailed", message.to_owned());
    }
    telling.set(EGRESS_SVC_READY, Status::False, "ClusterResourcesNotReady", message.to_owned());
    telling.update(work, finalized(service, claim), None);
}

fn invalid(work: &mut Work<'_>, key: Key<'_>, service: &Service, claim: &Claim<'_>) {
    let message = format!("The Service is not valid: {}", claim.wrong.join(" "));
    let mut telling = Telling::new(work, service);
    if telling.set(EGRESS_SVC_VALID, Status::False, "EgressSvcInvalid", message.clone()) {
        work.warn(subject(key), "INVALIDSERVICE", message.clone());
    }
    telling.remove(EGRESS_SVC_CONFIGURED);
    telling.set(EGRESS_SVC_READY, Status::False, "ClusterResourcesNotReady", message);
    telling.update(work, finalized(service, claim), None);
}

/// Tells a Service whose group cannot take it; what it has stays.
pub(super) fn waiting(work: &mut Work<'_>, claim: &Claim<'_>, message: &str) {
    let Some(service) = claim.service else { return };
    let mut telling = Telling::new(work, service);
    telling.set(EGRESS_SVC_VALID, Status::Unknown, "ProxyGroupNotReady", message.to_owned());
    telling.remove(EGRESS_SVC_CONFIGURED);
    telling.set(EGRESS_SVC_READY, Status::False, "ClusterResourcesNotReady", message.to_owned());
    telling.update(work, finalized(service, claim), None);
}

/// Lets a Service go, once its child has gone.
pub(super) fn released(work: &mut Work<'_>, service: &Service, claim: &Claim<'_>) {
    if claim.record.is_some() {
        return;
    }
    let mut telling = Telling::new(work, service);
    if service.metadata.deletion_timestamp.is_none() {
        for kind in [EGRESS_SVC_VALID, EGRESS_SVC_CONFIGURED, EGRESS_SVC_READY] {
            telling.remove(kind);
        }
    }
    telling.update(work, false, None);
}

/// A finalizer stays while there is a child to take away.
fn finalized(service: &Service, claim: &Claim<'_>) -> bool {
    claim.record.is_some() || service.metadata.finalizers.iter().flatten().any(|held| held == names::FINALIZER)
}

fn subject(key: Key<'_>) -> Subject {
    Subject::Service { namespace: key.0.to_owned(), name: key.1.to_owned() }
}

/// A port as the Tailscale operator spells it, field for field and in its order: a hash is made of it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spelled<'a> {
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
struct Config<'a> {
    ports: Option<Vec<Spelled<'a>>>,
    tailnet_target: egress::Target,
    proxy_group: &'a str,
}

/// Which group a Service is configured for, and a hash of how: the part of the condition's reason that both operators read.
fn record(service: &Service, group: &str) -> String {
    let text = |key: &str| annotation(service, key).unwrap_or_default().to_owned();
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let port = |port: &'_ ServicePort| IntOrString::clone(port.target_port.as_ref().unwrap_or(&IntOrString::Int(0)));
    let config = Config {
        ports: ports.map(|ports| {
            let filled = |text: &'_ Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
            let ports = ports.iter().map(|held| Spelled {
                name: held.name.as_deref().filter(|_| filled(&held.name)),
                protocol: held.protocol.as_deref().filter(|_| filled(&held.protocol)),
                app_protocol: held.app_protocol.as_deref(),
                port: held.port,
                target_port: port(held),
                node_port: held.node_port.filter(|port| *port != 0),
            });
            ports.collect()
        }),
        tailnet_target: egress::Target { ip: text(names::TAILNET_IP), fqdn: text(names::TAILNET_FQDN) },
        proxy_group: group,
    };
    let hash = sha256(&serde_json::to_vec(&config).unwrap_or_default());
    format!("ProxyGroup:{group}:Config:{hash}")
}

/// The group that a condition's reason records.
pub(super) fn recorded(service: &Service) -> Option<&str> {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let mut fields = conditions::get(conditions, EGRESS_SVC_CONFIGURED)?.reason.split(':').skip(1);
    (fields.next() == Some("ProxyGroup")).then(|| fields.next()).flatten().filter(|group| !group.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_record_is_the_hash_of_the_other_operators_json() {
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
    fn the_group_is_read_back() {
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
