//! Counters of requests to the API server, read by scrapes. Labels have bounded sets of values, whatever clients request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;

use crate::model::api_server::request_info::{ApiRequest, StreamKind};
use crate::proxy::front_end::stats::LATENCY_BOUNDS;
use crate::runtime::metrics::HistogramSample;

/// Codes that API servers and this proxy respond with; others share one label. Backends of the API server's own proxy choose theirs.
const CODES: [u16; 30] = [
    101, 200, 201, 202, 204, 206, 301, 302, 304, 307, 400, 401, 403, 404, 405, 406, 408, 409, 410, 412, 413, 415, 421, 422, 429, 431, 500,
    502, 503, 504,
];
/// Label of other codes.
const OTHER: u16 = 0;

/// Counters; clones share them.
#[derive(Debug, Clone, Default)]
pub struct ApiServerStats(Arc<Mutex<ApiServerSample>>);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApiServerSample {
    /// Requests by verb, resource and code; code 0 stands for any other.
    pub requests: BTreeMap<(&'static str, &'static str, u16), u64>,
    /// Time until the response head, by verb.
    pub latency: BTreeMap<&'static str, HistogramSample>,
    /// Refused requests by reason.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Open streams by kind.
    pub streams: BTreeMap<StreamKind, usize>,
}

/// Guard of an open stream.
#[derive(Debug)]
pub(super) struct StreamGuard(ApiServerStats, StreamKind);

impl ApiServerStats {
    pub fn sample(&self) -> ApiServerSample {
        self.locked().clone()
    }

    pub(super) fn answered(&self, request: &ApiRequest, status: StatusCode, waited: Duration) {
        let (verb, resource, code) = (request.verb, request.resource_label(), status.as_u16());
        let code = if CODES.binary_search(&code).is_ok() { code } else { OTHER };
        let mut sample = self.locked();
        *sample.requests.entry((verb, resource, code)).or_default() += 1;
        sample.latency.entry(verb).or_insert_with(|| HistogramSample::new(&LATENCY_BOUNDS)).observe(waited.as_secs_f64());
    }

    pub(super) fn refused(&self, reason: &'static str) {
        *self.locked().refusals.entry(reason).or_default() += 1;
    }

    pub(super) fn opened(&self, kind: StreamKind) -> StreamGuard {
        *self.locked().streams.entry(kind).or_default() += 1;
        StreamGuard(self.clone(), kind)
    }

    fn locked(&self) -> MutexGuard<'_, ApiServerSample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        *self.0.locked().streams.entry(self.1).or_insert(1) -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_requests_are_bounded() {
        let stats = ApiServerStats::default();
        for number in 0..1_000_u16 {
            let path = format!("/apis/group{number}/v1/resource{number}/name");
            let request = ApiRequest::read(&format!("METHOD{number}"), &path, None);
            let code = StatusCode::from_u16(100 + number % 900).expect("a code");
            stats.answered(&request, code, Duration::from_millis(number.into()));
        }
        let sample = stats.sample();
        assert_eq!(sample.requests.values().sum::<u64>(), 1_000);
        assert!(sample.requests.len() <= CODES.len() + 1 && sample.latency.len() == 1, "{sample:?}");
        assert_eq!(sample.latency["other"].counts.iter().sum::<u64>(), 1_000);
    }

    #[test]
    fn codes_that_this_proxy_and_api_servers_respond_with_have_labels() {
        assert!(CODES.is_sorted());
        for code in [200, 304, 400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 415, 421, 422, 429, 431, 500, 502, 503, 504] {
            let stats = ApiServerStats::default();
            let request = ApiRequest::read("GET", "/api/v1/pods", None);
            stats.answered(&request, StatusCode::from_u16(code).expect("a code"), Duration::ZERO);
            assert_eq!(stats.sample().requests, [(("list", "pods", code), 1)].into());
        }
    }

    #[test]
    fn stream_is_open_until_its_guard_is_dropped() {
        let stats = ApiServerStats::default();
        let (first, second) = (stats.opened(StreamKind::Exec), stats.opened(StreamKind::Exec));
        assert_eq!(stats.sample().streams[&StreamKind::Exec], 2);
        drop((first, second));
        assert_eq!(stats.sample().streams[&StreamKind::Exec], 0);
    }
}
