//! `EndpointSlice`s: the API server's part, and Kubernetes' controller, with a limited number of writes at a time.

use super::*;

const CONTROLLER: &str = "endpointslice-controller.k8s.io";

impl World {
    pub(super) fn child_slices(&self, group: &str) -> imbl::OrdMap<Arc<str>, Vec<Arc<ChildSlice>>> {
        let mut slices: imbl::OrdMap<Arc<str>, Vec<Arc<ChildSlice>>> = imbl::OrdMap::new();
        let stored = self.objects.iter().filter(|(object, _)| object.kind == Kind::EndpointSlice);
        for slice in stored.filter_map(|(_, stored)| ChildSlice::read(stored)).filter(|slice| *slice.group == *group) {
            slices.entry(Arc::clone(&slice.child)).or_default().push(Arc::new(slice));
        }
        slices
    }

    /// A newer version of a Pod.
    pub(in super::super) fn touch(&mut self, pod: &str) {
        self.next += 1;
        let version = self.next.to_string();
        self.pods.get_mut(pod).expect("a Pod").metadata.resource_version = Some(version);
    }

    pub(in super::super) fn put_slice(&mut self, object: ObjectRef, mut value: Value) {
        self.next += 1;
        value["metadata"]["resourceVersion"] = json!(self.next.to_string());
        self.objects.insert(object, Arc::new(value));
    }

    pub(super) fn write_slice(&mut self, write: &SliceWrite) {
        self.writes += 1;
        match write {
            SliceWrite::Create(manifest) if !self.objects.contains_key(&manifest.object) => {
                self.put_slice(manifest.object.clone(), manifest.value.clone());
            }
            SliceWrite::Create(_) => {}
            SliceWrite::Change { object, patch } => {
                let is_current = |stored: &&Arc<Value>| stored["metadata"]["resourceVersion"] == patch["metadata"]["resourceVersion"];
                let Some(stored) = self.objects.get(object).filter(is_current) else { return };
                let mut value = Value::clone(stored);
                for key in ["ports", "endpoints"] {
                    value[key] = patch[key].clone();
                }
                self.put_slice(object.clone(), value);
            }
        }
    }

    /// Slices as Kubernetes' controller wants them: addresses, conditions, node, zone, hints and target of every Pod with an address.
    fn wanted(&self, group: &str, child: &Value, family: &str) -> (Value, Vec<Value>) {
        let pods = self.pods.iter().filter(|(name, _)| name.rsplit_once('-').is_some_and(|(of, _)| of == group));
        let endpoint = |(name, pod): (&String, &Pod)| {
            let status = pod.status.as_ref()?;
            let ip = status.pod_ips.iter().flatten().find(|ip| ip.ip.contains(':') == (family == "IPv6"))?;
            let ready = status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
            let ending = pod.metadata.deletion_timestamp.is_some();
            let node = pod.spec.as_ref()?.node_name.as_deref();
            let zone = pod.metadata.labels.as_ref().and_then(|labels| labels.get("topology.kubernetes.io/zone"));
            let mut endpoint = json!({
                "addresses": [ip.ip],
                "conditions": {"ready": ready && !ending, "serving": ready, "terminating": ending},
                "nodeName": node,
                "targetRef": {"kind": "Pod", "namespace": NS, "name": name, "uid": pod.metadata.uid},
            });
            if let Some(zone) = zone {
                endpoint["zone"] = json!(zone);
            }
            let distribution = child["spec"]["trafficDistribution"].as_str().filter(|_| ready && !ending);
            if let Some(zone) = zone.filter(|_| distribution.is_some()) {
                endpoint["hints"]["forZones"] = json!([{"name": zone}]);
            }
            if distribution == Some("PreferSameNode") {
                endpoint["hints"]["forNodes"] = json!([{"name": node}]);
            }
            Some(endpoint)
        };
        let port = |port: &Value| json!({"name": port["name"], "port": port["targetPort"], "protocol": port["protocol"]});
        let endpoints: Vec<_> = pods.filter_map(endpoint).collect();
        let ports: Vec<_> = child["spec"]["ports"].as_array().expect("ports").iter().map(port).collect();
        (if endpoints.is_empty() { json!([]) } else { json!(ports) }, endpoints)
    }

    /// Kubernetes' controller of slices makes up to this number of writes; returns how many it made.
    pub(in super::super) fn slice_controller(&mut self, most: usize) -> usize {
        let mut writes = 0;
        let children: Vec<_> = self.children().into_iter().cloned().collect();
        for (object, family) in children.iter().flat_map(|object| self.families.iter().map(move |family| (object, *family))) {
            let child = Arc::clone(&self.objects[object]);
            let group = child["metadata"]["labels"][names::PROXY_GROUP].as_str().expect("a group").to_owned();
            let (ports, endpoints) = self.wanted(&group, &child, family);
            let of = |stored: &Value| {
                let owner = &stored["metadata"]["ownerReferences"][0]["uid"];
                stored["addressType"] == family && *owner == child["metadata"]["uid"]
            };
            let slices = self.objects.iter().filter(|(object, stored)| object.kind == Kind::EndpointSlice && of(stored));
            let slices: Vec<_> = slices.map(|(object, stored)| (object.clone(), Arc::clone(stored))).collect();
            if writes >= most {
                return writes;
            }
            let mut labels = child["metadata"]["labels"].clone();
            labels["kubernetes.io/service-name"] = json!(object.name);
            labels["endpointslice.kubernetes.io/managed-by"] = json!(CONTROLLER);
            let name = slices.first().map_or_else(|| format!("{}-{}", object.name, self.next), |(object, _)| object.name.clone());
            let owner = json!([{"kind": "Service", "uid": child["metadata"]["uid"]}]);
            let value = json!({"metadata": {"name": name, "namespace": NS, "labels": labels, "ownerReferences": owner},
                "addressType": family, "ports": ports, "endpoints": endpoints});
            let same = slices.first().is_some_and(|(_, stored)| {
                let beyond = |value: &Value| [value["ports"].clone(), value["endpoints"].clone(), value["metadata"]["labels"].clone()];
                beyond(stored) == beyond(&value)
            });
            if !same {
                self.put_slice(ObjectRef::new(Kind::EndpointSlice, NS, name), value);
                writes += 1;
            }
            for (duplicate, _) in slices.iter().skip(1) {
                self.objects.remove(duplicate);
                writes += 1;
            }
        }
        writes
    }
}
