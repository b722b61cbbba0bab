//! Check of rejected flows: of all replicas by their status, or of the Pod that the doctor runs in by tailscaled.

use super::facts::ClusterFacts;
use super::{Check, MAX_LISTED, listed, page};
use crate::api::replica::{RejectKind, Rejects};
use crate::model::diagnostics::overview::Gap;
use crate::model::tailnet::rejects::{MAX_SHOWN, RejectedFlow, is_expected, remedies};

const NAME: &str = "rejects";

/// A warning for each replica with rejected flows. Replicas that do not answer, and those of an older tailscaled, have none.
pub(super) fn checks(facts: &ClusterFacts) -> Vec<Check> {
    if facts.live.values().any(|live| live.as_ref().err() == Some(&Gap::Forbidden)) {
        let needs = format!("get pods/proxy in {}", facts.namespace);
        return vec![Check::unread(NAME, "rejected flows of the proxies", &Gap::Forbidden, &needs)];
    }
    let replicas: Vec<(&str, &Rejects)> =
        facts.live.iter().filter_map(|(pod, live)| Some((pod.as_str(), live.as_ref().ok()?.rejects.as_ref()?))).collect();
    let recorded = replicas.iter().filter(|(_, rejects)| rejects.recorded).count();
    let mut found: Vec<_> = replicas.iter().filter_map(|(pod, rejects)| warning(&facts.namespace, pod, rejects)).collect();
    let others = found.len().saturating_sub(MAX_LISTED);
    found.truncate(MAX_LISTED);
    if others > 0 {
        found.push(Check::warn(NAME, format!("{others} more replicas have rejected flows"), "as of the others"));
    }
    match (replicas.len(), recorded) {
        (0, _) => Vec::new(),
        (all, 0) => vec![Check::ok(NAME, format!("{all} replicas record none: they have no node attribute debug-conn-reject"))],
        _ if found.is_empty() => vec![Check::ok(NAME, format!("none in the last hour, of {recorded} replicas that record them"))],
        _ => found,
    }
}

fn warning(namespace: &str, pod: &str, rejects: &Rejects) -> Option<Check> {
    // The status is of a Pod, which may be compromised: its number of rows is not trusted.
    let rows: Vec<_> = rejects.flows.iter().take(MAX_SHOWN).filter(|row| !is_expected(&row.kind)).collect();
    if rows.is_empty() {
        return None;
    }
    let mut texts: Vec<_> = rows.iter().map(|row| format!("{} ({})", row.kind, row.count)).collect();
    texts.extend((rejects.others > 0).then(|| format!("others ({})", rejects.others)));
    let kinds: Vec<_> = rows.iter().map(|row| row.kind).collect();
    let addresses = format!("addresses: kubectl -n {namespace} exec {pod} -- tailyard doctor --node-checks");
    let what = format!("{pod}: connections rejected in the last hour: {}", texts.join(", "));
    Some(Check::warn(NAME, what, fix(&kinds, &addresses)))
}

/// The same of one tailscaled, with addresses.
pub(super) fn of_node(flows: &[RejectedFlow]) -> Check {
    let unexpected: Vec<_> = flows.iter().filter(|flow| !is_expected(&flow.kind)).collect();
    if unexpected.is_empty() {
        return Check::ok(NAME, "none in the last hour");
    }
    let kinds: Vec<_> = unexpected.iter().map(|flow| flow.kind).take(MAX_SHOWN).collect();
    let texts = unexpected.iter().map(ToString::to_string).collect();
    Check::warn(NAME, listed(texts, "; "), fix(&kinds, &page("doctor.md")))
}

fn fix(kinds: &[RejectKind], more: &str) -> String {
    remedies(kinds).into_iter().chain([more.to_owned()]).collect::<Vec<_>>().join("; ")
}
