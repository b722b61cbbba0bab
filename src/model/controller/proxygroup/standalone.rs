//! Proxy of a standalone Service: a workload of one replica, by the provisioner of groups.
//!
//! An invalid edit changes nothing that is served. A Service that is released keeps its finalizer until Pod, device and Secrets are gone;
//! a lost node or control plane delays that by minutes only.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::Value;

use super::work::{GroupPass, Ownership, whose};
use super::{GroupPlan, Memory, Observed, TailnetState, is_ready, provision, replicas, services};
use crate::api::condition::reason;
use crate::model::controller::objects::{Kind, ObjectRef, Owner, RenderContext, headless_service, image_path, rbac, selected_app};
use crate::model::controller::standalone::parse_key;

mod report;
mod request;

/// Order of deletion of the objects that remain when the device is deleted.
const REMAINING: [Kind; 6] = [Kind::ServiceMonitor, Kind::Secret, Kind::Service, Kind::RoleBinding, Kind::Role, Kind::ServiceAccount];

pub(super) fn plan(work: &mut GroupPass<'_>) {
    let observed = work.observed;
    let is_served = |owner: &Owner| owner.service.as_ref().is_some_and(|(namespace, _)| observed.assignment.standalone.has(namespace));
    let Some(owner) = owner(observed).filter(is_served) else { return };
    match service(observed) {
        Some(service) if service.metadata.deletion_timestamp.is_none() && observed.assignment.is_standalone(service) => {
            serve(work, owner, service);
        }
        service => release(work, &owner, service),
    }
}

/// Reports an object that the API server has rejected, unless reported already.
pub fn rejected(observed: &Observed, why: &str) -> GroupPlan {
    let mut memory = Memory::default();
    let mut work = GroupPass::new(observed, &mut memory);
    if let Some(service) = service(observed) {
        report::failed(&mut work, service, why);
    }
    work.pass
}

fn service(observed: &Observed) -> Option<&Arc<Service>> {
    let (namespace, name) = parse_key(&observed.name)?;
    observed.services.get(&(namespace.to_owned(), name.to_owned()))
}

fn owner(observed: &Observed) -> Option<Owner> {
    let (namespace, name) = parse_key(&observed.name)?;
    let (group, own) = (observed.workload.clone(), &observed.settings.namespace);
    let set = observed.owned.get(&ObjectRef::new(Kind::StatefulSet, own, group.clone()));
    let uid = || service(observed)?.metadata.uid.as_deref();
    let uid = set.and_then(|set| selected_app(set)).or_else(uid).unwrap_or_default().to_owned();
    Some(Owner { group, uid, namespace: own.clone(), service: Some((namespace.to_owned(), name.to_owned())) })
}

fn serve(work: &mut GroupPass<'_>, owner: Owner, service: &Arc<Service>) {
    let observed = work.observed;
    let Some(group) = observed.group.as_deref() else { return };
    let single = match request::read(service, &observed.settings) {
        Ok(single) => single,
        Err(wrong) => return report::invalid(work, service, &wrong),
    };
    if !single.is_egress() && report::restore_name(work, service) {
        return;
    }
    let (mut usable, class) = provision::class(work);
    let shape = RenderContext {
        owner,
        spec: &group.spec,
        class,
        settings: &observed.settings,
        replicas: 1,
        single,
        present: 1,
        wireguard: None,
        share_account: None,
        node_sites: false,
        own_certificates: BTreeSet::new(),
        certificates: BTreeSet::new(),
    };
    if image_path(shape.image()).ends_with("k8s-proxy") {
        work.fault(reason::PROXY_FAILED, "The image of the ProxyClass is for groups of type kube-apiserver: name one of a proxy.".into());
        usable = false;
    }
    if usable {
        for manifest in rbac(&shape).into_iter().chain([headless_service(&shape)]) {
            work.want(&shape.owner, manifest);
        }
        replicas::secrets(work, &shape, &std::collections::BTreeMap::new(), None);
        provision::pods(work, &shape);
        delete_stuck(work, &shape.owner);
    }
    provision::denials(work, "");
    report::served(work, service, &shape);
}

/// Deletes a `StatefulSet` whose unready Pod has an older template. With `OrderedReady` Kubernetes would replace the Pod only once it is
/// ready, which it may never be; the next pass creates the `StatefulSet` again.
fn delete_stuck(work: &mut GroupPass<'_>, owner: &Owner) {
    let object = ObjectRef::new(Kind::StatefulSet, &owner.namespace, owner.group.clone());
    let pod = work.observed.replicas.get(&0).and_then(|replica| replica.pod.as_deref());
    let (Some(set), Some(pod)) = (work.owned(&object), pod) else { return };
    let uid = set["metadata"]["uid"].as_str();
    let is_own = pod.metadata.owner_references.iter().flatten().any(|reference| Some(reference.uid.as_str()) == uid);
    let waits = !is_ready(pod) && pod.metadata.deletion_timestamp.is_none();
    if is_own && waits && is_outdated(set, pod) && work.pass.apply.iter().all(|manifest| manifest.object != object) {
        work.delete(owner, &object);
    }
}

/// Whether a Pod has an older template than its `StatefulSet`.
fn is_outdated(set: &Value, pod: &Pod) -> bool {
    let revision = pod.metadata.labels.as_ref().and_then(|labels| labels.get("controller-revision-hash"));
    set["status"]["updateRevision"].as_str().zip(revision).is_some_and(|(update, revision)| update != revision)
}

/// Deletes a proxy: its Pod, then its device, then its Secrets and the other objects, then the finalizer.
fn release(work: &mut GroupPass<'_>, owner: &Owner, service: Option<&Arc<Service>>) {
    let observed = work.observed;
    let host = services::host(work, &owner.group);
    let moves = service.filter(|service| service.metadata.deletion_timestamp.is_none());
    let moves = moves.filter(|service| observed.assignment.egress(service).group().is_some());
    // The group changes the name when its replicas serve the Service.
    if moves.is_some_and(|service| services::external_name(service) == host) {
        return;
    }
    work.delete(owner, &ObjectRef::new(Kind::StatefulSet, &owner.namespace, owner.group.clone()));
    if !replicas::remove_replicas(work, owner, 0) {
        if let TailnetState::Unavailable(why) = &observed.tailnet {
            work.fault(reason::PROXY_FAILED, why.clone());
        }
        provision::denials(work, provision::WAITS);
        if let Some(service) = service {
            report::waiting(work, service);
        }
        if !work.faults.is_empty() {
            work.again(provision::POLL_INTERVAL);
        }
        return;
    }
    let deleted: BTreeSet<ObjectRef> = work.pass.delete.iter().map(|delete| delete.object.clone()).collect();
    let undeleted = |object: &ObjectRef| !deleted.contains(object);
    // Objects of another workload of the Service, if there is one, are deleted by the next passes.
    let own: Vec<_> = REMAINING.iter().flat_map(|kind| observed.of(*kind)).map(|(object, _)| object.clone()).filter(undeleted).collect();
    let several = observed.of(Kind::StatefulSet).any(|(object, _)| undeleted(object));
    for object in own.iter().filter(|object| !several || object.name == owner.group) {
        work.delete(owner, object);
    }
    let remains = observed.owned.iter().any(|(_, value)| whose(owner, value) == Ownership::Going);
    if let Some(service) = service.filter(|_| !several && !remains) {
        report::released(work, service, moves.is_some());
    }
}
