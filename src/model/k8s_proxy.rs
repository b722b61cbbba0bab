//! Config of the Tailscale operator's API server proxy (`k8s-proxy`), for Tailyard's image in its place.
//!
//! Under the Tailscale operator, a Pod of a `ProxyGroup` of type `kube-apiserver` has its settings in one document, which its Secret delivers.
//! Tailyard parses it once, here, into values of bounded size; [`translation`] converts these into the settings and configs that a replica
//! has under Tailyard's reconciler. Unknown fields are ignored. One invalid field rejects the whole document, with the name of the field.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::api::proxygroup::ApiServerMode;
use crate::model::base::hujson::{self, Object, Value};
use crate::model::tailnet::supervise::Secret;

use fault::K8sProxyFault;
use fields::Fields;
use values::{ControlUrl, KubernetesName, LogLevel, MAX_BYTES, MAX_ENDPOINTS, MAX_SERVICES, TailscaleServiceName};

pub mod fault;
mod fields;
pub mod reference;
pub mod translation;
pub mod values;

/// The version that is read.
const VERSION: &str = "v1alpha1";
/// Default port of health checks and metrics.
const LOCAL_PORT: u16 = 9002;

/// A document, parsed completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct K8sProxyConfig {
    pub auth_key: Option<Secret>,
    /// State Secret; `None` for state in memory.
    pub state: Option<KubernetesName>,
    pub log_level: LogLevel,
    /// Application that the node reports to the control server.
    pub app: Option<String>,
    pub control_url: Option<ControlUrl>,
    /// Address of health checks and metrics, if not that of the Pod.
    pub local_address: Option<IpAddr>,
    pub local_port: u16,
    pub metrics: bool,
    pub health_checks: bool,
    pub hostname: Option<String>,
    pub accept_routes: bool,
    /// Tailscale Services that may be advertised: the operator lists one once its certificate exists.
    pub advertises: BTreeSet<TailscaleServiceName>,
    pub api_server: ApiServerSection,
    pub static_endpoints: Vec<SocketAddr>,
}

/// The section `APIServerProxy`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiServerSection {
    pub enabled: bool,
    /// `auth` or `noauth`; never another value.
    pub mode: ApiServerMode,
    pub service: Option<TailscaleServiceName>,
    /// Whether this replica orders the certificate for the group.
    pub issues_certificates: bool,
}

impl K8sProxyConfig {
    pub fn parse(bytes: &[u8]) -> Result<Self, K8sProxyFault> {
        if bytes.len() > MAX_BYTES {
            return Err(K8sProxyFault::TooLarge { size: bytes.len() });
        }
        let text = std::str::from_utf8(bytes).map_err(|_| K8sProxyFault::Text)?;
        match hujson::parse(text).map_err(K8sProxyFault::Syntax)? {
            Some(Value::Object(object)) => Self::read(&versioned(&object)?),
            _ => Err(K8sProxyFault::Shape),
        }
    }

    fn read(fields: &Fields<'_, '_>) -> Result<Self, K8sProxyFault> {
        let service = TailscaleServiceName::parse;
        Ok(Self {
            auth_key: fields.parsed("AuthKey", "an auth key, not a file", |text| values::auth_key(text).map(Secret::new))?,
            state: fields.parsed("State", "kube:SECRET, mem: or unset", state)?.flatten(),
            log_level: fields.parsed("LogLevel", "debug, info, warn or error", LogLevel::parse)?.unwrap_or_default(),
            app: fields.parsed("App", "lower-case letters, digits and -, at most 63", values::app)?,
            control_url: fields.parsed("ServerURL", "an http or https URL without credentials", ControlUrl::parse)?,
            local_address: fields.parsed("LocalAddr", "an IP address", values::listen_address)?,
            local_port: fields.port("LocalPort")?.unwrap_or(LOCAL_PORT),
            metrics: fields.boolean("MetricsEnabled")?.unwrap_or_default(),
            health_checks: fields.boolean("HealthCheckEnabled")?.unwrap_or_default(),
            hostname: fields.parsed("Hostname", "a host name", values::host_name)?,
            accept_routes: fields.boolean("AcceptRoutes")?.unwrap_or_default(),
            advertises: fields
                .list("AdvertiseServices", (MAX_SERVICES, "a list of at most 64 Tailscale Services (svc:NAME)"), service)?
                .into_iter()
                .collect(),
            api_server: match fields.section("APIServerProxy", "APIServerProxy.")? {
                Some(section) => ApiServerSection::read(&section)?,
                None => ApiServerSection::default(),
            },
            static_endpoints: fields.list(
                "StaticEndpoints",
                (MAX_ENDPOINTS, "a list of at most 16 addresses with port (IP:PORT)"),
                values::endpoint,
            )?,
        })
    }

    /// The newer document with what only a start applies as in this one: `Mode` and `IssueCerts`, as the Pod's rights are those of the former
    /// mode, and `ServerURL`. The other such fields are read at the start alone.
    #[must_use]
    pub fn reloaded(&self, newer: Self) -> Self {
        let ApiServerSection { mode, issues_certificates, .. } = self.api_server.clone();
        let api_server = ApiServerSection { mode, issues_certificates, ..newer.api_server };
        Self { api_server, control_url: self.control_url.clone(), ..newer }
    }

    /// Fields of the newer document that differ and have no effect until the container restarts.
    pub fn unapplied(&self, newer: &Self) -> Vec<&'static str> {
        let (section, new) = (&self.api_server, &newer.api_server);
        let differences = [
            ("State", self.state != newer.state),
            ("LogLevel", self.log_level != newer.log_level),
            ("App", self.app != newer.app),
            ("ServerURL", self.control_url != newer.control_url),
            ("LocalAddr", self.local_address != newer.local_address),
            ("LocalPort", self.local_port != newer.local_port),
            ("MetricsEnabled", self.metrics != newer.metrics),
            ("HealthCheckEnabled", self.health_checks != newer.health_checks),
            ("APIServerProxy.Mode", section.mode != new.mode),
            ("APIServerProxy.IssueCerts", section.issues_certificates != new.issues_certificates),
        ];
        differences.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field).collect()
    }
}

impl ApiServerSection {
    fn read(fields: &Fields<'_, '_>) -> Result<Self, K8sProxyFault> {
        const MODES: &str = "\"auth\" or \"noauth\"";
        let mode = |text: &str| match text {
            "auth" => Some(ApiServerMode::Auth),
            "noauth" => Some(ApiServerMode::NoAuth),
            _ => None,
        };
        let mode = fields.text("Mode")?.map(|text| mode(text).ok_or_else(|| fields.fault("Mode", MODES))).transpose()?;
        Ok(Self {
            enabled: fields.boolean("Enabled")?.unwrap_or_default(),
            mode: mode.unwrap_or(ApiServerMode::Auth),
            service: fields.parsed("ServiceName", "a Tailscale Service (svc:NAME)", TailscaleServiceName::parse)?,
            issues_certificates: fields.boolean("IssueCerts")?.unwrap_or_default(),
        })
    }
}

/// The object with the settings: the document, or in one of a later version its object `v1alpha1`.
fn versioned<'a, 'b>(document: &'b Object<'a>) -> Result<Fields<'a, 'b>, K8sProxyFault> {
    let root = Fields { object: document, section: "" };
    match (root.text("Version")?, root.section(VERSION, "v1alpha1.")?) {
        (None | Some(""), _) => Err(K8sProxyFault::NoVersion),
        (Some(VERSION), None) => Ok(root),
        (Some(VERSION), Some(_)) => Err(K8sProxyFault::TwoVersions),
        (Some(_), Some(nested)) => Ok(nested),
        (Some(other), None) => Err(K8sProxyFault::version(other)),
    }
}

/// The state Secret, or none for state in memory.
#[allow(clippy::option_option, reason = "an invalid value is no state in memory")]
fn state(text: &str) -> Option<Option<KubernetesName>> {
    match text.strip_prefix("kube:") {
        Some(name) => KubernetesName::parse(name).map(Some),
        None => text.starts_with("mem:").then_some(None),
    }
}

#[cfg(test)]
mod tests;
