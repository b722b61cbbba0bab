//! Random patches of Secrets that Pods write: no plan of another workload changes.

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::cluster::{is_of, owner};
use super::*;
use crate::model::controller::workload::actions::{ControlAction, GroupPlan};

/// A patch of a Secret, from the values in a scene.
#[derive(Debug, Clone)]
struct Patch {
    /// All labels of another object, then single ones, then removed ones.
    copied: Option<Index>,
    mixed: Vec<(Index, Index)>,
    removed: Vec<Index>,
    references: Option<Vec<Index>>,
    finalizers: bool,
    annotations: Vec<Index>,
    data: Vec<(Index, Index)>,
}

fn patches() -> impl Strategy<Value = Patch> {
    let some = |most: usize| prop::collection::vec(any::<Index>(), 0..most);
    let pairs = |most: usize| prop::collection::vec((any::<Index>(), any::<Index>()), 0..most);
    let labels = (prop::option::weighted(0.7, any::<Index>()), pairs(3), some(3));
    let rest = (prop::option::of(some(3)), any::<bool>(), some(3), pairs(4));
    (labels, rest).prop_map(|((copied, mixed, removed), (references, finalizers, annotations, data))| Patch {
        copied,
        mixed,
        removed,
        references,
        finalizers,
        annotations,
        data,
    })
}

impl Patch {
    fn apply(&self, scene: &Scene, secret: &mut Value) {
        let metadata = &mut secret["metadata"];
        if let Some(copied) = &self.copied {
            metadata["labels"] = json!(copied.get(&scene.labels));
        }
        for (key, value) in &self.mixed {
            let names: Vec<_> = scene.labels.iter().flat_map(|labels| labels.keys()).collect();
            let values: Vec<_> = scene.labels.iter().flat_map(|labels| labels.values()).collect();
            metadata["labels"][*key.get(&names)] = (*value.get(&values)).clone();
        }
        for key in &self.removed {
            let labels = metadata["labels"].as_object_mut().filter(|labels| !labels.is_empty());
            if let Some(labels) = labels {
                let key = labels.keys().nth(key.index(labels.len())).cloned().expect("a key");
                labels.remove(&key);
            }
        }
        if let Some(references) = &self.references {
            metadata["ownerReferences"] = references.iter().map(|one| one.get(&scene.references).clone()).collect();
        }
        if self.finalizers {
            metadata["finalizers"] = json!(["tailscale.com/finalizer"]);
        }
        for annotation in &self.annotations {
            let (key, value) = annotation.get(&scene.annotations);
            metadata["annotations"][key] = value.clone();
        }
        for (key, value) in &self.data {
            // Any value of the same key, or of another one.
            let (field, _) = key.get(&scene.data);
            let same: Vec<_> = scene.data.iter().filter(|(other, _)| other == field).collect();
            secret["data"][field] = value.get(&same).1.clone();
        }
    }
}

/// Names of all Secrets in a Role.
fn all_secrets(role: &Value) -> BTreeSet<String> {
    ["get", "patch"].into_iter().flat_map(|verb| Cluster::role_secrets(role, verb)).collect()
}

/// Names of all Secrets that the Roles of a plan name.
fn named_secrets(plan: &GroupPlan) -> Vec<(String, BTreeSet<String>)> {
    let roles = plan.apply.iter().filter(|manifest| manifest.object.kind == Kind::Role);
    roles.map(|role| (role.object.name.clone(), all_secrets(&role.value))).collect()
}

/// What a plan writes, deletes and requests.
fn brief(plan: &GroupPlan) -> String {
    let applied: Vec<_> = plan.apply.iter().map(|manifest| manifest.object.to_string()).collect();
    let deleted: Vec<_> = plan.delete.iter().map(|delete| delete.object.to_string()).collect();
    let requested: Vec<_> = plan.control.iter().map(ControlAction::what).collect();
    let updates = plan.services.len() + usize::from(plan.group.is_some());
    format!("(apply {applied:?}, delete {deleted:?}, request {requested:?}, {updates} updates, {} Events)", plan.events.len())
}

/// Why a plan after a patch of Secrets of `attacker` is not permitted.
fn fault(scene: &Scene, (key, attacker): (&str, &str), before: &GroupPlan, after: &GroupPlan) -> Option<String> {
    if key != attacker && before != after {
        return Some(format!("the plan of {key} changes: {} becomes {}", brief(before), brief(after)));
    }
    let stored = |kind: Kind, namespace: &str, name: &str| scene.objects.get(&(kind.name(), namespace.to_owned(), name.to_owned()));
    for (role, names) in named_secrets(after) {
        let permitted = stored(Kind::Role, NS, &role);
        let permitted = permitted.map(all_secrets).unwrap_or_default();
        if !names.is_subset(&permitted) {
            return Some(format!("the plan of {key} adds Secrets to Role {role}: {:?}", names.difference(&permitted)));
        }
    }
    let deleted = after.delete.iter().map(|delete| &delete.object);
    for object in after.apply.iter().map(|manifest| &manifest.object).chain(deleted) {
        let foreign = stored(object.kind, &object.namespace, &object.name).map(owner).filter(|owner| !is_of(key, owner));
        // No workload alone has the ACME accounts and the records of certificates.
        if let Some(foreign) = foreign.filter(|_| object.name != names::ACCOUNTS && !object.name.starts_with("tailyard-certificates-")) {
            return Some(format!("the plan of {key} changes {object} of {foreign}"));
        }
    }
    let tags =
        |action: &ControlAction| if let ControlAction::MintKey { tags, .. } = action { tags.as_slice().to_vec() } else { Vec::new() };
    let is_foreign = key != HR && after.control.iter().flat_map(tags).any(|tag| tag == "tag:hr");
    is_foreign.then(|| format!("the plan of {key} mints a key with the tags of {HR}"))
}

/// Compares the plans of all keys before and after these patches of Secrets of one workload; the first fault.
fn compare(image: usize, reversed: bool, attacker: Index, patches: &[(Index, Patch)]) -> Result<(), TestCaseError> {
    let scene = &SCENES[image];
    let (attacker, writable) = attacker.get(&scene.writable);
    let cluster = Cluster::new();
    let mut objects = scene.objects.clone();
    let before = cluster.cache_of(&objects, false);
    for (secret, patch) in patches {
        let id = ("Secret", NS.to_owned(), secret.get(writable).clone());
        // A name in a Role may have no object.
        if let Some(secret) = objects.get_mut(&id) {
            patch.apply(scene, secret);
            secret["metadata"]["resourceVersion"] = json!("1000000");
        }
    }
    let after = cluster.cache_of(&objects, reversed);
    for key in Cluster::keys(&before).union(&Cluster::keys(&after)) {
        let plans = [&before, &after].map(|cache| cluster.plan(cache, key));
        let fault = fault(scene, (key, attacker), &plans[0], &plans[1]);
        prop_assert!(fault.is_none(), "{attacker} patches its Secrets: {}", fault.unwrap_or_default());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Labels, owner references, finalizers, annotations and data of the Secrets that a workload's Pods may write.
    #[test]
    fn patched_secrets_change_no_plan_of_another_workload_and_widen_no_role(
        image in 0..2_usize,
        reversed in any::<bool>(),
        attacker in any::<Index>(),
        patches in prop::collection::vec((any::<Index>(), patches()), 1..4),
    ) {
        compare(image, reversed, attacker, &patches)?;
    }

    /// The same without changes of metadata other than annotations.
    #[test]
    fn patched_data_changes_no_plan_of_another_workload_and_widens_no_role(
        image in 0..2_usize,
        reversed in any::<bool>(),
        attacker in any::<Index>(),
        patches in prop::collection::vec((any::<Index>(), patches()), 1..4),
    ) {
        let data = |(secret, patch): (Index, Patch)| {
            let annotations_and_data = Patch { copied: None, mixed: Vec::new(), removed: Vec::new(), references: None, ..patch };
            (secret, annotations_and_data)
        };
        let patches: Vec<_> = patches.into_iter().map(data).collect();
        compare(image, reversed, attacker, &patches)?;
    }
}
