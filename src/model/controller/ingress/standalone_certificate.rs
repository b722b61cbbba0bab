//! The certificate of a standalone Ingress: weekly quota of its namespace, and reuse after the Ingress was deleted and created again.
//!
//! The record ([`OrderRecord`]) is written before the Secret is created. A released certificate stays for the rest of its week, for the same
//! Ingress only; another owner of the DNS name deletes it and orders its own.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::model::controller::ingress::certificate_orders::{CertificateOrder, OrderRecord, orders_ref};
use crate::model::controller::ingress::rejection::Rejection;
use crate::model::controller::key::{PublishSource, Publisher};
use crate::model::controller::policy::tenancy::{Tenancy, TenancyScope};
use crate::model::controller::workload::objects::certificate::{certificate_ref, is_certificate_of};
use crate::model::controller::workload::objects::{Kind, ObjectRef, Owner};
use crate::model::controller::workload::part::PlanPart;
use crate::model::controller::workload::pass::{Ownership, Pass, deletion, is_managed};

/// Requeue delay after the Secret of a former owner was deleted.
pub(crate) const DELETED_REQUEUE: Duration = Duration::from_secs(1);

/// Whose a Secret is by the record, and what may be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordedOwner {
    /// In no record: its labels decide.
    Unrecorded,
    Same,
    /// Another Ingress, whose proxy may not use it any more.
    Former,
    /// Another Ingress, whose proxy uses it.
    Other,
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Owner of a certificate's Secret by the records of all namespaces.
pub(crate) fn recorded_owner(work: &Pass<'_>, secret: &Value, claimant: &Publisher) -> RecordedOwner {
    match work.observed.publish.recorded_certificates.get(uid(secret)) {
        None => RecordedOwner::Unrecorded,
        Some(recorded) if recorded.ingress == *claimant => RecordedOwner::Same,
        Some(recorded) if recorded.in_use => RecordedOwner::Other,
        Some(_) => RecordedOwner::Former,
    }
}

/// Record of the namespace of a standalone Ingress, as stored.
fn stored(work: &Pass<'_>, namespace: &str) -> OrderRecord {
    work.owned(&orders_ref(&work.observed.settings.namespace, namespace)).map(|object| OrderRecord::read(object)).unwrap_or_default()
}

/// Whether the Role of the workload names a Secret. Only the reconciler writes Roles.
fn is_granted(work: &Pass<'_>, owner: &Owner, name: &str) -> bool {
    let role = work.owned(&ObjectRef::new(Kind::Role, &owner.namespace, owner.name.clone()));
    role.is_some_and(|role| grants(role, name))
}

/// Whether a Role names a Secret.
pub fn grants(role: &Value, name: &str) -> bool {
    let rules = role["rules"].as_array().into_iter().flatten();
    rules.flat_map(|rule| rule["resourceNames"].as_array().into_iter().flatten()).any(|granted| granted == name)
}

/// What an existing Secret is to a standalone Ingress.
enum ExistingSecret {
    /// Its certificate, by this order.
    Own(CertificateOrder),
    /// In the way: it is reported as any foreign object.
    Foreign,
    /// That of a former owner, or one that is in no record that only the reconciler writes, whatever its labels say.
    Deleted,
}

/// Whether the Ingress may have a certificate of this name now; records its order. `false`: the Secret of a former owner is deleted first.
pub(crate) fn admit(work: &mut PlanPart<'_>, tenancy: &Tenancy, owner: &Owner, dns: &str) -> Result<bool, Rejection> {
    let Some(parent) = owner.key.publisher() else { return Ok(true) };
    let now = work.observed.now;
    let object = certificate_ref(owner, dns);
    let before = stored(work, &parent.namespace);
    let recorded_order = before.find(&parent.name, dns).cloned();
    let new =
        CertificateOrder { ingress: parent.name.clone(), host: dns.to_owned(), ordered: now.as_second(), ..CertificateOrder::default() };
    let order = match (work.owned(&object), recorded_order) {
        (Some(secret), recorded_order) => match existing(work, (owner, &parent), secret, recorded_order, new)? {
            ExistingSecret::Own(order) => order,
            ExistingSecret::Foreign => return Ok(true),
            ExistingSecret::Deleted => {
                limit(work, tenancy, &parent.namespace, &before)?;
                work.plan.delete.push(deletion(&object, secret));
                work.again(DELETED_REQUEUE);
                return Ok(false);
            }
        },
        // A proxy that has the certificate writes it back.
        (None, Some(order)) if order.secret.is_empty() || is_granted(work, owner, dns) => {
            CertificateOrder { secret: String::new(), ..order }
        }
        // Its proxy was deleted, and then the Secret for another owner.
        (None, recorded_order) => {
            limit(work, tenancy, &parent.namespace, &before)?;
            recorded_order.map_or(new, |order| order.again(now))
        }
    };
    let mut record = before.clone();
    record.put(order);
    record.retain(|order| order.ingress != parent.name || order.host == dns || order.is_recent(now));
    if !record.fits() {
        return Err(Rejection::new(
            "TooManyCertificates",
            format!("The record of certificates of namespace {} is full.", parent.namespace),
        ));
    }
    write(work, &parent.namespace, &before, &record);
    Ok(true)
}

/// Decides whose an existing Secret is: by the record; else, for a certificate of an older version or of a group that the Ingress leaves, by
/// its labels and the Role.
fn existing(
    work: &Pass<'_>,
    (owner, parent): (&Owner, &Publisher),
    secret: &Value,
    recorded_order: Option<CertificateOrder>,
    new: CertificateOrder,
) -> Result<ExistingSecret, Rejection> {
    let by_labels = work.ownership(&certificate_ref(owner, &new.host), secret);
    let moved = by_labels == Ownership::Foreign && is_certificate_of(secret, parent);
    let secret_uid = uid(secret).to_owned();
    Ok(match (recorded_owner(work, secret, parent), recorded_order) {
        (RecordedOwner::Other, _) => {
            let host = &new.host;
            let message = format!("Secret {host} is the certificate of another Ingress, which has this name too: rename one of them.");
            return Err(Rejection::new("CertificateInUse", message));
        }
        (RecordedOwner::Same, Some(recorded_order)) => ExistingSecret::Own(recorded_order),
        (RecordedOwner::Unrecorded, Some(recorded_order)) if by_labels == Ownership::Ours => {
            ExistingSecret::Own(CertificateOrder { secret: secret_uid, ..recorded_order })
        }
        (RecordedOwner::Unrecorded, None) if moved || (by_labels == Ownership::Ours && is_granted(work, owner, &new.host)) => {
            let created = secret["metadata"]["creationTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
            let ordered = created.map_or(new.ordered, Timestamp::as_second);
            ExistingSecret::Own(CertificateOrder { ordered, secret: secret_uid, ..new })
        }
        // A Pod of a group may have changed its labels. The name is that of the device, so that no other object has it.
        (RecordedOwner::Unrecorded, _) if by_labels != Ownership::Ours && !is_managed(secret) => ExistingSecret::Foreign,
        _ => ExistingSecret::Deleted,
    })
}

/// Refuses an order beyond the limit of the namespace.
fn limit(work: &mut PlanPart<'_>, tenancy: &Tenancy, namespace: &str, record: &OrderRecord) -> Result<(), Rejection> {
    let most = tenancy.allowance(namespace, TenancyScope::Standalone).map_or(0, |allowance| allowance.max_certificates);
    let (ordered, next) = record.recent(work.observed.now);
    if ordered < most {
        return Ok(());
    }
    work.again(next);
    let message = format!(
        "Namespace {namespace} ordered {most} certificates for standalone Ingresses within a week, and may order no more: wait, or have an \
         administrator raise maxCertificatesPerWeek in standalone.tenants of the chart (--standalone-tenants)."
    );
    Err(Rejection::new("TooManyCertificates", message))
}

fn write(work: &mut PlanPart<'_>, namespace: &str, before: &OrderRecord, record: &OrderRecord) {
    let proxies = &work.observed.settings.namespace;
    let object = orders_ref(proxies, namespace);
    let existing = work.owned(&object).map(|existing| &**existing);
    if let Some(existing) = existing.filter(|_| record.orders().is_empty()) {
        work.plan.delete.push(deletion(&object, existing));
    } else if record != before {
        work.plan.apply.push(record.manifest(proxies, namespace, existing));
    }
}

/// Whether a certificate of another name stays for the rest of its week.
pub(crate) fn is_retained(work: &Pass<'_>, parent: &Publisher, dns: &str, secret: &Value) -> bool {
    let record = stored(work, &parent.namespace);
    let order = record.orders().iter().find(|order| order.ingress == parent.name && order.secret == uid(secret));
    work.observed.is_certified(dns) && order.is_some_and(|order| order.is_recent(work.observed.now))
}

/// Certificates of a released Ingress that stay for the rest of their week. The others are deleted, and their orders forgotten after it.
pub(crate) fn retained<'a>(pass: &Pass<'a>, is_gone: bool) -> (PlanPart<'a>, BTreeSet<ObjectRef>) {
    let (mut part, owner) = (pass.part(), pass.owner);
    let work = &mut part;
    let Some(parent) = owner.key.publisher() else { return (part, BTreeSet::new()) };
    let is_anothers = |secret: &Value| matches!(recorded_owner(work, secret, &parent), RecordedOwner::Former | RecordedOwner::Other);
    // Their labels name this object.
    let others = work.observed.of(Kind::Secret).filter(|(_, secret)| is_anothers(secret)).map(|(object, _)| object.clone());
    let mut retained: BTreeSet<ObjectRef> = others.collect();
    if parent.source != PublishSource::Ingress {
        return (part, retained);
    }
    let now = work.observed.now;
    let is_recent = |order: &CertificateOrder| pass.observed.assignment.uninstall.is_none() && order.is_recent(now);
    let before = stored(work, &parent.namespace);
    let mut record = before.clone();
    let mut deleted_now = BTreeSet::new();
    for order in before.orders().iter().filter(|order| order.ingress == parent.name) {
        let object = certificate_ref(owner, &order.host);
        let secret = work.owned(&object).map(|secret| &**secret);
        let is_ours = secret.is_some_and(|secret| work.ownership(&object, secret) == Ownership::Ours);
        let recorded = secret.filter(|secret| order.secret == uid(secret) || (order.secret.is_empty() && is_ours));
        if is_recent(order) {
            work.again(order.rest(now));
            if let Some(secret) = recorded.filter(|_| work.observed.is_certified(&order.host)) {
                record.put(CertificateOrder { secret: uid(secret).to_owned(), ..order.clone() });
                retained.insert(object);
                continue;
            }
        }
        // Its labels may name another owner by now. That of an Ingress of a group is the group's.
        if let Some(secret) = recorded.filter(|_| is_gone || is_ours) {
            deleted_now.insert(order.host.clone());
            if !is_ours {
                work.plan.delete.push(deletion(&object, secret));
            }
        }
    }
    record.retain(|order| order.ingress != parent.name || is_recent(order) || deleted_now.contains(&order.host));
    write(work, &parent.namespace, &before, &record);
    (part, retained)
}
