//! Any bytes as tailscaled's mounted config: it is checked without a panic, and what passes is JSON with comments at most.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::supervise::conffile;

fuzz_target!(|data: &[u8]| {
    let _ = conffile::check(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = conffile::choose(text.lines(), 106);
    }
});
