//! Assignment of users' Services and Ingresses to `ProxyGroup`s: annotation, else `IngressClass`, else default group.
//!
//! The cache and the passes use the same rules, so that both see an object in the same group. An annotation always wins, also an empty or
//! invalid one, and an object that requests nothing of Tailscale is in no group.

use imbl::OrdSet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::api::names;
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::policy::annotations::{annotation, dns_label, is_on};
use crate::model::controller::policy::operator_device::OperatorDevice;
use crate::model::controller::policy::requests;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::policy::tenancy::Labels;

/// API group of `ProxyGroup`s.
const API_GROUP: &str = "tailscale.com";

/// Maximum characters of an invalid value in a message.
const MAX_SHOWN: usize = 64;

/// Groups of objects that name none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefaultGroups {
    pub ingress: Option<String>,
    pub egress: Option<String>,
}

/// Inputs of an assignment besides the object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AssignmentRules {
    /// Name of our `IngressClass`.
    pub ingress_class: String,
    pub parameters: ClassParameters,
    pub defaults: DefaultGroups,
    /// Namespaces without the label that opts out. Objects of a namespace that is not listed yet are assigned by annotation only.
    pub namespaces: OrdSet<String>,
    /// Namespaces with that label.
    pub opted_out: OrdSet<String>,
    pub standalone: StandaloneScope,
    /// Namespace of the reconciler, where a Service requests the operator's device; empty if unknown.
    pub own_namespace: String,
    /// The operator's device, if the settings request it.
    pub device: Option<OperatorDevice>,
    /// Whether Connectors are served: else another operator may serve them.
    pub connectors: bool,
    /// Time of a requested uninstall: then no object is assigned, so that every workload is released.
    pub uninstall: Option<Timestamp>,
}

/// Time of an uninstall by the annotation that requests it: one that is no time counts from its first read.
pub fn uninstall_time(annotation: &str, now: Timestamp) -> Timestamp {
    annotation.parse().unwrap_or(now)
}

/// Namespaces whose Services and Ingresses without a group have proxies of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StandaloneScope {
    /// None: another operator may serve them.
    #[default]
    Nowhere,
    Everywhere,
    /// Those that are watched: objects of others are unknown, not absent.
    Namespaces(Vec<String>),
}

/// `spec.parameters` of our `IngressClass`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ClassParameters {
    #[default]
    Unset,
    /// Name of a group.
    Group(String),
    /// They name no group: message with an action.
    Invalid(String),
    /// The class is missing or another controller's.
    Unknown,
}

/// Which of the default groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultGroup {
    Ingress,
    Egress,
}

/// The group of an object, with the source of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupAssignment<'a> {
    Annotated(&'a str),
    /// The annotation is no DNS label: its value. The object stays in the workload that serves it.
    InvalidName(&'a str),
    /// Named by the parameters of the `IngressClass`.
    ByClass(&'a str),
    ByDefault(DefaultGroup, &'a str),
    /// The parameters of the `IngressClass` are invalid: message with an action. The object stays in its group.
    Unusable(&'a str),
    /// The `IngressClass` is unknown: the object stays in its group.
    Undecided,
    /// By an empty annotation, or by the label of the namespace.
    OptedOut,
    /// The object requests nothing, or no group is named for it.
    NotOurs,
}

impl StandaloneScope {
    /// `namespaces`: the watched ones; empty for all.
    pub fn new(enabled: bool, namespaces: &[String]) -> Self {
        match (enabled, namespaces) {
            (false, _) => Self::Nowhere,
            (true, []) => Self::Everywhere,
            (true, namespaces) => Self::Namespaces(namespaces.to_vec()),
        }
    }

    pub fn has(&self, namespace: &str) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Everywhere => true,
            Self::Namespaces(namespaces) => namespaces.iter().any(|name| name == namespace),
        }
    }
}

impl ClassParameters {
    /// Reads the parameters of our class; `None` if it does not exist.
    pub fn read(class: Option<&IngressClass>) -> Self {
        let spec = class.and_then(|class| class.spec.as_ref());
        let Some(spec) = spec.filter(|spec| spec.controller.as_deref() == Some(names::INGRESS_CONTROLLER)) else { return Self::Unknown };
        let Some(parameters) = &spec.parameters else { return Self::Unset };
        let (group, scope) = (parameters.api_group.as_deref().unwrap_or_default(), parameters.scope.as_deref().unwrap_or("Cluster"));
        if group == API_GROUP && parameters.kind == "ProxyGroup" && scope == "Cluster" && dns_label(&parameters.name) {
            return Self::Group(parameters.name.clone());
        }
        let class = class.and_then(|class| class.metadata.name.as_deref()).unwrap_or_default();
        Self::Invalid(format!(
            "spec.parameters of IngressClass {class} name {} {:?} (apiGroup {group:?}, scope {scope:?}), which is no ProxyGroup: set apiGroup \
             {API_GROUP}, kind ProxyGroup, a name and scope Cluster, or remove them.",
            parameters.kind, parameters.name
        ))
    }
}

impl AssignmentRules {
    /// Whether an Ingress has our class.
    pub fn has_class(&self, ingress: &Ingress) -> bool {
        ingress.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_deref()) == Some(&self.ingress_class)
    }

    /// Group of an Ingress.
    pub fn ingress<'a>(&'a self, ingress: &'a Ingress) -> GroupAssignment<'a> {
        if !self.has_class(ingress) {
            return GroupAssignment::NotOurs;
        }
        self.assign(&ingress.metadata, || match &self.parameters {
            ClassParameters::Group(group) => GroupAssignment::ByClass(group),
            ClassParameters::Invalid(why) => GroupAssignment::Unusable(why),
            ClassParameters::Unknown => GroupAssignment::Undecided,
            ClassParameters::Unset => self.by_default(DefaultGroup::Ingress),
        })
    }

    /// Group that publishes a Service.
    pub fn published<'a>(&'a self, service: &'a Service) -> GroupAssignment<'a> {
        match direction(service) {
            _ if self.device_of(service).is_some() => GroupAssignment::NotOurs,
            Some(DefaultGroup::Ingress) => self.assign(&service.metadata, || self.by_default(DefaultGroup::Ingress)),
            _ => GroupAssignment::NotOurs,
        }
    }

    /// Group that forwards an egress Service to its target.
    pub fn egress<'a>(&'a self, service: &'a Service) -> GroupAssignment<'a> {
        if !has_target(service) || self.device_of(service).is_some() {
            return GroupAssignment::NotOurs;
        }
        self.assign(&service.metadata, || self.by_default(DefaultGroup::Egress))
    }

    /// Whether a Service has a proxy of its own: it requests Tailscale, and neither an annotation nor a default names a group for it.
    pub fn is_standalone(&self, service: &Service) -> bool {
        let metadata = &service.metadata;
        if self.device_of(service).is_some() {
            return self.uninstall.is_none();
        }
        let requests = requests::directions(service) != (false, false);
        let assigned = || self.published(service).group().or(self.egress(service).group());
        if self.uninstall.is_some()
            || !self.standalone.has(metadata.namespace.as_deref().unwrap_or_default())
            || !requests
            || annotation(metadata.annotations.as_ref(), names::PROXY_GROUP).is_some()
            || assigned().is_some()
        {
            return false;
        }
        // A default applies as soon as its namespace is listed.
        let opted_out = || metadata.namespace.as_ref().is_some_and(|name| self.opted_out.contains(name));
        !self.depends_on_namespace(service) || opted_out()
    }

    /// The operator's device, if a Service has the name of the reconciler's request for it, whatever else that has.
    pub fn device_of(&self, service: &Service) -> Option<&OperatorDevice> {
        self.device.as_ref().filter(|_| self.has_own_name(service))
    }

    /// Whether the reconciler has written a Service to request the operator's device, as the presence of an annotation says.
    pub fn is_device_request(&self, service: &Service) -> bool {
        self.has_own_name(service) && annotation(service.metadata.annotations.as_ref(), names::API_SERVER_MODE).is_some()
    }

    /// Name in the tailnet that an object with a proxy of its own requests, valid or not.
    pub fn label(&self, parent: Parent<'_>) -> String {
        let device = if let Parent::Service(service) = parent { self.device_of(service) } else { None };
        device.map_or_else(|| parent.label(), |device| device.hostname.clone())
    }

    fn has_own_name(&self, service: &Service) -> bool {
        let [namespace, name] = [&service.metadata.namespace, &service.metadata.name].map(|text| text.as_deref().unwrap_or_default());
        self.is_own_request(namespace, name)
    }

    /// Whether a Service of this name is the reconciler's own request.
    fn is_own_request(&self, namespace: &str, name: &str) -> bool {
        name == names::API_SERVER_SERVICE && !namespace.is_empty() && namespace == self.own_namespace
    }

    /// Whether a Service or Ingress may have a proxy of its own.
    pub fn serves(&self, key: &WorkloadKey) -> bool {
        let is_own = matches!(key, WorkloadKey::Service(namespace, name) if self.is_own_request(namespace, name));
        is_own || self.standalone.has(key.namespace())
    }

    /// Whether an Ingress has a proxy of its own: it has our class, and neither an annotation, the class nor a default names a group for it.
    pub fn is_standalone_ingress(&self, ingress: &Ingress) -> bool {
        let namespace = ingress.metadata.namespace.as_deref().unwrap_or_default();
        let unassigned = || match self.ingress(ingress) {
            GroupAssignment::NotOurs => true,
            GroupAssignment::OptedOut => has_annotation(&ingress.metadata) || self.opted_out.contains(namespace),
            _ => false,
        };
        self.uninstall.is_none() && self.has_class(ingress) && self.standalone.has(namespace) && unassigned()
    }

    /// Whether an object has a proxy of its own.
    pub fn has_own_proxy(&self, parent: Parent<'_>) -> bool {
        match parent {
            Parent::Service(service) => self.is_standalone(service),
            Parent::Ingress(ingress) => self.is_standalone_ingress(ingress),
        }
    }

    /// Assignment of an object that may have a proxy of its own, which also serves Services that groups ignore.
    pub fn of<'a>(&'a self, parent: Parent<'a>) -> GroupAssignment<'a> {
        match parent {
            Parent::Ingress(ingress) => self.ingress(ingress),
            Parent::Service(service) if requests::directions(service) != (false, false) => {
                self.assign(&service.metadata, || GroupAssignment::NotOurs)
            }
            Parent::Service(_) => GroupAssignment::NotOurs,
        }
    }

    /// The group of an object that has its own proxy by an annotation or the label of its namespace, without these.
    pub fn without_annotation<'a>(&'a self, parent: Parent<'a>) -> Option<&'a str> {
        match (parent, &self.parameters) {
            (Parent::Ingress(_), ClassParameters::Group(group)) => Some(group),
            (Parent::Ingress(_), _) => self.defaults.ingress.as_deref(),
            (Parent::Service(service), _) => self.default_group(direction(service)?).map(String::as_str),
        }
    }

    /// Whether the label of its namespace can change the group of a Service.
    pub fn depends_on_namespace(&self, service: &Service) -> bool {
        let default = direction(service).and_then(|direction| self.default_group(direction));
        default.is_some() && !has_annotation(&service.metadata)
    }

    /// Updates the namespaces by the labels of one; `None` if it is deleted.
    pub fn update_namespace(&mut self, name: &str, labels: Option<&Labels>) {
        self.namespaces.remove(name);
        self.opted_out.remove(name);
        if let Some(labels) = labels {
            let out = labels.get(names::DEFAULT_GROUP).is_some_and(|value| value == names::DISABLED);
            if out { &mut self.opted_out } else { &mut self.namespaces }.insert(name.to_owned());
        }
    }

    fn assign<'a>(&'a self, metadata: &'a ObjectMeta, unnamed: impl FnOnce() -> GroupAssignment<'a>) -> GroupAssignment<'a> {
        if self.uninstall.is_some() {
            return GroupAssignment::NotOurs;
        }
        match annotation(metadata.annotations.as_ref(), names::PROXY_GROUP) {
            Some(named) if dns_label(named) => GroupAssignment::Annotated(named),
            Some(value) => GroupAssignment::InvalidName(value),
            None if has_annotation(metadata) => GroupAssignment::OptedOut,
            None => match unnamed() {
                GroupAssignment::NotOurs => GroupAssignment::NotOurs,
                _ if !metadata.namespace.as_ref().is_some_and(|name| self.namespaces.contains(name)) => GroupAssignment::OptedOut,
                assignment => assignment,
            },
        }
    }

    fn default_group(&self, direction: DefaultGroup) -> Option<&String> {
        match direction {
            DefaultGroup::Ingress => self.defaults.ingress.as_ref(),
            DefaultGroup::Egress => self.defaults.egress.as_ref(),
        }
    }

    fn by_default(&self, direction: DefaultGroup) -> GroupAssignment<'_> {
        self.default_group(direction).map_or(GroupAssignment::NotOurs, |group| GroupAssignment::ByDefault(direction, group))
    }
}

impl<'a> GroupAssignment<'a> {
    /// The group; `None` also if it is undecided.
    pub fn group(self) -> Option<&'a str> {
        match self {
            Self::Annotated(group) | Self::ByClass(group) | Self::ByDefault(_, group) => Some(group),
            Self::InvalidName(_) | Self::Unusable(_) | Self::Undecided | Self::OptedOut | Self::NotOurs => None,
        }
    }

    /// Whether the object stays in the group that has a record of it.
    pub fn is_undecided(self) -> bool {
        matches!(self, Self::InvalidName(_) | Self::Unusable(_) | Self::Undecided)
    }

    /// Whether the object, or its class, has a fault.
    pub fn is_faulty(self) -> bool {
        matches!(self, Self::InvalidName(_) | Self::Unusable(_))
    }

    /// Message about that fault, with an action.
    pub fn fault(self) -> Option<String> {
        match self {
            Self::InvalidName(value) => {
                let shown: String = value.chars().take(MAX_SHOWN).collect();
                Some(format!(
                    "{} is {shown:?}, which is not a DNS label of at most 63 characters: name a ProxyGroup, or remove the annotation.",
                    names::PROXY_GROUP
                ))
            }
            Self::Unusable(why) => Some(why.to_owned()),
            _ => None,
        }
    }

    /// Message to an object whose group cannot serve it: the group with the source of its name, and the fault with an action.
    pub fn message(self, group: &str, fault: &str) -> String {
        let source = match self {
            Self::ByClass(_) => ", which spec.parameters of the IngressClass name,",
            Self::ByDefault(DefaultGroup::Ingress, _) => ", the default of --default-ingress-group (chart: defaultProxyGroups.ingress),",
            Self::ByDefault(DefaultGroup::Egress, _) => ", the default of --default-egress-group (chart: defaultProxyGroups.egress),",
            _ => "",
        };
        format!("ProxyGroup {group}{source} {fault}")
    }
}

/// Whether an object has the annotation, whatever its value.
pub fn has_annotation(metadata: &ObjectMeta) -> bool {
    metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::PROXY_GROUP))
}

fn has_target(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    [names::TAILNET_FQDN, names::TAILNET_IP].iter().any(|key| annotation(annotations, key).is_some())
}

/// Direction of the traffic that a Service requests; `None` if it requests nothing of Tailscale.
fn direction(service: &Service) -> Option<DefaultGroup> {
    if has_target(service) {
        return Some(DefaultGroup::Egress);
    }
    (requests::is_balanced(service) || is_on(service.metadata.annotations.as_ref(), names::EXPOSE)).then_some(DefaultGroup::Ingress)
}

#[cfg(test)]
mod tests {
    use GroupAssignment::{Annotated, ByClass, ByDefault, InvalidName, NotOurs, OptedOut, Undecided, Unusable};
    use serde_json::{Value, json};

    use super::*;

    const DEFAULT_IN: GroupAssignment<'_> = ByDefault(DefaultGroup::Ingress, "in");
    const DEFAULT_OUT: GroupAssignment<'_> = ByDefault(DefaultGroup::Egress, "out");

    #[test]
    fn uninstall_annotation_that_is_no_time_counts_from_now() {
        let (requested, now) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        assert_eq!(uninstall_time(&requested.to_string(), now), requested);
        for other in ["", "true", "yesterday", "2026-13-01T00:00:00Z", "99999-01-01T00:00:00Z"] {
            assert_eq!(uninstall_time(other, now), now, "{other:?}");
        }
    }

    fn rules(parameters: ClassParameters) -> AssignmentRules {
        let defaults = DefaultGroups { ingress: Some("in".into()), egress: Some("out".into()) };
        let mut rules = AssignmentRules { ingress_class: "tailscale".into(), parameters, defaults, ..AssignmentRules::default() };
        let labels = |value: &str| Labels::from([(names::DEFAULT_GROUP.to_owned(), value.to_owned())]);
        rules.update_namespace("a", Some(&Labels::new()));
        rules.update_namespace("other-value", Some(&labels("enabled")));
        rules.update_namespace("out", Some(&labels("disabled")));
        rules
    }

    fn service(namespace: &str, annotations: &Value, spec: &Value) -> Service {
        let metadata = json!({"name": "s", "namespace": namespace, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Service")
    }

    fn ingress(namespace: &str, annotations: &Value, class: Option<&str>) -> Ingress {
        let metadata = json!({"name": "i", "namespace": namespace, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"ingressClassName": class}})).expect("an Ingress")
    }

    #[test]
    fn services_are_assigned_by_annotation_then_by_default() {
        let balanced = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale"});
        let external = json!({"type": "ExternalName", "externalName": "x"});
        let plain = json!({"clusterIP": "10.0.0.1"});
        // namespace, annotations, spec → group that publishes it, egress group
        let table = [
            ("a", json!({}), &balanced, DEFAULT_IN, NotOurs),
            ("other-value", json!({}), &balanced, DEFAULT_IN, NotOurs),
            ("a", json!({"tailscale.com/expose": "true"}), &plain, DEFAULT_IN, NotOurs),
            ("a", json!({"tailscale.com/expose": "true"}), &external, DEFAULT_IN, NotOurs),
            ("a", json!({"tailscale.com/tailnet-fqdn": "db.ts.net"}), &external, NotOurs, DEFAULT_OUT),
            ("a", json!({"tailscale.com/tailnet-ip": "100.64.0.1"}), &external, NotOurs, DEFAULT_OUT),
            // An invalid type is reported to it.
            ("a", json!({"tailscale.com/tailnet-ip": "100.64.0.1"}), &plain, NotOurs, DEFAULT_OUT),
            ("a", json!({"tailscale.com/tailnet-ip": "100.64.0.1", "tailscale.com/expose": "true"}), &plain, NotOurs, DEFAULT_OUT),
            // No request.
            ("a", json!({}), &plain, NotOurs, NotOurs),
            ("a", json!({}), &external, NotOurs, NotOurs),
            ("a", json!({}), &json!({"type": "LoadBalancer"}), NotOurs, NotOurs),
            ("a", json!({}), &json!({"type": "LoadBalancer", "loadBalancerClass": "other"}), NotOurs, NotOurs),
            ("a", json!({}), &json!({"type": "NodePort", "loadBalancerClass": "tailscale"}), NotOurs, NotOurs),
            ("a", json!({"tailscale.com/expose": "false"}), &plain, NotOurs, NotOurs),
            ("a", json!({"tailscale.com/tailnet-ip": " "}), &external, NotOurs, NotOurs),
            ("a", json!({"tailscale.com/proxy-group": "g"}), &plain, NotOurs, NotOurs),
            // An annotation wins.
            ("a", json!({"tailscale.com/proxy-group": " g "}), &balanced, Annotated("g"), NotOurs),
            ("out", json!({"tailscale.com/proxy-group": "g"}), &balanced, Annotated("g"), NotOurs),
            ("new", json!({"tailscale.com/proxy-group": "g", "tailscale.com/tailnet-ip": "::1"}), &external, NotOurs, Annotated("g")),
            // No DNS label: neither the default nor another key.
            ("a", json!({"tailscale.com/proxy-group": "v/nas"}), &balanced, InvalidName("v/nas"), NotOurs),
            ("a", json!({"tailscale.com/proxy-group": "G", "tailscale.com/tailnet-ip": "::1"}), &external, NotOurs, InvalidName("G")),
            ("a", json!({"tailscale.com/proxy-group": "v/nas"}), &plain, NotOurs, NotOurs),
            // Opted out.
            ("a", json!({"tailscale.com/proxy-group": ""}), &balanced, OptedOut, NotOurs),
            ("a", json!({"tailscale.com/proxy-group": " ", "tailscale.com/tailnet-ip": "::1"}), &external, NotOurs, OptedOut),
            ("out", json!({}), &balanced, OptedOut, NotOurs),
            ("out", json!({"tailscale.com/tailnet-ip": "::1"}), &external, NotOurs, OptedOut),
            // The labels of its namespace are not known.
            ("new", json!({}), &balanced, OptedOut, NotOurs),
        ];
        for (namespace, annotations, spec, published, egress) in table {
            let service = service(namespace, &annotations, spec);
            for parameters in [ClassParameters::Unset, ClassParameters::Group("classy".into()), ClassParameters::Unknown] {
                let rules = rules(parameters);
                assert_eq!((rules.published(&service), rules.egress(&service)), (published, egress), "{namespace} {annotations} {spec}");
            }
            let by_annotation = |assignment| if matches!(assignment, Annotated(_)) { assignment.group() } else { None };
            let without = AssignmentRules { defaults: DefaultGroups::default(), ..rules(ClassParameters::Unset) };
            let groups = (without.published(&service).group(), without.egress(&service).group());
            assert_eq!(groups, (by_annotation(published), by_annotation(egress)), "{namespace} {annotations} {spec}: unset");
        }
    }

    #[test]
    fn services_without_a_group_are_standalone() {
        let balanced = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale"});
        let external = json!({"type": "ExternalName", "externalName": "x"});
        let (group, none) = (json!({"tailscale.com/proxy-group": "g"}), json!({"tailscale.com/proxy-group": ""}));
        let invalid = json!({"tailscale.com/proxy-group": "default/s"});
        let alias = json!({"tailscale.com/ts-tailnet-target-ip": "100.64.0.1"});
        // namespace, annotations, spec → with default groups, without
        let table = [
            ("a", &json!({}), &balanced, false, true),
            ("a", &none, &balanced, true, true),
            ("a", &group, &balanced, false, false),
            ("a", &invalid, &balanced, false, false),
            ("a", &alias, &external, true, true),
            ("out", &json!({}), &balanced, true, true),
            // The labels of its namespace are not known: a default may apply.
            ("new", &json!({}), &balanced, false, true),
            ("a", &none, &json!({"clusterIP": "10.0.0.1"}), false, false),
        ];
        for (namespace, annotations, spec, with, without) in table {
            let service = service(namespace, annotations, spec);
            let rules = |defaults| AssignmentRules { standalone: StandaloneScope::Everywhere, defaults, ..rules(ClassParameters::Unset) };
            let defaults = rules(DefaultGroups::default()).is_standalone(&service);
            let found = (rules(DefaultGroups { ingress: Some("in".into()), egress: Some("out".into()) }).is_standalone(&service), defaults);
            assert_eq!(found, (with, without), "{namespace} {annotations} {spec}");
            assert!(!self::rules(ClassParameters::Unset).is_standalone(&service), "disabled");
        }
    }

    #[test]
    fn ingresses_are_assigned_by_annotation_then_by_class_then_by_default() {
        let group = || ClassParameters::Group("classy".into());
        let invalid = || ClassParameters::Invalid("why".into());
        let (none, named, empty) = (json!({}), json!({"tailscale.com/proxy-group": "g"}), json!({"tailscale.com/proxy-group": ""}));
        let slash = json!({"tailscale.com/proxy-group": "ingress/v/shop"});
        let table = [
            ("a", &none, Some("tailscale"), ClassParameters::Unset, DEFAULT_IN),
            ("a", &none, Some("tailscale"), group(), ByClass("classy")),
            ("a", &none, Some("tailscale"), invalid(), Unusable("why")),
            ("a", &none, Some("tailscale"), ClassParameters::Unknown, Undecided),
            ("a", &none, Some("nginx"), group(), NotOurs),
            ("a", &none, None, group(), NotOurs),
            ("a", &named, Some("nginx"), group(), NotOurs),
            ("a", &named, Some("tailscale"), group(), Annotated("g")),
            ("a", &named, Some("tailscale"), invalid(), Annotated("g")),
            ("out", &named, Some("tailscale"), ClassParameters::Unknown, Annotated("g")),
            ("a", &slash, Some("tailscale"), group(), InvalidName("ingress/v/shop")),
            ("a", &slash, Some("nginx"), group(), NotOurs),
            ("a", &empty, Some("tailscale"), group(), OptedOut),
            ("out", &none, Some("tailscale"), group(), OptedOut),
            ("out", &none, Some("tailscale"), invalid(), OptedOut),
            ("out", &none, Some("tailscale"), ClassParameters::Unset, OptedOut),
            ("new", &none, Some("tailscale"), group(), OptedOut),
        ];
        for (namespace, annotations, class, parameters, expected) in table {
            let (rules, ingress) = (rules(parameters.clone()), ingress(namespace, annotations, class));
            assert_eq!(rules.ingress(&ingress), expected, "{namespace} {annotations} {class:?} {parameters:?}");
        }
        let unset = AssignmentRules { defaults: DefaultGroups::default(), ..rules(ClassParameters::Unset) };
        assert_eq!(unset.ingress(&ingress("a", &none, Some("tailscale"))), NotOurs);
    }

    #[test]
    fn ingresses_without_a_group_are_standalone() {
        let (none, named, empty) = (json!({}), json!({"tailscale.com/proxy-group": "g"}), json!({"tailscale.com/proxy-group": ""}));
        let slash = json!({"tailscale.com/proxy-group": "a/i"});
        // namespace, annotations, class → with default group, with group of the class, with an unknown class, with neither
        let table = [
            ("a", &none, Some("tailscale"), [false, false, false, true]),
            ("a", &empty, Some("tailscale"), [true, true, true, true]),
            ("a", &named, Some("tailscale"), [false, false, false, false]),
            ("a", &slash, Some("tailscale"), [false, false, false, false]),
            ("a", &empty, Some("nginx"), [false, false, false, false]),
            ("a", &none, None, [false, false, false, false]),
            ("out", &none, Some("tailscale"), [true, true, true, true]),
            // The labels of its namespace are not known: a default may apply.
            ("new", &none, Some("tailscale"), [false, false, false, true]),
        ];
        for (namespace, annotations, class, expected) in table {
            let ingress = ingress(namespace, annotations, class);
            let rules = |rules| AssignmentRules { standalone: StandaloneScope::Everywhere, ..rules };
            let neither = AssignmentRules { defaults: DefaultGroups::default(), ..rules(self::rules(ClassParameters::Unset)) };
            let parameters = [ClassParameters::Unset, ClassParameters::Group("classy".into()), ClassParameters::Unknown];
            let all = parameters.map(|parameters| rules(self::rules(parameters))).into_iter().chain([neither]);
            let found: Vec<bool> = all.map(|rules| rules.is_standalone_ingress(&ingress)).collect();
            assert_eq!(found, expected, "{namespace} {annotations} {class:?}");
            assert!(!self::rules(ClassParameters::Unset).is_standalone_ingress(&ingress), "disabled");
        }
    }

    #[test]
    fn message_about_an_invalid_group_is_bounded_and_names_the_annotation() {
        let long = "\n".repeat(200_000);
        let message = InvalidName(&long).fault().expect("a message");
        assert!(message.starts_with("tailscale.com/proxy-group is ") && message.len() < 512, "{message}");
        assert_eq!(Annotated("g").fault().or(OptedOut.fault()).or(Undecided.fault()), None);
    }

    #[test]
    fn class_parameters_name_a_proxy_group_or_are_invalid() {
        let read = |spec: Value| {
            let class = json!({"metadata": {"name": "tailscale"}, "spec": spec});
            ClassParameters::read(Some(&serde_json::from_value(class).expect("a class")))
        };
        let with = |parameters: Value| read(json!({"controller": names::INGRESS_CONTROLLER, "parameters": parameters}));
        let group = json!({"apiGroup": "tailscale.com", "kind": "ProxyGroup", "name": "web"});
        assert_eq!(ClassParameters::read(None), ClassParameters::Unknown);
        assert_eq!(read(json!({"controller": "nginx", "parameters": group})), ClassParameters::Unknown);
        assert_eq!(read(json!({"controller": names::INGRESS_CONTROLLER})), ClassParameters::Unset);
        let changed = |key: &str, value: Value| {
            let mut parameters = group.clone();
            parameters[key] = value;
            with(parameters)
        };
        assert_eq!(with(group.clone()), ClassParameters::Group("web".into()));
        assert_eq!(changed("scope", json!("Cluster")), ClassParameters::Group("web".into()));
        for (key, value) in [
            ("apiGroup", json!(null)),
            ("apiGroup", json!("example.com")),
            ("kind", json!("ConfigMap")),
            ("scope", json!("Namespace")),
            ("name", json!("")),
            ("name", json!("Not a name")),
        ] {
            let found = changed(key, value.clone());
            let says = |why: &String| why.contains("IngressClass tailscale") && why.contains("or remove them");
            assert!(matches!(&found, ClassParameters::Invalid(why) if says(why)), "{key} {value}: {found:?}");
        }
    }
}
