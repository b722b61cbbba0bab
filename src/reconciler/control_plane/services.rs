//! Tailscale Services of each tailnet, from the last responses of control planes: read by passes, updated by requests.
//!
//! One list serves all groups of a tailnet; a pass requests nothing that is known. A service is read right before its write and again
//! afterwards. [`crate::model::controller::ingress::spec`] decides about ownership.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::jiff::Timestamp;

use super::{ControlPlanes, Denied};
use crate::api::vip::VipService;
use crate::edge::control::{ControlClient, ControlError};
use crate::model::controller::workload::observed::ServiceList;
use crate::model::controller::workload::vip_service::{
    DesiredVipService, OwnershipVerdict, OwningGroup, Release, ServiceOwner, release, verify_owner,
};

/// Service lists by Tailnet name.
#[derive(Debug, Default)]
pub(super) struct Lists {
    lists: Mutex<BTreeMap<Option<String>, Arc<ServiceList>>>,
    /// Serializes listing: waiters use the new list.
    listing: tokio::sync::Mutex<()>,
}

impl Lists {
    /// Forgets the list of a replaced control plane.
    pub(super) fn forget(&self, tailnet: Option<&str>) {
        self.lists().remove(&tailnet.map(str::to_owned));
    }

    fn get(&self, tailnet: Option<&str>) -> Option<Arc<ServiceList>> {
        self.lists().get(&tailnet.map(str::to_owned)).cloned()
    }

    /// Stores a service that was just read; returns whether it has changed.
    fn set(&self, tailnet: Option<&str>, name: &str, found: Option<VipService>) -> bool {
        let mut lists = self.lists();
        let Some(listed) = lists.get_mut(&tailnet.map(str::to_owned)) else { return false };
        if listed.services.get(name) == found.as_ref() {
            return false;
        }
        let listed = Arc::make_mut(listed);
        match found {
            Some(found) => drop(listed.services.insert(name.to_owned(), found)),
            None => drop(listed.services.remove(name)),
        }
        true
    }

    fn lists(&self) -> MutexGuard<'_, BTreeMap<Option<String>, Arc<ServiceList>>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ControlPlanes {
    /// Known Tailscale Services of a tailnet; `None` before the first list.
    pub fn listed(&self, tailnet: Option<&str>) -> Option<Arc<ServiceList>> {
        self.listed.get(tailnet)
    }

    /// Lists all services, unless a list newer than `since` exists.
    pub async fn list_services(&self, tailnet: Option<&str>, since: Timestamp) -> Result<(), Denied> {
        let client = self.plane(tailnet)?;
        let _turn = self.listed.listing.lock().await;
        if self.listed(tailnet).is_some_and(|listed| listed.at > since) {
            return Ok(());
        }
        let at = Timestamp::now();
        let services = client.services().await?.into_iter().map(|service| (service.name.clone(), service)).collect();
        self.listed.lists().insert(tailnet.map(str::to_owned), Arc::new(ServiceList { at, services }));
        Ok(())
    }

    /// Creates or updates a service; returns whether the known state has changed.
    pub async fn publish_service(
        &self,
        tailnet: Option<&str>,
        desired: &DesiredVipService,
        owner: &ServiceOwner,
        recorded: bool,
    ) -> Result<bool, Denied> {
        let client = self.plane(tailnet)?;
        let found = client.service(&desired.name).await?;
        let found = match verify_owner(found.as_ref(), desired, owner, recorded) {
            OwnershipVerdict::Settled | OwnershipVerdict::Refused(_) => found,
            OwnershipVerdict::Write { service, .. } => written(&client, &service).await?,
        };
        Ok(self.listed.set(tailnet, &desired.name, found))
    }

    /// Releases a group's part of a service; returns whether the known state has changed.
    pub async fn release_service(
        &self,
        tailnet: Option<&str>,
        name: &str,
        (owner, group): (&ServiceOwner, OwningGroup<'_>),
    ) -> Result<bool, Denied> {
        let client = self.plane(tailnet)?;
        let found = client.service(name).await?;
        let remaining = match release(found.as_ref(), owner, group) {
            Release::Nothing => found,
            Release::Delete => {
                client.delete_service(name).await?;
                None
            }
            Release::Write(service) => written(&client, &service).await?,
        };
        Ok(self.listed.set(tailnet, name, remaining))
    }
}

/// Writes a service and reads the result: another client may have written concurrently.
async fn written(client: &ControlClient, service: &VipService) -> Result<Option<VipService>, ControlError> {
    client.put_service(service).await?;
    client.service(&service.name).await
}
