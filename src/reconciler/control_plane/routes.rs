//! Approved routes of devices, from the last responses of control planes: read by passes, updated by requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::jiff::Timestamp;

use super::{ControlPlanes, Denied};
use crate::model::controller::workload::actions::ClaimedDevice;
use crate::model::controller::workload::identity::DeviceId;
use crate::model::controller::workload::observed::Approved;

/// Approved routes by Tailnet and stable device ID.
#[derive(Debug, Default)]
pub(super) struct ApprovedRoutes(Mutex<BTreeMap<Option<String>, BTreeMap<DeviceId, Approved>>>);

impl ApprovedRoutes {
    /// Forgets the routes of a replaced control plane.
    pub(super) fn forget(&self, tailnet: Option<&str>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tailnet.map(str::to_owned));
    }

    pub(super) fn gone(&self, tailnet: Option<&str>, id: &DeviceId) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(&tailnet.map(str::to_owned)).map(|devices| devices.remove(id));
    }
}

impl ControlPlanes {
    /// Approved routes of a tailnet's devices, as far as known.
    pub fn approved(&self, tailnet: Option<&str>) -> BTreeMap<DeviceId, Approved> {
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
        let mut all = self.routes.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.entry(tailnet.map(str::to_owned)).or_default().insert(device.id.clone(), Approved { at, routes: routes.clone() });
        Ok(before.is_none_or(|before| before.routes != routes))
    }
}
