//! The StatefulSet controller, and replicas that apply their config.

use super::*;
use crate::model::controller::workload::naming;

use crate::model::controller::ingress::spec::service_name;

impl World {
    /// Creates and deletes Pods; replicas log in and apply their config.
    pub(in super::super) fn live(&mut self) {
        for (group, ordinal) in self.controller() {
            let name = names::replica(&group, ordinal);
            if self.pods.contains_key(&name) && !self.asleep.contains(&name) {
                self.replica(&group, ordinal);
            }
        }
    }

    /// Creates and deletes Pods as the StatefulSet controller; returns the desired replicas.
    pub(in super::super) fn controller(&mut self) -> BTreeSet<(String, u32)> {
        let mut wanted = BTreeSet::new();
        for (object, stored) in self.objects.iter().filter(|(object, _)| object.kind == Kind::StatefulSet) {
            let replicas = u32::try_from(stored["spec"]["replicas"].as_u64().unwrap_or(1)).expect("a number");
            wanted.extend((0..replicas).map(|ordinal| (object.name.clone(), ordinal)));
        }
        self.pods.retain(|pod, _| wanted.iter().any(|(group, ordinal)| names::replica(group, *ordinal) == *pod));
        for (group, ordinal) in &wanted {
            let name = names::replica(group, *ordinal);
            if !self.unmade.contains(&name) && !self.pods.contains_key(&name) {
                let uid = self.id();
                let ip = format!("10.{}.{}.{}", self.next >> 16 & 255, self.next >> 8 & 255, self.next & 255);
                let ipv6 = self.families.contains(&"IPv6").then(|| json!({"ip": format!("fd00::{:x}", self.next)}));
                let ips: Vec<_> = [json!({"ip": ip})].into_iter().chain(ipv6).collect();
                let pod = json!({
                    "metadata": {"name": name, "namespace": NS, "uid": uid},
                    "spec": {"nodeName": format!("n{ordinal}"), "containers": []},
                    "status": {"phase": "Running", "podIP": ip, "podIPs": ips, "conditions": [{"type": "Ready", "status": "True"}]},
                });
                self.pods.insert(name.clone(), serde_json::from_value(pod).expect("a Pod"));
                self.touch(&name);
            }
        }
        wanted
    }

    /// Replicas of a workload, and the Pod that waits to take over.
    pub(super) fn with_waiting(&self, workload: &str) -> (BTreeMap<u32, ObservedReplica>, Option<Arc<Pod>>) {
        let mut replicas = self.observed_replicas(workload);
        let second = self.pods.get(&names::replica(&naming::standby_name(workload), 0)).cloned().map(Arc::new);
        let waiting = second.and_then(|second| replicas.entry(0).or_default().choose(second));
        (replicas, waiting)
    }

    /// Sets the condition `Ready` of a replica's Pod.
    pub(in super::super) fn set_ready(&mut self, replica: &str, condition: &Value) {
        let status = self.pods.get_mut(replica).and_then(|pod| pod.status.as_mut()).expect("a Pod");
        status.conditions = serde_json::from_value(json!([condition])).expect("a condition");
        self.touch(replica);
    }

    /// A replica applies its config and reports it.
    pub(in super::super) fn replica(&mut self, group: &str, ordinal: u32) {
        let name = names::replica(group, ordinal);
        let [state, config] = [name.clone(), names::replica_config(group, ordinal)].map(|name| ObjectRef::new(Kind::Secret, NS, name));
        let (Some(stored), Some(config)) = (self.objects.get(&state), self.objects.get(&config)) else { return };
        let mut secret = read_secret(stored);
        let replica = ObservedReplica::new(None, Some(&secret), Some(&read_secret(config)));
        let (replica_state, config_secret) = (replica.state.expect("it is there"), replica.config.expect("it is there"));
        let hostname = config_secret.document.as_ref().and_then(|document| document["Hostname"].as_str()).unwrap_or(&name).to_owned();
        let data = secret.data.get_or_insert_default();
        let mut put = |key: &str, text: String| data.insert(key.to_owned(), k8s_openapi::ByteString(text.into_bytes()));
        if replica_state.device_id.is_none() {
            if config_secret.auth_key().is_none() {
                return;
            }
            assert!(self.keys.remove(config_secret.key_id.as_ref().expect("our key")), "a key is used once");
            let id = device_id(&name);
            put("device_id", id.to_string());
            let tags = config_secret.mint.as_ref().map_or_else(|| self.settings.tags.clone(), |mint| mint.tags.clone());
            self.joined(id, tags);
        }
        let is_taken = self.hosted.vips.contains_key(&service_name(&hostname));
        assert!(!is_taken, "the control plane numbers {name}: {hostname} is the name of a Tailscale Service");
        let addresses = self.name_device(&device_id(&name), &hostname);
        let pod = &self.pods[&name];
        let status = pod.status.as_ref().expect("a status");
        let ip = status.pod_ip.clone().expect("an address");
        let ipv6 = status.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).find(|ip| ip.contains(':')).unwrap_or_default();
        put("device_fqdn", format!("{hostname}{}.tail1234.ts.net.", self.renamed));
        put("device_ips", json!(addresses).to_string());
        put("pod_uid", pod.metadata.uid.clone().expect("a UID"));
        let served = |service: egress::EgressService| egress::ServiceStatus {
            ports: service.ports,
            tailnet_target_ips: Some(vec!["100.64.0.9".into()]),
            tailnet_target: service.tailnet_target,
        };
        let services: BTreeMap<_, _> = self.entries(group).into_iter().map(|(key, service)| (key, served(service))).collect();
        let status: egress::EgressStatus =
            egress::EgressStatus { pod_ipv4: ip, pod_ipv6: ipv6, services: Some(services), ..egress::EgressStatus::default() };
        put(egress::KEY, serde_json::to_string(&status).expect("JSON"));
        for (key, text) in self.serve(group, &config_secret) {
            secret.data.get_or_insert_default().insert(key.to_owned(), k8s_openapi::ByteString(text.into_bytes()));
        }
        self.objects.insert(state, Arc::new(serde_json::to_value(&secret).expect("JSON")));
    }

    /// Checks that an `externalName` points to an existing child whose ports every replica maps.
    pub(super) fn acknowledged(&self, key: &WorkloadKey, host: &str) {
        let Some(group) = key.group() else { return };
        let child = host.split('.').next().expect("a label");
        let child = self.objects.get(&ObjectRef::new(Kind::Service, NS, child)).expect("the child is there first");
        let ports = child["spec"]["ports"].as_array().expect("ports").iter().filter(|port| port["name"] != "tailscale-health-check");
        let wanted: BTreeSet<_> = ports.map(|port| port["targetPort"].as_u64().expect("a port")).collect();
        for ordinal in 0..self.groups[group].spec.desired_replicas() {
            let Some(pod) = self.pods.get(&names::replica(group, ordinal)) else { continue };
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            if conditions.into_iter().flatten().all(|condition| condition.status != "True") {
                continue;
            }
            let state = &self.objects[&ObjectRef::new(Kind::Secret, NS, names::replica(group, ordinal))];
            let status: egress::EgressStatus =
                serde_json::from_slice(&read_secret(state).data.expect("data")[egress::KEY].0).expect("a status");
            let ports = status.services.iter().flatten().flat_map(|(_, stored)| &stored.ports);
            let mapped: BTreeSet<_> = ports.map(|port| port.match_port).collect();
            assert!(wanted.is_subset(&mapped), "{host}: {wanted:?} not in {mapped:?} of {group}-{ordinal}");
        }
    }
}
