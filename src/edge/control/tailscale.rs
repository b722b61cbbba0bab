//! Client of the Tailscale API (v2) and compatible servers: OAuth client or federated identity, auth keys, devices, Tailscale Services.
//!
//! headscale has this API since 0.30, without Tailscale Services (404) and certificates. There the reconciler approves routes.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::http::ControlHttp;
use super::{APPROVE, AuthKey, ControlError, IdentityToken, auth_key};
use crate::api::control::{
    ApproveRoutes, CreateKey, CreatedKey, DeviceRoutes, KeyCapabilities, KeyCreate, KeyDevices, TailscaleDevice, TokenAnswer,
};
use crate::api::vip::{VipService, VipServices};
use crate::model::controller::policy::annotations::dns_label;
use crate::model::controller::workload::control_plane::{Capabilities, CapabilityVerdict, token_end};
use crate::model::controller::workload::identity::{Device, DeviceAddresses, DeviceId, DeviceLabel, DeviceName, KEY_LIFETIME, KeyId};
use crate::model::tailnet::supervise::Secret;

/// Paths of keys, devices, Tailscale Services, and of routes below a device.
const KEYS: &str = "/tailnet/-/keys";
const DEVICE: &str = "/device/";
const SERVICES: &str = "/tailnet/-/vip-services";
const ROUTES: &str = "/routes";
/// Name of an object that cannot exist: a request for it tests the permission without listing thousands.
const PROBED: &str = "tailyard-probe";
/// Maximum characters of a key's description.
const NOTE: usize = 50;

#[derive(Debug, Clone)]
pub struct Tailscale {
    http: ControlHttp,
    login: Arc<OAuthLogin>,
    // The first worker with an expired token renews it while the others wait: one request for many workers.
    token: Arc<Mutex<Option<AccessToken>>>,
    capabilities: Arc<std::sync::Mutex<CapabilityVerdict>>,
    began: Instant,
}

#[derive(Debug)]
enum OAuthLogin {
    OAuth { client_id: String, client_secret: Secret },
    Identity { client_id: String, token: IdentityToken },
}

#[derive(Debug, Clone)]
struct AccessToken {
    access: Secret,
    end: Instant,
}

impl Tailscale {
    pub(super) fn oauth(http: ControlHttp, client_id: String, client_secret: Secret) -> Self {
        Self::new(http, OAuthLogin::OAuth { client_id, client_secret })
    }

    pub(super) fn identity(http: ControlHttp, client_id: String, token: IdentityToken) -> Self {
        Self::new(http, OAuthLogin::Identity { client_id, token })
    }

    fn new(http: ControlHttp, login: OAuthLogin) -> Self {
        Self { http, login: Arc::new(login), token: Arc::default(), capabilities: Arc::default(), began: Instant::now() }
    }

    pub(super) async fn probe(&self) -> Result<(), ControlError> {
        self.done("list keys", Method::GET, KEYS).await?;
        self.done("get a device", Method::GET, &format!("{DEVICE}{PROBED}")).await.or_else(ControlError::absent)?;
        self.find_capabilities().await
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.verdict().current().unwrap_or(Capabilities::TAILSCALE)
    }

    /// Finds out whether the server has Tailscale Services: by its tokens, else by a list of them.
    async fn find_capabilities(&self) -> Result<(), ControlError> {
        let of_token = Capabilities::of_token(self.access().await?.reveal());
        let now = self.began.elapsed();
        if of_token.is_none() && !self.verdict().is_due(now) {
            return Ok(());
        }
        let found = match of_token {
            None => self.listed_capabilities().await,
            of_token => Ok(of_token),
        };
        let mut verdict = self.verdict();
        match found {
            Ok(found) => found.into_iter().for_each(|found| verdict.take(found, now)),
            Err(_) if verdict.current().is_some() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A list shows that the server has Tailscale Services, and a missing path that it has none, if another path is there before and after
    /// that: a gateway answers for all paths alike. Denials and other answers show nothing.
    async fn listed_capabilities(&self) -> Result<Option<Capabilities>, ControlError> {
        let list = async || {
            let request = self.request(Method::GET, SERVICES).await?;
            let answer: Result<Value, _> = self.settled(SERVICES, self.http.answer("list Tailscale Services", request).await).await;
            match answer {
                Ok(list) => Ok(list.get("vipServices").map(|_| Capabilities::TAILSCALE)),
                Err(ControlError::Denied { .. } | ControlError::Refused { status: ..500, .. }) => Ok(None),
                Err(error) => error.absent().map(|()| Some(Capabilities::HEADSCALE)),
            }
        };
        let found = list().await?;
        if found != Some(Capabilities::HEADSCALE) {
            return Ok(found);
        }
        self.done("list keys", Method::GET, KEYS).await?;
        Ok(list().await?.filter(|again| *again == Capabilities::HEADSCALE))
    }

    fn verdict(&self) -> MutexGuard<'_, CapabilityVerdict> {
        self.capabilities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn probe_services(&self) -> Result<(), ControlError> {
        self.service(&format!("svc:{PROBED}")).await.map(drop).or_else(ControlError::absent)
    }

    pub(super) async fn mint_key(&self, tags: &[String], note: &str) -> Result<AuthKey, ControlError> {
        let create = KeyCreate { reusable: false, ephemeral: false, preauthorized: true, tags: tags.to_vec() };
        let wanted = CreateKey {
            capabilities: KeyCapabilities { devices: KeyDevices { create } },
            expiry_seconds: KEY_LIFETIME.as_secs(),
            description: described(note),
        };
        let call = "make an auth key";
        let request = self.request(Method::POST, KEYS).await?.json(&wanted);
        let made: CreatedKey = self.settled(KEYS, self.http.answer(call, request).await).await?;
        auth_key(made)
    }

    pub(super) async fn revoke_key(&self, id: &KeyId) -> Result<(), ControlError> {
        self.done("delete an auth key", Method::DELETE, &format!("{KEYS}/{id}")).await
    }

    pub(super) async fn device(&self, id: &DeviceId) -> Result<Device, ControlError> {
        let path = format!("{DEVICE}{id}");
        let request = self.request(Method::GET, &path).await?;
        let found: TailscaleDevice = self.settled(&path, self.http.answer("get a device", request).await).await?;
        let addresses = DeviceAddresses::parse(found.addresses.iter().map(String::as_str));
        let name = match DeviceName::parse(&found.name) {
            Some(name) => DeviceLabel::Whole(name),
            None if dns_label(&found.name) => DeviceLabel::Host(found.name),
            None => DeviceLabel::Unknown,
        };
        let created = found.created.parse().ok();
        Ok(Device { id: found.node_id, hostname: found.hostname, tags: found.tags, name, addresses, created, key: None })
    }

    pub(super) async fn delete_device(&self, id: &DeviceId) -> Result<(), ControlError> {
        self.done("delete a device", Method::DELETE, &format!("{DEVICE}{id}")).await
    }

    /// A device and its approved routes.
    pub(super) async fn routes(&self, id: &DeviceId) -> Result<(Device, BTreeSet<String>), ControlError> {
        let device = self.device(id).await?;
        let path = routes_path(id);
        let request = self.request(Method::GET, &path).await?;
        let found: DeviceRoutes = self.settled(&path, self.http.answer("get routes of a device", request).await).await?;
        Ok((device, found.enabled_routes))
    }

    /// Approves exactly these routes of a device; returns the approved ones.
    pub(super) async fn set_routes(&self, id: &DeviceId, routes: &BTreeSet<String>) -> Result<BTreeSet<String>, ControlError> {
        let path = routes_path(id);
        let request = self.request(Method::POST, &path).await?.json(&ApproveRoutes { routes });
        let made: DeviceRoutes = self.settled(&path, self.http.answer(APPROVE, request).await).await?;
        Ok(made.enabled_routes)
    }

    pub(super) async fn services(&self) -> Result<Vec<VipService>, ControlError> {
        let request = self.request(Method::GET, SERVICES).await?;
        let list: VipServices = self.settled(SERVICES, self.http.answer("list Tailscale Services", request).await).await?;
        Ok(list.vip_services)
    }

    pub(super) async fn service(&self, name: &str) -> Result<VipService, ControlError> {
        let path = service_path(name)?;
        let request = self.request(Method::GET, &path).await?;
        self.settled(&path, self.http.answer("get a Tailscale Service", request).await).await
    }

    pub(super) async fn put_service(&self, service: &VipService) -> Result<(), ControlError> {
        let path = service_path(&service.name)?;
        let request = self.request(Method::PUT, &path).await?.json(service);
        self.settled(&path, self.http.done("put a Tailscale Service", request).await).await
    }

    pub(super) async fn delete_service(&self, name: &str) -> Result<(), ControlError> {
        self.done("delete a Tailscale Service", Method::DELETE, &service_path(name)?).await
    }

    async fn done(&self, call: &'static str, method: Method, path: &str) -> Result<(), ControlError> {
        let request = self.request(method, path).await?;
        self.settled(path, self.http.done(call, request).await).await
    }

    async fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, ControlError> {
        let access = self.access().await?;
        Ok(self.http.request(method, &format!("/api/v2{path}")).bearer_auth(access.reveal()))
    }

    /// Drops the access token after a 401: it was revoked, or the server lost it. A 403 names the scope of the path.
    async fn settled<T>(&self, path: &str, answer: Result<T, ControlError>) -> Result<T, ControlError> {
        match answer {
            Err(ControlError::Denied { call, status: 403, message, .. }) => {
                Err(ControlError::Denied { call, status: 403, message, advice: scope_advice(path) })
            }
            Err(ControlError::Denied { status: 401, .. }) => {
                *self.token.lock().await = None;
                answer
            }
            answer => answer,
        }
    }

    async fn access(&self) -> Result<Secret, ControlError> {
        let mut token = self.token.lock().await;
        if let Some(token) = token.as_ref().filter(|token| Instant::now() < token.end) {
            return Ok(token.access.clone());
        }
        let began = Instant::now();
        let answer = self.log_in().await?;
        let end = began + token_end(std::time::Duration::ZERO, answer.expires_in);
        let access = Secret::new(answer.access_token);
        *token = Some(AccessToken { access: access.clone(), end });
        Ok(access)
    }

    async fn log_in(&self) -> Result<TokenAnswer, ControlError> {
        match &*self.login {
            OAuthLogin::OAuth { client_id, client_secret } => {
                let form = [("grant_type", "client_credentials"), ("client_id", client_id), ("client_secret", client_secret.reveal())];
                self.http.answer("get an access token", self.http.request(Method::POST, "/api/v2/oauth/token").form(&form)).await
            }
            OAuthLogin::Identity { client_id, token } => {
                let jwt = token.read()?;
                let form = [("client_id", client_id.as_str()), ("jwt", jwt.reveal())];
                self.http
                    .answer("exchange an identity token", self.http.request(Method::POST, "/api/v2/oauth/token-exchange").form(&form))
                    .await
            }
        }
    }
}

impl IdentityToken {
    fn read(&self) -> Result<Secret, ControlError> {
        match self {
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(token) if !token.trim().is_empty() => Ok(Secret::new(token.trim().to_owned())),
                Ok(_) => Err(ControlError::Identity(format!("{} is empty", path.display()))),
                Err(error) => Err(ControlError::Identity(format!("{}: {error}", path.display()))),
            },
            Self::Watch(cell) => {
                cell.borrow().clone().ok_or_else(|| ControlError::Identity("the API server has not given one yet".to_owned()))
            }
        }
    }
}

/// Scope that a path needs, as the admin console names it.
fn scope_advice(path: &str) -> &'static str {
    match path {
        _ if path.starts_with(KEYS) => "give the client write access to Keys/Auth Keys, with the tags in use (docs/tailscale.md)",
        _ if path.starts_with(SERVICES) => "give the client write access to General/Services, with the tags in use (docs/tailscale.md)",
        _ if path.ends_with(ROUTES) => {
            "give the client the scope devices:routes, or devices:routes:read for Connectors, with the tags in use (docs/tailscale.md)"
        }
        _ => "give the client write access to Devices/Core, with the tags in use (docs/tailscale.md)",
    }
}

fn routes_path(id: &DeviceId) -> String {
    format!("{DEVICE}{id}{ROUTES}")
}

/// API path of a Tailscale Service. Fails if the name is not `svc:` and a DNS label.
fn service_path(name: &str) -> Result<String, ControlError> {
    match name.strip_prefix("svc:") {
        Some(label) if dns_label(label) => Ok(format!("{SERVICES}/{name}")),
        _ => Err(ControlError::Settings(format!("{name:?} is no name of a Tailscale Service"))),
    }
}

/// Limits a note to the characters and length that a key's description may have.
fn described(note: &str) -> String {
    let allowed = |letter: char| if letter.is_ascii_alphanumeric() || letter == ' ' { letter } else { '-' };
    note.chars().map(allowed).take(NOTE).collect()
}
