//! Arbitrary text as routes or serve config, and any path as a request to the resulting sites: no panic, no path with `..` segments, and
//! the forwarded path has the form that was matched.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::front_end::vhosts::{path, read};

fuzz_target!(|data: &[u8]| {
    let (text, target) = data.split_at(data.len() / 2);
    let target = String::from_utf8_lossy(target);
    let form = path::normal(&target);
    assert!(!form.split('/').any(|part| part == ".."));
    if let Some(sent) = path::resolved(&target) {
        assert!(!sent.split(['/', '\\']).any(|part| matches!(part.split(';').next(), Some("." | ".."))));
        assert_eq!(path::normal(&sent), form);
    }
    for read in [read(Some(text), None), read(None, Some(text))].into_iter().flatten() {
        for site in read.sites.values() {
            for (host, port) in site.hosts.keys().flat_map(|host| site.listeners.keys().map(move |port| (host, *port))) {
                let _ = site.decide(port, host, &target);
            }
        }
    }
});
