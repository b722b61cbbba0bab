//! HTTP ingress: requests, connections, TLS handshakes, upstreams and certificates.

use super::{Snapshot, number, size};
use crate::api::routes::Backend;
use crate::proxy::ingress::l7::L7Sample;
use crate::proxy::ingress::l7::stats::CODES;
use crate::runtime::metrics::{Kind, Page, Registry, Sampled};

#[derive(Debug)]
pub(super) struct SiteMetrics {
    requests: Sampled<2>,
    latency: Sampled<1>,
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
    ejected: Sampled<1>,
    unfollowed: Sampled<2>,
    funnel_errors: Sampled<2>,
}

impl SiteMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let mut of = |name, kind, help| registry.sampled(name, kind, help, ["proxied_service"]);
        let (counter, gauge) = (Kind::Counter, Kind::Gauge);
        let latency = of("tailyard_http_upstream_latency_seconds", Kind::Histogram, "Time from a request until the head of its response");
        let connections = of("tailyard_http_connections", gauge, "Open client connections, including upgraded ones");
        let fallbacks = of("tailyard_http_clusterip_fallbacks_total", counter, "Requests sent to the ClusterIP: no endpoint was reachable");
        let upgrades = of("tailyard_http_upgrades_total", counter, "Upgraded connections, such as WebSockets");
        let mut by = |name, kind, help, label| registry.sampled(name, kind, help, ["proxied_service", label]);
        let requests = by("tailyard_http_requests_total", counter, "Requests by status class", "code");
        let handshakes = by("tailyard_tls_handshakes_total", counter, "TLS handshakes by result", "result");
        let refused = by(
            "tailyard_http_connections_rejected_total",
            counter,
            "Client connections closed before a request: malformed or late PROXY header, or the limit of one client address (`Source`)",
            "reason",
        );
        let aborted = by(
            "tailyard_http_requests_aborted_total",
            counter,
            "Requests aborted by a timeout of the `Client`, the `Backend` or a `Tunnel`, or rejected by a limit (`Full`)",
            "reason",
        );
        let help = "Failed attempts to send a request to an endpoint; a retry may have succeeded";
        let failures = by("tailyard_http_upstream_errors_total", counter, help, "reason");
        let missing = by("tailyard_certificate_missing", gauge, "1 for each host without a certificate", "name");
        let funnel_errors = by("tailyard_funnel_unavailable", gauge, "1 for each Funnel host that the internet cannot reach", "reason");
        let faults = by("tailyard_http_listener_error", gauge, "1 for each port that cannot be listened on", "port");
        let mut pair = |name, help, labels| registry.sampled(name, gauge, help, labels);
        let certificates = pair(
            "tailyard_certificate_invalid",
            "1 while the newest certificate of the name is invalid; an older one stays in use",
            ["name", "reason"],
        );
        let unfollowed = pair(
            "tailyard_endpointslice_watch_error",
            "1 while the EndpointSlices of a namespace cannot be watched",
            ["backend_namespace", "reason"],
        );
        let mut upstream = |name, help| registry.sampled(name, gauge, help, ["upstream"]);
        let endpoints = upstream("tailyard_upstream_endpoints", "Endpoints of the upstream");
        let ejected = upstream("tailyard_upstream_endpoints_ejected", "Endpoints ejected after connect failures");
        Self {
            requests,
            latency,
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
            ejected,
            unfollowed,
            funnel_errors,
        }
    }

    pub(super) fn write(&self, page: &mut Page, snapshot: &Snapshot) {
        page.write(&self.funnel_errors, snapshot.funnel_errors.iter().map(|(name, why)| ([name.as_str(), why.reason()], 1.0)));
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
        page.write(&self.endpoints, backends.iter().map(|(name, (endpoints, _))| ([name.as_str()], size(*endpoints))));
        page.write(&self.ejected, backends.iter().map(|(name, (_, ejected))| ([name.as_str()], size(*ejected))));
    }

    fn write_counts(&self, page: &mut Page, sample: &L7Sample) {
        let sites = || sample.sites.iter().map(|(name, counts)| (name.as_str(), counts));
        let codes =
            sites().flat_map(|(name, counts)| CODES.into_iter().zip(counts.codes).map(move |(code, count)| ([name, code], number(count))));
        page.write(&self.requests, codes);
        page.write_histogram(&self.latency, sites().map(|(name, counts)| ([name], &counts.latency)));
        page.write(&self.connections, sites().map(|(name, counts)| ([name], size(counts.open))));
        page.write(&self.fallbacks, sites().map(|(name, counts)| ([name], number(counts.fallbacks))));
        page.write(&self.upgrades, sites().map(|(name, counts)| ([name], number(counts.upgrades))));
        let words = |of: fn(&crate::proxy::ingress::l7::stats::SiteCounts) -> &std::collections::BTreeMap<&'static str, u64>| {
            sites().flat_map(move |(name, counts)| of(counts).iter().map(move |(word, count)| ([name, *word], number(*count))))
        };
        page.write(&self.handshakes, words(|counts| &counts.handshakes));
        page.write(&self.refused, words(|counts| &counts.refused));
        page.write(&self.aborted, words(|counts| &counts.aborted));
        page.write(&self.failures, words(|counts| &counts.failures));
    }
}

/// Label of a backend: Service and port, else its address, as in a serve config.
fn called(backend: &Backend) -> String {
    let Backend { namespace, service, port_name, address, .. } = backend;
    match (service.as_str(), port_name.as_str()) {
        ("", _) => address.clone(),
        (service, "") => format!("{namespace}/{service}"),
        (service, port) => format!("{namespace}/{service}:{port}"),
    }
}
