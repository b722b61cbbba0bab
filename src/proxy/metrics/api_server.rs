//! Requests to the Kubernetes API server.

use super::{number, size};
use crate::proxy::api_server::stats::ApiServerSample;
use crate::runtime::metrics::Page;

families! {
    ApiServerMetrics {
        requests: Counter "tailyard_api_server_requests_total" ["verb", "resource", "code"]
            "Requests to the API server by verb, resource and status code; `other` stands for resources and codes without a label",
        latency: Histogram "tailyard_api_server_request_duration_seconds" ["verb"]
            "Time from a request to the API server until the head of its response",
        refusals: Counter "tailyard_api_server_requests_refused_total" ["reason"] "Requests that were not sent to the API server",
        streams: Gauge "tailyard_api_server_streams" ["kind"] "Open upgraded connections to the API server",
    }
}

impl ApiServerMetrics {
    pub(super) fn write(&self, page: &mut Page, sample: &ApiServerSample) {
        let code = |code: u16| if code == 0 { "other".to_owned() } else { code.to_string() };
        let requests: Vec<_> =
            sample.requests.iter().map(|((verb, resource, status), count)| (*verb, *resource, code(*status), *count)).collect();
        page.write(
            &self.requests,
            requests.iter().map(|(verb, resource, code, count)| ([*verb, *resource, code.as_str()], number(*count))),
        );
        page.write_histogram(&self.latency, sample.latency.iter().map(|(verb, latency)| ([*verb], latency)));
        page.write(&self.refusals, sample.refusals.iter().map(|(reason, count)| ([*reason], number(*count))));
        page.write(&self.streams, sample.streams.iter().map(|(kind, open)| ([kind.label()], size(*open))));
    }
}
