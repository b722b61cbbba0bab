//! Tenants of standalone proxies: which namespaces may have some, with which names and tags, how many, and whether with Funnel.
//!
//! Tenants restrict new grants only, as in a group: a proxy that exists stays as it is, and changes of its object wait until they are
//! permitted.

use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::ingress::claims::name_conflict;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::policy::age::age;
use crate::model::controller::policy::annotations::is_on;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::policy::tenancy::{Tenancy, TenancyScope};
use crate::model::controller::workload::admitted_tags::{extra_tags, had_tags};
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::ingress::{IngressConfigMap, ingress_config_ref};
use crate::model::controller::workload::observed::{Observed, name_winner};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::provision::POLL_INTERVAL;

/// Whether an object may have its proxy as it requests it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    Granted,
    /// The labels of its namespace are not listed yet; they enqueue the object.
    Undecided,
    /// Reason and message, with an action.
    Refused(&'static str, String),
}

pub(crate) fn admit(work: &mut PlanPart<'_>, parent: Parent<'_>) -> Admission {
    let observed = work.observed;
    if observed.workload.is_empty() {
        work.again(POLL_INTERVAL);
        let why = "Other workloads have all names that its proxy tries: create the object under another name.";
        return Admission::Refused(reason::PROXY_FAILED, why.into());
    }
    if work.spec.is_some_and(|spec| spec.api_server.is_some()) {
        return Admission::Granted;
    }
    let (holds, first) = namesake(observed, parent);
    if let Some(first) = first {
        // The end of the other object's proxy enqueues nothing of this one.
        work.again(POLL_INTERVAL);
        return Admission::Refused(reason::NAME_CONFLICT, name_conflict(first, &parent.label()));
    }
    work.plan.new_names.extend((!holds).then(|| parent.label()));
    if let Some(group) = observed.restricted_group.as_ref().filter(|_| observed.settings.standalone_tenants.is_empty())
        && !(holds && is_served(work, parent))
    {
        // A change of the group enqueues nothing of this one.
        work.again(POLL_INTERVAL);
        let why = format!(
            "ProxyGroup {group} has tenants, and proxies without a ProxyGroup have none: an administrator can allow namespaces in \
             standalone.tenants of the chart (--standalone-tenants)."
        );
        return Admission::Refused(reason::NOT_ALLOWED, why);
    }
    let Some(spec) = work.spec.filter(|spec| !spec.tenants.is_empty()) else {
        return Admission::Granted;
    };
    let metadata = parent.metadata();
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    if !observed.namespaces.contains_key(namespace) {
        return Admission::Undecided;
    }
    let tenancy = Tenancy::of(spec.tenants, observed.settings.tenancy, &observed.namespaces);
    let tags = extra_tags(metadata, &observed.settings, had_tags(observed.replicas.get(&0)));
    let label = parent.label();
    let funnel = requests_funnel(parent);
    let scope = TenancyScope::Standalone;
    let allowed = tenancy.allowance(namespace, scope).and_then(|quota| {
        quota.allows(namespace, scope, &label, &tags)?;
        quota.allows_funnel(namespace, scope, funnel).map(|()| quota.max_names)
    });
    match allowed {
        Err(why) => Admission::Refused(reason::NOT_ALLOWED, why),
        Ok(most) if observed.of(Kind::StatefulSet).next().is_none() && observed.names_before >= most => {
            // The end of another proxy of the namespace enqueues only its own object.
            work.again(POLL_INTERVAL);
            let why = format!(
                "Namespace {namespace} may have {most} standalone proxies and has or requests {} before this one: remove some, or have an \
                 administrator raise maxNames in standalone.tenants of the chart (--standalone-tenants).",
                observed.names_before
            );
            Admission::Refused(reason::TOO_MANY_NAMES, why)
        }
        Ok(_) => Admission::Granted,
    }
}

fn requests_funnel(parent: Parent<'_>) -> bool {
    matches!(parent, Parent::Ingress(_)) && is_on(parent.metadata().annotations.as_ref(), names::FUNNEL)
}

/// Whether an object has a proxy, and Funnel if it requests that.
fn is_served(work: &Pass<'_>, parent: Parent<'_>) -> bool {
    let config = || work.owned(&ingress_config_ref(work.owner)).map(|object| IngressConfigMap::read(object)).unwrap_or_default();
    let has_funnel = || config().routes.values().any(|site| site.funnel);
    work.observed.of(Kind::StatefulSet).next().is_some() && (!requests_funnel(parent) || has_funnel())
}

/// Whether an object has the name that it requests, and who else has it or requested it earlier.
fn namesake<'a>(observed: &'a Observed, parent: Parent<'_>) -> (bool, Option<&'a WorkloadKey>) {
    let label = parent.label();
    let mut configs = observed.replicas.values().filter_map(|replica| replica.config.as_ref());
    let holds = configs.any(|config| config.names().any(|name| name == label));
    (holds, name_winner(&observed.key, (&observed.key, age(parent.metadata()), holds), observed.publish.namesakes.get(&label)))
}
