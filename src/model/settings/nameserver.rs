//! Settings of `tailyard nameserver`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::source::SettingSource;
use super::{Faults, Flags, Kube, Log, ObjectName, SettingFault, read};

/// All settings of `tailyard nameserver`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameserverSettings {
    /// Kubernetes API, in a Pod.
    pub kube: Option<Kube>,
    pub kubeconfig: Option<PathBuf>,
    /// `ConfigMap` with the records, which is watched.
    pub config_map: Option<ObjectName>,
    /// File with the records, read at startup: the mounted `ConfigMap`, for starts without the API server.
    pub file: Option<PathBuf>,
    /// Address of queries, over UDP and TCP.
    pub listen: SocketAddr,
    /// Time from the termination signal to exit, in which queries are answered.
    pub drain_timeout: Duration,
    /// Listener of health checks and metrics; `None` if disabled.
    pub admin_addr: Option<SocketAddr>,
    pub log: Log,
}

impl NameserverSettings {
    /// Reads environment and flags. The error contains all faults.
    pub fn read(env: &BTreeMap<String, String>, flags: &Flags) -> Result<Self, Faults> {
        let mut source = SettingSource::new(env, flags);
        let listen = source.address_port("TAILYARD_DNS_ADDR", None);
        let settings = Self {
            kube: read::kube(&mut source),
            kubeconfig: source.path("KUBECONFIG"),
            config_map: source.parsed("TAILYARD_DNS_CONFIGMAP", "a ConfigMap as NAMESPACE/NAME", read::object_name),
            file: source.path("TAILYARD_DNS_RECORDS_FILE"),
            listen: listen.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0))),
            drain_timeout: source.duration("TAILYARD_DNS_DRAIN_TIMEOUT"),
            admin_addr: read::admin_addr(&mut source),
            log: read::log(&mut source),
        };
        let fault = |setting: &str, needs| SettingFault::Needs { setting: setting.to_owned(), needs };
        if settings.config_map.is_none() && settings.file.is_none() && source.faults.is_empty() {
            source.faults.push(fault("tailyard nameserver", "--configmap NAMESPACE/NAME or --records-file FILE"));
        }
        if settings.config_map.is_some() && settings.kube.is_none() && settings.kubeconfig.is_none() {
            source.faults.push(fault("--configmap outside a cluster", "--kubeconfig FILE"));
        }
        if source.faults.is_empty() { Ok(settings) } else { Err(Faults(source.faults)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<NameserverSettings, Faults> {
        let env = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        NameserverSettings::read(&env, &Flags::nameserver())
    }

    #[test]
    fn environment_of_a_pod_is_sufficient() {
        let settings = read(&[
            ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443"),
            ("TAILYARD_DNS_CONFIGMAP", "tailscale/dnsrecords"),
        ])
        .expect("settings");
        assert_eq!(settings.config_map, Some(ObjectName { namespace: "tailscale".into(), name: "dnsrecords".into() }));
        assert_eq!((settings.listen.port(), settings.drain_timeout, settings.file), (1053, Duration::from_secs(10), None));
    }

    #[test]
    fn missing_records_and_invalid_values_are_reported_at_once() {
        let faults = |pairs: &[(&str, &str)]| read(pairs).expect_err("faults").0.len();
        assert_eq!(faults(&[]), 1);
        assert_eq!(faults(&[("TAILYARD_DNS_CONFIGMAP", "a/b")]), 1, "no API");
        assert_eq!(faults(&[("TAILYARD_DNS_CONFIGMAP", "a"), ("TAILYARD_DNS_ADDR", "53"), ("TAILYARD_DNS_DRAIN_TIMEOUT", "x")]), 3);
    }
}
