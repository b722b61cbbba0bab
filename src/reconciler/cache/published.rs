//! What is asked to be published, and who wants the same name: indices that follow each change.
//!
//! A Service that concerns no group is kept as the few bytes that a backend is known by, for the Ingress that names it may come
//! later; of slices of endpoints it is kept whether any gets traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use serde_json::{Value, json};

use super::certificates::Read;
use super::{ClusterCache, Id, StoredObject, Typed, WatchRole, WorkKey};
use crate::api::names;
use crate::api::proxygroup::ProxyGroupType;
use crate::api::routes::Origin;
use crate::model::controller::ingress_spec::{
    PublishSource, Publisher, backends, certificates, has_conditions, ingress_group, ingress_label, service_group, service_label,
    service_name,
};
use crate::model::controller::objects::{IngressConfigMap, Kind, ObjectRef};
use crate::model::controller::proxygroup::{NameConflict, PublishInputs, serves};

/// Who asks for what.
#[derive(Debug, Default)]
pub(super) struct PublisherIndex {
    /// The name of the class of the Ingresses that are ours.
    pub(super) class: String,
    pub(super) types: Vec<ProxyGroupType>,
    /// Those that want a label, whichever group they name.
    wanted: BTreeMap<String, BTreeSet<Publisher>>,
    /// The Ingresses that name a Service as backend.
    users: BTreeMap<Id, BTreeSet<Id>>,
    /// The groups in whose config something is recorded for an object.
    recorded: BTreeMap<Publisher, BTreeSet<String>>,
    /// How many slices of a Service have an endpoint that gets traffic.
    backed: BTreeMap<Id, usize>,
    /// What was read of certificates of users' own.
    pub(super) read: Read,
}

/// What is kept of a Service that may be a backend.
pub(super) fn plain(value: &Value) -> Box<[u8]> {
    let spec = &value["spec"];
    let port = |port: &Value| {
        let fields = ["name", "port", "protocol", "appProtocol"].into_iter().filter(|key| !port[key].is_null());
        fields.map(|key| (key.to_owned(), port[key].clone())).collect::<serde_json::Map<_, _>>()
    };
    let ports: Vec<_> = spec["ports"].as_array().into_iter().flatten().map(port).collect();
    let slim = json!({"spec": {"type": spec["type"], "clusterIP": spec["clusterIP"], "ports": ports}});
    slim.to_string().into_bytes().into()
}

/// The Service of a slice, and whether an endpoint of it gets traffic. One that does not say does.
pub(super) fn slice(value: &Value) -> (Option<String>, bool) {
    let service = value["metadata"]["labels"]["kubernetes.io/service-name"].as_str().map(str::to_owned);
    let ready = value["endpoints"].as_array().into_iter().flatten().any(|endpoint| endpoint["conditions"]["ready"] != false);
    (service, ready)
}

/// Who asks, by whom to be published, and for which label; nobody if it is none of ours.
fn asks(class: &str, id: &Id, typed: &Typed) -> Option<(Publisher, Option<String>, String)> {
    let claimant = |source| Publisher { source, namespace: id.0.clone(), name: id.1.clone() };
    match typed {
        Typed::Ingress(ingress) => {
            let group = ingress_group(ingress, class).map(str::to_owned);
            Some((claimant(PublishSource::Ingress), group, ingress_label(ingress)))
        }
        Typed::Service(service) => {
            let group = service_group(service).map(str::to_owned);
            Some((claimant(PublishSource::Service), group, service_label(service)))
        }
        _ => None,
    }
}

fn of(origin: &Origin) -> Option<Publisher> {
    let source = [PublishSource::Ingress, PublishSource::Service].into_iter().find(|source| source.kind() == origin.kind)?;
    Some(Publisher { source, namespace: origin.namespace.clone(), name: origin.name.clone() })
}

impl ClusterCache {
    /// Says which groups and which Ingresses are ours.
    #[must_use]
    pub fn serving(mut self, types: &[ProxyGroupType], class: &str) -> Self {
        class.clone_into(&mut self.published.class);
        types.clone_into(&mut self.published.types);
        self
    }

    /// The groups that an object concerns by what it asks to have published, or had. The empty name stands for none.
    pub(super) fn publishers(&self, id: &Id, typed: &Typed) -> BTreeSet<String> {
        let Some((claimant, group, _)) = asks(&self.published.class, id, typed) else { return BTreeSet::new() };
        let recorded = self.published.recorded.get(&claimant).into_iter().flatten().cloned();
        let mut groups: BTreeSet<String> = group.into_iter().chain(recorded).collect();
        let metadata = match typed {
            Typed::Ingress(ingress) => &ingress.metadata,
            Typed::Service(service) => &service.metadata,
            _ => return groups,
        };
        let finalized = metadata.finalizers.iter().flatten().any(|finalizer| finalizer == claimant.source.finalizer());
        if groups.is_empty() && (finalized || matches!(typed, Typed::Service(service) if has_conditions(service))) {
            groups.insert(String::new());
        }
        groups
    }

    /// The work that news of an object asks for because of what is published.
    pub(super) fn published_keys(&self, role: WatchRole, id: &Id, stored: &StoredObject) -> BTreeSet<WorkKey> {
        let mut groups = self.publishers(id, &stored.typed);
        if let Some((_, Some(_), label)) = asks(&self.published.class, id, &stored.typed) {
            groups.extend(self.published.wanted.get(&label).into_iter().flatten().filter_map(|other| self.group_of(other)));
        }
        if role == WatchRole::Service {
            let users = self.published.users.get(id).into_iter().flatten();
            groups.extend(users.filter_map(|user| self.publisher(PublishSource::Ingress, user)));
        }
        if role == WatchRole::Credentials {
            groups.extend(self.showing(&id.1));
        }
        if let Typed::Slice(service, _) = &stored.typed {
            groups.extend(self.publisher(PublishSource::Service, &(id.0.clone(), service.to_string())));
        }
        groups.into_iter().map(WorkKey::Group).collect()
    }

    /// Follows an object that came, or went.
    pub(super) fn index_published(&mut self, role: WatchRole, id: &Id, stored: &StoredObject, came: bool) {
        for group in if matches!(stored.typed, Typed::Ingress(_)) { self.publishers(id, &stored.typed) } else { BTreeSet::new() } {
            let Typed::Ingress(ingress) = &stored.typed else { continue };
            if came {
                self.members.entry(group).or_default().ingresses.insert(id.clone(), Arc::clone(ingress));
            } else {
                self.change(&group, |members| drop(members.ingresses.remove(id)));
            }
        }
        if let Some((claimant, Some(_), label)) = asks(&self.published.class, id, &stored.typed) {
            put(&mut self.published.wanted, label, claimant, came);
        }
        if let Typed::Ingress(ingress) = &stored.typed {
            for backend in backends(ingress) {
                put(&mut self.published.users, (id.0.clone(), backend.to_owned()), id.clone(), came);
            }
        }
        if let Typed::Slice(service, true) = &stored.typed {
            let id = (id.0.clone(), service.to_string());
            let count = self.published.backed.entry(id.clone()).or_default();
            *count = if came { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                self.published.backed.remove(&id);
            }
        }
        if role == WatchRole::Credentials && !came {
            self.published.read.remove(&id.1);
        }
        if role == WatchRole::Owned(Kind::ConfigMap) {
            self.index_origins(id, &stored.value, came);
        }
    }

    /// Follows the record of what a group publishes.
    fn index_origins(&mut self, id: &Id, config: &Value, came: bool) {
        let Some(group) = config["metadata"]["labels"][names::PARENT].as_str().filter(|group| names::ingress_config(group) == id.1) else {
            return;
        };
        for claimant in IngressConfigMap::origins(config).values().filter_map(of) {
            let id = (claimant.namespace.clone(), claimant.name.clone());
            put(&mut self.published.recorded, claimant.clone(), group.to_owned(), came);
            let role = if claimant.source == PublishSource::Ingress { WatchRole::Ingress } else { WatchRole::Service };
            let typed = self.one(role, &id.0, &id.1).cloned();
            let stays = typed.as_ref().is_some_and(|typed| {
                self.publishers(&id, typed).contains(group)
                    || matches!(typed, Typed::Service(service) if self.concerned(&id, service).contains(group))
            });
            match typed {
                Some(Typed::Ingress(ingress)) if came => {
                    self.members.entry(group.to_owned()).or_default().ingresses.insert(id, ingress);
                }
                Some(Typed::Service(service)) if came => {
                    self.members.entry(group.to_owned()).or_default().services.insert(id, service);
                }
                _ if came || stays => {}
                _ => self.change(group, |members| {
                    if claimant.source == PublishSource::Ingress {
                        members.ingresses.remove(&id);
                    } else {
                        members.services.remove(&id);
                    }
                }),
            }
        }
    }

    /// What a group is asked to publish.
    pub(super) fn publishing(&self, group: &str) -> PublishInputs {
        let ingresses = self.members.get(group).map(|members| members.ingresses.clone()).unwrap_or_default();
        let mut backends_of = BTreeMap::new();
        for ((namespace, _), ingress) in &ingresses {
            for name in backends(ingress) {
                let id = (namespace.clone(), name.to_owned());
                if !backends_of.contains_key(&id)
                    && let Some(service) = self.backend(&id)
                {
                    backends_of.insert(id, service);
                }
            }
        }
        // Of an egress group's Services, which may be very many, none asks.
        let services = self.services(group);
        let asking = || services.iter().filter(|(_, service)| service_group(service).is_some());
        let backed = asking().map(|(id, _)| id).filter(|id| self.published.backed.contains_key(*id)).cloned().collect();
        let labels = ingresses.values().map(|ingress| ingress_label(ingress));
        let labels: BTreeSet<String> =
            labels.chain(asking().map(|(_, service)| service_label(service))).chain(self.labels(group)).collect();
        let rivals = labels.iter().map(|label| (service_name(label), self.rivals(group, label)));
        let rivals = rivals.filter(|(_, rivals)| !rivals.is_empty()).collect();
        PublishInputs {
            class_fault: self.class_fault(),
            ingresses,
            certificates: self.own_certificates(group),
            reserved: self.reserved_certificates(group),
            backends: backends_of,
            backed,
            rivals,
            listed: None,
            approved: BTreeMap::new(),
        }
    }

    /// The groups some Ingress of which names this Secret as a certificate.
    fn showing(&self, secret: &str) -> Vec<String> {
        let shown = |ingress: &Arc<Ingress>| certificates(ingress).any(|named| named == secret);
        let groups = self.members.iter().filter(|(_, members)| members.ingresses.values().any(shown));
        groups.map(|(group, _)| group.clone()).collect()
    }

    /// The labels that Ingresses ask a group for.
    pub(super) fn asked_labels(&self, group: &str) -> impl Iterator<Item = String> {
        let ingresses = self.members.get(group).into_iter().flat_map(|members| &members.ingresses);
        ingresses.map(|(_, ingress)| ingress_label(ingress))
    }

    /// The labels that are recorded in a group's config.
    fn labels(&self, group: &str) -> Vec<String> {
        let Some(members) = self.members.get(group) else { return Vec::new() };
        let name = names::ingress_config(group);
        let mut configs =
            members.owned.range(ObjectRef::new(Kind::ConfigMap, "", "")..).take_while(|(object, _)| object.kind == Kind::ConfigMap);
        let config = configs.find(|(object, _)| object.name == name);
        let names = config.map(|(_, config)| IngressConfigMap::origins(config)).unwrap_or_default().into_keys();
        names.filter_map(|name| name.strip_prefix(crate::api::vip::PREFIX).map(str::to_owned)).collect()
    }

    fn rivals(&self, group: &str, label: &str) -> Vec<NameConflict> {
        let tailnet = |name: &str| self.group(name).map(|group| group.spec.tailnet.clone());
        let own = tailnet(group);
        let others = self.published.wanted.get(label).into_iter().flatten();
        let rival = |claimant: &Publisher| {
            let other = self.group_of(claimant).filter(|other| other != group)?;
            let theirs = tailnet(&other)?;
            let created = self.created(claimant)?;
            if own.as_ref().is_some_and(|own| *own != theirs) {
                return None;
            }
            let name = service_name(label);
            let serving = self.replicas(&other).values().any(|replica| serves(replica, &name));
            Some(NameConflict { claimant: claimant.clone(), group: other, created, serving })
        };
        others.filter_map(rival).collect()
    }

    fn created(&self, claimant: &Publisher) -> Option<i64> {
        let metadata = match self.claimant(claimant)? {
            Typed::Ingress(ingress) => &ingress.metadata,
            Typed::Service(service) => &service.metadata,
            _ => return None,
        };
        // One that is going wants nothing any more.
        let created = metadata.creation_timestamp.as_ref().map_or(i64::MAX, |created| created.0.as_second());
        metadata.deletion_timestamp.is_none().then_some(created)
    }

    fn claimant(&self, claimant: &Publisher) -> Option<&Typed> {
        let role = if claimant.source == PublishSource::Ingress { WatchRole::Ingress } else { WatchRole::Service };
        self.one(role, &claimant.namespace, &claimant.name)
    }

    fn group_of(&self, claimant: &Publisher) -> Option<String> {
        let typed = self.claimant(claimant)?;
        asks(&self.published.class, &(claimant.namespace.clone(), claimant.name.clone()), typed)?.1
    }

    fn publisher(&self, source: PublishSource, id: &Id) -> Option<String> {
        self.group_of(&Publisher { source, namespace: id.0.clone(), name: id.1.clone() })
    }

    fn backend(&self, id: &Id) -> Option<Arc<Service>> {
        match self.one(WatchRole::Service, &id.0, &id.1)? {
            Typed::Service(service) => Some(Arc::clone(service)),
            Typed::Plain(bytes) => serde_json::from_slice(bytes).ok().map(Arc::new),
            _ => None,
        }
    }

    /// What is wrong with the class of our Ingresses.
    fn class_fault(&self) -> Option<String> {
        let class = &self.published.class;
        let classes = &self.shelves.get(&WatchRole::IngressClass)?.objects;
        let make = format!("name the controller {} in it", names::INGRESS_CONTROLLER);
        let Some(stored) = classes.get(&(String::new(), class.clone())) else {
            return Some(format!("IngressClass {class} does not exist: make it, and {make}."));
        };
        if stored.value["spec"]["controller"] != names::INGRESS_CONTROLLER {
            return Some(format!("IngressClass {class} is another controller's: {make}."));
        }
        let default = stored.value["metadata"]["annotations"][names::DEFAULT_CLASS] == "true";
        default.then(|| {
            format!("IngressClass {class} is the default one, which is not supported: remove its annotation {}.", names::DEFAULT_CLASS)
        })
    }
}

/// Puts a value into the set of a key, or takes it out.
fn put<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: V, came: bool) {
    if came {
        map.entry(key).or_default().insert(value);
    } else if let Some(set) = map.get_mut(&key) {
        set.remove(&value);
        if set.is_empty() {
            map.remove(&key);
        }
    }
}
