//! Arbitrary bytes as tailscaled's mounted config: no panic, the advertised services are written so that they are read back, and writing
//! them again changes nothing.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use tailyard::model::tailnet::advertise::Advertised;
use tailyard::model::tailnet::supervise::conffile::{self, ConfFault, ConfFile};

fuzz_target!(|data: &[u8]| {
    let services = BTreeSet::from(["svc:a".to_owned()]);
    for advertised in
        [Advertised::default(), Advertised { services, withheld: ["10.0.0.0/8".parse().expect("a prefix")].into(), shields_up: true }]
    {
        let written = conffile::advertising(data, &advertised);
        assert_eq!(conffile::advertising(&written, &advertised), written);
        match conffile::check(data) {
            Ok(before) => {
                let wanted = ConfFile { services: advertised.services, shields_up: advertised.shields_up || before.shields_up, ..before };
                assert_eq!(conffile::check(&written), Ok(wanted));
            }
            // This is the one field that is overwritten whatever its value.
            Err(ConfFault::Type { field: "AdvertiseServices", .. }) => assert!(conffile::check(&written).is_ok()),
            Err(_) => assert!(conffile::check(&written).is_err()),
        }
    }
    if let Ok(text) = std::str::from_utf8(data) {
        match conffile::choose(text.lines(), 106) {
            Ok(name) => assert!(conffile::is_config(name) && text.lines().any(|line| line == name)),
            Err(_) => assert!(!text.lines().any(|line| line == "cap-106.hujson")),
        }
    }
});
