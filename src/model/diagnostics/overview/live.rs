//! Differences between two overviews, one line per row: output of a watch without a terminal.

use std::collections::BTreeMap;

use super::Overview;
use super::text::{Width, connector_row, group_row, ingress_row, published_row, replica_row, service_row, standalone_row};

/// Lines that are new or changed, and removed rows; all lines if `before` is empty. Changed flow counts and times of Events alone are ignored:
/// they change all the time.
pub fn changes(before: &Overview, after: &Overview, width: Width) -> Vec<String> {
    let (before, after, shown) = (lines(&quiet(before), width), lines(&quiet(after), width), lines(after, width));
    let new = after.iter().filter(|(key, line)| before.get(*key) != Some(line)).filter_map(|(key, _)| shown.get(key).cloned());
    let gone = before.keys().filter(|key| !after.contains_key(*key)).map(|(kind, name)| format!("{kind} {name} is gone"));
    new.chain(gone).collect()
}

/// The overview without fields that change all the time.
fn quiet(overview: &Overview) -> Overview {
    let mut overview = overview.clone();
    for replica in &mut overview.replicas {
        replica.flows = None;
    }
    for fault in &mut overview.ingress_faults {
        fault.last_reported.clear();
    }
    overview
}

/// Rows by kind and name.
fn lines(overview: &Overview, width: Width) -> BTreeMap<(&'static str, String), String> {
    let groups = overview.groups.iter().map(|group| ("group", group_row(group)));
    let replicas = overview.replicas.iter().map(|replica| ("replica", replica_row(replica, width)));
    let services = overview.services.iter().map(|service| ("service", service_row(service)));
    let published = overview.published.iter().map(|object| ("advertised", published_row(object)));
    let standalone = overview.standalone.iter().map(|proxy| ("standalone", standalone_row(proxy)));
    let connectors = overview.connectors.iter().map(|connector| ("connector", connector_row(connector)));
    let ingresses = overview.ingress_faults.iter().map(|fault| ("ingress", ingress_row(fault)));
    let gaps = overview.gaps.iter().map(|gap| ("unread", vec![gap.message.clone()]));
    let rows = groups.chain(replicas).chain(services).chain(published).chain(standalone).chain(connectors).chain(ingresses).chain(gaps);
    rows.map(|(kind, row)| ((kind, row.first().cloned().unwrap_or_default()), line(kind, row))).collect()
}

fn line(kind: &str, row: Vec<String>) -> String {
    let cells = row.into_iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell.replace(char::is_control, " ") });
    std::iter::once(kind.to_owned()).chain(cells).collect::<Vec<_>>().join("\t")
}
