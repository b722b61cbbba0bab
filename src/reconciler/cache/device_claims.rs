//! Devices that two replicas claim, without a record of either: after a takeover from the Tailscale operator, by which each proxy Pod could write
//! the state of all.

use std::collections::BTreeMap;

use imbl::OrdMap;

use super::ClusterCache;
use crate::api::names;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::device_index::login_server;
use crate::model::controller::workload::identity::DeviceId;
use crate::model::controller::workload::observed::replica::{ObservedReplica, ReplicaConfig};
use crate::model::controller::workload::observed::{DeviceInputs, DeviceRead};

impl ClusterCache {
    pub(super) fn device_inputs(
        &self,
        key: &WorkloadKey,
        workload: &str,
        replicas: &BTreeMap<u32, ObservedReplica>,
        reads: OrdMap<DeviceId, DeviceRead>,
    ) -> DeviceInputs {
        let (index, other_tailnets) = (self.indices.devices.clone(), self.other_tailnets(key));
        DeviceInputs { index, other_tailnets, reads, contested: self.contested_devices(workload, replicas) }
    }

    /// Devices that replicas of a workload claim without a record or an auth key, while a replica without a record of any workload claims them
    /// too, with the state Secret of that one.
    fn contested_devices(&self, workload: &str, replicas: &BTreeMap<u32, ObservedReplica>) -> BTreeMap<DeviceId, String> {
        let contested = replicas.iter().filter_map(|(ordinal, replica)| {
            let config = replica.config.as_deref();
            let is_bound = config.is_some_and(|config| config.device.is_some() || config.mint.is_some());
            let id = replica.state.as_ref()?.device_id.clone().filter(|_| !is_bound)?;
            let other = self.other_claim(&id, server(config), &names::replica(workload, *ordinal))?;
            Some((id, other))
        });
        contested.collect()
    }

    /// State Secret of another replica without a record that claims a device. Two login servers may give out the same ID.
    fn other_claim(&self, id: &DeviceId, server_url: &str, own: &str) -> Option<String> {
        let claims = self.indices.claims.get(id).into_iter().flatten();
        let mut others = claims.map(|(workload, ordinal)| (workload, names::replica(workload, *ordinal)));
        let is_unrecorded = |(workload, replica): &(&String, String)| {
            let members = self.named_workload(workload).and_then(|key| self.indices.workloads.get(&key));
            let config = members.and_then(|members| members.replicas.get(replica)?.config.as_deref());
            let is_other_server =
                !server_url.is_empty() && !server(config).is_empty() && login_server(server(config)) != login_server(server_url);
            !is_other_server && config.is_none_or(|config| config.device.is_none())
        };
        others.find(|other| other.1 != own && is_unrecorded(other)).map(|(_, replica)| replica)
    }
}

/// Login server of a config; empty if unknown.
fn server(config: Option<&ReplicaConfig>) -> &str {
    config.map(|config| config.entry().server).unwrap_or_default()
}
