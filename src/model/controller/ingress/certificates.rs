//! Secrets of a workload's certificates and of the ACME accounts: which ones its replicas may use, and when each is created, handed over or
//! deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::api::condition::reason;
use crate::api::names;
use crate::model::controller::ingress::items::{IngressPlan, Item, ServiceState};
use crate::model::controller::ingress::spec::{PublishTarget, service_name};
use crate::model::controller::ingress::standalone_certificate::{DELETED_REQUEUE, RecordedOwner, recorded_owner};
use crate::model::controller::key::Publisher;
use crate::model::controller::workload::objects::Owner;
use crate::model::controller::workload::objects::certificate::{
    account, accounts, accounts_ref, certificate, certificate_ref, is_certificate_of,
};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::UserCertificate;
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::{Ownership, Pass, deletion, is_managed, is_terminating};
use crate::model::ingress::cert_orders::Validity;

/// Requeue delay while another owner uses the Secret.
const IN_USE_REQUEUE: Duration = Duration::from_secs(30);

impl IngressPlan<'_> {
    /// Certificate Secrets that the replicas read and write: those of names that the group has or gets. Never a Secret of another
    /// owner, whatever its name.
    pub(crate) fn certificates(&self, work: &Pass<'_>) -> BTreeSet<String> {
        let owner = work.owner;
        let parent = owner.key.publisher();
        let issued: BTreeMap<&str, &Publisher> = self.issued().collect();
        let hosts = self.before.routes.values().flat_map(|site| &site.hosts).filter(|(_, host)| host.issue).map(|(dns, _)| dns.as_str());
        let permitted = |dns: &&str| {
            let object = certificate_ref(owner, dns);
            let Some(existing) = work.owned(&object) else { return true };
            let uid = || existing["metadata"]["uid"].as_str().unwrap_or_default();
            let recorded = match issued.get(dns).copied().or(parent.as_ref()) {
                Some(claimant) => {
                    let recorded = recorded_owner(work, existing, claimant);
                    matches!(recorded, RecordedOwner::Unrecorded | RecordedOwner::Same) && !self.is_replaced(work, dns, claimant, existing)
                }
                None => !work.observed.publish.recorded_certificates.contains_key(uid()),
            };
            let is_moving = || issued.get(dns).is_some_and(|claimant| is_certificate_of(existing, claimant));
            recorded && (!work.foreign(&object) || is_moving())
        };
        issued.keys().copied().chain(hosts).filter(permitted).map(str::to_owned).collect()
    }

    /// Whether a Secret is deleted and created again: the config does not record its name, and its labels name another object. Labels of a
    /// Secret that moves here with its object name that, unless a Pod of the former workload changed them.
    fn is_replaced(&self, work: &Pass<'_>, dns: &str, claimant: &Publisher, existing: &Value) -> bool {
        let is_recorded = || self.recorded(&dns.split_once('.').map(|(label, _)| service_name(label)).unwrap_or_default());
        !work.owner.key.is_standalone()
            && recorded_owner(work, existing, claimant) == RecordedOwner::Unrecorded
            && is_managed(existing)
            && !is_certificate_of(existing, claimant)
            && !is_recorded()
    }

    /// Secrets of user-provided certificates in use.
    pub(crate) fn own_certificates(&self) -> BTreeSet<String> {
        let new = self.items.values().filter_map(|item| if let PublishTarget::Site(site) = &item.spec.target { Some(site) } else { None });
        let hosts = new.chain(self.before.routes.values()).flat_map(|site| site.hosts.values());
        hosts.filter(|host| !host.issue).map(|host| host.secret.clone()).collect()
    }

    /// Names whose certificates the group orders.
    pub(crate) fn issued(&self) -> impl Iterator<Item = (&str, &Publisher)> {
        let ours = |(name, item): &(&String, &Item)| match item.state {
            ServiceState::Conflict(_) | ServiceState::ByRoute(_) | ServiceState::Unsupported => false,
            ServiceState::Unknown => self.recorded(name),
            ServiceState::Owned(_) | ServiceState::Creating | ServiceState::Device => true,
        };
        // The Kubernetes API may have a certificate of its own, or none.
        let is_issued = |(_, item): &(&String, &Item)| match &item.spec.target {
            PublishTarget::Site(site) => site.hosts.get(&item.dns).is_some_and(|host| host.issue),
            PublishTarget::Whole(_) => false,
        };
        let sites = self.items.iter().filter(is_issued);
        sites.filter(ours).map(|(_, item)| (item.dns.as_str(), &item.claimant))
    }

    /// Plans the Secrets of certificates and of the ACME account.
    pub(crate) fn secrets(&self, work: &mut PlanPart<'_>, shape: &RenderContext<'_>) {
        let owner = &shape.owner;
        match shape.account() {
            Some(account) if account.shared => self.shared_account(work, owner),
            Some(_) => drop(work.want(account(owner))),
            None => {}
        }
        for (dns, claimant) in self.issued() {
            let object = certificate_ref(owner, dns);
            let existing = work.owned(&object).map(|object| &**object);
            let recorded = existing.map(|existing| (existing, recorded_owner(work, existing, claimant)));
            match recorded {
                Some((existing, owner)) if owner == RecordedOwner::Former || self.is_replaced(work, dns, claimant, existing) => {
                    work.plan.delete.push(deletion(&object, existing));
                    work.again(DELETED_REQUEUE);
                    continue;
                }
                Some((_, RecordedOwner::Other)) => {
                    work.again(IN_USE_REQUEUE);
                    continue;
                }
                _ => {}
            }
            let is_same = matches!(recorded, Some((_, RecordedOwner::Same)));
            let secret = certificate(owner, dns, claimant, existing.zip(work.observed.certificates.get(dns).copied()));
            // It stays with its object when that moves between a group and a proxy of its own.
            match existing.map(|existing| (work.ownership(&object, existing), is_same || is_certificate_of(existing, claimant))) {
                Some((Ownership::Foreign, true)) if existing.is_some_and(|existing| secret.holds(existing)) => {}
                Some((Ownership::Foreign, true)) => work.plan.apply.push(secret),
                _ => drop(work.want(secret)),
            }
        }
    }

    fn shared_account(&self, work: &mut PlanPart<'_>, owner: &Owner) {
        match work.owned(&accounts_ref(&owner.namespace)) {
            None => work.plan.apply.push(accounts(&owner.namespace)),
            Some(object) if is_terminating(object) && !self.items.is_empty() => {
                let message = format!(
                    "Secret {} is being deleted: its finalizer keeps the account by which certificates are renewed. Recreate it from a copy.",
                    names::ACCOUNTS
                );
                work.fault(reason::PROXY_GROUP_CREATION_FAILED, message);
            }
            Some(_) => {}
        }
    }
}

/// Requeues for the next certificate expiry or expiry warning.
pub(crate) fn expiries(work: &mut PlanPart<'_>) {
    let now = work.observed.now;
    let next = |own: &UserCertificate| if let UserCertificate::Leaf(leaf) = own { Validity::of(&leaf.certificate, now).1 } else { None };
    let ends = work.observed.certificates.values().filter_map(|content| content.valid_until).filter(|until| *until > now);
    if let Some(next) = work.observed.publish.certificates.values().filter_map(next).chain(ends).min() {
        work.again(next.duration_since(now).unsigned_abs());
    }
}
