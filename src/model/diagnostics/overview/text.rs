//! Text form of an overview: its tables, followed by the parts that could not be read.

use super::{
    ConnectorOverview, Group, Holding, IngressFault, Overview, ProgramVersion, PublishedOverview, ReplicaOverview, ServiceOverview,
    StandaloneOverview, StatusPart, UnhealthyCondition,
};
use crate::model::base::text_table::table;
use crate::model::controller::ingress::summary::list;

/// Level of detail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Width {
    /// Fits most terminals.
    #[default]
    Narrow,
    Wide,
}

/// Placeholder for unknown values.
const UNKNOWN: &str = "?";

const GROUPS: [&str; 4] = ["GROUP", "TYPE", "READY", "NOT WELL"];
const REPLICAS: [&str; 8] = ["REPLICA", "STATE", "NODE", "ADDRESS", "PEERS", "CONFIG", "FLOWS", "LAST ERROR"];
const REPLICAS_WIDE: [&str; 11] =
    ["REPLICA", "STATE", "NODE", "ADDRESS", "TAILNET NAME", "PEERS", "CONFIG", "FLOWS", "VERSION", "IMAGE", "LAST ERROR"];
const SERVICES: [&str; 5] = ["SERVICE", "GROUP", "TARGET", "READY", "LAST ERROR"];
const PUBLISHED: [&str; 6] = ["ADVERTISED", "GROUP", "TAILNET NAME", "READY", "CERTIFICATE UNTIL", "LAST ERROR"];
const STANDALONE: [&str; 7] = ["STANDALONE PROXY OF", "POD", "STATE", "NODE", "TAILNET NAME", "CERTIFICATE UNTIL", "LAST ERROR"];
const CONNECTORS: [&str; 5] = ["CONNECTOR", "DEVICES", "ROUTES", "TAILNET NAMES", "NOT WELL"];
const INGRESSES: [&str; 4] = ["INGRESS WITH A FAULT", "REASON", "LAST REPORTED", "MESSAGE"];

/// Formats the whole overview.
pub fn text(overview: &Overview, width: Width) -> String {
    let columns: &[&str] = if width == Width::Wide { &REPLICAS_WIDE } else { &REPLICAS };
    let replicas: Vec<_> = overview.replicas.iter().map(|replica| replica_row(replica, width)).collect();
    let groups: Vec<_> = overview.groups.iter().map(group_row).collect();
    let services: Vec<_> = overview.services.iter().map(service_row).collect();
    let tables = [
        ("ProxyGroups", StatusPart::Groups, table(&GROUPS, &groups), groups.len()),
        ("replicas", StatusPart::Pods, table(columns, &replicas), replicas.len()),
        ("Services", StatusPart::Services, table(&SERVICES, &services), services.len()),
    ];
    let unread = |part: StatusPart| overview.gaps.iter().any(|gap| gap.part == part);
    let shown = tables.into_iter().map(|(what, part, table, rows)| match rows {
        0 if unread(part) => format!("{UNKNOWN} {what}\n"),
        0 => format!("no {what}\n"),
        _ => table,
    });
    let shown = shown.filter(|table| !overview.is_of_object || !table.starts_with("no "));
    let mut parts: Vec<String> = shown.collect();
    if !overview.published.is_empty() {
        parts.push(table(&PUBLISHED, &overview.published.iter().map(published_row).collect::<Vec<_>>()));
    }
    if !overview.standalone.is_empty() {
        parts.push(table(&STANDALONE, &overview.standalone.iter().map(standalone_row).collect::<Vec<_>>()));
    }
    if !overview.connectors.is_empty() {
        parts.push(table(&CONNECTORS, &overview.connectors.iter().map(connector_row).collect::<Vec<_>>()));
    }
    if !overview.ingress_faults.is_empty() {
        parts.push(table(&INGRESSES, &overview.ingress_faults.iter().map(ingress_row).collect::<Vec<_>>()));
    }
    if !overview.gaps.is_empty() {
        let gaps: Vec<_> = overview.gaps.iter().map(|gap| format!("{UNKNOWN} {}", gap.message)).collect();
        parts.push(gaps.join("\n") + "\n");
    }
    parts.join("\n")
}

pub(super) fn group_row(group: &Group) -> Vec<String> {
    let ready = group.ready.map_or(UNKNOWN.to_owned(), |ready| ready.to_string());
    vec![group.name.clone(), group.type_.clone(), format!("{ready}/{}", group.desired), not_well(&group.conditions)]
}

fn not_well(conditions: &[UnhealthyCondition]) -> String {
    let line = |unwell: &UnhealthyCondition| format!("{} {} {}: {}", unwell.type_, unwell.status, unwell.reason, unwell.message);
    conditions.iter().map(line).collect::<Vec<_>>().join("; ")
}

pub(super) fn connector_row(connector: &ConnectorOverview) -> Vec<String> {
    let devices = format!("{}/{}", connector.devices.len(), connector.desired);
    vec![connector.name.clone(), devices, list(&connector.routes), list(&connector.devices), not_well(&connector.conditions)]
}

pub(super) fn replica_row(replica: &ReplicaOverview, width: Width) -> Vec<String> {
    let or = |text: &Option<String>| text.clone().unwrap_or_default();
    let number = |number: Option<u32>| number.map_or(UNKNOWN.to_owned(), |number| number.to_string());
    let own = replica.version != ProgramVersion::Stock;
    let peers = replica.peers.map_or(UNKNOWN.to_owned(), |peers| match (peers.direct, peers.relayed) {
        (0, 0) => "idle".to_owned(),
        (direct, 0) => format!("{direct} direct"),
        (0, relayed) => format!("{relayed} relayed"),
        (direct, relayed) => format!("{direct} direct, {relayed} relayed"),
    });
    let config = match replica.config {
        Holding::Unknown => UNKNOWN.to_owned(),
        Holding::Acknowledged => "acknowledged".to_owned(),
        Holding::Behind { configured: 0, .. } if replica.state.as_deref() == Some("Missing") => String::new(),
        Holding::Behind { configured: 0, .. } => "silent".to_owned(),
        Holding::Advertised { advertised, configured } => format!("advertised {advertised} of {configured}"),
        Holding::Behind { up_to_date, configured } => format!("behind, {up_to_date} of {configured}"),
    };
    let (peers, flows) = if own { (peers, number(replica.flows)) } else { (String::new(), String::new()) };
    let version = match &replica.version {
        ProgramVersion::Unknown => UNKNOWN.to_owned(),
        ProgramVersion::Stock => "stock".to_owned(),
        ProgramVersion::Of(version) => version.clone(),
    };
    let state = replica.state.clone().unwrap_or_else(|| UNKNOWN.to_owned());
    let head = [replica.name.clone(), if replica.ready { "Ready".to_owned() } else { state }, or(&replica.node)];
    let last_error = or(&replica.last_error);
    let tail = match width {
        Width::Narrow => vec![replica.addresses.first().cloned().unwrap_or_default(), peers, config, flows, last_error],
        Width::Wide => {
            vec![replica.addresses.join(","), or(&replica.tailnet_name), peers, config, flows, version, or(&replica.image), last_error]
        }
    };
    head.into_iter().chain(tail).collect()
}

pub(super) fn service_row(service: &ServiceOverview) -> Vec<String> {
    let ready = service.ready.map_or(UNKNOWN.to_owned(), |ready| ready.to_string());
    let error = service.error.clone().unwrap_or_default();
    let name = format!("{}/{}", service.namespace, service.name);
    vec![name, service.group.clone(), service.target.clone(), format!("{ready}/{}", service.desired), error]
}

pub(super) fn standalone_row(proxy: &StandaloneOverview) -> Vec<String> {
    let or = |text: &Option<String>| text.clone().unwrap_or_default();
    let state = proxy.state.clone().unwrap_or_else(|| UNKNOWN.to_owned());
    let state = if proxy.ready { "Ready".to_owned() } else { state };
    let parent = format!("{} {}/{}", proxy.kind, proxy.namespace, proxy.name);
    let until = date(proxy.certificate_expires.as_deref());
    vec![parent, or(&proxy.pod), state, or(&proxy.node), or(&proxy.tailnet), until, or(&proxy.last_error)]
}

pub(super) fn published_row(object: &PublishedOverview) -> Vec<String> {
    let or = |text: &Option<String>| text.clone().unwrap_or_default();
    let ready = object.ready.map_or(UNKNOWN.to_owned(), |ready| ready.to_string());
    let name = if object.namespace.is_empty() { object.name.clone() } else { format!("{}/{}", object.namespace, object.name) };
    let name = format!("{} {name}", object.kind);
    let (ready, until) = (format!("{ready}/{}", object.desired), date(object.certificate_expires.as_deref()));
    vec![name, or(&object.group), or(&object.tailnet), ready, until, or(&object.last_error)]
}

/// The date of a time.
fn date(time: Option<&str>) -> String {
    time.and_then(|time| time.split('T').next()).unwrap_or_default().to_owned()
}

pub(super) fn ingress_row(fault: &IngressFault) -> Vec<String> {
    let name = format!("{}/{}", fault.namespace, fault.name);
    vec![name, fault.reason.clone(), fault.last_reported.clone(), fault.message.clone()]
}
