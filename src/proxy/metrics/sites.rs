//! The sites: requests, connections, handshakes, and what is wrong with certificates and backends.

use super::{Snapshot, number, size};
use crate::api::routes::Backend;
use crate::proxy::l7::Sample;
use crate::proxy::l7::stats::CODES;
use crate::runtime::metrics::{Kind, Page, Registry, Sampled};

#[derive(Debug)]
pub(super) struct Sites {
    requests: Sampled<2>,
    waited: Sampled<1>,
    connections: Sampled<1>,
    handshakes: Sampled<2>,
    refused: Sampled<2>,
    aborted: Sampled<2>,
    failures: Sampled<2>,
    fallbacks: Sampled<1>,
    upgrades: Sampled<1>,
    missing: Sampled<2>,
    certificates: Sampled<2>,
    faults: Sampled<2>,
    endpoints: Sampled<1>,
    shunned: Sampled<1>,
    unfollowed: Sampled<2>,
    barred: Sampled<2>,
}

impl Sites {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let mut of = |name, kind, help| registry.sampled(name, kind, help, ["proxied_service"]);
        let (counter, gauge) = (Kind::Counter, Kind::Gauge);
        let waited = of("tailyard_site_wait_seconds_total", counter, "Time that requests waited for the head of their answer, together");
        let connections = of("tailyard_site_connections", gauge, "Connections from clients that are open, WebSockets among them");
        let fallbacks =
            of("tailyard_site_fallbacks_total", counter, "Requests that went to the ClusterIP: no endpoint was known or could be reached");
        let upgrades = of("tailyard_site_upgrades_total", counter, "Connections that became something else, such as WebSockets");
        let mut by = |name, kind, help, label| registry.sampled(name, kind, help, ["proxied_service", label]);
        let requests = by("tailyard_site_requests_total", counter, "Requests by how they were answered", "code");
        let handshakes = by("tailyard_site_handshakes_total", counter, "TLS handshakes by their result", "result");
        let refused = by(
            "tailyard_site_connections_refused_total",
            counter,
            "Connections closed without an answer: malformed or late PROXY header, or too many of one client (`Source`)",
            "kind",
        );
        let aborted = by(
            "tailyard_site_requests_aborted_total",
            counter,
            "Requests ended by a timeout of the `Client`, the `Backend` or a `Tunnel`, or refused because limits are reached (`Full`)",
            "kind",
        );
        let help = "Tries to ask an endpoint that failed; the client may not have noticed";
        let failures = by("tailyard_site_backend_failures_total", counter, help, "kind");
        let missing = by("tailyard_site_certificate_missing", gauge, "1 for each name that has no certificate yet", "name");
        let barred = by("tailyard_site_funnel_barred", gauge, "1 for each site that is to be reached from the internet and is not", "kind");
        let faults = by("tailyard_site_port_error", gauge, "1 for each port of the site that cannot be listened on", "port");
        let mut pair = |name, help, labels| registry.sampled(name, gauge, help, labels);
        let certificates = pair(
            "tailyard_certificate_refused",
            "1 while the newest certificate of the name cannot be used; an older one stays",
            ["name", "kind"],
        );
        let unfollowed = pair(
            "tailyard_endpoints_error",
            "1 while the endpoints of a namespace's backends cannot be followed",
            ["backend_namespace", "kind"],
        );
        let mut backend = |name, help| registry.sampled(name, gauge, help, ["backend"]);
        let endpoints = backend("tailyard_backend_endpoints", "Endpoints that are known to answer for the backend");
        let shunned = backend("tailyard_backend_endpoints_shunned", "Those of them that could not be reached and are left alone for now");
        Self {
            requests,
            waited,
            connections,
            handshakes,
            refused,
            aborted,
            failures,
            fallbacks,
            upgrades,
            missing,
            certificates,
            faults,
            endpoints,
            shunned,
            unfollowed,
            barred,
        }
    }

    pub(super) fn write(&self, page: &mut Page, snapshot: &Snapshot) {
        page.write(&self.barred, snapshot.barred.iter().map(|(name, why)| ([name.as_str(), why.kind()], 1.0)));
        let Some(sample) = &snapshot.sites else { return };
        self.write_counts(page, sample);
        let of_sites = || sample.in_place.iter().map(|(name, placed)| (name.as_str(), placed));
        let missing = of_sites().flat_map(|(name, placed)| placed.missing.iter().map(move |host| ([name, host], 1.0)));
        page.write(&self.missing, missing);
        let ports: Vec<_> = of_sites().flat_map(|(name, placed)| placed.faults.keys().map(move |port| (name, port.to_string()))).collect();
        page.write(&self.faults, ports.iter().map(|(name, port)| ([*name, port], 1.0)));
        page.write(&self.certificates, sample.refused.iter().map(|(name, kind)| ([name.as_str(), *kind], 1.0)));
        page.write(&self.unfollowed, sample.unfollowed.iter().map(|(namespace, kind)| ([namespace.as_str(), *kind], 1.0)));
        let backends: Vec<_> = sample.endpoints.iter().map(|(backend, counts)| (called(backend), *counts)).collect();
        page.write(&self.endpoints, backends.iter().map(|(name, (known, _))| ([name.as_str()], size(*known))));
        page.write(&self.shunned, backends.iter().map(|(name, (_, shunned))| ([name.as_str()], size(*shunned))));
    }

    fn write_counts(&self, page: &mut Page, sample: &Sample) {
        let sites = || sample.sites.iter().map(|(name, counts)| (name.as_str(), counts));
        let codes =
            sites().flat_map(|(name, counts)| CODES.into_iter().zip(counts.codes).map(move |(code, count)| ([name, code], number(count))));
        page.write(&self.requests, codes);
        page.write(&self.waited, sites().map(|(name, counts)| ([name], counts.waited.as_secs_f64())));
        page.write(&self.connections, sites().map(|(name, counts)| ([name], size(counts.open))));
        page.write(&self.fallbacks, sites().map(|(name, counts)| ([name], number(counts.fallbacks))));
        page.write(&self.upgrades, sites().map(|(name, counts)| ([name], number(counts.upgrades))));
        let words = |of: fn(&crate::proxy::l7::stats::Sample) -> &std::collections::BTreeMap<&'static str, u64>| {
            sites().flat_map(move |(name, counts)| of(counts).iter().map(move |(word, count)| ([name, *word], number(*count))))
        };
        page.write(&self.handshakes, words(|counts| &counts.handshakes));
        page.write(&self.refused, words(|counts| &counts.refused));
        page.write(&self.aborted, words(|counts| &counts.aborted));
        page.write(&self.failures, words(|counts| &counts.failures));
    }
}

/// A backend's Service and port, else its address: that of a serve config says no more.
fn called(backend: &Backend) -> String {
    let Backend { namespace, service, port_name, address, .. } = backend;
    match (service.as_str(), port_name.as_str()) {
        ("", _) => address.clone(),
        (service, "") => format!("{namespace}/{service}"),
        (service, port) => format!("{namespace}/{service}:{port}"),
    }
}
