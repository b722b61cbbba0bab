//! Arbitrary JSON as a WhoIs response, and as rules of the capability for Kubernetes: no panic, void grants name the capability, groups are
//! unique, and no group of Kubernetes itself is impersonated without the setting.
#![no_main]

use std::collections::BTreeSet;
use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tailyard::api::proxygroup::ApiServerMode;
use tailyard::api::routes::ApiServerSite;
use tailyard::api::whois::WhoIs;
use tailyard::model::api_server::caller::Caller;
use tailyard::model::api_server::grants::Grants;

const CAPABILITY: &str = "tailscale.com/cap/kubernetes";

fuzz_target!(|data: &[u8]| {
    let mut whois = serde_json::from_slice::<WhoIs>(data).unwrap_or_default();
    if let Ok(rules) = serde_json::from_slice::<Vec<Value>>(data) {
        whois.user_profile.login_name = "alice@example.com".to_owned();
        whois.cap_map.insert(CAPABILITY.to_owned(), rules);
    }
    let caller = |mode| {
        let site = ApiServerSite { mode, send_extra: true, ..ApiServerSite::default() };
        Caller::of(&whois, (IpAddr::from([100, 64, 0, 9]), Some("tail.ts.net")), &site)
    };
    match Grants::read(&whois.cap_map) {
        Ok(grants) => {
            assert!(grants.groups.iter().enumerate().all(|(index, group)| !grants.groups[..index].contains(group)));
            let has_system = grants.groups.iter().any(|group| group.clone().permitted(&BTreeSet::new()).is_err());
            assert!(!has_system || caller(ApiServerMode::Auth).is_err());
            assert!(caller(ApiServerMode::NoAuth).is_ok());
        }
        Err(error) => {
            assert!(error.to_string().contains(CAPABILITY));
            assert_eq!(caller(ApiServerMode::Auth), Err(error.into()));
        }
    }
});
