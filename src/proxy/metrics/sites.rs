//! HTTP ingress: requests, connections, TLS handshakes, upstreams and certificates.

use super::{Snapshot, number, size};
use crate::api::routes::Backend;
use crate::proxy::front_end::FrontEndSample;
use crate::proxy::front_end::stats::CODES;
use crate::runtime::metrics::Page;

families! {
    SiteMetrics {
        latency: Histogram "tailyard_http_upstream_latency_seconds" ["proxied_service"]
            "Time from a request until the head of its response",
        connections: Gauge "tailyard_http_connections" ["proxied_service"] "Open client connections, including upgraded ones",
        fallbacks: Counter "tailyard_http_clusterip_fallbacks_total" ["proxied_service"]
            "Requests sent to the ClusterIP: no endpoint was reachable",
        upgrades: Counter "tailyard_http_upgrades_total" ["proxied_service"] "Upgraded connections, such as WebSockets",
        requests: Counter "tailyard_http_requests_total" ["proxied_service", "code"] "Requests by status class",
        handshakes: Counter "tailyard_tls_handshakes_total" ["proxied_service", "result"] "TLS handshakes by result",
        refused: Counter "tailyard_http_connections_rejected_total" ["proxied_service", "reason"]
            "Client connections closed before a request: malformed or late PROXY header, the limit of one client address (`Source`), or not opened to the Tailscale Service (`Destination`)",
        aborted: Counter "tailyard_http_requests_aborted_total" ["proxied_service", "reason"]
            "Requests aborted by a timeout of the `Client`, the `Backend` or a `Tunnel`, or rejected by a limit of the Pod (`Full`) or of a client \
             (`Source`)",
        failures: Counter "tailyard_http_upstream_errors_total" ["proxied_service", "reason"]
            "Failed attempts to send a request to an endpoint; a retry may have succeeded",
        missing: Gauge "tailyard_certificate_missing" ["proxied_service", "name"] "1 for each host without a certificate",
        funnel_errors: Gauge "tailyard_funnel_unavailable" ["proxied_service", "reason"]
            "1 for each Funnel host that the internet cannot reach",
        faults: Gauge "tailyard_http_listener_error" ["proxied_service", "port"] "1 for each port that cannot be listened on",
        certificates: Gauge "tailyard_certificate_invalid" ["name", "reason"]
            "1 while the newest certificate of the name is invalid; an older one stays in use",
        unfollowed: Gauge "tailyard_endpointslice_watch_error" ["backend_namespace", "reason"]
            "1 while the EndpointSlices of a namespace cannot be watched, or have no room",
        endpoints: Gauge "tailyard_upstream_endpoints" ["upstream"] "Endpoints of the upstream",
        ejected: Gauge "tailyard_upstream_endpoints_ejected" ["upstream"] "Endpoints ejected after connect failures",
    }
}

impl SiteMetrics {
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

    fn write_counts(&self, page: &mut Page, sample: &FrontEndSample) {
        let sites = || sample.sites.iter().map(|(name, counts)| (name.as_str(), counts));
        let codes =
            sites().flat_map(|(name, counts)| CODES.into_iter().zip(counts.codes).map(move |(code, count)| ([name, code], number(count))));
        page.write(&self.requests, codes);
        page.write_histogram(&self.latency, sites().map(|(name, counts)| ([name], &counts.latency)));
        page.write(&self.connections, sites().map(|(name, counts)| ([name], size(counts.open))));
        page.write(&self.fallbacks, sites().map(|(name, counts)| ([name], number(counts.fallbacks))));
        page.write(&self.upgrades, sites().map(|(name, counts)| ([name], number(counts.upgrades))));
        let words = |of: fn(&crate::proxy::front_end::stats::ListenerCounts) -> &std::collections::BTreeMap<&'static str, u64>| {
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
