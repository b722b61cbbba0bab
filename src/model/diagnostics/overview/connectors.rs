//! Connectors: what they advertise, their devices in the tailnet, and conditions that are not true. From their status alone.

use serde::Serialize;

use super::UnhealthyCondition;
use super::snapshot::ClusterView;
use crate::api::condition::CONNECTOR_READY;
use crate::api::connector::Connector;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorOverview {
    pub name: String,
    /// Prefixes of a subnet router, and its other roles.
    pub routes: Vec<String>,
    /// Names of the devices in the tailnet, by ordinal.
    pub devices: Vec<String>,
    /// Desired number of devices.
    pub desired: u32,
    pub conditions: Vec<UnhealthyCondition>,
}

/// Connectors by name.
pub(super) fn connectors(view: &ClusterView) -> Vec<ConnectorOverview> {
    let mut all: Vec<_> = view.connectors.iter().map(one).collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

fn one(connector: &Connector) -> ConnectorOverview {
    let status = connector.status.clone().unwrap_or_default();
    let prefixes = status.subnet_routes.split(',').filter(|prefix| !prefix.is_empty());
    let roles = [(status.is_exit_node, "exit node"), (status.is_app_connector, "app connector")];
    let roles = roles.into_iter().filter(|(is_role, _)| *is_role).map(|(_, role)| role);
    ConnectorOverview {
        name: connector.metadata.name.clone().unwrap_or_default(),
        routes: prefixes.chain(roles).map(str::to_owned).collect(),
        devices: status.devices.into_iter().map(|device| device.hostname).collect(),
        desired: connector.spec.desired_replicas(),
        conditions: UnhealthyCondition::or_unseen(&status.conditions, CONNECTOR_READY, "Connector"),
    }
}
