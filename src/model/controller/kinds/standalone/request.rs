//! Parses a standalone Service: the mode of its proxy, or all faults, each with an action. Checks what only a standalone Ingress must fulfil.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::condition::reason;
use crate::api::names;
use crate::model::base::bounded::service_excess;
use crate::model::base::netmap::Fqdn;
use crate::model::controller::egress::validate;
use crate::model::controller::ingress::spec;
use crate::model::controller::ingress::spec::{L4Service, PublishTarget, common};
use crate::model::controller::kinds::standalone::handover;
use crate::model::controller::policy::annotations::{annotation, dns_label};
use crate::model::controller::policy::fault_list::FaultList;
use crate::model::controller::policy::operator_device::OperatorDevice;
use crate::model::controller::policy::requests;
use crate::model::controller::policy::requests::{Parent, directions, service_label};
use crate::model::controller::policy::tenancy::DefaultTenancy;
use crate::model::controller::workload::admitted_tags::{AdmittedTags, extra_tags};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::Observed;
use crate::model::controller::workload::role::Role;
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::controller::workload::spec::{ApiServerRequest, HostnamePattern, WorkloadSpec};
use crate::model::plan::world::Single;

/// Maximum length of a label's value.
const MAX_LABEL: usize = 63;

/// The workload of one replica that an object requests.
pub(crate) fn spec<'a>(observed: &'a Observed, parent: Parent<'a>) -> WorkloadSpec<'a> {
    let metadata = parent.metadata();
    let device = if let Parent::Service(service) = parent { observed.assignment.device_of(service) } else { None };
    let tags = device.map_or_else(|| Cow::Owned(requests::tags(metadata)), |device| Cow::Borrowed(&*device.tags));
    let role = match parent {
        Parent::Ingress(_) => Role::Ingress,
        Parent::Service(_) if device.is_some() => Role::ApiServer,
        Parent::Service(service) if directions(service).1 => Role::EgressService,
        Parent::Service(_) => Role::IngressService,
    };
    WorkloadSpec {
        role,
        replicas: 1,
        admitted: match device {
            Some(device) => AdmittedTags::configured(&device.tags),
            None => AdmittedTags::of_object((&observed.settings, &observed.namespaces), observed.replicas.get(&0), metadata),
        },
        tags,
        hostname: HostnamePattern::Single(observed.assignment.label(parent)),
        temporary_hostname: if device.is_some() { None } else { handover::temporary_hostname(observed, parent) },
        tailnet: None,
        tenants: if device.is_some() { &[] } else { &observed.settings.standalone_tenants },
        shares_account: None,
        standby: device.is_some() || requests::requests(metadata, names::STANDBY),
        serves_on_pod: role == Role::Ingress && requests::requests(metadata, names::FORWARD_CLUSTER_TRAFFIC),
        api_server: device.map(api_server),
        options: None,
    }
}

fn api_server(device: &OperatorDevice) -> ApiServerRequest<'_> {
    let OperatorDevice { hostname, mode, impersonation, certificate, is_http, .. } = device;
    let (certificate, is_http) = (certificate.as_deref(), *is_http);
    ApiServerRequest { hostname, mode, impersonation: None, permitted: Some(impersonation), certificate, is_http }
}

/// Target of the proxy of a Service.
pub(crate) fn read(service: &Service, settings: &GroupSettings, had: &[String]) -> Result<Single, Vec<String>> {
    let (single, mut wrong) = match directions(service) {
        (true, true) => {
            let both = format!(
                "it requests ingress ({} or spec.loadBalancerClass) and egress ({} or {}): remove one of them.",
                names::EXPOSE,
                names::TAILNET_FQDN,
                names::TAILNET_IP
            );
            (None, vec![both])
        }
        (_, true) => egress(service),
        _ => published(service, settings),
    };
    if !dns_label(&service_label(service)) {
        wrong.push(format!("Set {} to a DNS label.", names::HOSTNAME));
    }
    wrong.extend(foreign_tags(&service.metadata, settings, had));
    single.filter(|_| wrong.is_empty()).ok_or(wrong)
}

/// Checks an Ingress besides its routes. The error is reason and message of an Event.
pub(crate) fn ingress(ingress: &Ingress, shape: &RenderContext<'_>, had: &[String]) -> Result<(), (&'static str, String)> {
    let metadata = &ingress.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let long = (name.len() > MAX_LABEL).then(|| {
        format!(
            "The name of the Ingress has {} characters, and labels of its proxy at most {MAX_LABEL}: create it under a shorter name.",
            name.len()
        )
    });
    long.or_else(|| foreign_tags(metadata, shape.settings, had)).map_or(Ok(()), |wrong| Err((reason::PROXY_INVALID, wrong)))
}

/// Fault of tags that only administrators may permit.
fn foreign_tags(metadata: &ObjectMeta, settings: &GroupSettings, had: &[String]) -> Option<String> {
    if !settings.standalone_tenants.is_empty() || settings.tenancy == DefaultTenancy::Open {
        return None;
    }
    let tag = extra_tags(metadata, settings, had).into_iter().next()?;
    Some(format!(
        "{}: the tag {tag} is not permitted: remove it, or have an administrator permit it by permittedTags or standalone.tenants of the \
         chart (--permitted-tags, --standalone-tenants).",
        names::TAGS
    ))
}

fn published(service: &Service, settings: &GroupSettings) -> (Option<Single>, Vec<String>) {
    let (spec, mut wrong) = match spec::service::service(headless(service, settings).as_ref().unwrap_or(service)) {
        Ok(spec) => (Some(spec), Vec::new()),
        Err(wrong) => (None, wrong),
    };
    if annotation(service.metadata.annotations.as_ref(), names::PROXY_PROTOCOL).is_some() {
        wrong.push(format!("{} is for Services of a ProxyGroup: remove it, or set {}.", names::PROXY_PROTOCOL, names::PROXY_GROUP));
    }
    let single = spec.and_then(|spec| match spec.target {
        PublishTarget::Whole(L4Service { addresses, external_name, .. }) => {
            let single = addresses.first().map(|ip| Single::DestIp { ip: *ip, other: addresses.get(1).copied() });
            Some(single.unwrap_or(Single::DestDns(external_name)))
        }
        PublishTarget::Site(_) => None,
    });
    (single, wrong)
}

/// A headless Service, read as one of type `ExternalName` with its own DNS name, whose addresses are its ready endpoints.
fn headless(service: &Service, settings: &GroupSettings) -> Option<Service> {
    let spec = service.spec.as_ref().filter(|spec| spec.cluster_ip.as_deref() == Some("None"))?;
    let (name, namespace) = (service.metadata.name.as_deref()?, service.metadata.namespace.as_deref()?);
    let external_name = Some(format!("{name}.{namespace}.svc.{}", settings.cluster_domain));
    let spec = ServiceSpec { type_: Some("ExternalName".to_owned()), external_name, ..spec.clone() };
    Some(Service { spec: Some(spec), ..service.clone() })
}

fn egress(service: &Service) -> (Option<Single>, Vec<String>) {
    let mut wrong = FaultList::default();
    if let Some(excess) = service_excess(service) {
        wrong.add(|| excess);
    }
    common(service.metadata.annotations.as_ref(), &service_label(service), &mut wrong);
    let kind = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()).unwrap_or("ClusterIP");
    if kind != "ExternalName" {
        wrong.add(|| format!("spec.type is {kind}: set it to ExternalName, with any spec.externalName."));
    }
    let set = |key: &str| validate::annotation(service, key);
    let (fqdn, ip) = (set(names::TAILNET_FQDN), set(names::TAILNET_IP).or(set(names::FORMER_TAILNET_IP)));
    validate::target(fqdn, ip, &mut wrong);
    let by_name = fqdn.and_then(Fqdn::new).map(Single::TailnetFqdn);
    (ip.and_then(|ip| ip.parse().ok()).map(Single::TailnetIp).or(by_name), wrong.texts())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::model::controller::policy::tenancy::Patterns;

    fn service(annotations: &Value, spec: &Value) -> Service {
        let metadata = json!({"name": "web", "namespace": "default", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Service")
    }

    fn settings(tenancy: DefaultTenancy) -> GroupSettings {
        GroupSettings { tenancy, tags: vec!["tag:k8s".into()], ..GroupSettings::new("ts".into(), "tailyard:test".into()) }
    }

    #[test]
    fn own_tags_need_open_tenancy() {
        let tagged =
            |tags: &str| service(&json!({"tailscale.com/expose": "true", "tailscale.com/tags": tags}), &json!({"clusterIP": "10.0.0.1"}));
        let wrong = read(&tagged("tag:other"), &settings(DefaultTenancy::Bounded), &[]).expect_err("refused");
        assert!(wrong[0].contains("tailscale.com/tags: the tag tag:other") && wrong[0].contains("permittedTags"), "{wrong:?}");
        assert!(read(&tagged("tag:k8s"), &settings(DefaultTenancy::Bounded), &[]).is_ok());
        assert!(read(&tagged("tag:other, tag:k8s"), &settings(DefaultTenancy::Open), &[]).is_ok());
    }

    #[test]
    fn permitted_tags_and_those_of_the_device_need_no_tenancy() {
        let metadata = service(&json!({"tailscale.com/tags": "tag:web-1,tag:had,tag:k8s,tag:hr"}), &json!({})).metadata;
        let mut settings = settings(DefaultTenancy::Bounded);
        settings.permitted_tags = Patterns::parse("tag:web-*");
        assert_eq!(extra_tags(&metadata, &settings, &["tag:had".to_owned()]), ["tag:hr"]);
        settings.standalone_tenants = Arc::new(vec![crate::api::proxygroup::Tenant::default()]);
        assert_eq!(extra_tags(&metadata, &settings, &[]), ["tag:web-1", "tag:had", "tag:hr"], "tenants permit tags by namespace");
    }

    #[test]
    fn each_kind_of_service_has_its_mode() {
        let (expose, external) =
            (json!({"tailscale.com/expose": "true"}), json!({"type": "ExternalName", "externalName": "db.example.com"}));
        let balanced = json!({"type": "LoadBalancer", "loadBalancerClass": "tailscale", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]});
        let table = [
            (json!({}), &balanced, "TS_DEST_IP=10.0.0.1"),
            (expose.clone(), &json!({"clusterIP": "fd00::1"}), "TS_DEST_IP=fd00::1"),
            (expose.clone(), &external, "TS_EXPERIMENTAL_DEST_DNS_NAME=db.example.com"),
            (expose, &json!({"clusterIP": "None"}), "TS_EXPERIMENTAL_DEST_DNS_NAME=web.default.svc.cluster.local"),
            (json!({"tailscale.com/tailnet-ip": "100.64.0.1"}), &external, "TS_TAILNET_TARGET_IP=100.64.0.1"),
            (json!({"tailscale.com/ts-tailnet-target-ip": "100.64.0.1"}), &external, "TS_TAILNET_TARGET_IP=100.64.0.1"),
            (json!({"tailscale.com/tailnet-fqdn": "db.tail1.ts.net"}), &external, "TS_TAILNET_TARGET_FQDN=db.tail1.ts.net."),
            (json!({"tailscale.com/tailnet-fqdn": "db.example.com."}), &external, "TS_TAILNET_TARGET_FQDN=db.example.com."),
        ];
        for (annotations, spec, wanted) in table {
            let single = read(&service(&annotations, spec), &settings(DefaultTenancy::Bounded), &[]).expect("a valid Service");
            assert_eq!(format!("{}={}", single.variable().expect("a mode"), single.value().expect("a target")), wanted);
        }
    }

    #[test]
    fn each_fault_message_names_field_and_fix() {
        let external = json!({"type": "ExternalName", "externalName": "x.example"});
        let plain = json!({"clusterIP": "10.0.0.1"});
        let exposed = |more: Value| {
            let mut annotations = json!({"tailscale.com/expose": "true"});
            annotations.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            annotations
        };
        let table = [
            (exposed(json!({"tailscale.com/tailnet-ip": "100.64.0.1"})), &external, "remove one of them"),
            (exposed(json!({})), &json!({}), "use one that has a spec.clusterIP"),
            (exposed(json!({})), &json!({"type": "ExternalName", "externalName": "10.0.0.1"}), "spec.externalName"),
            (exposed(json!({"tailscale.com/hostname": "a.b"})), &plain, "Set tailscale.com/hostname"),
            (exposed(json!({"tailscale.com/tags": "tag:a, web"})), &plain, "is not a tag such as"),
            (
                exposed(json!({"tailyard.io/proxy-protocol": "true"})),
                &json!({"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}),
                "remove it",
            ),
            (json!({"tailscale.com/tailnet-ip": "100.64.0.1"}), &plain, "set it to ExternalName"),
            (json!({"tailscale.com/tailnet-ip": "100.64.0.0/24"}), &external, "is not an IP address"),
            (
                json!({"tailscale.com/tailnet-ip": "::1", "tailscale.com/tailnet-fqdn": "a.b.net"}),
                &external,
                "remove one of the annotations",
            ),
            (json!({"tailscale.com/tailnet-fqdn": "db"}), &external, "is not a full name"),
        ];
        for (annotations, spec, fix) in table {
            let wrong = read(&service(&annotations, spec), &settings(DefaultTenancy::Bounded), &[]).expect_err("a fault").join(" ");
            assert!(wrong.contains(fix), "{annotations} {spec}: {wrong}");
        }
    }
}
