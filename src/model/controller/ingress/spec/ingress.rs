//! Parses an Ingress into virtual hosts: names, ports and routes.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{Ingress, IngressBackend};

use crate::api::names;
use crate::api::routes::{Host, Listener, Route, Site};
use crate::model::base::bounded::ingress_excess;
use crate::model::controller::ingress::spec::backend::backend;
use crate::model::controller::ingress::spec::{CertificateIssue, PublishSpec, PublishTarget, SpecContext, common};
use crate::model::controller::policy::annotations::{annotation, is_on, text};
use crate::model::controller::policy::fault_list::FaultList;
use crate::model::controller::policy::requests::ingress_label;
use crate::model::controller::workload::observed::UserCertificate;
use crate::model::ingress::cert_orders::Validity;

pub const HTTPS: u16 = 443;
pub const HTTP: u16 = 80;

struct Routing<'a, 'b> {
    namespace: &'a str,
    context: &'a SpecContext<'b>,
    routes: BTreeMap<(String, String, bool), Route>,
    notes: FaultList,
}

/// Parses an Ingress. The error lists the first faults, each with an action.
pub fn ingress(ingress: &Ingress, context: &SpecContext<'_>) -> Result<PublishSpec, Vec<String>> {
    if let Some(excess) = ingress_excess(ingress) {
        return Err(vec![excess]);
    }
    let mut wrong = FaultList::default();
    let annotations = ingress.metadata.annotations.as_ref();
    let label = ingress_label(ingress);
    let tags = common(annotations, &label, &mut wrong);
    let requested = if context.suffix.is_empty() { label.clone() } else { format!("{label}.{}", context.suffix) };
    let dns = context.device.unwrap_or(&requested).to_owned();
    let is_own = |host: &str| host == dns || host == label || host == requested || context.may_be_name_of(&label, host);
    let SiteNames { served: hosts, flaws, mut notes, warnings } = hosts(ingress, (&dns, is_own), context);
    if annotation(annotations, names::PROXY_PROTOCOL).is_some() {
        notes.add(|| format!("{} is for Services: backends of an Ingress get the client's address in headers.", names::PROXY_PROTOCOL));
    }
    let namespace = ingress.metadata.namespace.as_deref().unwrap_or_default();
    let mut routing = Routing { namespace, context, routes: BTreeMap::new(), notes };
    routing.read(ingress, &hosts, &dns, is_own);
    let Routing { routes, notes, .. } = routing;
    if routes.is_empty() {
        let why = if notes.is_empty() { vec!["give it a rule or a default backend.".to_owned()] } else { notes.texts() };
        let faults = wrong.texts().into_iter().chain([format!("It has no route: {}", why.join(" "))]);
        return Err(faults.collect());
    }
    if !wrong.is_empty() {
        return Err(wrong.texts());
    }
    let mut listeners = BTreeMap::from([(HTTPS, Listener::Https)]);
    if annotation(annotations, names::HTTP_ENDPOINT) == Some("enabled") {
        listeners.insert(HTTP, Listener::Http);
    } else if is_on(annotations, names::HTTP_REDIRECT) {
        listeners.insert(HTTP, Listener::Redirect);
    }
    let ports = listeners.keys().rev().map(|port| format!("tcp:{port}")).collect();
    let funnel = is_on(annotations, names::FUNNEL);
    let site = Site { hosts, listeners, routes: routes.into_values().collect(), funnel, ..Site::default() };
    Ok(PublishSpec { label, tags, ports, target: PublishTarget::Site(site), notes, flaws, warnings })
}

/// The Secrets that an Ingress names as certificates.
pub fn certificates(ingress: &Ingress) -> impl Iterator<Item = &str> {
    let tls = ingress.spec.as_ref().and_then(|spec| spec.tls.as_deref()).unwrap_or_default();
    tls.iter().filter_map(|entry| entry.secret_name.as_deref()).filter(|secret| !secret.is_empty())
}

/// Host names: that of the Tailscale Service, and those with a user-provided certificate, with the faults of the latter.
fn hosts(ingress: &Ingress, (dns, is_own): (&str, impl Fn(&str) -> bool), context: &SpecContext<'_>) -> SiteNames {
    let mut hosts = SiteNames::default();
    hosts.served.insert(dns.to_owned(), Host { secret: dns.to_owned(), issue: true });
    let tls = ingress.spec.as_ref().and_then(|spec| spec.tls.as_deref()).unwrap_or_default();
    for (at, entry) in tls.iter().enumerate() {
        let secret = entry.secret_name.as_deref().filter(|secret| !secret.is_empty());
        for (nth, host) in entry.hosts.iter().flatten().enumerate() {
            match secret {
                _ if is_own(host) || !host.contains('.') => {}
                // The first label of the first host is the requested name.
                None if (at, nth) == (0, 0) => {}
                _ if context.is_issued(host) => hosts.notes.add(|| {
                    format!(
                        "host {host} is not served: it is in the domain of the tailnet, whose names have certificates of the control plane. Its \
                         own name is {dns}: name others below a domain of your own."
                    )
                }),
                Some(secret)
                    if context.reserved.get(secret).is_some_and(|those| !those.matches(text(ingress.metadata.namespace.as_ref()))) =>
                {
                    hosts.flaws.insert(host.to_ascii_lowercase(), CertificateIssue::Lacking);
                    let why = format!("its annotation {} does not name this namespace", names::CERTIFICATE_NAMESPACES);
                    hosts
                        .notes
                        .add(|| format!("host {host} is not served: Secret {}/{secret} must not be used, as {why}.", context.namespace));
                }
                Some(secret) => hosts.of_its_own(&host.to_ascii_lowercase(), secret, context),
                None => hosts.notes.add(|| format!("host {host} has no certificate: name its Secret in spec.tls[].secretName.")),
            }
        }
    }
    hosts
}

/// Builder of the host names.
#[derive(Default)]
pub(super) struct SiteNames {
    pub(super) served: BTreeMap<String, Host>,
    pub(super) flaws: BTreeMap<String, CertificateIssue>,
    pub(super) notes: FaultList,
    pub(super) warnings: FaultList,
}

impl SiteNames {
    /// Adds a host with a user-provided certificate. Replicas get its name even if it is unusable now: they may still have the previous
    /// one.
    pub(super) fn of_its_own(&mut self, host: &str, secret: &str, context: &SpecContext<'_>) {
        let at = format!("Secret {}/{secret}", context.namespace);
        let own = context.certificates.get(secret);
        if !matches!(own, None | Some(UserCertificate::Unlabelled)) {
            self.served.entry(host.to_owned()).or_insert_with(|| Host { secret: secret.to_owned(), issue: false });
        }
        let (flaw, why) = match own {
            None => (
                CertificateIssue::Lacking,
                format!(
                    "is not served: there is no Secret {secret} in the namespace {} of the proxies (one in another namespace is not used).",
                    context.namespace
                ),
            ),
            Some(UserCertificate::Unlabelled) => (
                CertificateIssue::Lacking,
                format!("is not served: {at} lacks the label {}=true, which permits its use.", names::OWN_CERTIFICATE),
            ),
            Some(UserCertificate::Unread) => return,
            Some(UserCertificate::Unusable(why)) => {
                (CertificateIssue::Lacking, format!("has no certificate: {at} cannot be used, as {why}."))
            }
            Some(UserCertificate::Leaf(leaf)) => match leaf.is_for(host) {
                Err(why) => (CertificateIssue::Lacking, format!("has no certificate: in {at} {why}.")),
                Ok(()) => match Validity::of(&leaf.certificate, context.now).0 {
                    Validity::Valid => return,
                    Validity::Early(from) => {
                        (CertificateIssue::Invalid, format!("is refused by clients: the certificate in {at} is not valid before {from}."))
                    }
                    Validity::Ended(until) => {
                        (CertificateIssue::Invalid, format!("is refused by clients: the certificate in {at} ended at {until}. Renew it."))
                    }
                    Validity::Ending(until) => {
                        (CertificateIssue::Ending, format!("has a certificate, in {at}, that ends at {until}. Renew it."))
                    }
                },
            },
        };
        self.flaws.insert(host.to_owned(), flaw);
        let list = if flaw == CertificateIssue::Ending { &mut self.warnings } else { &mut self.notes };
        list.add(|| format!("host {host} {why}"));
    }
}

impl Routing<'_, '_> {
    fn read(&mut self, ingress: &Ingress, hosts: &BTreeMap<String, Host>, dns: &str, is_own: impl Fn(&str) -> bool) {
        let Some(spec) = ingress.spec.as_ref() else { return };
        for rule in spec.rules.iter().flatten() {
            let host = match rule.host.as_deref().unwrap_or_default() {
                "" => "",
                host if is_own(host) => dns,
                host if hosts.contains_key(host) => host,
                host if host.contains('.') => {
                    self.notes.add(|| {
                        format!(
                            "the rule for host {host} is not served: its name here is {dns}, and spec.tls names no certificate for {host}."
                        )
                    });
                    continue;
                }
                host => {
                    self.notes.add(|| {
                        format!("the rule for host {host} is not served: its name here is {dns}. Set spec.tls[0].hosts to [{host}] to name it so.")
                    });
                    continue;
                }
            };
            for path in rule.http.iter().flat_map(|http| &http.paths) {
                let exact = path.path_type == "Exact";
                let path_text = path.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
                self.add(host, path_text, exact, &path.backend);
            }
        }
        // The default backend gets requests that no rule matches.
        if let Some(backend) = &spec.default_backend {
            self.add("", "/", false, backend);
        }
    }

    /// Adds a route; the first for a host and path wins.
    fn add(&mut self, host: &str, path: &str, exact: bool, wanted: &IngressBackend) {
        if !path.starts_with('/') {
            self.notes.add(|| format!("path {path:?} is not served: it must begin with a slash."));
            return;
        }
        match backend(self.namespace, wanted, self.context) {
            Ok(backend) => {
                let route = Route { host: host.to_owned(), path: path.to_owned(), exact, backend };
                self.routes.entry((host.to_owned(), path.to_owned(), exact)).or_insert(route);
            }
            Err(why) => self.notes.add(|| why),
        }
    }
}
