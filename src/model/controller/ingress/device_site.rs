//! Plan of the proxy of one Ingress: its name is that of the proxy's device.
//!
//! The control plane gives a device another name if its own is taken. So the name is that of the device's record, and nothing is served
//! before it has joined. tailscaled's report of a new name makes the reconciler read the record again.

use serde_json::Value;

use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::ingress::claims::read;
use crate::model::controller::ingress::items::{IngressPlan, Item, ServiceState};
use crate::model::controller::ingress::rejection::NO_CERTIFICATES;
use crate::model::controller::ingress::spec::ingress::certificates;
use crate::model::controller::ingress::spec::service_name;
use crate::model::controller::ingress::{capacity, standalone_certificate};
use crate::model::controller::key::{Publisher, WorkloadKey};
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::certificate::domain_of;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::UserCertificate;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::{Ownership, Pass, deletion};

/// Plans the names of a standalone Ingress. The error is reason and message of an Event; then everything stays as it is.
pub(crate) fn plan_standalone<'a>(
    pass: &Pass<'a>,
    shape: &RenderContext<'_>,
) -> Result<(IngressPlan<'a>, PlanPart<'a>), (&'static str, String)> {
    let mut part = pass.part();
    let work = &mut part;
    let mut plan = IngressPlan::empty(pass, shape);
    let Some(claim) = plan.claims.iter().find(|claim| shape.owner.key == WorkloadKey::from(&claim.claimant)) else {
        return Ok((plan, part));
    };
    let domain = work.observed.replicas.get(&0).and_then(|replica| replica.device()?.domain.clone());
    let state = service_state(work, &plan);
    let device = device_name(work, &claim.label);
    let suffix = domain.as_deref().or(requested_domain(claim)).unwrap_or_default();
    let issues = domain.is_some() && matches!(state, ServiceState::Device);
    let spec = read(work.observed, claim, (suffix, issues), device.as_deref()).map_err(|refused| (refused.reason, refused.message))?;
    if matches!(state, ServiceState::Unsupported) && work.observed.of(Kind::StatefulSet).next().is_none() {
        has_certificate(work, claim.object)?;
    }
    let by_certificate = || domain.as_ref().map(|domain| format!("{}.{domain}", claim.label));
    let dns = if matches!(state, ServiceState::Device) { device } else { by_certificate() };
    let claimant: Publisher = claim.claimant.clone();
    match dns {
        Some(dns) => {
            former_certificates(work, shape, &dns);
            let admitted = match state {
                ServiceState::Device => standalone_certificate::admit(work, &plan.tenancy, &shape.owner, &dns),
                _ => Ok(true),
            };
            match admitted {
                Ok(true) => drop(plan.items.insert(service_name(&spec.label), Item { claimant, spec, dns, state })),
                Ok(false) => plan.unchanged = plan.before.names(),
                Err(refused) => {
                    plan.refused.insert(claimant, refused);
                    plan.unchanged = plan.before.names();
                }
            }
        }
        // The last name stays.
        None => plan.unchanged = plan.before.names(),
    }
    capacity::settle(pass, &mut plan, false, !shape.stock());
    Ok((plan, part))
}

/// Refuses a new Ingress for which neither the control plane nor its owner has a certificate: its proxy would serve nothing.
fn has_certificate(work: &Pass<'_>, object: Parent<'_>) -> Result<(), (&'static str, String)> {
    let Parent::Ingress(ingress) = object else { return Ok(()) };
    let own = |name: &str| work.observed.publish.certificates.get(name);
    let is_usable = |name: &str| matches!(own(name), Some(UserCertificate::Unread | UserCertificate::Leaf(_)));
    if certificates(ingress).any(is_usable) {
        return Ok(());
    }
    let namespace = &work.observed.settings.namespace;
    let fault = |name: &str| match own(name) {
        None => format!("There is no Secret {name} in the namespace {namespace} of the proxies."),
        Some(_) => format!("Secret {namespace}/{name} lacks the label {}=true, or is not usable.", names::OWN_CERTIFICATE),
    };
    let why: Vec<_> = std::iter::once(NO_CERTIFICATES.to_owned()).chain(certificates(ingress).map(fault)).collect();
    Err((reason::NO_CERTIFICATES, why.join(" ")))
}

/// Whether the control plane issues a certificate for the device. While unknown, the config decides.
pub(super) fn service_state(work: &Pass<'_>, plan: &IngressPlan<'_>) -> ServiceState {
    let issued_before = || {
        let mut hosts = plan.before.routes.values().flat_map(|site| site.hosts.values());
        plan.before.routes.is_empty() || hosts.any(|host| host.issue)
    };
    let issues = work.observed.tailnet.capabilities().map_or_else(issued_before, |capabilities| capabilities.certificates);
    if issues { ServiceState::Device } else { ServiceState::Unsupported }
}

/// Domain in the host that an Ingress requests.
fn requested_domain<'a>(claim: &crate::model::controller::ingress::claims::IngressClaim<'a>) -> Option<&'a str> {
    let Parent::Ingress(ingress) = claim.object else { return None };
    let host = ingress.spec.as_ref()?.tls.as_ref()?.first()?.hosts.as_ref()?.first()?;
    host.split_once('.').map(|(_, domain)| domain)
}

/// Name of the verified device, once the control plane has given it this label, which it numbers if it is taken.
pub(super) fn device_name(work: &Pass<'_>, label: &str) -> Option<String> {
    let name = work.observed.replicas.get(&0)?.device_name()?;
    let rest = name.host().strip_prefix(label)?;
    let is_numbered = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    let is_given = rest.is_empty() || rest.strip_prefix('-').is_some_and(is_numbered);
    is_given.then(|| name.as_str().to_owned())
}

/// Deletes the certificates of former names of the device, a week after their orders.
pub(super) fn former_certificates(work: &mut PlanPart<'_>, shape: &RenderContext<'_>, dns: &str) {
    let secrets = work.observed.of(Kind::Secret).filter(|(_, secret)| domain_of(secret).is_some_and(|former| former != dns));
    let ours = secrets.filter(|(object, secret)| work.ownership(object, secret) == Ownership::Ours);
    let parent = shape.owner.key.publisher();
    let is_retained =
        |dns: &str, secret: &Value| parent.as_ref().is_some_and(|parent| standalone_certificate::is_retained(work, parent, dns, secret));
    let former: Vec<_> =
        ours.filter(|(object, secret)| !is_retained(&object.name, secret)).map(|(object, secret)| deletion(object, secret)).collect();
    work.plan.delete.extend(former);
}
