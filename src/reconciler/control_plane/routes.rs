//! Approved routes of devices, from the last responses of control planes: read by passes, updated by requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use imbl::OrdMap;
use k8s_openapi::jiff::Timestamp;

use super::{ControlPlanes, Denied};
use crate::model::controller::workload::actions::ClaimedDevice;
use crate::model::controller::workload::identity::DeviceId;
use crate::model::controller::workload::observed::Approved;

/// Approved routes by Tailnet and stable device ID.
#[derive(Debug, Default)]
pub(super) struct ApprovedRoutes(Mutex<BTreeMap<Option<String>, OrdMap<DeviceId, Approved>>>);

impl ApprovedRoutes {
    /// Forgets the routes of a replaced control plane.
    pub(super) fn forget(&self, tailnet: Option<&str>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tailnet.map(str::to_owned));
    }

    pub(super) fn gone(&self, tailnet: Option<&str>, id: &DeviceId) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(&tailnet.map(str::to_owned)).map(|devices| devices.remove(id));
    }

    /// Records the routes of a device, or why they were not read; returns whether that has changed.
    /// A fault that is no answer counts only before the first one.
    fn record(&self, tailnet: Option<&str>, id: &DeviceId, at: Timestamp, read: Result<BTreeSet<String>, Denied>) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = all.entry(tailnet.map(str::to_owned)).or_default();
        let before = devices.get(id).cloned();
        let (routes, fault) = match read {
            Ok(routes) => (routes, None),
            Err(error) => match &before {
                Some(before) if !error.is_answer() => (before.routes.clone(), before.fault.clone()),
                _ => (before.clone().unwrap_or_default().routes, Some(error.lasting())),
            },
        };
        let changes = before.is_none_or(|before| (&before.routes, &before.fault) != (&routes, &fault));
        devices.insert(id.clone(), Approved { at, routes, fault });
        changes
    }
}

impl ControlPlanes {
    /// Approved routes of a tailnet's devices, as far as known.
    pub fn approved(&self, tailnet: Option<&str>) -> OrdMap<DeviceId, Approved> {
        let all = self.routes.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&tailnet.map(str::to_owned)).cloned().unwrap_or_default()
    }

    /// Approves routes of a device and withdraws others; returns whether the known routes have changed.
    pub async fn approve_routes(
        &self,
        tailnet: Option<&str>,
        device: &ClaimedDevice,
        add: &BTreeSet<String>,
        remove: &BTreeSet<String>,
    ) -> Result<bool, Denied> {
        let at = Timestamp::now();
        let routes = self.plane(tailnet)?.approve_routes(&device.id, &device.expected, add, remove).await?;
        Ok(self.routes.record(tailnet, &device.id, at, Ok(routes)))
    }

    /// Reads the approved routes of a device; returns whether the known ones, or the reason why they are not known, have changed.
    pub async fn read_routes(&self, tailnet: Option<&str>, ClaimedDevice { id, expected }: &ClaimedDevice) -> bool {
        let at = Timestamp::now();
        let read = match self.plane(tailnet) {
            Ok(client) => client.routes("read the approved routes of a device", id, expected).await.map_err(Denied::from),
            Err(error) => Err(error),
        };
        if let Err(error) = &read {
            tracing::warn!(reason = error.reason(), device = %id, "{error}");
        }
        self.routes.record(tailnet, id, at, read)
    }
}
