//! Checks of users' Services and Ingresses.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::Value;

use super::facts::ClusterFacts;
use super::{Check, ReadResult, page};
use crate::model::controller::annotations;

/// Maximum number of objects in a result.
const MAX_LISTED: usize = 10;

pub(super) fn checks(facts: &ClusterFacts) -> Vec<Check> {
    annotated(facts)
}

/// Kinds of users' objects.
fn kinds(facts: &ClusterFacts) -> [(&'static str, &'static str, &ReadResult<Vec<Value>>); 2] {
    [("Service", "services", &facts.services), ("Ingress", "ingresses.networking.k8s.io", &facts.ingresses)]
}

fn annotated(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "annotations";
    let (mut checks, mut found) = (Vec::new(), Vec::new());
    for (kind, plural, objects) in kinds(facts) {
        match objects {
            Err(gap) => {
                let need = format!("list {plural} in all namespaces");
                checks.push(Check::unread(NAME, &format!("annotations of {plural}"), gap, &need));
            }
            Ok(objects) => found.extend(objects.iter().filter_map(|object| {
                let metadata = ObjectMeta::deserialize(&object["metadata"]).ok()?;
                Some(format!("{kind} {}: {}", named(object), annotations::unknown(&metadata)?))
            })),
        }
    }
    if found.is_empty() && checks.is_empty() {
        return vec![Check::ok(NAME, "all of Tailscale and Tailyard are known")];
    }
    let fix = format!("kubectl annotate KIND NAME ANNOTATION- removes one ({})", page("standalone.md"));
    let more = found.len().saturating_sub(MAX_LISTED);
    found.truncate(MAX_LISTED);
    checks.extend(found.into_iter().map(|what| Check::warn(NAME, what, fix.clone())));
    checks.extend((more > 0).then(|| Check::warn(NAME, format!("{more} more objects have unknown annotations"), fix)));
    checks
}

fn named(object: &Value) -> String {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}
