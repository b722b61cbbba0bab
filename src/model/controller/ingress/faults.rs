//! Why an advertised object is not served, wholly or in part: reasons and messages of conditions and Events.
//!
//! Invariant: an Ingress of a group has its address in its status, or a fault here or a rejection before.

use serde_json::Value;

use crate::api::condition::reason;
use crate::model::controller::ingress::advertise::{live, unapproved};
use crate::model::controller::ingress::claims::IngressClaim;
use crate::model::controller::ingress::config::node_site;
use crate::model::controller::ingress::items::{Item, ServiceState};
use crate::model::controller::ingress::rejection::{NO_CERTIFICATES, Rejection};
use crate::model::controller::ingress::routes;
use crate::model::controller::ingress::spec::{PublishTarget, service_name};
use crate::model::controller::ingress::summary::{Extent, issued};
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::actions::ControlAction;
use crate::model::controller::workload::ingress_summary::Certified;
use crate::model::controller::workload::objects::certificate::CertificateRecord;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::TailnetState;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::tailnet_setting::{AUTO_APPROVERS, HTTPS_DISABLED};

const NEVER: &str = "The control plane of this ProxyGroup has no Tailscale Services, by which one name is published from several replicas, \
     and issues no certificates. An Ingress is served on the replicas' own addresses if it names a certificate of its own for its hosts in \
     spec.tls[].secretName, and no older Ingress names the same hosts.";

const NO_API_SERVER: &str = "The control plane of this ProxyGroup has no Tailscale Services, by which the Kubernetes API is published from \
     several replicas, and issues no certificates. Each replica serves it on its own address if spec.tailyard.kubeAPIServer has a \
     certificateSecret for the replicas' names, or http.";

const NO_DEVICE_CERTIFICATE: &str = "The control plane issues no certificates: set http or certificateSecret in apiServerProxyConfig of the \
     chart (--api-server-proxy-http, --api-server-proxy-certificate).";

/// Why a valid name is not served.
pub(crate) fn fault(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item, name: &str) -> Option<Rejection> {
    let denied = work.observed.denied.get(&format!("Tailscale Service {name}"));
    match &item.state {
        ServiceState::Unsupported if node_site(item).is_some() => None,
        ServiceState::Conflict(why) => Some(Rejection::new(reason::INVALID_TAILSCALE_SERVICE, why.message(name))),
        ServiceState::Unsupported if shape.spec.api_server.is_some() && !shape.role().is_replicated => {
            Some(Rejection::new(reason::NO_CERTIFICATES, NO_DEVICE_CERTIFICATE.to_owned()))
        }
        ServiceState::Unsupported if shape.spec.api_server.is_some() => {
            Some(Rejection::new("NoTailscaleServices", NO_API_SERVER.to_owned()))
        }
        ServiceState::Unsupported if !shape.role().is_replicated => {
            Some(Rejection::new(reason::NO_CERTIFICATES, NO_CERTIFICATES.to_owned()))
        }
        ServiceState::Unsupported => Some(Rejection::new("NoTailscaleServices", NEVER.to_owned())),
        ServiceState::ByRoute(own) => routes::denied(work, shape.spec.replicas, own),
        _ => denied.map(|denial| Rejection::new("TailscaleServiceDenied", denial.why.clone())),
    }
}

/// Why an Ingress of a group has no address, with an action; `None` if its status has one, or if that is a fault of its certificate, which
/// [`remark`] has. Services have conditions.
pub(crate) fn unadvertised(
    work: &Pass<'_>,
    shape: &RenderContext<'_>,
    (claim, item): (&IngressClaim<'_>, &Item),
    (status, serving): (&Value, usize),
) -> Option<Rejection> {
    if has_address(status) || matches!(claim.object, Parent::Service(_)) || !shape.role().is_replicated {
        return None;
    }
    let name = service_name(&item.spec.label);
    let is_ready = work.observed.replicas.range(..shape.spec.replicas).any(|(_, replica)| live(replica));
    let why = match &item.state {
        _ if !is_ready => format!("ProxyGroup {} has no ready replica: its conditions and its Pods say why.", shape.owner.name),
        ServiceState::Unknown | ServiceState::Creating => {
            let why = unanswered(work, &name).unwrap_or("the log of the reconciler has its requests");
            format!("The control plane has not confirmed Tailscale Service {name}: {why}")
        }
        _ => match rejected(work, &name, serving).filter(|_| serving == 0) {
            Some(why) => format!("No replica serves it: {why}."),
            None if work.observed.is_certified(&item.dns) => {
                "No ready replica advertises it: tailyard status and the log of the replicas say why.".to_owned()
            }
            None if certificate_fault(work, shape, item).is_some() => return None,
            None => format!("Its certificate for {} is not issued yet: the log of the replicas has the state of the order.", item.dns),
        },
    };
    Some(Rejection::new(reason::NOT_ADVERTISED, why))
}

/// Whether a `status.loadBalancer` has an address.
pub(crate) fn has_address(status: &Value) -> bool {
    status["ingress"].as_array().is_some_and(|entries| !entries.is_empty())
}

/// Why the control plane does not answer requests about a Tailscale Service.
fn unanswered<'a>(work: &Pass<'a>, name: &str) -> Option<&'a str> {
    let list = ControlAction::ListServices { since: work.observed.now }.what();
    let denial = [format!("Tailscale Service {name}"), list].iter().find_map(|what| work.observed.denied.get(what));
    match (denial, &work.observed.tailnet) {
        (Some(denial), _) => Some(&denial.why),
        (None, TailnetState::Unavailable(why)) => Some(why),
        (None, _) => None,
    }
}

/// Faults of parts of an advertised name, in one message.
pub(crate) fn remark(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item, name: &str) -> Option<(Extent, Rejection)> {
    let is_valid = |content: &CertificateRecord| content.filled && content.valid_until.is_none_or(|until| until > work.observed.now);
    let is_certified = work.observed.certificates.get(&item.dns).is_some_and(is_valid);
    let (renewal, lacking) =
        if is_certified { (certificate_fault(work, shape, item), None) } else { (None, certificate_fault(work, shape, item)) };
    let notes: Vec<_> = item.spec.notes.texts().into_iter().chain(lacking).chain(funnel_errors(work, shape, item, name)).collect();
    let (extent, reason) =
        if notes.is_empty() { (Extent::Nothing, reason::CERTIFICATE_EXPIRING) } else { (Extent::Part, reason::PARTIALLY_ADVERTISED) };
    let all: Vec<_> = notes.into_iter().chain(item.spec.warnings.texts()).chain(renewal).collect();
    (!all.is_empty()).then(|| (extent, Rejection::new(reason, all.join(" "))))
}

/// Why the certificate of a name cannot be ordered or renewed.
fn certificate_fault(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item) -> Option<String> {
    let is_theirs = matches!(item.state, ServiceState::Unsupported | ServiceState::Conflict(_));
    if is_theirs || matches!(item.spec.target, PublishTarget::Whole(_)) {
        return None;
    }
    let (state, reason) = issued(work, &shape.owner, &item.dns);
    let action = match reason.as_str() {
        HTTPS_DISABLED => "enable HTTPS certificates in the DNS page of the admin console",
        _ => "it is tried again; the log of the proxy has the details",
    };
    (state == Certified::Failing).then(|| format!("The certificate for {} cannot be ordered ({reason}): {action}.", item.dns))
}

/// Why Funnel does not work for a host, from the first replica that reports an error.
fn funnel_errors(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item, name: &str) -> Option<String> {
    let requests_funnel = matches!(&item.spec.target, PublishTarget::Site(site) if site.funnel);
    let states = work.observed.replicas.range(..shape.spec.replicas).filter_map(|(_, replica)| replica.state.as_ref());
    let why = states.filter(|_| requests_funnel).find_map(|state| state.funnel_errors.get(name))?;
    Some(format!("It is not reached from the internet (Funnel), as {why}."))
}

/// Message about a Service in addition to the number of replicas.
pub(crate) fn beside(work: &Pass<'_>, item: &Item, name: &str, serving: usize) -> String {
    let rejected = rejected(work, name, serving).map_or_else(String::new, |why| format!("; {why}"));
    let ServiceState::ByRoute(own) = &item.state else { return rejected };
    let own = own.join(" and ");
    format!(
        ", by a route to {own}: the control plane has no Tailscale Services, so there is no name for it, and clients must accept \
         routes{rejected}"
    )
}

/// Number of unapproved replicas, else why the first replica with a reason rejects the name, if none serves it.
pub(crate) fn rejected(work: &Pass<'_>, name: &str, serving: usize) -> Option<String> {
    let count = work.observed.replicas.values().filter(|replica| live(replica) && unapproved(replica, name)).count();
    if count > 0 {
        return Some(format!(
            "{count} not approved for {name}: approve them in the admin console, or list their tag in {AUTO_APPROVERS}.services"
        ));
    }
    let states = work.observed.replicas.values().filter(|replica| replica.pod.is_some()).filter_map(|replica| replica.state.as_ref());
    let mut why = states.filter_map(|state| state.ingress.as_ref()?.rejected.get(name)).filter(|why| !why.is_empty());
    why.next().filter(|_| serving == 0).map(|why| why.join("; "))
}
