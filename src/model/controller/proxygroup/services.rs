//! What a user's Service is told: its finalizer, its conditions, and the name that it stands for.
//!
//! The name is pointed at a child only when every replica that counts has taken the Service up, and is never taken away from
//! one that serves. Written only by the pass of the group that the Service names.

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use super::claims::{Claim, Key, Role};
use super::egress::{Outcome, Serving, host};
use super::memo::{Known, Stood};
use super::readiness::{PATIENCE, Standing};
use super::validate::annotation;
use super::work::Work;
use super::{ObjectUpdate, Subject};
use crate::api::condition::{EGRESS_SVC_CONFIGURED, EGRESS_SVC_READY, EGRESS_SVC_VALID};
use crate::api::{egress, names};
use crate::model::base::conditions::{self, Status, Wanted};
use crate::model::base::hash::sha256;
use crate::model::controller::ingress_spec::Source;

/// What the telling depends on beside the Service itself.
#[derive(Debug)]
pub(super) struct Told<'a> {
    /// Whether the config is as it must be.
    pub(super) written: bool,
    /// The replicas.
    pub(super) standing: &'a Standing,
    /// Whether they stand as they did in the pass before.
    pub(super) same: bool,
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

    /// What is to change; whether there is anything.
    fn update(self, work: &mut Work<'_>, finalized: bool, external_name: Option<String>) -> bool {
        let metadata = &self.service.metadata;
        let held = metadata.finalizers.as_deref().unwrap_or_default();
        let has = held.iter().any(|held| held == names::FINALIZER);
        let finalizers = (has != finalized).then(|| {
            let others = held.iter().filter(|held| *held != names::FINALIZER).cloned();
            others.chain(finalized.then(|| names::FINALIZER.to_owned())).collect()
        });
        let conditions = self.changed.then_some(self.conditions);
        if finalizers.is_none() && external_name.is_none() && conditions.is_none() {
            return false;
        }
        work.pass.services.push(ObjectUpdate {
            source: Source::Service,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            finalizers,
            external_name,
            conditions,
            load_balancer: None,
        });
        true
    }
}

/// Tells one Service. How the replicas stand to it, if it stands for its child and there was nothing to tell.
pub(super) fn tell(work: &mut Work<'_>, claim: &Claim<'_>, outcome: &Outcome, told: &Told<'_>) -> Option<Stood> {
    let service = claim.service?;
    match (outcome, &claim.known) {
        (Outcome::Known, Some(known)) => return still(known, claim, told).or_else(|| serving(work, claim, &known.serving(), told)),
        (Outcome::Served(served), _) => return serving(work, claim, served, told),
        (Outcome::Refused(message), _) => refused(work, claim.key, service, claim, message),
        (Outcome::Held, _) if claim.role == Role::Hold => invalid(work, claim.key, service, claim),
        (Outcome::Released, _) if claim.role == Role::Release => released(work, service, claim),
        (Outcome::Known | Outcome::Held | Outcome::Released, _) => {}
    }
    None
}

/// How the replicas stood to a Service that was told so, if there is nothing else to tell.
fn still(known: &Known, claim: &Claim<'_>, told: &Told<'_>) -> Option<Stood> {
    let held = known.told?;
    let stood = if told.same { Stood { written: told.written, ..held } } else { told.standing.to(&claim.name, &known.entry, told.written) };
    // That a config is being written is nothing to tell one that was told of it when it was written.
    (held == stood || held == Stood { written: true, ..stood }).then_some(held)
}

/// The same for one that is told now.
fn serving(work: &mut Work<'_>, claim: &Claim<'_>, serving: &Serving, told: &Told<'_>) -> Option<Stood> {
    let stood = told.standing.to(&claim.name, &serving.entry, told.written);
    served(work, claim.service?, serving, stood, told.standing).then_some(stood)
}

/// Whether the Service stands for its child and there was nothing to tell.
fn served(work: &mut Work<'_>, service: &Service, Serving { child, settled, .. }: &Serving, stood: Stood, standing: &Standing) -> bool {
    let group = work.observed.name.clone();
    let host = host(work, &child.name);
    let mut telling = Telling::new(work, service);
    telling.set(EGRESS_SVC_VALID, Status::True, "EgressSvcValid", "The Service is valid.".into());
    let points = service.spec.as_ref().and_then(|spec| spec.external_name.as_deref()) == Some(&host);
    let settled = *settled && stood.written;
    // A name that was pointed at this very config before is restored at once: another tool reverted it, and some replicas serve it.
    let reason = format!("ConfiguredFor:{}", record(service, &group));
    let switch = !points && settled && (stood.all || configured_for(service, &reason));
    if !points && !switch && standing.waiting() {
        work.again(PATIENCE);
    }
    if (points || switch) && settled {
        telling.set(EGRESS_SVC_CONFIGURED, Status::True, &reason, format!("The Service stands for {host}."));
    }
    let Stood { ready, wanted, .. } = stood;
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
    !telling.update(work, true, switch.then_some(host)) && points
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
    if claim.object.is_some() {
        return;
    }
    let mut telling = Telling::new(work, service);
    if service.metadata.deletion_timestamp.is_none() {
        for kind in [EGRESS_SVC_VALID, EGRESS_SVC_CONFIGURED, EGRESS_SVC_READY] {
            telling.remove(kind);
        }
        dead_name(work, service, telling.changed);
    }
    telling.update(work, false, None);
}

/// Says once that the name of a Service that is let go leads nowhere. The name itself is left: what it was before is not known.
fn dead_name(work: &mut Work<'_>, service: &Service, news: bool) {
    let name = service.spec.as_ref().and_then(|spec| spec.external_name.as_deref()).unwrap_or_default();
    let ours = name.strip_suffix(&host(work, "")).is_some_and(|child| !child.is_empty() && !child.contains('.'));
    if news && ours {
        let message = format!(
            "No ProxyGroup serves this Service any more, as its annotations name no group or no target. Its spec.externalName is still \
             {name}, which leads nowhere: annotate it again, set spec.externalName, or delete it."
        );
        let metadata = &service.metadata;
        let key = (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default());
        work.warn(subject(key), "EgressReleased", message);
    }
}

/// A finalizer stays while there is a child to take away.
fn finalized(service: &Service, claim: &Claim<'_>) -> bool {
    claim.object.is_some() || service.metadata.finalizers.iter().flatten().any(|held| held == names::FINALIZER)
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

/// Whether the Service's condition says that its name was pointed at this config.
fn configured_for(service: &Service, reason: &str) -> bool {
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions::get(conditions, EGRESS_SVC_CONFIGURED).is_some_and(|held| held.status == "True" && held.reason == reason)
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
