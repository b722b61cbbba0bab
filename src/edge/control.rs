//! Client of a control plane's API (Tailscale or headscale): auth keys, devices and Tailscale Services.
//!
//! One client per tailnet; its clones share the rate limit, the server's `Retry-After` pause and the access token. A call is attempted
//! once: the reconciler requeues, after [`ControlError::retry_after`] if set. No key is logged.

mod error;
mod headscale;
mod http;
mod tailscale;

pub use error::ControlError;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;

use self::headscale::Headscale;
use self::http::ControlHttp;
use self::tailscale::Tailscale;
use crate::api::control::CreatedKey;
use crate::api::vip::VipService;
use crate::model::controller::kinds::tailnet;
use crate::model::controller::workload::control_plane::Capabilities;
use crate::model::controller::workload::identity::{Device, DeviceId, ExpectedDevice, KeyId};
use crate::model::tailnet::supervise::Secret;

/// Name of the approval of routes in errors.
const APPROVE: &str = "approve routes of a device";

/// Address and credentials of a control plane, and limits of calls.
#[derive(Debug, Clone)]
pub struct ControlSettings {
    /// Base URL, also of the login server.
    pub url: String,
    pub credentials: ClientCredentials,
    /// File with additional trusted CAs, PEM: for a control server with a private CA.
    pub ca: Option<PathBuf>,
    pub rate: Rate,
    /// Timeout of a call, including the wait for the rate limit.
    pub deadline: Duration,
}

/// Request rate limit (token bucket).
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    pub burst: u32,
    /// Sustained requests per second.
    pub per_second: f64,
}

pub type ClientCredentials = tailnet::Credentials<IdentityToken>;

/// Source of the service account token; read for each exchange.
#[derive(Debug, Clone)]
pub enum IdentityToken {
    /// File that the kubelet projects.
    File(PathBuf),
    /// Updated by a task that requests it from the API server; `None` until then.
    Watch(watch::Receiver<Option<Secret>>),
}

/// A new auth key: single use, for one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthKey {
    pub id: KeyId,
    pub key: Secret,
    /// Creation time by the control plane's clock, if it reports that.
    pub created: Option<Timestamp>,
}

#[derive(Debug, Clone)]
pub enum ControlClient {
    /// API v2: Tailscale, headscale since 0.30, or a server with a compatible API.
    Tailscale(Tailscale),
    /// headscale's API v1.
    Headscale(Headscale),
}

impl Rate {
    /// High enough for the start of a big group, low enough that a fault elsewhere cannot flood the server.
    pub const DEFAULT: Self = Self { burst: 20, per_second: 5.0 };
}

impl ControlClient {
    /// Creates a client without I/O to the server. Fails if the URL or the CA file is unusable.
    pub fn new(settings: ControlSettings) -> Result<Self, ControlError> {
        let http = ControlHttp::new(&settings)?;
        Ok(match settings.credentials {
            ClientCredentials::OAuth { client_id, client_secret } => Self::Tailscale(Tailscale::oauth(http, client_id, client_secret)),
            ClientCredentials::Identity { client_id, token } => Self::Tailscale(Tailscale::identity(http, client_id, token)),
            ClientCredentials::Headscale { api_key } => Self::Headscale(Headscale::new(http, api_key)),
        })
    }

    /// What the control plane can do: of an API v2 known after [`Self::probe`].
    pub fn capabilities(&self) -> Capabilities {
        match self {
            Self::Tailscale(client) => client.capabilities(),
            Self::Headscale(_) => Capabilities::HEADSCALE,
        }
    }

    /// Checks the permissions of the credentials with requests for keys and devices, and finds out the capabilities.
    pub async fn probe(&self) -> Result<(), ControlError> {
        match self {
            Self::Tailscale(client) => client.probe().await,
            Self::Headscale(client) => client.probe().await,
        }
    }

    /// Checks the permission to read Tailscale Services; succeeds if the control plane has none.
    pub async fn probe_services(&self) -> Result<(), ControlError> {
        match self {
            Self::Tailscale(client) => client.probe_services().await,
            Self::Headscale(_) => Ok(()),
        }
    }

    /// Creates an auth key for one device, single use, valid for an hour. `note` is its description for users.
    pub async fn mint_key(&self, tags: &[String], note: &str) -> Result<AuthKey, ControlError> {
        match self {
            Self::Tailscale(client) => client.mint_key(tags, note).await,
            Self::Headscale(client) => client.mint_key(tags).await,
        }
    }

    /// Revokes a key. A missing key is no error.
    pub async fn revoke_key(&self, id: &KeyId) -> Result<(), ControlError> {
        match self {
            Self::Tailscale(client) => client.revoke_key(id).await,
            Self::Headscale(client) => client.revoke_key(id).await,
        }
        .or_else(ControlError::absent)
    }

    /// Lists all Tailscale Services that the credentials may read.
    pub async fn services(&self) -> Result<Vec<VipService>, ControlError> {
        self.tailscale()?.services().await
    }

    /// Returns a Tailscale Service by its name, with `svc:`; `None` if it does not exist.
    pub async fn service(&self, name: &str) -> Result<Option<VipService>, ControlError> {
        match self.tailscale()?.service(name).await {
            Ok(service) => Ok(Some(service)),
            Err(error) => error.absent().map(|()| None),
        }
    }

    /// Creates or replaces a Tailscale Service.
    pub async fn put_service(&self, service: &VipService) -> Result<(), ControlError> {
        self.tailscale()?.put_service(service).await
    }

    /// Deletes a Tailscale Service. A missing one is no error.
    pub async fn delete_service(&self, name: &str) -> Result<(), ControlError> {
        self.tailscale()?.delete_service(name).await.or_else(ControlError::absent)
    }

    /// Adds and removes approved routes of a device; returns the approved routes afterwards. Sends no change without a difference.
    pub async fn approve_routes(
        &self,
        id: &DeviceId,
        expected: &ExpectedDevice,
        add: &BTreeSet<String>,
        remove: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, ControlError> {
        if self.capabilities().services {
            let why = "this control plane has Tailscale Services and approves no routes for the reconciler";
            return Err(ControlError::Settings(why.to_owned()));
        }
        let approved = self.routes(APPROVE, id, expected).await?;
        let wanted: BTreeSet<String> = approved.difference(remove).chain(add).cloned().collect();
        if wanted == approved {
            return Ok(approved);
        }
        let approved = match self {
            Self::Tailscale(client) => client.set_routes(id, &wanted).await?,
            Self::Headscale(client) => client.set_routes(id, &wanted).await?,
        };
        let missing: Vec<_> = add.difference(&approved).cloned().collect();
        if missing.is_empty() {
            return Ok(approved);
        }
        let message = format!("it did not take {}", missing.join(", "));
        Err(ControlError::Refused { call: APPROVE, status: 200, message })
    }

    /// Approved routes of a device, if it is the expected one. `call`: their use, for errors.
    pub async fn routes(&self, call: &'static str, id: &DeviceId, expected: &ExpectedDevice) -> Result<BTreeSet<String>, ControlError> {
        let (device, approved) = match self {
            Self::Tailscale(client) => client.routes(id).await?,
            Self::Headscale(client) => client.routes(id).await?,
        };
        let found = expected.find(id, device).map_err(|mismatch| ControlError::Mismatch { call, id: id.clone(), mismatch })?;
        found.map(|_| approved).ok_or_else(|| ControlError::Absent { call, message: format!("another device has the ID {id}") })
    }

    fn tailscale(&self) -> Result<&Tailscale, ControlError> {
        match self {
            Self::Tailscale(client) => Ok(client),
            Self::Headscale(_) => Err(ControlError::Settings("headscale has no Tailscale Services".to_owned())),
        }
    }

    /// Returns a device by its stable ID; `None` if the control plane does not know it, or another one has its ID. Fails if it is not the
    /// expected one.
    pub async fn device(&self, id: &DeviceId, expected: &ExpectedDevice) -> Result<Option<Device>, ControlError> {
        let found = match self {
            Self::Tailscale(client) => client.device(id).await,
            Self::Headscale(client) => client.device(id).await,
        };
        let device = match found {
            Ok(device) => device,
            Err(error) => return error.absent().map(|()| None),
        };
        let mismatch = |mismatch| ControlError::Mismatch { call: "check a device", id: id.clone(), mismatch };
        expected.find(id, device).map_err(mismatch)
    }

    /// Deletes a device if it is the expected one. A missing device is no error.
    pub async fn delete_device(&self, id: &DeviceId, expected: &ExpectedDevice) -> Result<(), ControlError> {
        if self.device(id, expected).await?.is_none() {
            return Ok(());
        }
        match self {
            Self::Tailscale(client) => client.delete_device(id).await,
            Self::Headscale(client) => client.delete_device(id).await,
        }
        .or_else(ControlError::absent)
    }
}

/// Converts a new auth key.
fn auth_key(CreatedKey { id, key, created }: CreatedKey) -> Result<AuthKey, ControlError> {
    let invalid = |error| ControlError::Answer { call: "make an auth key", source: serde::de::Error::custom(error) };
    let id = KeyId::try_from(id).map_err(invalid)?;
    Ok(AuthKey { id, key: Secret::new(key), created: created.and_then(|created| created.parse().ok()) })
}
