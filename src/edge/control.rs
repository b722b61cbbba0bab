//! A control plane's API: auth keys and devices, of Tailscale or of headscale.
//!
//! One client for each tailnet; its clones share the rate, the pause that the server asked for and the access token. A call is
//! tried once: whoever reconciles tries again, after what [`ControlError::retry_after`] says. No key is ever logged.

mod error;
mod headscale;
mod http;
mod tailscale;

pub use error::ControlError;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

use self::headscale::Headscale;
use self::http::ControlHttp;
use self::tailscale::Tailscale;
use crate::api::vip::VipService;
use crate::model::controller::control_plane::Capabilities;
use crate::model::controller::identity::{Device, DeviceId, ExpectedDevice, KeyId};
use crate::model::controller::tailnet;
use crate::model::tailnet::supervise::Secret;

/// Where a control plane is and how it is spoken to.
#[derive(Debug, Clone)]
pub struct ControlSettings {
    /// The base URL, that of the login server too.
    pub url: String,
    pub credentials: ClientCredentials,
    /// More certificate authorities to believe, PEM: for a control server with a private one.
    pub ca: Option<PathBuf>,
    /// How fast it may be asked.
    pub rate: Rate,
    /// How long one call may take, waiting for its turn included.
    pub deadline: Duration,
}

/// A limit of requests.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// So many at once.
    pub burst: u32,
    /// So many a second in the long run.
    pub per_second: f64,
}

/// Who asks a control plane.
pub type ClientCredentials = tailnet::Credentials<IdentityToken>;

/// Where a service account's token is; it is read anew for each exchange.
#[derive(Debug, Clone)]
pub enum IdentityToken {
    /// In a file, as the kubelet projects it.
    File(PathBuf),
    /// With somebody who asks the API server for it; nothing until he has it.
    Watch(watch::Receiver<Option<Secret>>),
}

/// A new auth key: for one device, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthKey {
    pub id: KeyId,
    pub key: Secret,
}

/// A client of one control plane.
#[derive(Debug, Clone)]
pub enum ControlClient {
    /// Tailscale, or what speaks its API.
    Tailscale(Tailscale),
    Headscale(Headscale),
}

impl Rate {
    /// A good guest: a start of a big group is not held up, and a fault elsewhere cannot make us a flood.
    pub const DEFAULT: Self = Self { burst: 20, per_second: 5.0 };
}

impl ControlClient {
    /// How long an auth key can be used: a Pod that starts needs seconds.
    pub const KEY_LIFE: Duration = Duration::from_hours(1);

    /// A client. Asks nobody yet. Fails if the URL or the certificate authorities cannot be used.
    pub fn new(settings: ControlSettings) -> Result<Self, ControlError> {
        let http = ControlHttp::new(&settings)?;
        Ok(match settings.credentials {
            ClientCredentials::OAuth { client_id, client_secret } => Self::Tailscale(Tailscale::oauth(http, client_id, client_secret)),
            ClientCredentials::Identity { client_id, token } => Self::Tailscale(Tailscale::identity(http, client_id, token)),
            ClientCredentials::Headscale { api_key } => Self::Headscale(Headscale::new(http, api_key)),
        })
    }

    pub fn capabilities(&self) -> Capabilities {
        match self {
            Self::Tailscale(_) => Capabilities::TAILSCALE,
            Self::Headscale(_) => Capabilities::HEADSCALE,
        }
    }

    /// Whether the credentials allow what we need: asks for keys and devices.
    pub async fn probe(&self) -> Result<(), ControlError> {
        match self {
            Self::Tailscale(client) => client.probe().await,
            Self::Headscale(client) => client.probe().await,
        }
    }

    /// Makes an auth key for one device, to be used once within [`Self::KEY_LIFE`]. `note` tells a person what it is for.
    pub async fn mint_key(&self, tags: &[String], note: &str) -> Result<AuthKey, ControlError> {
        match self {
            Self::Tailscale(client) => client.mint_key(tags, note).await,
            Self::Headscale(client) => client.mint_key(tags).await,
        }
    }

    /// Makes a key useless. One that is gone already is no error.
    pub async fn revoke_key(&self, id: &KeyId) -> Result<(), ControlError> {
        match self {
            Self::Tailscale(client) => client.revoke_key(id).await,
            Self::Headscale(client) => client.revoke_key(id).await,
        }
        .or_else(ControlError::absent)
    }

    /// All Tailscale Services that the credentials may see.
    pub async fn services(&self) -> Result<Vec<VipService>, ControlError> {
        self.tailscale()?.services().await
    }

    /// A Tailscale Service, with `svc:`; none if there is none of this name.
    pub async fn service(&self, name: &str) -> Result<Option<VipService>, ControlError> {
        match self.tailscale()?.service(name).await {
            Ok(service) => Ok(Some(service)),
            Err(error) => error.absent().map(|()| None),
        }
    }

    /// Makes a Tailscale Service, or puts this one whole in the place of the one that there is.
    pub async fn put_service(&self, service: &VipService) -> Result<(), ControlError> {
        self.tailscale()?.put_service(service).await
    }

    /// Takes a Tailscale Service away. One that is gone already is no error.
    pub async fn delete_service(&self, name: &str) -> Result<(), ControlError> {
        self.tailscale()?.delete_service(name).await.or_else(ControlError::absent)
    }

    /// Leads routes to a device, and others no more; those that are approved for it after that.
    pub async fn approve_routes(
        &self,
        id: &DeviceId,
        expected: &ExpectedDevice,
        add: &BTreeSet<String>,
        remove: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, ControlError> {
        match self {
            Self::Headscale(client) => client.approve_routes(id, expected, add, remove).await,
            Self::Tailscale(_) => Err(ControlError::Settings("routes stand for nothing here: there are Tailscale Services".to_owned())),
        }
    }

    fn tailscale(&self) -> Result<&Tailscale, ControlError> {
        match self {
            Self::Tailscale(client) => Ok(client),
            Self::Headscale(_) => Err(ControlError::Settings("headscale has no Tailscale Services".to_owned())),
        }
    }

    /// A device by its stable ID, if it is the expected one; `None` if the control plane does not know it.
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
        expected.check(&device).map_err(mismatch).map(|()| Some(device))
    }

    /// Deletes a device if it is the expected one. One that is gone already is no error.
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

/// The ID of a new auth key.
fn key_id(id: String) -> Result<KeyId, ControlError> {
    KeyId::try_from(id).map_err(|error| ControlError::Answer { call: "make an auth key", source: serde::de::Error::custom(error) })
}
