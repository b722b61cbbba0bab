//! Names that a group advertises or has advertised: requests, records, and what is decided for each name.
//!
//! The parts of an ingress group's pass share these types; each part is a file of its own. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::controller::ingress::claims::{IngressClaim, claims, origin};
use crate::model::controller::ingress::rejection::Rejection;
use crate::model::controller::ingress::spec::{PublishSpec, service_name};
use crate::model::controller::key::Publisher;
use crate::model::controller::policy::tenancy::Tenancy;
use crate::model::controller::workload::objects::ingress::{IngressConfigMap, ingress_config_ref};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::ServiceList;
use crate::model::controller::workload::pass::Pass;
use crate::model::controller::workload::vip_service::OwnershipRefusal;

/// Everything that a group advertises or has advertised.
#[derive(Debug)]
pub(crate) struct IngressPlan<'a> {
    pub(super) before: IngressConfigMap,
    /// Objects that request a name, or did.
    pub(super) claims: Vec<IngressClaim<'a>>,
    /// Advertised names, by Tailscale Service.
    pub(super) items: BTreeMap<String, Item>,
    /// Names that stay unchanged, because their objects are invalid now.
    pub(super) unchanged: BTreeSet<String>,
    /// Recorded names that are no longer requested.
    pub(super) leaving: BTreeSet<String>,
    pub(super) refused: BTreeMap<Publisher, Rejection>,
    /// Tailscale Services of the tailnet, if known.
    pub(super) listed: Option<&'a ServiceList>,
    /// Names in the config of any replica.
    pub(super) advertised: BTreeSet<String>,
    pub(super) tenancy: Tenancy,
}

/// One advertised name.
#[derive(Debug)]
pub(crate) struct Item {
    pub(super) claimant: Publisher,
    pub(super) spec: PublishSpec,
    pub(super) dns: String,
    pub(super) state: ServiceState,
}

/// State of a name's Tailscale Service.
#[derive(Debug)]
pub(crate) enum ServiceState {
    /// Not read yet: the current state stays.
    Unknown,
    Owned(Vec<String>),
    Creating,
    /// Owned by another party.
    Conflict(OwnershipRefusal),
    /// The control plane has no Tailscale Services: these addresses are advertised as routes.
    ByRoute(Vec<String>),
    /// The control plane has no Tailscale Services.
    Unsupported,
    /// The name is that of the device of a standalone proxy.
    Device,
}

impl<'a> IngressPlan<'a> {
    /// Requests and records, before any decision.
    pub(super) fn empty(work: &Pass<'a>, shape: &RenderContext<'_>) -> Self {
        let before = work.owned(&ingress_config_ref(&shape.owner)).map(|object| IngressConfigMap::read(object)).unwrap_or_default();
        let claims = claims(work.observed, &before);
        Self {
            before,
            claims,
            items: BTreeMap::new(),
            unchanged: BTreeSet::new(),
            leaving: BTreeSet::new(),
            refused: BTreeMap::new(),
            listed: work.observed.publish.listed.as_deref(),
            advertised: BTreeSet::new(),
            tenancy: Tenancy::of(shape.spec.tenants, shape.settings.tenancy, &work.observed.namespaces),
        }
    }

    /// Whether the config has an entry for a name.
    pub(super) fn recorded(&self, name: &str) -> bool {
        let before = &self.before;
        before.origins.contains_key(name) || before.serve.contains_key(name) || before.mappings.contains_key(name)
    }

    /// Whether the name of an object has a tag at the control plane already, by a request of this object; unknown counts as true.
    pub(super) fn has_tag(&self, claim: &IngressClaim<'_>, tag: &String) -> bool {
        let name = service_name(&claim.label);
        let is_own = self.before.origins.get(&name).is_none_or(|found| *found == origin(&claim.claimant));
        let tags = self.listed.map(|listed| listed.services.get(&name).map(|service| &service.tags));
        self.recorded(&name) && is_own && tags.is_none_or(|tags| tags.is_some_and(|tags| tags.contains(tag)))
    }
}
