//! Objects of a nameserver and of policies, which belong to no workload: what is desired is applied, and what remains is deleted.

use super::context::Context;
use crate::edge::kube::KubeError;
use crate::model::controller::workload::actions::Delete;
use crate::model::controller::workload::objects::{Manifest, ObjectRef, applied};

/// Applies the desired objects that are not current, and deletes leftovers with their UIDs; each in its order. `what` names an object in the
/// log.
pub async fn write(
    context: &Context,
    what: &'static str,
    wanted: &[Manifest],
    is_current: impl Fn(&Manifest) -> bool,
    leftovers: Vec<(&ObjectRef, Option<String>)>,
) -> Result<(), KubeError> {
    let writes = context.actor.writes();
    for manifest in wanted {
        let (object, hash) = (&manifest.object, applied(&manifest.value).unwrap_or_default());
        if is_current(manifest) || context.stores.cache().is_settled(object, hash) {
            continue;
        }
        let value = writes.apply(manifest).await?;
        log(object, what, "applied");
        context.stores.applied(object.kind, value, hash.to_owned()).await;
    }
    for (object, uid) in leftovers {
        writes.delete(&Delete { object: object.clone(), uid: uid.clone() }).await?;
        log(object, what, "deleted");
        context.stores.deleted(object, uid.as_deref());
    }
    Ok(())
}

fn log(object: &ObjectRef, what: &str, done: &str) {
    let namespace = Some(&*object.namespace).filter(|namespace| !namespace.is_empty());
    tracing::info!(kind = object.kind.name(), namespace, name = object.name, "{what} {done}");
}
