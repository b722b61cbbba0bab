//! Plan of a group of type `kube-apiserver`: one name in the tailnet, which the group itself requests, for the Kubernetes API; and of the
//! operator's device, which serves it on its own name.
//!
//! Tailscale Service, certificate, config and withdrawal of the name are those of a published Ingress. After a change of the host name the
//! former name stays until a replica serves the new one: kubeconfigs that have it work meanwhile.

use std::collections::BTreeSet;

use crate::api::condition::{API_SERVER_CONFIGURED, API_SERVER_VALID, CERTIFIED, reason};
use crate::api::proxygroup::ApiServerMode;
use crate::model::base::conditions;
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::ingress::advertise::advertised_names;
use crate::model::controller::ingress::claims::{name_conflict, origin};
use crate::model::controller::ingress::device_site;
use crate::model::controller::ingress::domain::{node_sites, suffix, unconfirmed};
use crate::model::controller::ingress::faults::{fault, rejected, remark};
use crate::model::controller::ingress::items::{IngressPlan, Item, ServiceState};
use crate::model::controller::ingress::rejection::Rejection;
use crate::model::controller::ingress::report::serving;
use crate::model::controller::ingress::service_state::{listed, service_state};
use crate::model::controller::ingress::spec::api_server::api_server;
use crate::model::controller::ingress::spec::ingress::HTTP;
use crate::model::controller::ingress::spec::{CertificateIssue, PublishTarget, service_name};
use crate::model::controller::ingress::summary::{Extent, SummaryBuilder};
use crate::model::controller::ingress::teardown::recorded;
use crate::model::controller::key::{PublishSource, Publisher};
use crate::model::controller::policy::age::age;
use crate::model::controller::policy::annotations::dns_label;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::name_winner;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::provision::POLL_INTERVAL;
use crate::model::controller::workload::spec::ApiServerRequest;

const LACKS_IMPERSONATION: &str = "Mode auth needs the right to impersonate users and groups, which the reconciler may not grant: set \
     apiServerProxyConfig.allowImpersonation of the chart (--impersonate-users), or use mode noauth.";

/// Computes the name to advertise and its state. Plans no writes yet.
pub(crate) fn plan_api_server<'a>(
    pass: &Pass<'a>,
    shape: &RenderContext<'_>,
    request: ApiServerRequest<'_>,
) -> (IngressPlan<'a>, PlanPart<'a>) {
    let mut part = pass.part();
    let work = &mut part;
    // Ingresses and Services that name the group get nothing of it.
    let mut plan = IngressPlan { claims: Vec::new(), ..IngressPlan::empty(pass, shape) };
    let former = recorded(work, &plan.before);
    let fault = request_fault(request, shape).map(|why| Rejection::new(reason::PROXY_GROUP_INVALID, why));
    let suffix = fault.map_or_else(|| suffix(work).ok_or_else(|| not_ready(work)), Err);
    let suffix = match suffix {
        Ok(suffix) => suffix,
        // The last valid config stays.
        Err(refused) => {
            plan.refused.insert(claimant(work), refused);
            plan.unchanged = former;
            return (plan, part);
        }
    };
    plan.advertised = advertised_names(work);
    plan.listed = listed(work);
    let name = service_name(request.hostname);
    let mut is_served = false;
    match contest(work, &plan, request.hostname) {
        Ok(()) => {
            let dns = format!("{}.{suffix}", request.hostname);
            let hosts = hosts(work, shape, request, &dns);
            let spec = api_server(work.observed, shape, (request, &hosts));
            let claimant = claimant(work);
            let state = service_state(work, shape, (plan.listed, &plan.advertised), (&name, &claimant), &spec, false);
            let item = Item { claimant, spec, dns, state };
            is_served = serving_with_certificate(work, shape, &item, &name) > 0;
            plan.items.insert(name, item);
        }
        Err(refused) => {
            // The end of the other object's record enqueues nothing of this group.
            work.again(POLL_INTERVAL);
            plan.refused.insert(claimant(work), refused);
        }
    }
    let others: BTreeSet<String> = former.into_iter().filter(|recorded| !plan.items.contains_key(recorded)).collect();
    if is_served {
        plan.leaving = others;
    } else {
        plan.unchanged = others;
    }
    (plan, part)
}

/// First fault of a request, without that of its name. Pods that the Tailscale operator created run on meanwhile.
pub(crate) fn request_fault(request: ApiServerRequest<'_>, shape: &RenderContext<'_>) -> Option<String> {
    if let ApiServerMode::Other(mode) = request.mode {
        return Some(format!("spec.kubeAPIServer.mode: {mode:?} is neither auth nor noauth."));
    }
    if let Some(fault) = image_fault(shape) {
        return Some(fault.into());
    }
    if request.is_http && request.certificate.is_some() {
        return Some("spec.tailyard.kubeAPIServer: remove certificateSecret or http, which needs no certificate.".into());
    }
    if !request.impersonates() {
        return None;
    }
    if shape.settings.impersonation.users.is_empty() {
        return Some(LACKS_IMPERSONATION.into());
    }
    let permitted = shape.impersonation().filter(|permitted| permitted.names.users.is_empty())?;
    Some(permitted.fault().unwrap_or_else(|| "spec.tailyard.impersonation.users must name at least one user: * permits all.".into()))
}

/// Fault of the Tailscale operator's images, with the setting that names one. They forward any user and group that a grant names, so that
/// neither the permitted names nor `enforceRecorder` would hold.
fn image_fault(shape: &RenderContext<'_>) -> Option<&'static str> {
    let is_stock = shape.stock() || shape.is_k8s_proxy();
    let of_class = shape.container().and_then(|container| container.image.as_deref()).is_some_and(|image| !image.is_empty());
    is_stock.then_some(if of_class {
        "Groups of type kube-apiserver run Tailyard's image only, as the Tailscale operator's limits no impersonation: remove the image of \
         spec.proxyClass, or name Tailyard's."
    } else {
        "Groups of type kube-apiserver run Tailyard's image only, as the Tailscale operator's limits no impersonation: name Tailyard's by \
         proxyImage of the chart (--image), or by spec.proxyClass."
    })
}

/// First fault of the request for the operator's device.
pub(crate) fn device_fault(request: ApiServerRequest<'_>, shape: &RenderContext<'_>) -> Option<String> {
    if shape.stock() || shape.is_k8s_proxy() {
        return Some(
            "Only Tailyard's image serves the Kubernetes API: remove the image of the ProxyClass, or name Tailyard's by \
             --api-server-proxy-image."
                .into(),
        );
    }
    if request.is_http && request.certificate.is_some() {
        return Some(
            "HTTP needs no certificate: remove http or certificateSecret in apiServerProxyConfig of the chart (--api-server-proxy-http, \
             --api-server-proxy-certificate)."
                .into(),
        );
    }
    let permitted = shape.impersonation()?;
    permitted.names.users.is_empty().then(|| LACKS_IMPERSONATION.into())
}

/// Plans the Kubernetes API as the site of the operator's device. Its name is that of the device's record, so that nothing is served before it
/// has joined.
pub(crate) fn plan_device<'a>(
    pass: &Pass<'a>,
    shape: &RenderContext<'_>,
    request: ApiServerRequest<'_>,
) -> (IngressPlan<'a>, PlanPart<'a>) {
    let mut part = pass.part();
    let mut plan = IngressPlan { claims: Vec::new(), ..IngressPlan::empty(pass, shape) };
    match device_site::device_name(&part, request.hostname).zip(shape.owner.key.publisher()) {
        Some((dns, claimant)) => {
            device_site::former_certificates(&mut part, shape, &dns);
            let spec = api_server(part.observed, shape, (request, std::slice::from_ref(&dns)));
            let needs_none = request.is_http || request.certificate.is_some();
            let state = if needs_none { ServiceState::Device } else { device_site::service_state(&part, &plan) };
            plan.items.insert(service_name(request.hostname), Item { claimant, spec, dns, state });
        }
        // The last name stays.
        None => plan.unchanged = plan.before.names(),
    }
    (plan, part)
}

/// The rejection while the domain of the tailnet is unknown.
fn not_ready(work: &Pass<'_>) -> Rejection {
    Rejection::new(reason::PROXY_GROUP_NOT_READY, unconfirmed(work))
}

/// The group as claimant of the name.
fn claimant(work: &Pass<'_>) -> Publisher {
    Publisher { source: PublishSource::ProxyGroup, namespace: String::new(), name: work.owner.name.clone() }
}

/// Names by which clients reach it: that of the Tailscale Service; without Tailscale Services those of the replicas' devices, if it needs no
/// certificate of the control plane.
fn hosts(work: &Pass<'_>, shape: &RenderContext<'_>, request: ApiServerRequest<'_>, dns: &str) -> Vec<String> {
    let has_names = request.certificate.is_some() || request.is_http;
    if !(has_names && node_sites(work)) {
        return vec![dns.to_owned()];
    }
    device_names(work, shape).map(str::to_owned).collect()
}

/// Names of the replicas' devices.
fn device_names<'a>(work: &Pass<'a>, shape: &RenderContext<'_>) -> impl Iterator<Item = &'a str> {
    let observed = work.observed;
    observed.replicas.range(..shape.spec.replicas).filter_map(|(_, replica)| Some(replica.device_name()?.as_str()))
}

/// Number of replicas that serve the name: none before it has its certificate.
fn serving_with_certificate(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item, name: &str) -> usize {
    if lacks_certificate(work, item) { 0 } else { serving(work, shape, item, name) }
}

fn lacks_certificate(work: &Pass<'_>, item: &Item) -> bool {
    let PublishTarget::Site(site) = &item.spec.target else { return true };
    site.hosts.iter().any(|(dns, host)| host.issue && !work.observed.is_certified(dns))
        || item.spec.flaws.values().any(|flaw| *flaw == CertificateIssue::Lacking)
}

/// Rejects a name that is invalid, or that another object has or requested earlier.
fn contest(work: &Pass<'_>, plan: &IngressPlan<'_>, label: &str) -> Result<(), Rejection> {
    let invalid = |why: &str| Err(Rejection::new(reason::API_SERVER_INVALID, format!("spec.kubeAPIServer.hostname: {label} is {why}")));
    if !dns_label(label) {
        return invalid("no DNS label of at most 63 characters: use another one.");
    }
    let prefix = work.observed.group.as_ref().map_or("", |group| group.hostname_prefix());
    let ordinal = label.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-'));
    if ordinal.is_some_and(|ordinal| ordinal.bytes().all(|byte| byte.is_ascii_digit())) {
        return invalid("the host name of a replica: use another one.");
    }
    let has_name = plan.before.origins.get(&service_name(label)) == Some(&origin(&claimant(work)));
    let age = work.observed.group.as_ref().map_or((i64::MAX, ""), |group| age(&group.metadata));
    let key = &work.observed.key;
    match name_winner(key, (key, age, has_name), work.observed.publish.namesakes.get(label)) {
        Some(winner) => Err(Rejection::new(reason::NAME_CONFLICT, name_conflict(winner, label))),
        None => Ok(()),
    }
}

impl IngressPlan<'_> {
    /// Why the operator's device does not serve the Kubernetes API yet.
    pub(crate) fn awaited_certificate(&self, work: &Pass<'_>) -> Option<String> {
        let item = self.items.values().find(|item| lacks_certificate(work, item))?;
        Some(format!("The certificate for {} is not issued yet: the log of the proxy has the state of the order.", item.dns))
    }

    /// Reports faults of the Kubernetes API of the operator's device, which the condition of its Service has.
    pub(crate) fn report_device(&self, work: &mut PlanPart<'_>, shape: &RenderContext<'_>) {
        let mut summary = SummaryBuilder::default();
        for (name, item) in &self.items {
            let whole = fault(work, shape, item, name).map(|fault| (Extent::Whole, fault));
            let shown = whole.or_else(|| remark(work, shape, item, name));
            summary.certificates(work, &shape.owner, item);
            let shown_ref = shown.as_ref().map(|(extent, fault)| (*extent, fault));
            summary.name(&item.claimant, shown_ref, serving_with_certificate(work, shape, item, name) > 0);
            // A certificate that is valid still is served.
            if let Some((_, fault)) = shown.filter(|(extent, _)| *extent != Extent::Nothing) {
                work.fault(fault.reason, fault.message);
            }
        }
        summary.write(work);
    }

    /// Reports the state of the Kubernetes API: conditions and URL of the group.
    pub(crate) fn report_api_server(&self, work: &mut PlanPart<'_>, shape: &RenderContext<'_>) {
        let item = self.items.first_key_value();
        let refused = self.refused.values().next();
        let faulty = match item {
            Some((name, item)) => fault(work, shape, item, name),
            None => refused.cloned(),
        };
        let remarked = item.and_then(|(name, item)| remark(work, shape, item, name));
        let serving = item.map_or(0, |(name, item)| serving_with_certificate(work, shape, item, name));
        let mut summary = SummaryBuilder::default();
        if let Some((_, item)) = item {
            summary.certificates(work, &shape.owner, item);
        }
        let shown = faulty.as_ref().map(|fault| (Extent::Whole, fault));
        let shown = shown.or(remarked.as_ref().map(|(extent, remark)| (*extent, remark)));
        summary.name(&claimant(work), shown, serving > 0);
        summary.write(work);
        // Before the first response of the control plane, and while the request is invalid, the previous conditions stay.
        work.keeps_conditions = match item {
            Some((_, item)) => matches!(item.state, ServiceState::Unknown),
            None => refused.is_some_and(|refused| [reason::PROXY_GROUP_NOT_READY, reason::PROXY_GROUP_INVALID].contains(&refused.reason)),
        };
        let why = shown.map(|(_, fault)| fault.message.clone());
        let why = why.or_else(|| item.and_then(|(name, item)| rejected(work, name, serving).or_else(|| own_addresses(work, shape, item))));
        let is_own = item.is_some_and(|(_, item)| !matches!(item.state, ServiceState::Conflict(_)));
        let valid = (!work.keeps_conditions).then(|| valid(is_own, faulty.as_ref()));
        let configured = configured(serving, shape.spec.replicas, faulty.is_some(), why);
        let generation = work.observed.group.as_ref().and_then(|group| group.metadata.generation).unwrap_or(0);
        let wanted = valid.into_iter().chain([configured]).map(|condition| DesiredCondition { generation, ..condition });
        let has_certificate = item.is_some() && !shape.spec.api_server.is_some_and(|request| request.is_http);
        let certified = std::mem::take(&mut work.conditions).into_iter().filter(|condition| condition.kind == CERTIFIED && has_certificate);
        work.conditions = certified.chain(wanted).collect();
        warn_invalid(work);
        work.url = self.url(work, shape, serving > 0 && faulty.is_none());
        let new = self.items.iter().filter(|(name, _)| !self.recorded(name));
        work.plan.new_names.extend(new.map(|(_, item)| item.spec.label.clone()));
    }

    /// URL of the Kubernetes API: of the name that is served, else the last one as long as its name stays.
    fn url(&self, work: &PlanPart<'_>, shape: &RenderContext<'_>, is_served: bool) -> Option<String> {
        let own = self.items.values().find_map(|item| url_of(work, shape, item));
        if is_served {
            return own;
        }
        let shown = work.observed.group.as_ref().and_then(|group| group.status.as_ref()?.url.clone());
        // The domain is unknown until a replica has joined.
        let is_unknown = work.keeps_conditions || (self.items.is_empty() && self.before.routes.is_empty());
        let is_present = |url: &str| {
            let label = url.split_once("://").and_then(|(_, dns)| dns.split('.').next()).unwrap_or_default();
            let name = service_name(label);
            self.items.contains_key(&name) || self.unchanged.contains(&name)
        };
        shown.filter(|shown| is_unknown || own.as_ref() == Some(shown) || is_present(shown))
    }
}

/// URL of a name; without Tailscale Services that of the first replica.
fn url_of(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item) -> Option<String> {
    let PublishTarget::Site(site) = &item.spec.target else { return None };
    let scheme = if site.listeners.contains_key(&HTTP) { "http" } else { "https" };
    let of_service = Some(item.dns.as_str()).filter(|_| !matches!(item.state, ServiceState::Unsupported));
    of_service.or_else(|| device_names(work, shape).next()).map(|dns| format!("{scheme}://{dns}"))
}

/// Names of the replicas, where each one serves its own address.
fn own_addresses(work: &Pass<'_>, shape: &RenderContext<'_>, item: &Item) -> Option<String> {
    matches!(item.state, ServiceState::Unsupported).then(|| {
        let names: Vec<_> = device_names(work, shape).collect();
        format!("the control plane has no Tailscale Services, so that each replica has a name of its own: {}", names.join(", "))
    })
}

/// Whether the group owns its Tailscale Service.
fn valid(is_own: bool, fault: Option<&Rejection>) -> DesiredCondition<'static> {
    let (status, reason, message) = match fault.filter(|_| !is_own) {
        Some(fault) => (ConditionStatus::False, reason::API_SERVER_INVALID, fault.message.clone()),
        None => (ConditionStatus::True, reason::API_SERVER_VALID, "The name is the ProxyGroup's own.".to_owned()),
    };
    DesiredCondition { kind: API_SERVER_VALID, status, reason, message, generation: 0 }
}

/// Whether a replica serves the Kubernetes API. `why`: fault of the whole or of a part.
fn configured(serving: usize, replicas: u32, is_faulty: bool, why: Option<String>) -> DesiredCondition<'static> {
    let why = why.map_or_else(String::new, |why| format!("; {why}"));
    let message = format!("{serving}/{replicas} proxy backends ready and advertising{why}");
    let (status, reason) = if serving > 0 && !is_faulty {
        (ConditionStatus::True, reason::API_SERVER_CONFIGURED)
    } else {
        (ConditionStatus::False, reason::API_SERVER_NO_BACKENDS)
    };
    DesiredCondition { kind: API_SERVER_CONFIGURED, status, reason, message, generation: 0 }
}

/// Emits an Event when the Tailscale Service is found to be another owner's.
fn warn_invalid(work: &mut PlanPart<'_>) {
    let invalid = work.conditions.iter().find(|wanted| wanted.kind == API_SERVER_VALID && wanted.status == ConditionStatus::False);
    let Some(message) = invalid.map(|wanted| wanted.message.clone()) else { return };
    let status = work.observed.group.as_ref().and_then(|group| group.status.as_ref());
    let existing = status.and_then(|status| conditions::get(&status.conditions, API_SERVER_VALID));
    if existing.is_none_or(|existing| existing.status != ConditionStatus::False.name() || existing.message != message) {
        work.warn_workload(reason::INVALID_TAILSCALE_SERVICE, message);
    }
}
