//! Arbitrary bytes as path and query of a request to the API server: no panic, escapes change no fact and hide no session, and no path
//! leaves a base path.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::api_server::base_path::BasePath;
use tailyard::model::api_server::request_info::{ApiRequest, may_open_session};
use tailyard::model::front_end::vhosts::path;

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "X"];

fuzz_target!(|data: &[u8]| {
    let Some((first, target)) = data.split_first() else { return };
    let method = METHODS[usize::from(*first) % METHODS.len()];
    let target = String::from_utf8_lossy(target);
    let (path, query) = target.split_once('?').map_or((&*target, None), |(path, query)| (path, Some(query)));
    let request = ApiRequest::read(method, path, query);
    let decoded = path::percent_decoded(path, None);
    let escaped: String = decoded.iter().map(|byte| format!("%{byte:02x}")).collect();
    assert_eq!(ApiRequest::read(method, &escaped, query), request);
    // A session in the plain reading is one in any other.
    if may_open_session(&request, method, path) && path::resolved(path).as_deref() == Some(path) && path::normal(path) == path {
        assert!(may_open_session(&request, method, &escaped));
    }
    let base = BasePath::read("/k8s/c-1").expect("a path");
    let Ok(target) = target.parse() else { return };
    if let Ok(sent) = base.join(&target) {
        assert!(path::is_below(&path::normal(sent.path()), "/k8s/c-1"));
    }
});
