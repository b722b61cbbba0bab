//! Requests for names as the stores show them, and the control plane's part.

use super::*;

mod rivals;

use crate::api::proxygroup::ProxyGroupType;
use crate::api::routes::Origin;
use crate::api::vip::{PREFIX, VipService};
use crate::model::controller::ingress::advertise::serves;
use crate::model::controller::ingress::certificate_orders::{CertificateOrder, OrderRecord, namespace_of, orders_ref};
use crate::model::controller::ingress::spec::backend::backends;
use crate::model::controller::ingress::spec::ingress::certificates;
use crate::model::controller::ingress::spec::{has_conditions, service_name};
use crate::model::controller::ingress::standalone_certificate::grants;
use crate::model::controller::kinds::standalone::handover::proxy_conflict;
use crate::model::controller::policy::age::age;
use crate::model::controller::policy::requests::{ingress_label, is_recorded, service_label};
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::objects::certificate::{CertificateRecord, accounts_ref, domain_of};
use crate::model::controller::workload::observed::RecordedCertificate;
use crate::model::controller::workload::observed::backend_service::BackendService;
use crate::model::controller::workload::observed::replica::ReplicaConfig;
use crate::model::controller::workload::observed::{Approved, NameConflict, Namesake, PublishInputs, ServiceList};
use crate::model::controller::workload::vip_service::{DesiredVipService, OwnershipVerdict, OwningGroup, Release, release, verify_owner};

/// Tailscale Services and routes of the control plane.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Hosted {
    pub(in super::super) vips: BTreeMap<String, VipService>,
    pub(in super::super) listed: Option<Arc<ServiceList>>,
    pub(in super::super) approved: BTreeMap<DeviceId, Approved>,
    /// Services without a ready endpoint.
    pub(in super::super) unbacked: BTreeSet<(String, String)>,
    /// Funnel errors by service name.
    pub(in super::super) funnel_errors: BTreeMap<String, String>,
    /// Number of `publish` calls after which Tailscale Services get addresses.
    pub(in super::super) late: usize,
    /// Tailscale Services have only an IPv6 address.
    pub(in super::super) v6_only: bool,
    /// Expiry of all certificates.
    pub(in super::super) certificate_end: Option<Timestamp>,
    /// The tailnet issues no certificates.
    pub(in super::super) no_https: bool,
    /// Orders of certificates do not end.
    pub(in super::super) slow_orders: bool,
    /// Objects that a pass refused for another reason than their name, by workload.
    pub(in super::super) refused: BTreeMap<WorkloadKey, BTreeSet<Publisher>>,
    /// Advertised names and routes without approval; a route also after the ID of the only device.
    pub(in super::super) unapproved: BTreeSet<String>,
    /// Why approved routes are not readable.
    pub(in super::super) routes_fault: Option<String>,
}

/// Reference to a requesting object.
pub(in super::super) fn claimant(source: PublishSource, (namespace, name): &(String, String)) -> Publisher {
    Publisher { source, namespace: namespace.clone(), name: name.clone() }
}

impl Hosted {
    fn refresh_listed(&mut self, name: &str) {
        let Some(listed) = self.listed.as_mut().map(Arc::make_mut) else { return };
        match self.vips.get(name) {
            Some(vip) => drop(listed.services.insert(name.to_owned(), vip.clone())),
            None => drop(listed.services.remove(name)),
        }
    }

    pub(super) fn list(&mut self, at: Timestamp) {
        self.listed = Some(Arc::new(ServiceList { at, services: self.vips.clone().into_iter().collect() }));
    }

    pub(in super::super) fn publish(&mut self, desired: &DesiredVipService, owner: &ServiceOwner, recorded: bool) {
        let number = self.vips.len();
        if let OwnershipVerdict::Write { service, .. } = verify_owner(self.vips.get(&desired.name), desired, owner, recorded) {
            self.vips.insert(desired.name.clone(), *service);
        }
        if self.late > 0 {
            self.late -= 1;
        } else if let Some(vip) = self.vips.get_mut(&desired.name).filter(|vip| vip.addrs.is_empty()) {
            let v4 = (!self.v6_only).then(|| format!("100.99.{number}.{}", desired.name.len()));
            vip.addrs = v4.into_iter().chain([format!("fd7a:115c:a1e0::{number}")]).collect();
        }
        self.refresh_listed(&desired.name);
    }

    pub(in super::super) fn release<'a>(&mut self, name: &str, owner: &ServiceOwner, group: impl Into<OwningGroup<'a>>) {
        match release(self.vips.get(name), owner, group) {
            Release::Nothing => {}
            Release::Delete => drop(self.vips.remove(name)),
            Release::Write(vip) => drop(self.vips.insert(name.to_owned(), *vip)),
        }
        self.refresh_listed(name);
    }

    pub(super) fn approve(&mut self, id: &DeviceId, add: &BTreeSet<String>, remove: &BTreeSet<String>, at: Timestamp) {
        let stored = self.approved.remove(id).unwrap_or_default().routes;
        self.approved.insert(id.clone(), Approved { at, routes: stored.difference(remove).chain(add).cloned().collect(), fault: None });
    }
}

impl World {
    pub(in super::super) fn ingress(&mut self, name: &str, group: &str, (label, backend): (&str, &str)) {
        self.put_ingress(name, json!({"tailscale.com/proxy-group": group}), site(label, backend));
    }

    /// Creates an Ingress with this spec; an existing one keeps fields that are not the user's.
    pub(in super::super) fn put_ingress(&mut self, name: &str, annotations: Value, mut spec: Value) {
        let key = ("default".to_owned(), name.to_owned());
        spec["ingressClassName"] = json!("tailscale");
        let (uid, created) = (self.id(), self.time().to_string());
        let mut metadata = json!({"name": name, "namespace": "default", "uid": uid, "creationTimestamp": created});
        let mut status = json!(null);
        if let Some(stored) = self.ingresses.get(&key) {
            (metadata, status) = (json!(stored.metadata), json!(stored.status));
        }
        metadata["annotations"] = annotations;
        let ingress = serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).expect("an Ingress");
        self.ingresses.insert(key, ingress);
    }

    pub(in super::super) fn delete_ingress(&mut self, name: &str) {
        let now = Time(self.time());
        if let Some(ingress) = self.ingresses.get_mut(&("default".to_owned(), name.to_owned())) {
            ingress.metadata.deletion_timestamp.get_or_insert(now);
        }
        self.collect();
    }

    /// Creates a Service with annotations and a spec; an existing one keeps fields that are not the user's.
    pub(in super::super) fn plain(&mut self, name: &str, annotations: Value, spec: Value) {
        self.service(name, annotations, &[80]);
        let service = self.services.get_mut(&("default".to_owned(), name.to_owned())).expect("it was just made");
        service.spec = serde_json::from_value(spec).expect("a spec");
    }

    /// Creates a Service that requests this label.
    pub(in super::super) fn exposed(&mut self, name: &str, group: &str, label: &str) {
        let annotations = json!({"tailscale.com/proxy-group": group, "tailscale.com/expose": "true", "tailscale.com/hostname": label});
        let ip = format!("10.96.1.{}", name.bytes().fold(0_u8, u8::wrapping_add));
        self.plain(name, annotations, json!({"clusterIP": ip, "ports": [{"port": 80, "protocol": "TCP"}]}));
    }

    /// All objects that may request a name.
    pub(super) fn claimants(&self) -> Vec<Publisher> {
        let ingresses = self.ingresses.keys().map(|key| claimant(PublishSource::Ingress, key));
        ingresses.chain(self.services.keys().map(|key| claimant(PublishSource::Service, key))).collect()
    }

    pub(in super::super) fn config(&self, group: &str) -> IngressConfigMap {
        Rc::unwrap_or_clone(self.parsed_config(group))
    }

    fn parsed_config(&self, group: &str) -> Rc<IngressConfigMap> {
        let object = ObjectRef::new(Kind::ConfigMap, NS, names::ingress_config(group));
        let Some(stored) = self.objects.get(&object) else { return Rc::default() };
        let mut read = self.read.borrow_mut();
        let read = read.configs.entry(Arc::as_ptr(stored).addr());
        Rc::clone(&read.or_insert_with(|| (Rc::new(IngressConfigMap::read(stored)), Arc::clone(stored))).0)
    }

    /// Group and label of a request, and whether the object is not being deleted; `None` if it is missing.
    fn request(&self, claimant: &Publisher) -> Option<(WorkloadKey, String, bool)> {
        let key = (claimant.namespace.clone(), claimant.name.clone());
        let (assignment, label, metadata) = match claimant.source {
            PublishSource::Ingress => {
                let stored = self.ingresses.get(&key)?;
                (self.assignment.ingress(stored), ingress_label(stored), &stored.metadata)
            }
            PublishSource::Service => {
                let stored = self.services.get(&key)?;
                (self.assignment.published(stored), service_label(stored), &stored.metadata)
            }
            PublishSource::ProxyGroup => return None,
        };
        let recorded = || self.recorded(claimant).into_iter().next();
        let group = if assignment.is_undecided() { recorded() } else { assignment.group().map(WorkloadKey::of_group) };
        let group = if self.is_standalone(claimant) { Some(WorkloadKey::from(claimant)) } else { group };
        Some((group?, label, metadata.deletion_timestamp.is_none()))
    }

    /// Whether it is an Ingress with a proxy of its own.
    fn is_standalone(&self, Publisher { source, namespace, name }: &Publisher) -> bool {
        let ingress = self.ingresses.get(&(namespace.clone(), name.clone())).filter(|_| *source == PublishSource::Ingress);
        ingress.is_some_and(|ingress| self.assignment.is_standalone_ingress(ingress))
    }

    /// Groups whose config has an object.
    fn recorded(&self, claimant: &Publisher) -> BTreeSet<WorkloadKey> {
        let origin = Origin { kind: claimant.source.kind().into(), namespace: claimant.namespace.clone(), name: claimant.name.clone() };
        self.groups
            .keys()
            .filter(|group| self.parsed_config(group).origins.values().any(|stored| *stored == origin))
            .map(|group| WorkloadKey::of_group(group))
            .collect()
    }

    /// Groups that an object affects; the empty name for one that must be released.
    pub(super) fn publishers(&self, claimant: &Publisher) -> BTreeSet<WorkloadKey> {
        let named = self.request(claimant).map(|(group, ..)| group);
        let mut groups: BTreeSet<WorkloadKey> = named.into_iter().chain(self.recorded(claimant)).collect();
        let key = (claimant.namespace.clone(), claimant.name.clone());
        let (metadata, service) = match claimant.source {
            PublishSource::Ingress => (self.ingresses.get(&key).map(|stored| &stored.metadata), None),
            PublishSource::Service => (self.services.get(&key).map(|stored| &stored.metadata), self.services.get(&key)),
            PublishSource::ProxyGroup => (None, None),
        };
        let proxied = metadata.is_some_and(|stored| finalizers::has(stored, names::FINALIZER)) && claimant.source == PublishSource::Ingress;
        groups.extend((proxied && self.assignment.standalone.has(&key.0)).then(|| WorkloadKey::from(claimant)));
        let finalized = metadata.is_some_and(|stored| finalizers::has(stored, claimant.source.finalizer()));
        let finalized = finalized && finalizers::releases_names(&self.settings.types);
        let faulty = match claimant.source {
            PublishSource::Ingress => self.ingresses.get(&key).is_some_and(|stored| self.assignment.ingress(stored).is_faulty()),
            PublishSource::Service => {
                let own = |stored: &&Service| self.assignment.standalone.has(&key.0) && is_recorded(stored);
                service.filter(|stored| !own(stored)).is_some_and(|stored| self.assignment.published(stored).is_faulty())
            }
            PublishSource::ProxyGroup => false,
        };
        let is_orphan = finalized && groups.iter().all(WorkloadKey::is_standalone);
        if is_orphan || (groups.is_empty() && (faulty || service.is_some_and(has_conditions))) {
            groups.insert(WorkloadKey::of_group(""));
        }
        groups
    }

    pub(super) fn publishing(&self, group: &WorkloadKey) -> PublishInputs {
        let mine = |key: &(String, String)| self.publishers(&claimant(PublishSource::Ingress, key)).contains(group);
        let ingresses = self.ingresses.iter().filter(|(key, _)| mine(key));
        let ingresses: imbl::OrdMap<_, _> = ingresses.map(|(key, stored)| (key.clone(), Arc::new(stored.clone()))).collect();
        let named = |((namespace, _), stored): (&(String, String), &Arc<Ingress>)| -> Vec<(String, String)> {
            backends(stored).map(|name| (namespace.clone(), name.to_owned())).collect()
        };
        let named_services: BTreeSet<_> = ingresses.iter().flat_map(named).collect();
        let backends =
            named_services.into_iter().filter_map(|key| Some((key.clone(), Arc::new(BackendService::from(self.services.get(&key)?)))));
        let of_api = group.group().and_then(|name| self.groups.get(name)?.api_server_certificate());
        let parent = self.parent(group).and_then(|parent| parent.metadata().annotations.as_ref());
        let of_api = of_api.or_else(|| parent?.get(names::API_SERVER_CERTIFICATE).map(String::as_str));
        let shown: BTreeSet<&str> = ingresses.values().flat_map(|stored| certificates(stored)).chain(of_api).collect();
        let mut rivals = BTreeMap::<_, Vec<_>>::new();
        for (name, conflict) in self.rivals(group).into_iter().chain(self.proxies(group)) {
            rivals.entry(name).or_default().push(conflict);
        }
        let certificates = self.own_certificates.iter().filter(|(name, _)| shown.contains(name.as_str()));
        PublishInputs {
            certificates: certificates.map(|(name, own)| (name.clone(), own.clone())).collect(),
            backends: backends.collect(),
            backed: self.services.keys().filter(|key| !self.hosted.unbacked.contains(key)).cloned().collect(),
            recorded_certificates: self.recorded_certificates(),
            rivals,
            namesakes: self.namesakes(group),
            served_by_others: self.served_by_others(group),
            listed: self.hosted.listed.clone(),
            approved: self.hosted.approved.clone().into_iter().collect(),
            ingresses,
            ..PublishInputs::default()
        }
    }

    /// Content of the certificates among these objects.
    pub(super) fn certificates(&self, owned: &imbl::OrdMap<ObjectRef, Arc<Value>>) -> imbl::OrdMap<String, CertificateRecord> {
        let certificates = owned.values().filter_map(|stored| Some((domain_of(stored)?, CertificateRecord::read(stored))));
        let ends = |content: CertificateRecord| CertificateRecord { valid_until: self.hosted.certificate_end, ..content };
        certificates.map(|(dns, content)| (dns.to_owned(), ends(content))).collect()
    }

    /// Owners of certificate Secrets by the records of all namespaces.
    fn recorded_certificates(&self) -> imbl::OrdMap<String, RecordedCertificate> {
        let records = self.objects.values().filter_map(|stored| Some((namespace_of(stored)?.to_owned(), OrderRecord::read(stored))));
        let orders = records
            .flat_map(|(namespace, record)| record.orders().iter().map(|order| (namespace.clone(), order.clone())).collect::<Vec<_>>());
        let recorded = orders.filter(|(_, order)| !order.secret.is_empty()).map(|(namespace, order)| {
            let ingress = Publisher { source: PublishSource::Ingress, namespace, name: order.ingress };
            let owned = self.owned(&WorkloadKey::from(&ingress));
            let in_use = owned.iter().any(|(object, role)| object.kind == Kind::Role && grants(role, &order.host));
            (order.secret, RecordedCertificate { ingress, in_use })
        });
        recorded.collect()
    }

    /// Keys of Ingresses that records name.
    pub(super) fn recorded_keys(&self) -> impl Iterator<Item = WorkloadKey> {
        let records = self.objects.values().filter_map(|stored| Some((namespace_of(stored)?, OrderRecord::read(stored))));
        records.flat_map(|(namespace, record)| {
            let key = |name: &str| WorkloadKey::of_object(PublishSource::Ingress, namespace, name);
            record.orders().iter().map(|order| key(&order.ingress)).collect::<Vec<_>>()
        })
    }

    /// Objects of a group and shared objects.
    pub(super) fn with_shared(
        &self,
        mut owned: imbl::OrdMap<ObjectRef, Arc<Value>>,
        group: &WorkloadKey,
    ) -> imbl::OrdMap<ObjectRef, Arc<Value>> {
        let desired = self.claimants().into_iter().filter_map(|claimant| self.request(&claimant)).filter(|(of, ..)| *of == *group);
        let labels: Vec<String> = desired.map(|(_, label, _)| format!("{label}.")).collect();
        let ingress = if let WorkloadKey::Ingress(namespace, name) = group { Some((namespace, name)) } else { None };
        let record = ingress.map(|(namespace, _)| orders_ref(NS, namespace));
        let orders =
            record.as_ref().and_then(|record| self.objects.get(record)).map(|stored| OrderRecord::read(stored)).unwrap_or_default();
        let recorded = |object: &ObjectRef| {
            let is_named = |order: &CertificateOrder| order.host == object.name && ingress.is_some_and(|(_, name)| *name == order.ingress);
            object.kind == Kind::Secret && orders.orders().iter().any(is_named)
        };
        let shared = |object: &ObjectRef, stored: &Value| {
            *object == accounts_ref(NS)
                || record.as_ref() == Some(object)
                || recorded(object)
                || domain_of(stored).is_some_and(|dns| labels.iter().any(|label| dns.starts_with(label)))
        };
        let more = self.objects.iter().filter(|(object, stored)| shared(object, stored));
        owned.extend(more.map(|(object, stored)| (object.clone(), Arc::clone(stored))));
        owned
    }

    /// An awake replica fills the certificates of its group's names and advertises the configured names that it serves.
    pub(super) fn serve(&mut self, group: &str, replica: &ReplicaConfig) -> Vec<(&'static str, String)> {
        let config = self.parsed_config(group);
        for (host, how) in config.routes.values().flat_map(|site| &site.hosts) {
            let object = ObjectRef::new(Kind::Secret, NS, host.clone());
            if let Some(stored) = self.objects.get(&object).filter(|_| how.issue && !self.hosted.no_https && !self.hosted.slow_orders) {
                let mut stored = Value::clone(stored);
                stored["data"] = json!({"tls.crt": "YQ==", "tls.key": "YQ=="});
                self.objects.insert(object, Arc::new(stored));
            }
        }
        let config_names = config.names();
        let services: Vec<_> = replica.advertises().filter(|name| config_names.contains(*name)).collect();
        let profile = json!({"AdvertiseServices": services, "AdvertiseRoutes": replica.routes().collect::<Vec<_>>()});
        let status =
            crate::api::ingress::IngressStatus { configs: config.mappings.clone(), ..crate::api::ingress::IngressStatus::default() };
        vec![
            ("_current-profile", "profile-1".to_owned()),
            ("profile-1", profile.to_string()),
            (crate::api::ingress::KEY, serde_json::to_string(&status).expect("JSON")),
            (crate::api::state::HTTPS_ENDPOINT, if self.hosted.no_https { crate::api::state::NO_HTTPS } else { "" }.to_owned()),
            (crate::api::state::FUNNEL_ERRORS, json!(self.hosted.funnel_errors).to_string()),
            (crate::api::state::UNAPPROVED, json!(self.hosted.unapproved).to_string()),
        ]
    }

    /// Checks that traffic only reaches served names: replicas' configs only have names of the group's config, and advertised names exist
    /// there.
    pub(super) fn check_published(&self) {
        for group in self.groups.keys() {
            let config = self.parsed_config(group);
            for (ordinal, replica) in self.observed_replicas(group) {
                let advertised: Vec<&str> = replica.config.iter().flat_map(|config| config.advertises()).collect();
                let exist = advertised.iter().all(|name| config.origins.contains_key(*name));
                assert!(exist, "{group}-{ordinal}: {advertised:?} of {:?}", config.origins);
                let says = replica.state.iter().flat_map(|state| &state.advertises).filter(|_| replica.pod.is_some());
                for name in says {
                    assert!(self.hosted.vips.contains_key(name), "{group}-{ordinal} advertises {name}, which is gone");
                    assert!(config.origins.contains_key(name), "{group}-{ordinal} advertises {name}, which nothing serves");
                }
            }
        }
    }
}
