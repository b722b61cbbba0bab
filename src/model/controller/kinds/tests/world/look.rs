//! Accessors of the cluster, and its invariants.

use super::*;

impl World {
    pub(in super::super) fn check(&self) {
        self.check_published();
        let mut recorded = BTreeMap::new();
        for (config, record) in self.device_records() {
            let other = recorded.insert(record.id.clone(), config.clone());
            assert_eq!(other, None, "device {} has two records, one of {config}", record.id);
        }
        let mut children = BTreeSet::new();
        let mut ports = BTreeSet::new();
        for (object, stored) in self.objects.iter().filter(|(object, _)| object.kind == Kind::Service) {
            let label = |key: &str| stored["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned();
            if label(names::SERVICE_TYPE) != names::EGRESS {
                continue;
            }
            let owner = (label(names::PROXY_GROUP), label(names::PARENT_NAMESPACE), label(names::PARENT));
            assert!(children.insert(owner.clone()), "two children of {owner:?}");
            for port in stored["spec"]["ports"].as_array().expect("ports").iter().filter(|port| port["name"] != "tailscale-health-check") {
                let port = port["targetPort"].as_u64().expect("a port");
                assert!(ports.insert((owner.0.clone(), port)), "port {port} twice in {}: {object}", owner.0);
                assert!((10_000..=60_000).contains(&port));
            }
        }
        for (object, stored) in self.objects.iter().filter(|(object, _)| object.kind == Kind::ConfigMap) {
            let mut unique = BTreeSet::new();
            for port in egress_config(stored).values().flat_map(|entry| &entry.ports) {
                assert!(unique.insert(port.match_port), "{object}: port {} twice", port.match_port);
            }
        }
    }

    pub(in super::super) fn event_count(&self, reason: &str) -> usize {
        self.events.iter().filter(|stored| **stored == reason).count()
    }

    pub(in super::super) fn external_name(&self, service: &str) -> String {
        let service = &self.services[&("default".to_owned(), service.to_owned())];
        service.spec.as_ref().and_then(|spec| spec.external_name.clone()).expect("a name")
    }

    pub(in super::super) fn condition(&self, service: &str, kind: &str) -> Option<(String, String, String)> {
        let service = &self.services[&("default".to_owned(), service.to_owned())];
        let conditions = service.status.as_ref()?.conditions.as_deref()?;
        crate::model::base::conditions::get(conditions, kind)
            .map(|stored| (stored.status.clone(), stored.reason.clone(), stored.message.clone()))
    }

    /// Changes a stored object.
    pub(in super::super) fn edit(&mut self, object: &ObjectRef, change: impl FnOnce(&mut Value)) {
        let mut stored = Value::clone(&self.objects[object]);
        change(&mut stored);
        self.objects.insert(object.clone(), Arc::new(stored));
    }

    /// Value of a variable of the proxies of a `StatefulSet`.
    pub(in super::super) fn env(&self, set: &str, name: &str) -> Option<String> {
        let set = &self.objects[&ObjectRef::new(Kind::StatefulSet, NS, set)];
        let env = set["spec"]["template"]["spec"]["containers"][0]["env"].as_array().expect("a list");
        env.iter().find(|variable| variable["name"] == name)?["value"].as_str().map(str::to_owned)
    }

    pub(in super::super) fn children(&self) -> Vec<&ObjectRef> {
        let child = |stored: &Value| stored["metadata"]["labels"][names::SERVICE_TYPE] == names::EGRESS;
        self.objects.iter().filter(|(object, stored)| object.kind == Kind::Service && child(stored)).map(|(object, _)| object).collect()
    }

    pub(in super::super) fn entries(&self, group: &str) -> BTreeMap<String, egress::EgressService> {
        let config = self.objects.get(&ObjectRef::new(Kind::ConfigMap, NS, names::egress_config(group)));
        config.map(|config| egress_config(config)).unwrap_or_default()
    }

    pub(in super::super) fn ready(&self, group: &str) -> (String, String, String) {
        self.says(group, "ProxyGroupReady")
    }

    /// Status, reason and message of a condition of a group.
    pub(in super::super) fn says(&self, group: &str, kind: &str) -> (String, String, String) {
        let conditions = &self.groups[group].status.as_ref().expect("a status").conditions;
        let stored = crate::model::base::conditions::get(conditions, kind).expect("a condition");
        (stored.status.clone(), stored.reason.clone(), stored.message.clone())
    }
}
