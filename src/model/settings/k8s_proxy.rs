//! Settings of a replica in a Pod of the Tailscale operator for a `ProxyGroup` of type `kube-apiserver`: those of the Pod's environment, and of
//! the document that `TS_K8S_PROXY_CONFIG` names.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::source::SettingSource;
use super::{ConfigInput, Faults, Flags, Kube, Settings, TailnetMode, read};
use crate::api::names::K8S_PROXY_CONFIG;
use crate::model::k8s_proxy::K8sProxyConfig;
use crate::model::k8s_proxy::reference::{K8sProxyReference, WANTED};
use crate::model::k8s_proxy::translation;

/// The document of a replica, and where it is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct K8sProxySettings {
    pub reference: K8sProxyReference,
    /// The document at the start.
    pub config: Arc<K8sProxyConfig>,
}

/// How to read the document before there are settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct K8sProxySource {
    pub reference: K8sProxyReference,
    pub kube: Option<Kube>,
    /// JSON logs.
    pub json: bool,
}

impl K8sProxySource {
    /// The document that the environment names, if it names one.
    pub fn read(env: &BTreeMap<String, String>, flags: &Flags) -> Result<Option<Self>, Faults> {
        let mut source = SettingSource::new(env, flags);
        if source.text(K8S_PROXY_CONFIG).is_none() {
            return Ok(None);
        }
        let reference = source.parsed(K8S_PROXY_CONFIG, WANTED, K8sProxyReference::parse);
        let (kube, log) = (read::kube(&mut source), read::log(&mut source));
        if matches!(reference, Some(K8sProxyReference::Secret { .. })) {
            source.needs(K8S_PROXY_CONFIG, kube.is_some(), "a cluster (KUBERNETES_SERVICE_HOST is unset)");
        }
        match reference {
            Some(reference) if source.faults.is_empty() => Ok(Some(Self { reference, kube, json: log.json })),
            _ => Err(Faults(source.faults)),
        }
    }
}

impl Settings {
    /// As [`Self::read`], with this document.
    pub fn of_k8s_proxy(env: &BTreeMap<String, String>, flags: &Flags, k8s_proxy: K8sProxySettings) -> Result<Self, Faults> {
        let config = &k8s_proxy.config;
        let mut settings = Self::read(&translation::environment(config, env), flags)?;
        if let TailnetMode::Tailscaled(daemon) = &mut settings.tailnet {
            daemon.env.extend(config.app.clone().map(|app| ("TS_INTERNAL_APP".to_owned(), app)));
        }
        // The virtual host follows from the document, and it is advertised if the document lists it.
        settings.serve = Some(ConfigInput::default());
        settings.auto_advertise = false;
        settings.k8s_proxy = Some(k8s_proxy);
        Ok(settings)
    }
}
