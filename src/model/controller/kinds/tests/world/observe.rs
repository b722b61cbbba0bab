//! Observation: what a pass sees of the cluster.

use super::*;

impl World {
    fn show(&self, key: &(String, String), stored: &Service) -> Arc<Service> {
        let mut shown = self.memory.shown.borrow_mut();
        let last = shown.get(key).filter(|last| ***last == *stored);
        let now = last.cloned().unwrap_or_else(|| Arc::new(stored.clone()));
        shown.insert(key.clone(), Arc::clone(&now));
        now
    }

    pub(in super::super) fn observe(&self, key: impl Into<WorkloadKey>) -> Observed {
        let name = &key.into();
        let owned = self.owned(name);
        let parent = |stored: &Value| {
            let label = |key: &str| stored["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned();
            (label(names::PARENT_NAMESPACE), label(names::PARENT))
        };
        let parents: BTreeSet<_> = owned.values().map(|stored| parent(stored)).collect();
        let published = |key: &(String, String)| self.publishers(&claimant(PublishSource::Service, key)).contains(name);
        let mine = |key: &(String, String), stored: &Service| {
            concerns(stored, &self.assignment).contains(name) || parents.contains(key) || published(key)
        };
        let services = self.services.iter().filter(|(key, stored)| mine(key, stored));
        let group = name.group().and_then(|name| self.groups.get(name)).cloned();
        let workload = self.workload(name, &owned);
        let (replicas, waiting) = self.with_waiting(&workload);
        let owned = self.with_shared(owned, name);
        Observed {
            key: name.clone(),
            now: self.time(),
            settings: Arc::new(self.settings.clone()),
            assignment: Arc::new(self.assignment.clone()),
            group: group.map(Arc::new),
            connector: self.connector_of(name).cloned().map(Arc::new),
            class: self.class.clone(),
            tailnet: self.tailnet.clone(),
            replicas,
            create_failure: self.create_failure.clone(),
            workload,
            certificates: self.certificates(&owned),
            owned,
            children: self.child_owners(),
            slices: self.child_slices(name.group_name()),
            services: services.map(|(key, stored)| (key.clone(), self.show(key, stored))).collect(),
            nodes: Vec::new(),
            namespaces: self.namespaces.clone(),
            names_before: self.names_before,
            node_ports: BTreeSet::new(),
            publish: self.publishing(name),
            targets: self.targets.clone(),
            restricted_group: self.restricted_group.clone(),
            takeover_fault: self.takeover_fault.clone(),
            waiting,
            replacements: self.memory.replacements.besides(name),
            devices: DeviceInputs { index: self.device_index(), reads: self.device_reads.clone(), ..DeviceInputs::default() },
            denied: self.denied.clone(),
        }
    }

    fn child_owners(&self) -> imbl::OrdMap<Arc<str>, ChildOwner> {
        let owner = |(object, child): (&ObjectRef, &Arc<Value>)| {
            let label = |key: &str| child["metadata"]["labels"][key].as_str();
            if object.kind != Kind::Service || label(names::PARENT_TYPE) != Some(names::PARENT_SERVICE) {
                return None;
            }
            let parent = (label(names::PARENT_NAMESPACE)?.to_owned(), label(names::PARENT)?.to_owned());
            Some((Arc::<str>::from(object.name.as_str()), ChildOwner { key: owner_of(child)?, parent }))
        };
        self.objects.iter().filter_map(owner).collect()
    }

    /// Objects of a group or of a standalone proxy.
    pub(super) fn owned(&self, name: &WorkloadKey) -> imbl::OrdMap<ObjectRef, Arc<Value>> {
        let shown = self.objects.iter().filter(|(key, stored)| key.kind != Kind::EndpointSlice || is_manual(stored));
        let owned = shown.filter(|(_, stored)| owner_of(stored).as_ref() == Some(name));
        owned.map(|(key, stored)| (key.clone(), stored.clone())).collect()
    }

    fn connector_of(&self, key: &WorkloadKey) -> Option<&Connector> {
        if let WorkloadKey::Connector(name) = key { self.connectors.get(name) } else { None }
    }

    /// The Service or Ingress of a key.
    pub(super) fn parent(&self, key: &WorkloadKey) -> Option<requests::Parent<'_>> {
        let Publisher { source, namespace, name } = key.publisher()?;
        match source {
            PublishSource::Service => self.services.get(&(namespace, name)).map(requests::Parent::Service),
            PublishSource::Ingress => self.ingresses.get(&(namespace, name)).map(requests::Parent::Ingress),
            PublishSource::ProxyGroup => None,
        }
    }

    pub(super) fn workload(&self, key: &WorkloadKey, owned: &imbl::OrdMap<ObjectRef, Arc<Value>>) -> String {
        if let Some(group) = key.group() {
            return group.to_owned();
        }
        let has_device = |set: &str| {
            let state = self.objects.get(&ObjectRef::new(Kind::Secret, NS, names::replica(set, 0)));
            state.is_some_and(|state| state["data"]["device_id"].is_string())
        };
        let metadata = self.parent(key).map(requests::Parent::metadata).or_else(|| Some(&self.connector_of(key)?.metadata));
        let uid = metadata.and_then(|metadata| metadata.uid.as_deref()).unwrap_or_default();
        naming::workload(key, owned.iter(), has_device).map_or_else(|| naming::new_name(key, uid, 0), str::to_owned)
    }

    pub(in super::super) fn observed_replicas(&self, name: &str) -> BTreeMap<u32, ObservedReplica> {
        let secret = |secret: String| self.objects.get(&ObjectRef::new(Kind::Secret, NS, secret)).cloned();
        let mut replicas = BTreeMap::new();
        for ordinal in 0..20 {
            let pod = self.pods.get(&names::replica(name, ordinal)).cloned().map(Arc::new);
            let (state, config) = (secret(names::replica(name, ordinal)), secret(names::replica_config(name, ordinal)));
            if pod.is_some() || state.is_some() || config.is_some() {
                replicas.insert(ordinal, ObservedReplica { pod, ..self.replica_by([state, config]) });
            }
        }
        replicas
    }

    pub(super) fn replica_by(&self, secrets: Secrets) -> ObservedReplica {
        let place = secrets.each_ref().map(|stored| stored.as_ref().map_or(0, |stored| Arc::as_ptr(stored).addr()));
        let mut read = self.read.borrow_mut();
        let (replica, _) = read.replicas.entry(place).or_insert_with(|| {
            let [state, config] = secrets.each_ref().map(|stored| stored.as_ref().map(|stored| read_secret(stored)));
            (ObservedReplica::new(None, state.as_ref(), config.as_ref()), secrets)
        });
        replica.clone()
    }
}
