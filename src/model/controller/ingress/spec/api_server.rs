//! Reads the Kubernetes API that a group requests: names, port, certificates, and users that its clients may be.

use std::collections::BTreeSet;

use crate::api::proxygroup::Impersonation;
use crate::api::routes::{ApiServerSite, Host, Listener, Site};
use crate::model::api_server::impersonation::PermittedImpersonation;
use crate::model::api_server::subject::is_system;
use crate::model::controller::ingress::spec::ingress::{HTTP, HTTPS, SiteNames};
use crate::model::controller::ingress::spec::{PublishSpec, PublishTarget, SpecContext};
use crate::model::controller::workload::objects::shape::RenderContext;
use crate::model::controller::workload::observed::Observed;
use crate::model::controller::workload::spec::ApiServerRequest;

/// The request as a site with these names.
pub fn api_server(observed: &Observed, shape: &RenderContext<'_>, (request, hosts): (ApiServerRequest<'_>, &[String])) -> PublishSpec {
    let (certificates, reserved) = (&observed.publish.certificates, &observed.publish.reserved);
    let (namespace, now) = (&*shape.settings.namespace, observed.now);
    let context = SpecContext { suffix: "", issues: false, device: None, services: &|_, _| None, namespace, certificates, reserved, now };
    let (port, listener) = if request.is_http { (HTTP, Listener::Http) } else { (HTTPS, Listener::Https) };
    let (mut names, mut plain) = (SiteNames::default(), BTreeSet::new());
    for host in hosts {
        match request.certificate {
            _ if request.is_http => drop(plain.insert(host.clone())),
            Some(secret) => names.of_its_own(host, secret, &context),
            None => drop(names.served.insert(host.clone(), Host { secret: host.clone(), issue: true })),
        }
    }
    let impersonation = shape.impersonation();
    let permit_system = impersonation.as_ref().map(|permitted| permitted_system_names(&permitted.names)).unwrap_or_default();
    let SiteNames { served: hosts, flaws, mut notes, warnings } = names;
    if let Some(fault) = impersonation.as_ref().and_then(PermittedImpersonation::fault) {
        notes.add(|| fault);
    }
    let (mode, send_extra) = (request.mode.clone(), impersonation.is_some());
    let site = Site {
        hosts,
        listeners: [(port, listener)].into(),
        api_server: Some(ApiServerSite { mode, names: plain, permit_system, send_extra, permit_all_system: false }),
        ..Site::default()
    };
    let (label, tags, ports) = (request.hostname.to_owned(), shape.spec.tags.to_vec(), vec![format!("tcp:{port}")]);
    PublishSpec { label, tags, ports, target: PublishTarget::Site(site), notes, flaws, warnings }
}

/// Users and groups of Kubernetes itself that clients may be: `*` permits none of them.
fn permitted_system_names(Impersonation { users, groups }: &Impersonation) -> BTreeSet<String> {
    users.iter().chain(groups).filter(|name| is_system(name)).cloned().collect()
}
