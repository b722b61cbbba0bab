//! `ServiceAccount` and rights of a workload's Pods: write their state and certificates, read their config, emit Events, impersonate clients of
//! the Kubernetes API.
//!
//! Every rule of a Role has `resourceNames`; no Pod of ours may list the Secrets of the namespace. A terminating replica keeps its rights
//! until it is gone. Each group has an account of its own: a token of its Pods has no right of another group.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::api::names;
use crate::api::routes::ApiServerSite;
use crate::model::api_server::impersonation::EVERY_NAME;
use crate::model::controller::key::PublishSource;
use crate::model::controller::workload::naming::standby_name;
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::objects::{Kind, Manifest, ObjectRef, Owner};

/// `ServiceAccount`, `Role` and `RoleBinding`, all with the workload's name.
pub fn rbac(shape: &RenderContext<'_>) -> [Manifest; 3] {
    let owner = &shape.owner;
    let metadata = || owner.metadata(owner.name.clone(), None);
    let account = ServiceAccount { metadata: metadata(), ..ServiceAccount::default() };
    let role = Role { metadata: metadata(), rules: Some(rules(shape)) };
    // The first Pod of Tailyard takes over while others run as before.
    let former = shape.has_former_pods.then(|| Subject { name: names::API_SERVER_ACCOUNT.to_owned(), ..subject(owner) });
    let subjects = [subject(owner)].into_iter().chain(former).collect();
    let binding = RoleBinding { metadata: metadata(), role_ref: role_ref("Role", &owner.name), subjects: Some(subjects) };
    [Manifest::of(Kind::ServiceAccount, &account), Manifest::of(Kind::Role, &role), Manifest::of(Kind::RoleBinding, &binding)]
}

/// `ClusterRole` by which the Pods of a group impersonate its clients, and its binding; `None` if they do not. The API server accepts the role
/// only with rights that the reconciler itself has.
pub fn impersonation(shape: &RenderContext<'_>) -> Option<[Manifest; 2]> {
    let listed = shape.impersonation()?.names;
    let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let rule = |group: &str, resources: Vec<String>, names: &[String]| PolicyRule {
        api_groups: Some(list(&[group])),
        resources: Some(resources),
        verbs: list(&["impersonate"]),
        resource_names: Some(names.to_vec()).filter(|names| !names.iter().any(|name| name == EVERY_NAME)),
        ..PolicyRule::default()
    };
    let of = |resource: &str, names: &[String]| (!names.is_empty()).then(|| rule("", list(&[resource]), names));
    let extra = ApiServerSite::EXTRA.map(|key| format!("userextras/{key}")).to_vec();
    let extra = PolicyRule { resource_names: None, ..rule("authentication.k8s.io", extra, &[]) };
    let rules = of("users", &listed.users).into_iter().chain(of("groups", &listed.groups)).chain([extra]);
    let (owner, name) = (&shape.owner, impersonation_name(&shape.owner));
    let metadata = || ObjectMeta { namespace: None, ..owner.metadata(name.clone(), None) };
    let cluster_role = ClusterRole { metadata: metadata(), rules: Some(rules.collect()), ..ClusterRole::default() };
    let (role_ref, subjects) = (role_ref("ClusterRole", &name), Some(vec![subject(owner)]));
    let binding = ClusterRoleBinding { metadata: metadata(), role_ref, subjects };
    Some([Manifest::of(Kind::ClusterRole, &cluster_role), Manifest::of(Kind::ClusterRoleBinding, &binding)])
}

/// The objects of [`impersonation`], in the order of deletion.
pub fn impersonation_refs(owner: &Owner) -> [ObjectRef; 2] {
    [Kind::ClusterRoleBinding, Kind::ClusterRole].map(|kind| ObjectRef::new(kind, "", impersonation_name(owner)))
}

/// Of standalone proxies only the operator's device impersonates. Its name is fixed: the reconciler may always delete it by that name.
fn impersonation_name(owner: &Owner) -> String {
    if owner.key.is_standalone() { names::API_SERVER_ROLE.to_owned() } else { names::impersonation(&owner.name) }
}

/// `RoleBinding` by which a group reads EndpointSlices of its backends in this namespace. An unused binding has no subjects: so the
/// reconciler needs no right to delete bindings of others.
pub fn endpoints(owner: &Owner, namespace: &str, reads: bool) -> Manifest {
    let mut metadata = owner.metadata(names::endpoints(&owner.name), None);
    metadata.namespace = Some(namespace.to_owned());
    // Backends of an Ingress are in its namespace: the binding is deleted with it.
    metadata.owner_references = metadata.owner_references.or_else(|| Some(vec![parent(owner)?]));
    let subjects = reads.then(|| vec![subject(owner)]);
    Manifest::of(Kind::RoleBinding, &RoleBinding { metadata, role_ref: role_ref("ClusterRole", names::ENDPOINTS), subjects })
}

/// Reference to the Ingress of a standalone proxy.
fn parent(owner: &Owner) -> Option<OwnerReference> {
    let (api_version, kind) = ("networking.k8s.io/v1".to_owned(), PublishSource::Ingress.kind().to_owned());
    let name = owner.key.publisher()?.name;
    Some(OwnerReference { api_version, kind, name, uid: owner.uid.clone(), ..OwnerReference::default() })
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { api_group: Some("rbac.authorization.k8s.io".to_owned()), kind: kind.to_owned(), name: name.to_owned() }
}

/// `ServiceAccount` of the group's Pods.
fn subject(owner: &Owner) -> Subject {
    Subject { kind: "ServiceAccount".to_owned(), name: owner.name.clone(), namespace: Some(owner.namespace.clone()), ..Subject::default() }
}

fn rules(shape: &RenderContext<'_>) -> Vec<PolicyRule> {
    let (group, serves_sites) = (&shape.owner.name, shape.role().serves_sites);
    let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let rule = |resource: &str, verbs: &[&str], names: Vec<String>| PolicyRule {
        api_groups: Some(list(&[""])),
        resources: Some(list(&[resource])),
        verbs: list(verbs),
        resource_names: (!names.is_empty()).then_some(names),
        ..PolicyRule::default()
    };
    let ordinals = 0..shape.present.max(shape.spec.replicas);
    let states = ordinals.clone().map(|ordinal| names::replica(group, ordinal));
    let standby = shape.standby().then(|| names::replica(&standby_name(group), 0));
    let pods = states.clone().chain(standby).collect();
    let configs = ordinals.map(|ordinal| names::replica_config(group, ordinal));
    let account = shape.account().map(|account| account.secret);
    let written: Vec<String> = states.chain(account).chain(shape.certificates.iter().cloned()).collect();
    let own_certificates = shape.own_certificates.iter().filter(|_| !shape.stock()).cloned();
    let read: Vec<String> = configs.chain(own_certificates).collect();
    // resourceNames restrict list and watch to a field selector by name; requests without one are rejected.
    let reads: &[&str] = if shape.stock() { &["get"] } else { &["get", "list", "watch"] };
    let mut rules = Vec::new();
    if !written.is_empty() {
        rules.push(rule("secrets", &[reads, &["patch", "update"]].concat(), written));
    }
    if !read.is_empty() {
        rules.push(rule("secrets", reads, read));
    }
    if serves_sites && shape.stock() {
        // The Tailscale operator's image finds certificates by labels, which RBAC cannot express.
        rules.push(rule("secrets", &["list", "watch"], Vec::new()));
    }
    // Elections of the cert leader and of the active Pod.
    let issuer = (serves_sites && !shape.stock()).then(|| names::issuer(group));
    let leases: Vec<_> = issuer.into_iter().chain(shape.active_lease()).collect();
    if !leases.is_empty() {
        let lease = |verbs: &[&str], names: Vec<String>| PolicyRule {
            api_groups: Some(list(&["coordination.k8s.io"])),
            ..rule("leases", verbs, names)
        };
        rules.push(lease(&["get", "patch", "update"], leases));
        rules.extend(shape.active_lease().map(|active| lease(&["list", "watch"], vec![active])));
        rules.push(lease(&["create"], Vec::new()));
    }
    if let Some(config_map) = shape.config_map().filter(|_| !shape.stock()) {
        rules.push(rule("configmaps", &["get", "list", "watch"], vec![config_map]));
    }
    rules.push(if shape.stock() {
        rule("events", &["create", "get", "patch"], Vec::new())
    } else {
        // The grace period with which a Pod was deleted.
        rule("pods", &["get"], pods)
    });
    rules
}
