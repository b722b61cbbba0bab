//! A cluster in miniature: an API server that applies passes, a controller that makes Pods, and replicas that obey their
//! config. Enough to run passes to a fixpoint and to watch what must never be, on the way.

#![allow(clippy::needless_pass_by_value, reason = "a call with a literal reads better")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::proxyclass::ProxyClass;
use crate::api::proxygroup::ProxyGroup;
use crate::api::{egress, names};
use crate::model::group::{
    Capabilities, Class, ControlAction, Delete, GroupSettings, Observed, Pass, Replica, ServiceUpdate, TailnetState, concerns, pass,
};
use crate::model::objects::{Kind, Manifest, ObjectRef, egress_config, group_of};
use crate::model::ports::Range;

/// The namespace of the proxies.
pub(super) const NS: &str = "tailscale";

/// The cluster.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: i64,
    pub(super) settings: GroupSettings,
    pub(super) groups: BTreeMap<String, ProxyGroup>,
    pub(super) class: Class,
    pub(super) tailnet: TailnetState,
    pub(super) services: BTreeMap<(String, String), Service>,
    pub(super) objects: BTreeMap<ObjectRef, Arc<Value>>,
    pub(super) pods: BTreeMap<String, Pod>,
    /// Devices of the tailnet.
    pub(super) devices: BTreeSet<String>,
    /// Keys that were minted and neither used nor revoked.
    pub(super) keys: BTreeSet<String>,
    /// Replicas that do not look at their config.
    pub(super) asleep: BTreeSet<String>,
    pub(super) minted: u32,
    next: u64,
    /// How many writes there were.
    pub(super) writes: u64,
}

pub(super) fn settings() -> GroupSettings {
    GroupSettings {
        namespace: NS.into(),
        image: "ghcr.io/tailyard/tailyard:1".into(),
        tags: vec!["tag:k8s".into()],
        firewall: None,
        cluster_domain: "cluster.local".into(),
        ports: Range::DEFAULT,
        drain_grace: Duration::from_secs(50),
        service_monitors: true,
        linger: Duration::from_mins(1),
    }
}

pub(super) fn ready() -> TailnetState {
    let capabilities = Capabilities { keys: true, devices: true };
    TailnetState::Ready { server_url: "https://controlplane.tailscale.com".into(), capabilities }
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            now: 1_800_000_000,
            settings: settings(),
            groups: BTreeMap::new(),
            class: Class::None,
            tailnet: ready(),
            services: BTreeMap::new(),
            objects: BTreeMap::new(),
            pods: BTreeMap::new(),
            devices: BTreeSet::new(),
            keys: BTreeSet::new(),
            asleep: BTreeSet::new(),
            minted: 0,
            next: 0,
            writes: 0,
        }
    }

    fn id(&mut self) -> String {
        self.next += 1;
        format!("id-{}", self.next)
    }

    pub(super) fn time(&self) -> Timestamp {
        Timestamp::from_second(self.now).expect("a time")
    }

    /// Makes a group, or gives it another spec.
    pub(super) fn group(&mut self, name: &str, spec: Value) {
        let uid = self.groups.get(name).and_then(|held| held.metadata.uid.clone());
        let uid = uid.unwrap_or_else(|| self.id());
        let mut group: ProxyGroup =
            serde_json::from_value(json!({"metadata": {"name": name, "uid": uid, "generation": 1}, "spec": spec})).expect("a group");
        if let Some(held) = self.groups.get(name) {
            group.metadata = held.metadata.clone();
            group.status.clone_from(&held.status);
        }
        self.groups.insert(name.into(), group);
    }

    pub(super) fn delete_group(&mut self, name: &str) {
        let now = Time(self.time());
        if let Some(group) = self.groups.get_mut(name) {
            group.metadata.deletion_timestamp.get_or_insert(now);
        }
        self.collect();
    }

    pub(super) fn service(&mut self, name: &str, annotations: Value, ports: &[u16]) {
        let key = ("default".to_owned(), name.to_owned());
        let ports: Vec<_> = ports.iter().map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"})).collect();
        let uid = self.id();
        let created = self.time().to_string();
        let mut service: Service = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": uid, "annotations": annotations, "creationTimestamp": created},
            "spec": {"type": "ExternalName", "externalName": "placeholder", "ports": ports},
        }))
        .expect("a Service");
        if let Some(held) = self.services.get(&key) {
            let annotations = service.metadata.annotations.take();
            service.metadata = held.metadata.clone();
            service.metadata.annotations = annotations;
            service.status.clone_from(&held.status);
            let held = held.spec.as_ref().and_then(|spec| spec.external_name.clone());
            service.spec.as_mut().expect("a spec").external_name = held;
        }
        self.services.insert(key, service);
    }

    pub(super) fn delete_service(&mut self, name: &str) {
        let now = Time(self.time());
        if let Some(service) = self.services.get_mut(&("default".to_owned(), name.to_owned())) {
            service.metadata.deletion_timestamp.get_or_insert(now);
        }
        self.collect();
    }

    /// What is being deleted and has no finalizer goes, and what it owned.
    fn collect(&mut self) {
        let empty = |finalizers: &Option<Vec<String>>| finalizers.as_ref().is_none_or(Vec::is_empty);
        self.services.retain(|_, held| held.metadata.deletion_timestamp.is_none() || !empty(&held.metadata.finalizers));
        self.groups.retain(|_, held| held.metadata.deletion_timestamp.is_none() || !empty(&held.metadata.finalizers));
        let uids: BTreeSet<_> = self.groups.values().filter_map(|held| held.metadata.uid.clone()).collect();
        self.objects.retain(|_, held| match held["metadata"]["ownerReferences"][0]["uid"].as_str() {
            Some(uid) => uids.contains(uid),
            None => true,
        });
    }

    /// Every name of which a pass must be made.
    pub(super) fn keys_of_work(&self) -> BTreeSet<String> {
        let labelled = self.objects.values().filter_map(|held| owner_of(held));
        self.groups.keys().cloned().chain(labelled).chain(self.services.values().flat_map(concerns)).collect()
    }

    pub(super) fn observe(&self, name: &str) -> Observed {
        let owned: BTreeMap<_, _> = self
            .objects
            .iter()
            .filter(|(_, held)| owner_of(held).as_deref() == Some(name))
            .map(|(key, held)| (key.clone(), held.clone()))
            .collect();
        let parent = |held: &Value| {
            let label = |key: &str| held["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned();
            (label(names::PARENT_NAMESPACE), label(names::PARENT))
        };
        let parents: BTreeSet<_> = owned.values().map(|held| parent(held)).collect();
        let mine = |key: &(String, String), held: &Service| concerns(held).contains(name) || parents.contains(key);
        let services = self.services.iter().filter(|(key, held)| mine(key, held)).map(|(key, held)| (key.clone(), Arc::new(held.clone())));
        let secret = |secret: String| -> Option<Secret> {
            let held = self.objects.get(&ObjectRef::new(Kind::Secret, NS, secret))?;
            Some(serde_json::from_value(Value::clone(held)).expect("a Secret"))
        };
        let mut replicas = BTreeMap::new();
        for ordinal in 0..20 {
            let pod = self.pods.get(&names::replica(name, ordinal)).cloned().map(Arc::new);
            let (state, config) = (secret(names::replica(name, ordinal)), secret(names::replica_config(name, ordinal)));
            if pod.is_some() || state.is_some() || config.is_some() {
                replicas.insert(ordinal, Replica::new(pod, state.as_ref(), config.as_ref()));
            }
        }
        Observed {
            name: name.into(),
            now: self.time(),
            settings: Arc::new(self.settings.clone()),
            group: self.groups.get(name).cloned().map(Arc::new),
            class: self.class.clone(),
            tailnet: self.tailnet.clone(),
            replicas,
            owned,
            services: services.collect(),
            nodes: Vec::new(),
            node_ports: BTreeSet::new(),
        }
    }

    /// Makes one pass over a group and does what it came to.
    pub(super) fn pass(&mut self, name: &str) -> Pass {
        let made = pass(&self.observe(name));
        self.act(name, &made);
        made
    }

    fn act(&mut self, name: &str, made: &Pass) {
        if let Some(finalizers) = made.group.as_ref().and_then(|update| update.finalizers.clone())
            && let Some(group) = self.groups.get_mut(name)
        {
            self.writes += 1;
            group.metadata.finalizers = Some(finalizers);
        }
        for manifest in &made.apply {
            self.apply(manifest);
        }
        for update in &made.services {
            self.update(name, update);
        }
        self.delete(&made.delete);
        for action in &made.control {
            match action {
                ControlAction::MintKey { draft, .. } => {
                    self.minted += 1;
                    let (id, key) = (format!("k{}", self.minted), format!("tskey-{}", self.minted));
                    self.keys.insert(id.clone());
                    self.apply(&draft.with_key(&id, &key));
                }
                ControlAction::DeleteDevice { id, then, .. } => {
                    self.devices.remove(id);
                    self.delete(then);
                }
                ControlAction::RevokeKey { id, then, .. } => {
                    self.keys.remove(id);
                    self.delete(then);
                }
            }
        }
        if let Some(status) = made.group.as_ref().and_then(|update| update.status.clone())
            && let Some(group) = self.groups.get_mut(name)
        {
            self.writes += 1;
            group.status = Some(status);
        }
        self.collect();
    }

    fn apply(&mut self, manifest: &Manifest) {
        self.writes += 1;
        let mut value = manifest.value.clone();
        let held = self.objects.get(&manifest.object).cloned();
        let uid = held.as_ref().map_or_else(|| json!(self.id()), |held| held["metadata"]["uid"].clone());
        value["metadata"]["uid"] = uid;
        if let Some(data) = held.as_ref().map(|held| held["data"].clone()).filter(|_| value["data"].is_null()) {
            value["data"] = data;
        }
        self.objects.insert(manifest.object.clone(), Arc::new(value));
    }

    fn delete(&mut self, deletes: &[Delete]) {
        for delete in deletes {
            self.writes += 1;
            let held = self.objects.remove(&delete.object);
            assert!(held.is_some_and(|held| held["metadata"]["uid"].as_str() == delete.uid.as_deref()), "{delete:?}");
        }
    }

    fn update(&mut self, group: &str, update: &ServiceUpdate) {
        if let Some(host) = &update.external_name {
            self.acknowledged(group, host);
        }
        let Some(service) = self.services.get_mut(&(update.namespace.clone(), update.name.clone())) else { return };
        if let Some(finalizers) = &update.finalizers {
            self.writes += 1;
            service.metadata.finalizers = Some(finalizers.clone());
        }
        if let Some(host) = &update.external_name {
            self.writes += 1;
            service.spec.as_mut().expect("a spec").external_name = Some(host.clone());
        }
        if let Some(conditions) = &update.conditions {
            self.writes += 1;
            service.status.get_or_insert_default().conditions = Some(conditions.clone());
        }
    }

    /// A name is pointed only at a child that is there, and whose ports every replica maps.
    fn acknowledged(&self, group: &str, host: &str) {
        let child = host.split('.').next().expect("a label");
        let child = self.objects.get(&ObjectRef::new(Kind::Service, NS, child)).expect("the child is there first");
        let ports = child["spec"]["ports"].as_array().expect("ports").iter().filter(|port| port["name"] != "tailscale-health-check");
        let wanted: BTreeSet<_> = ports.map(|port| port["targetPort"].as_u64().expect("a port")).collect();
        let replicas = self.groups[group].spec.replicas.unwrap_or(2);
        for ordinal in 0..u32::try_from(replicas).expect("a number") {
            let pod = &self.pods[&names::replica(group, ordinal)];
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            if conditions.into_iter().flatten().all(|condition| condition.status != "True") {
                continue;
            }
            let state = &self.objects[&ObjectRef::new(Kind::Secret, NS, names::replica(group, ordinal))];
            let state: Secret = serde_json::from_value(Value::clone(state)).expect("a Secret");
            let status: egress::Status = serde_json::from_slice(&state.data.expect("data")[egress::KEY].0).expect("a status");
            let mapped: BTreeSet<_> =
                status.services.iter().flatten().flat_map(|(_, held)| &held.ports).map(|port| port.match_port).collect();
            assert!(wanted.is_subset(&mapped), "{host}: {wanted:?} not in {mapped:?} of {group}-{ordinal}");
        }
    }

    /// The controller of `StatefulSet`s makes and takes Pods; replicas log in and take up their config.
    pub(super) fn live(&mut self) {
        let mut wanted = BTreeSet::new();
        let sets: Vec<_> = self
            .objects
            .iter()
            .filter(|(object, _)| object.kind == Kind::StatefulSet)
            .map(|(object, held)| (object.name.clone(), held["spec"]["replicas"].as_u64()))
            .collect();
        for (name, replicas) in sets {
            wanted.extend((0..u32::try_from(replicas.unwrap_or(1)).expect("a number")).map(|ordinal| (name.clone(), ordinal)));
        }
        self.pods.retain(|pod, _| wanted.iter().any(|(group, ordinal)| names::replica(group, *ordinal) == *pod));
        for (group, ordinal) in wanted {
            let name = names::replica(&group, ordinal);
            if !self.pods.contains_key(&name) {
                let uid = self.id();
                let ip = format!("10.{}.{}.{}", self.next >> 16 & 255, self.next >> 8 & 255, self.next & 255);
                let pod = json!({
                    "metadata": {"name": name, "uid": uid},
                    "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
                });
                self.pods.insert(name.clone(), serde_json::from_value(pod).expect("a Pod"));
            }
            if !self.asleep.contains(&name) {
                self.replica(&group, ordinal);
            }
        }
    }

    fn replica(&mut self, group: &str, ordinal: u32) {
        let name = names::replica(group, ordinal);
        let (state, config) =
            (ObjectRef::new(Kind::Secret, NS, name.clone()), ObjectRef::new(Kind::Secret, NS, names::replica_config(group, ordinal)));
        let (Some(held), Some(config)) = (self.objects.get(&state), self.objects.get(&config)) else { return };
        let mut secret: Secret = serde_json::from_value(Value::clone(held)).expect("a Secret");
        let replica = Replica::new(None, Some(&secret), Some(&serde_json::from_value(Value::clone(config)).expect("a Secret")));
        let (known, told) = (replica.state.expect("it is there"), replica.config.expect("it is there"));
        let data = secret.data.get_or_insert_default();
        let mut put = |key: &str, text: String| data.insert(key.to_owned(), k8s_openapi::ByteString(text.into_bytes()));
        if known.device_id.is_none() {
            if told.auth_key().is_none() {
                return;
            }
            assert!(self.keys.remove(told.key_id.as_deref().expect("our key")), "a key is used once");
            self.devices.insert(format!("n-{name}"));
            put("device_id", format!("n-{name}"));
        }
        let pod = &self.pods[&name];
        let ip = pod.status.as_ref().and_then(|status| status.pod_ip.clone()).expect("an address");
        put("device_fqdn", format!("{name}.tail1234.ts.net."));
        put("device_ips", r#"["100.64.0.1"]"#.into());
        put("pod_uid", pod.metadata.uid.clone().expect("a UID"));
        let config = self.objects.get(&ObjectRef::new(Kind::ConfigMap, NS, names::egress_config(group)));
        let entries = config.map(|held| egress_config(held)).unwrap_or_default();
        let served = |service: egress::Service| egress::ServiceStatus {
            ports: service.ports,
            tailnet_target_ips: Some(vec!["100.64.0.9".into()]),
            tailnet_target: service.tailnet_target,
        };
        let services: BTreeMap<_, _> = entries.into_iter().map(|(key, service)| (key, served(service))).collect();
        let status: egress::Status = egress::Status { pod_ipv4: ip, services: Some(services), ..egress::Status::default() };
        put(egress::KEY, serde_json::to_string(&status).expect("JSON"));
        self.objects.insert(state, Arc::new(serde_json::to_value(&secret).expect("JSON")));
    }

    /// Passes over everything, once; whether any came to something.
    pub(super) fn round(&mut self) -> bool {
        let mut busy = false;
        for name in self.keys_of_work() {
            let made = self.pass(&name);
            self.check();
            busy |= !idle(&made);
        }
        self.live();
        self.now += 1;
        busy
    }

    /// Passes until there is nothing left to do, also not later.
    pub(super) fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..200 {
            if self.round() {
                quiet = 0;
            } else {
                quiet += 1;
                self.now += 70;
            }
            if quiet == 3 {
                return;
            }
        }
        let last: Vec<_> = self.keys_of_work().into_iter().map(|name| (name.clone(), pass(&self.observe(&name)))).collect();
        panic!("no end: {last:#?}");
    }

    /// What must never be.
    pub(super) fn check(&self) {
        let mut children = BTreeSet::new();
        let mut ports = BTreeSet::new();
        for (object, held) in self.objects.iter().filter(|(object, _)| object.kind == Kind::Service) {
            let label = |key: &str| held["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned();
            if label(names::SERVICE_TYPE) != names::EGRESS {
                continue;
            }
            let whose = (label(names::PROXY_GROUP), label(names::PARENT_NAMESPACE), label(names::PARENT));
            assert!(children.insert(whose.clone()), "two children of {whose:?}");
            for port in held["spec"]["ports"].as_array().expect("ports").iter().filter(|port| port["name"] != "tailscale-health-check") {
                let port = port["targetPort"].as_u64().expect("a port");
                assert!(ports.insert((whose.0.clone(), port)), "port {port} twice in {}: {object}", whose.0);
                assert!((10_000..20_000).contains(&port));
            }
        }
        for (object, held) in self.objects.iter().filter(|(object, _)| object.kind == Kind::ConfigMap) {
            let mut seen = BTreeSet::new();
            for port in egress_config(held).values().flat_map(|entry| &entry.ports) {
                assert!(seen.insert(port.match_port), "{object}: port {} twice", port.match_port);
            }
        }
    }

    pub(super) fn external_name(&self, service: &str) -> String {
        self.services[&("default".to_owned(), service.to_owned())]
            .spec
            .as_ref()
            .and_then(|spec| spec.external_name.clone())
            .expect("a name")
    }

    pub(super) fn condition(&self, service: &str, kind: &str) -> Option<(String, String, String)> {
        let service = &self.services[&("default".to_owned(), service.to_owned())];
        let conditions = service.status.as_ref()?.conditions.as_deref()?;
        crate::model::conditions::get(conditions, kind).map(|held| (held.status.clone(), held.reason.clone(), held.message.clone()))
    }

    pub(super) fn children(&self) -> Vec<&ObjectRef> {
        let child = |held: &Value| held["metadata"]["labels"][names::SERVICE_TYPE] == names::EGRESS;
        self.objects.iter().filter(|(object, held)| object.kind == Kind::Service && child(held)).map(|(object, _)| object).collect()
    }

    pub(super) fn entries(&self, group: &str) -> BTreeMap<String, egress::Service> {
        self.objects
            .get(&ObjectRef::new(Kind::ConfigMap, NS, names::egress_config(group)))
            .map(|held| egress_config(held))
            .unwrap_or_default()
    }

    pub(super) fn ready(&self, group: &str) -> (String, String, String) {
        let conditions = &self.groups[group].status.as_ref().expect("a status").conditions;
        let held = crate::model::conditions::get(conditions, "ProxyGroupReady").expect("a condition");
        (held.status.clone(), held.reason.clone(), held.message.clone())
    }

    pub(super) fn with_class(&mut self, spec: Value) {
        let class: ProxyClass = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec})).expect("a class");
        self.class = Class::Ready(Arc::new(class));
    }
}

/// Whether a pass came to nothing.
pub(super) fn idle(made: &Pass) -> bool {
    Pass { again: None, ..made.clone() } == Pass::default()
}

fn owner_of(held: &Value) -> Option<String> {
    let labels = serde_json::from_value(held["metadata"]["labels"].clone()).ok()?;
    group_of(&labels).map(str::to_owned)
}

/// The annotations of a Service of a group.
pub(super) fn to(group: &str) -> Value {
    json!({"tailscale.com/proxy-group": group, "tailscale.com/tailnet-fqdn": "db.tail1234.ts.net"})
}
