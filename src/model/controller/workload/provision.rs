//! Objects that every workload has: Pods, and objects for scraping them; its class; denied requests.

use crate::api::condition::reason;
use crate::api::names;
use crate::api::proxyclass::ProxyClassSpec;
use crate::model::controller::workload::builder::GroupPass;
use crate::model::controller::workload::objects::disruption::disruption_budget;
use crate::model::controller::workload::objects::metrics::{metrics, metrics_refs};
use crate::model::controller::workload::objects::secrets::config_ref;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::statefulset::stateful_set;
use crate::model::controller::workload::objects::{Kind, ObjectRef};
use crate::model::controller::workload::observed::Class;

/// Suffix of the message while a deletion waits for the control plane.
pub(crate) const WAITS: &str = " The deletion waits for that for five minutes, and then goes on without it.";

/// Requeue interval while a deletion waits for the control plane.
pub(crate) const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);

/// Plans the Pods and the objects for scraping them.
pub(crate) fn pods(work: &mut GroupPass<'_>, shape: &RenderContext<'_>) {
    if shape.role().is_replicated {
        work.want(&shape.owner, disruption_budget(shape));
    }
    let set = ObjectRef::new(Kind::StatefulSet, &shape.owner.namespace, shape.owner.name.clone());
    let existing = work.owned(&set).map(|existing| &**existing);
    // The Tailscale operator's image reads its config at start and exits without one.
    let configured = |ordinal| work.owned(&config_ref(&shape.owner, ordinal)).is_some();
    if existing.is_some() || !shape.stock() || (0..shape.spec.replicas).all(configured) {
        work.want(&shape.owner, stateful_set(shape, existing));
    }
    let scraped = metrics(shape);
    for object in metrics_refs(&shape.owner) {
        if !scraped.iter().any(|manifest| manifest.object == object) {
            work.delete(&shape.owner, &object);
        }
    }
    for manifest in scraped {
        work.want(&shape.owner, manifest);
    }
}

/// Whether the workload's class is usable, and the class's spec if there is one.
pub(crate) fn class<'a>(work: &mut GroupPass<'a>) -> (bool, Option<&'a ProxyClassSpec>) {
    match &work.observed.class {
        Class::None => return (true, None),
        Class::Ready(class) => return (true, Some(&class.spec)),
        Class::Missing(name) => {
            work.fault(
                reason::PROXY_GROUP_CREATING,
                format!("ProxyClass {name} does not exist: make it, or change {}.", class_field(work)),
            );
        }
        Class::NotReady(name) => {
            work.fault(reason::PROXY_GROUP_CREATING, format!("ProxyClass {name} is not ready: its conditions say what to change."));
        }
    }
    (false, None)
}

fn class_field(work: &GroupPass<'_>) -> &'static str {
    if work.observed.key.is_standalone() { names::PROXY_CLASS } else { "spec.proxyClass" }
}

/// Reports requests that the control plane has denied and that are repeated.
pub(crate) fn denials(work: &mut GroupPass<'_>, more: &str) {
    let denied = work.pass.control.iter().filter_map(|action| work.observed.denied.get(&action.what()));
    let why: Vec<_> = denied.map(|denial| format!("{}{more}", denial.why)).collect();
    for why in why {
        work.fault(reason::PROXY_GROUP_CREATION_FAILED, why);
    }
}
