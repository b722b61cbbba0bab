//! Move of a Service or Ingress between a proxy of its own and a group of type ingress: the former side serves until the latter does.
//!
//! Tailscale's control plane rejects a Tailscale Service with the name of a device, and numbers a device with the name of a Tailscale
//! Service. So the device has a temporary name while the group has a part of the object, as the object's finalizer says. Objects are the
//! only state: any leader continues a move.

use crate::api::condition::{INGRESS_SVC_CONFIGURED, PROXY_READY};
use crate::model::base::conditions;
use crate::model::controller::ingress::spec::service_name;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::policy::assignment::AssignmentRules;
use crate::model::controller::policy::requests::{Parent, directions};
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::observed::{NameConflict, Observed};
use crate::model::controller::workload::readiness::is_ready;

/// Suffix of the temporary name of a device.
const SUFFIX: &str = "-standalone";
/// Maximum length of a DNS label.
const MAX_LABEL: usize = 63;

/// The proxy of ours that an object of a group has or gets, as another claimant of its name; `None` without one.
pub fn proxy_conflict(parent: Parent<'_>, rules: &AssignmentRules, proxy: Option<&ObservedReplica>) -> Option<NameConflict> {
    let claimant = parent.publisher();
    let is_egress = matches!(parent, Parent::Service(service) if directions(service) != (true, false));
    let is_standalone = rules.has_own_proxy(parent) && !is_egress;
    let is_device = proxy.is_some_and(|proxy| has_host(proxy, |host| host == parent.label()));
    let serving = is_standalone && proxy.is_some_and(|proxy| is_prepared(parent, proxy));
    let key = WorkloadKey::from(&claimant);
    let is_ours = rules.standalone.has(&claimant.namespace);
    (is_ours && (is_standalone || proxy.is_some())).then_some(NameConflict { claimant, key, serving, is_device })
}

/// Whether a proxy serves its object, or does as soon as its device has the name.
fn is_prepared(parent: Parent<'_>, proxy: &ObservedReplica) -> bool {
    let state = proxy.state.as_ref().filter(|state| proxy.is_current() && state.rejected_target.is_none());
    let Some(name) = state.and_then(|_| proxy.device_name()) else { return false };
    let is_live = proxy.pod.as_deref().is_some_and(is_ready);
    let is_shown = || match parent {
        Parent::Service(service) => conditions::is_true(service, PROXY_READY),
        Parent::Ingress(_) => shown_names(parent).any(|shown| shown == name.as_str()),
    };
    is_live && (is_temporary(name.host(), &parent.label()) || is_shown())
}

/// Whether the proxy of an object that is assigned to a group is still needed: it exists, and the group does not serve the object.
pub(crate) fn awaited_group<'a>(observed: &'a Observed, parent: Parent<'a>) -> Option<&'a str> {
    let group = group(observed, parent).filter(|_| parent.metadata().deletion_timestamp.is_none())?;
    let exists = observed.of(Kind::StatefulSet).next().is_some();
    (exists && !is_served(observed, parent)).then_some(group)
}

/// Whether a group serves an object that has a proxy of its own.
fn is_served(observed: &Observed, parent: Parent<'_>) -> bool {
    let claimant = parent.publisher();
    let mut rivals = observed.publish.rivals.values().flatten().filter(|rival| rival.claimant == claimant);
    rivals.any(|rival| rival.serving)
        || match parent {
            Parent::Service(service) => conditions::is_true(service, INGRESS_SVC_CONFIGURED),
            // On the replicas' own addresses: other names than that of the proxy.
            Parent::Ingress(_) => {
                let own: Vec<_> = observed.replicas.get(&0).into_iter().flat_map(ObservedReplica::device_names).collect();
                let label = parent.label();
                let is_own = |shown: &str| own.iter().any(|own| own.as_str() == shown) || shown.split('.').next() == Some(&label);
                shown_names(parent).next().is_some() && !shown_names(parent).any(is_own)
            }
        }
}

/// Whether the device of an object's proxy must not have the name: the group has a part of the object, and gets the name from the device or
/// has it.
pub(crate) fn is_withheld(observed: &Observed, parent: Parent<'_>) -> bool {
    let (label, proxy) = (parent.label(), observed.replicas.get(&0));
    // While unknown, the config decides.
    let has_services = observed.tailnet.has_services().unwrap_or_else(|| {
        let document = proxy.and_then(|proxy| proxy.config.as_ref()?.document.as_ref());
        document.and_then(|document| document.get("Hostname")?.as_str()) == Some(&temporary(&label))
    });
    let in_group = finalizers::has(parent.metadata(), parent.publisher().source.finalizer());
    let has = |test: &dyn Fn(&str) -> bool| proxy.is_some_and(|proxy| has_host(proxy, test));
    let is_device = has(&|host| host == label);
    let is_taken = || observed.publish.listed.as_ref().is_none_or(|listed| listed.services.contains_key(&service_name(&label)));
    has_services
        && in_group
        && match group(observed, parent) {
            Some(_) => is_device || has(&|host| is_temporary(host, &label)),
            None => !is_device && is_taken(),
        }
}

/// Whether the proxy of an object has its name, perhaps with the suffix: by its config Secret, which no Pod writes.
pub(crate) fn has_name(observed: &Observed, parent: Parent<'_>) -> bool {
    let label = parent.label();
    let config = observed.replicas.get(&0).and_then(|proxy| proxy.config.as_ref());
    config.is_some_and(|config| config.names().any(|name| name == label || is_temporary(&name, &label)))
}

/// Host name for the device of an object's proxy while a group has or gets the requested one, or if that is reserved for the operator's device.
pub(crate) fn temporary_hostname(observed: &Observed, parent: Parent<'_>) -> Option<String> {
    let label = parent.label();
    let mut namesakes = observed.publish.namesakes.get(&label).into_iter().flatten();
    let is_reserved = namesakes.any(|other| other.is_reserved && other.is_same_tailnet);
    (is_reserved || is_withheld(observed, parent)).then(|| temporary(&label))
}

/// Message to an object that moves to a group, once the control plane is known.
pub(crate) fn leaving(observed: &Observed, parent: Parent<'_>, group: &str) -> Option<String> {
    let has_services = observed.tailnet.has_services()?;
    let begin = format!("It moves to ProxyGroup {group}: its own proxy serves until a replica of the group does.");
    let label = parent.label();
    Some(if is_withheld(observed, parent) {
        format!("{begin} The device is named {} for that, and the name {label} is not reached for some seconds.", temporary(&label))
    } else if has_services {
        begin
    } else {
        format!("{begin} The control plane has no Tailscale Services: its names and addresses change, as its status shows.")
    })
}

/// Message to an object that moves to a proxy of its own, while the group has the name.
pub(crate) fn joining(observed: &Observed) -> Option<String> {
    let label = observed.parent().filter(|parent| is_withheld(observed, *parent))?.label();
    let device = temporary(&label);
    let end = format!("Then the device {device} gets the name {label}, which is not reached for some seconds.");
    Some(format!("It moves to its own proxy: the ProxyGroup serves until that is ready. {end}"))
}

/// Group that serves an object in the tailnet.
fn group<'a>(observed: &'a Observed, parent: Parent<'a>) -> Option<&'a str> {
    let rules = &observed.assignment;
    match parent {
        Parent::Service(service) => rules.published(service),
        Parent::Ingress(ingress) => rules.ingress(ingress),
    }
    .group()
}

/// Whether the recorded or the reported name of a proxy's device has such a first label. During a rename both count.
fn has_host(proxy: &ObservedReplica, test: impl Fn(&str) -> bool) -> bool {
    proxy.device_hosts().any(test)
}

/// Whether a device has the temporary name, which may be numbered.
fn is_temporary(host: &str, label: &str) -> bool {
    host.starts_with(&temporary(label))
}

fn temporary(label: &str) -> String {
    let end = label.len().min(MAX_LABEL - SUFFIX.len());
    format!("{}{SUFFIX}", label.get(..end).unwrap_or(label))
}

/// Host names in the status of an Ingress.
fn shown_names(parent: Parent<'_>) -> impl Iterator<Item = &str> {
    let status = if let Parent::Ingress(ingress) = parent { ingress.status.as_ref() } else { None };
    let entries = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    entries.into_iter().flatten().filter_map(|entry| entry.hostname.as_deref())
}
