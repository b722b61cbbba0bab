//! headscale API client (v1): API key, pre-auth keys, nodes. headscale has no Tailscale Services and issues no certificates.

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use reqwest::{Method, RequestBuilder};

use super::http::ControlHttp;
use super::{APPROVE, AuthKey, ControlError, auth_key};
use crate::api::control::{ApproveRoutes, CreatePreAuthKey, CreatedPreAuthKey, HeadscaleNode, NodeAnswer};
use crate::model::controller::workload::identity::{Device, DeviceAddresses, DeviceId, DeviceLabel, KEY_LIFETIME, KeyId};
use crate::model::tailnet::supervise::Secret;

#[derive(Debug, Clone)]
pub struct Headscale {
    http: ControlHttp,
    api_key: Secret,
}

impl Headscale {
    pub(super) fn new(http: ControlHttp, api_key: Secret) -> Self {
        Self { http, api_key }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, path).bearer_auth(self.api_key.reveal())
    }

    pub(super) async fn probe(&self) -> Result<(), ControlError> {
        self.http.done("list pre-auth keys", self.request(Method::GET, "/api/v1/preauthkey")).await?;
        // A node ID that cannot exist: tests the permission to read nodes without listing thousands.
        self.http.done("get a node", self.request(Method::GET, "/api/v1/node/0")).await.or_else(ControlError::absent)
    }

    pub(super) async fn mint_key(&self, tags: &[String]) -> Result<AuthKey, ControlError> {
        let life = SignedDuration::try_from(KEY_LIFETIME).map_err(|error| ControlError::Settings(error.to_string()))?;
        let expiration = (Timestamp::now() + life).to_string();
        let wanted = CreatePreAuthKey { reusable: false, ephemeral: false, expiration, acl_tags: tags.to_vec() };
        let request = self.request(Method::POST, "/api/v1/preauthkey").json(&wanted);
        let made: CreatedPreAuthKey = self.http.answer("make a pre-auth key", request).await?;
        auth_key(made.pre_auth_key)
    }

    pub(super) async fn revoke_key(&self, id: &KeyId) -> Result<(), ControlError> {
        self.http.done("delete a pre-auth key", self.request(Method::DELETE, "/api/v1/preauthkey").query(&[("id", id.as_str())])).await
    }

    /// A node and its approved routes.
    pub(super) async fn routes(&self, id: &DeviceId) -> Result<(Device, BTreeSet<String>), ControlError> {
        let mut node = self.node(id).await?;
        let approved = std::mem::take(&mut node.approved_routes);
        Ok((device(node), approved))
    }

    /// Approves exactly these routes of a node; returns the approved ones.
    pub(super) async fn set_routes(&self, id: &DeviceId, routes: &BTreeSet<String>) -> Result<BTreeSet<String>, ControlError> {
        let request = self.request(Method::POST, &format!("/api/v1/node/{id}/approve_routes")).json(&ApproveRoutes { routes });
        let made: NodeAnswer = self.http.answer(APPROVE, request).await?;
        Ok(made.node.approved_routes)
    }

    pub(super) async fn device(&self, id: &DeviceId) -> Result<Device, ControlError> {
        self.node(id).await.map(device)
    }

    async fn node(&self, id: &DeviceId) -> Result<HeadscaleNode, ControlError> {
        let answer: NodeAnswer = self.http.answer("get a node", self.request(Method::GET, &format!("/api/v1/node/{id}"))).await?;
        Ok(answer.node)
    }

    pub(super) async fn delete_device(&self, id: &DeviceId) -> Result<(), ControlError> {
        self.http.done("delete a node", self.request(Method::DELETE, &format!("/api/v1/node/{id}"))).await
    }
}

fn device(node: HeadscaleNode) -> Device {
    Device {
        id: node.id,
        addresses: DeviceAddresses::parse(node.ip_addresses.iter().map(String::as_str)),
        // A node that was registered without a key has an empty one.
        key: node.pre_auth_key.and_then(|key| KeyId::parse(&key.id)).filter(|key| key.as_str() != "0"),
        created: node.created_at.parse().ok(),
        name: DeviceLabel::Host(node.given_name),
        hostname: node.name,
        tags: node.tags,
    }
}
