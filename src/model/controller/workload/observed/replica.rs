//! Objects of a replica: its Pod, what it reports in its state Secret, and its config Secret.
//!
//! A Pod writes its state Secret: values are parsed here, each text is bounded, and they are verified elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::api::targets::TargetRules;
use crate::api::{egress, ingress, names, state, targets};
use crate::model::controller::workload::device_index::DeviceEntry;
use crate::model::controller::workload::identity::{DeviceAddresses, DeviceId, DeviceName, DeviceRecord, KeyId, KeyMint};

mod state_values;
use state_values::StateValues;

#[derive(Debug, Clone, Default)]
pub struct ObservedReplica {
    pub pod: Option<Arc<Pod>>,
    /// Parsed state Secret.
    pub state: Option<Arc<ReplicaState>>,
    /// Parsed config Secret.
    pub config: Option<Arc<ReplicaConfig>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaState {
    /// Stable ID of its device, as the replica claims; see [`crate::model::controller::workload::identity`].
    pub device_id: Option<DeviceId>,
    /// Name of its node, as it reports; see [`ObservedReplica::device_name`].
    pub device_name: Option<DeviceName>,
    /// Tailnet addresses of its node, as it reports: compared with those of the control plane, never shown in a status.
    pub device_ips: DeviceAddresses,
    /// UID of the Pod that wrote the rest.
    pub pod_uid: Option<String>,
    /// Failed key, empty if it had none. Present: the replica requests another one.
    pub reissue: Option<String>,
    /// Why it does not serve the target of a standalone proxy.
    pub rejected_target: Option<String>,
    /// Accepted routes that cover addresses of the cluster, with one of these.
    pub overlaps: BTreeMap<IpNet, IpAddr>,
    pub egress: Option<egress::EgressStatus>,
    pub ingress: Option<ingress::IngressStatus>,
    /// Funnel errors by service name.
    pub funnel_errors: BTreeMap<String, String>,
    /// Tailscale Services that it advertises without the control server's approval.
    pub unapproved: BTreeSet<String>,
    /// The tailnet issues no certificates: HTTPS is disabled in it.
    pub no_https: bool,
    /// Tailscale Services that its tailscaled advertises.
    pub advertises: BTreeSet<String>,
    /// Routes that its tailscaled advertises.
    pub routes: BTreeSet<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// Complete config, if readable: a JSON object.
    pub document: Option<serde_json::Map<String, Value>>,
    /// ID of its auth key, if we created it.
    pub key_id: Option<KeyId>,
    /// The last auth key that we created for it.
    pub mint: Option<KeyMint>,
    /// Whether no device of it can exist, as it never got a key and never ran before its config Secret existed.
    pub is_new: bool,
    /// Its device, once verified.
    pub device: Option<DeviceRecord>,
    /// Its target policy.
    pub targets: Option<TargetRules>,
    /// Config for the Tailscale operator's image of type kube-apiserver.
    pub former: Option<ByteString>,
}

impl ObservedReplica {
    /// Whether its Pod runs the Tailscale operator's image of type kube-apiserver.
    pub fn has_former_pod(&self) -> bool {
        let containers = self.pod.iter().filter_map(|pod| pod.spec.as_ref()).flat_map(|spec| &spec.containers);
        containers.flat_map(|container| container.env.iter().flatten()).any(|variable| variable.name == names::K8S_PROXY_CONFIG)
    }

    /// Whether its Pod has this `ServiceAccount`.
    pub fn has_account(&self, name: &str) -> bool {
        self.pod.as_ref().and_then(|pod| pod.spec.as_ref()?.service_account_name.as_deref()) == Some(name)
    }

    /// Whether its tailscaled advertises a name.
    pub fn advertises(&self, name: &str) -> bool {
        self.state.as_ref().is_some_and(|state| state.advertises.contains(name))
    }

    /// A replica from its objects. Parses the Secrets; callers reuse the result while these are unchanged.
    pub fn new(pod: Option<Arc<Pod>>, state: Option<&Secret>, config: Option<&Secret>) -> Self {
        let (state, config) = (state.map(ReplicaState::read), config.map(ReplicaConfig::read));
        Self { pod, state: state.map(Arc::new), config: config.map(Arc::new) }
    }

    /// Sets the Pod that has the identity, of the first Pod and the second one; returns the other. Pods without a report wait.
    pub fn choose(&mut self, second: Arc<Pod>) -> Option<Arc<Pod>> {
        let active = self.state.as_ref().and_then(|state| state.pod_uid.as_deref());
        let is_active = active.is_some() && second.metadata.uid.as_deref() == active;
        if is_active || self.pod.is_none() { self.pod.replace(second) } else { Some(second) }
    }

    /// Whether its state is from the current Pod.
    pub fn is_current(&self) -> bool {
        let uid = self.pod.as_ref().and_then(|pod| pod.metadata.uid.as_deref());
        let reported = self.state.as_ref().and_then(|state| state.pod_uid.as_deref());
        uid.zip(reported).is_some_and(|(uid, reported)| uid.eq_ignore_ascii_case(reported))
    }

    /// Whether its state Secret names a device that may be its own.
    pub fn has_device(&self) -> bool {
        self.names_device() && !self.config.as_ref().is_some_and(|config| config.is_new)
    }

    /// Whether it is [new](ReplicaConfig::is_new). Without a config Secret: it names no device, and its Pod has not run.
    pub fn is_new(&self) -> bool {
        let has_run =
            |pod: &Arc<Pod>| pod.status.as_ref().is_some_and(|status| status.phase.as_deref().is_some_and(|phase| phase != "Pending"));
        match &self.config {
            Some(config) => config.is_new,
            None => !self.names_device() && !self.pod.as_ref().is_some_and(has_run),
        }
    }

    fn names_device(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.device_id.is_some())
    }

    /// The verified device.
    pub fn device(&self) -> Option<&DeviceRecord> {
        self.config.as_ref()?.device.as_ref()
    }

    /// The verified device with name and addresses, while the replica claims it.
    pub fn claimed_record(&self) -> Option<&DeviceRecord> {
        let claim = self.state.as_ref()?.device_id.as_ref()?;
        self.device().filter(|record| record.id == *claim && record.is_complete())
    }

    /// Name of the verified device, as the control plane gave it, while the replica claims it.
    pub fn device_name(&self) -> Option<&DeviceName> {
        self.claimed_record()?.name.as_ref()
    }

    /// First labels of its device's names: of the recorded one, and of the one that it reports. They may withhold a name from others, never
    /// give it one.
    pub fn device_hosts(&self) -> impl Iterator<Item = &str> {
        self.device_names().map(DeviceName::host)
    }

    /// Recorded and reported name of its device.
    pub fn device_names(&self) -> impl Iterator<Item = &DeviceName> {
        let recorded = self.device().and_then(|record| record.name.as_ref());
        recorded.into_iter().chain(self.state.as_ref().and_then(|state| state.device_name.as_ref()))
    }
}

impl ReplicaState {
    /// Parses a state Secret, without the reasons of rejected egress services, of which passes read only the names. Unreadable values count
    /// as absent.
    pub fn read(secret: &Secret) -> Self {
        Self::of(StateValues::new(secret, false))
    }

    /// Parses a state Secret with the reasons of rejected egress services.
    pub fn read_with_reasons(secret: &Secret) -> Self {
        Self::of(StateValues::new(secret, true))
    }

    fn of(mut values: StateValues<'_>) -> Self {
        let (egress, ingress) = (values.egress(), values.ingress());
        let (advertises, routes) = values.profile();
        Self {
            device_id: values.text(state::DEVICE_ID).and_then(|id| DeviceId::parse(&id)),
            device_name: values.text(state::DEVICE_FQDN).and_then(|name| DeviceName::parse(&name)),
            device_ips: values.addresses(state::DEVICE_IPS),
            pod_uid: values.filled(state::POD_UID),
            reissue: values.text(state::REISSUE_AUTHKEY),
            rejected_target: values.filled(state::REJECTED_TARGET),
            overlaps: values.overlaps(),
            egress,
            ingress,
            funnel_errors: values.names(state::FUNNEL_ERRORS),
            unapproved: values.names(state::UNAPPROVED),
            no_https: values.text(state::HTTPS_ENDPOINT).as_deref() == Some(state::NO_HTTPS),
            advertises,
            routes,
        }
    }
}

impl ReplicaConfig {
    pub fn read(secret: &Secret) -> Self {
        let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
        let annotation = |key: &str| secret.metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        Self {
            document: data(names::CONFIG_KEY).and_then(|text| serde_json::from_slice(&text.0).ok()),
            key_id: annotation(names::AUTH_KEY_ID).and_then(|id| KeyId::parse(&id)),
            mint: annotation(names::AUTH_KEY).and_then(|text| serde_json::from_str(&text).ok()),
            is_new: annotation(names::NEW_REPLICA).is_some(),
            device: annotation(names::DEVICE).and_then(|text| serde_json::from_str(&text).ok()),
            targets: data(targets::KEY).map(|text| serde_json::from_slice(&text.0).unwrap_or_default()),
            former: data(names::K8S_PROXY_CONFIG_KEY).cloned(),
        }
    }

    /// Tailscale Services to advertise.
    pub fn advertises(&self) -> impl Iterator<Item = &str> {
        self.list("AdvertiseServices")
    }

    pub fn routes(&self) -> impl Iterator<Item = &str> {
        self.list("AdvertiseRoutes")
    }

    fn list(&self, field: &str) -> impl Iterator<Item = &str> {
        let list = self.document.as_ref().and_then(|document| document.get(field)?.as_array());
        list.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Host name of its device.
    pub fn hostname(&self) -> Option<&str> {
        self.document.as_ref()?.get("Hostname")?.as_str()
    }

    /// Host names of its device: the requested one, and the recorded one, which the control plane may have numbered or not changed yet.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let recorded = self.device.as_ref().and_then(|record| Some(record.name.as_ref()?.host().to_ascii_lowercase()));
        let requested = self.hostname().map(str::to_ascii_lowercase).filter(|requested| Some(requested) != recorded.as_ref());
        requested.into_iter().chain(recorded.clone())
    }

    /// Facts for [`crate::model::controller::workload::device_index`].
    pub fn entry(&self) -> DeviceEntry<'_> {
        let server = self.document.as_ref().and_then(|document| document.get("ServerURL")?.as_str());
        DeviceEntry {
            server: server.unwrap_or_default(),
            hostname: self.hostname().unwrap_or_default(),
            record: self.device.as_ref(),
            mint: self.mint.as_ref(),
            workload: None,
        }
    }

    /// ID of the last auth key that we created, while it is valid, unless the recorded device joined with it: its Pod may have it unused.
    pub fn unused_key(&self, now: Timestamp) -> Option<&KeyId> {
        let Some(mint) = &self.mint else { return self.key_id.as_ref().filter(|_| self.auth_key().is_some()) };
        // A device that had a record before may have its key of that time.
        let has_joined = self.device.as_ref().is_some_and(|record| !mint.is_previous(&record.id, record.created));
        (!has_joined && now.as_second() <= mint.end()).then_some(&mint.id)
    }

    /// Its auth key; empty counts as none.
    pub fn auth_key(&self) -> Option<&str> {
        self.document.as_ref()?.get("AuthKey")?.as_str().filter(|key| !key.is_empty())
    }
}
