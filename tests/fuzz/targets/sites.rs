//! Any text as routes or serve config, and any path for what comes of it: no panic, and no path with a way up.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::sites::{path, read};

fuzz_target!(|data: &[u8]| {
    let (text, target) = data.split_at(data.len() / 2);
    let target = String::from_utf8_lossy(target);
    assert!(!path::normal(&target).split('/').any(|part| part == ".."));
    for read in [read(Some(text), None), read(None, Some(text))].into_iter().flatten() {
        for site in read.sites.values() {
            for (host, port) in site.hosts.keys().flat_map(|host| site.listeners.keys().map(move |port| (host, *port))) {
                let _ = site.decide(port, host, &target);
            }
        }
    }
});
