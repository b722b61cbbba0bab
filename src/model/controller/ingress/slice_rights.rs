//! Rights of replicas to read EndpointSlices: in the namespaces of their backends only.

use std::collections::BTreeSet;

use crate::api::names;
use crate::api::routes::Site;
use crate::model::controller::ingress::items::IngressPlan;
use crate::model::controller::ingress::spec::PublishTarget;
use crate::model::controller::workload::objects::Kind;
use crate::model::controller::workload::objects::rbac::endpoints;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::Pass;

impl IngressPlan<'_> {
    /// Plans a binding for each namespace with backends, and revokes unused ones.
    pub(crate) fn endpoints<'a>(&self, pass: &Pass<'a>, shape: &RenderContext<'_>) -> PlanPart<'a> {
        let (mut work, owner) = (pass.part(), pass.owner);
        let sites =
            self.items.values().filter_map(|item| if let PublishTarget::Site(site) = &item.spec.target { Some(site) } else { None });
        let wanted: BTreeSet<&str> = sites.filter(|_| !shape.stock()).flat_map(namespaces).collect();
        let served: BTreeSet<&str> = self.before.routes.values().flat_map(namespaces).collect();
        for namespace in &wanted {
            work.want(endpoints(owner, namespace, true));
        }
        let name = names::endpoints(&owner.name);
        let bindings = pass.observed.of(Kind::RoleBinding).map(|(object, _)| object).filter(|object| object.name == name);
        for object in bindings.filter(|object| !wanted.contains(&*object.namespace) && !served.contains(&*object.namespace)) {
            work.want(endpoints(owner, &object.namespace, false));
        }
        work
    }
}

fn namespaces(site: &Site) -> impl Iterator<Item = &str> {
    site.routes.iter().map(|route| &*route.backend.namespace).filter(|namespace| !namespace.is_empty())
}
