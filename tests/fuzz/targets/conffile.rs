//! Any bytes as tailscaled's mounted config: no panic, and what is to be advertised is written so that it is read as such, once and for all.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use tailyard::model::tailnet::advertise::Advertised;
use tailyard::model::tailnet::supervise::conffile::{self, ConfFault, ConfFile};

fuzz_target!(|data: &[u8]| {
    let services = BTreeSet::from(["svc:a".to_owned()]);
    for advertised in
        [Advertised::default(), Advertised { services, withheld: ["10.0.0.0/8".parse().expect("a prefix")].into(), shut: true }]
    {
        let said = conffile::advertising(data, &advertised);
        assert_eq!(conffile::advertising(&said, &advertised), said);
        match conffile::check(data) {
            Ok(before) => {
                let wanted = ConfFile { services: advertised.services, shields_up: advertised.shut || before.shields_up, ..before };
                assert_eq!(conffile::check(&said), Ok(wanted));
            }
            // The one field that is written anew whatever it held.
            Err(ConfFault::Type { field: "AdvertiseServices", .. }) => assert!(conffile::check(&said).is_ok()),
            Err(_) => assert!(conffile::check(&said).is_err()),
        }
    }
    if let Ok(text) = std::str::from_utf8(data) {
        match conffile::choose(text.lines(), 106) {
            Ok(name) => assert!(conffile::is_config(name) && text.lines().any(|line| line == name)),
            Err(_) => assert!(!text.lines().any(|line| line == "cap-106.hujson")),
        }
    }
});
