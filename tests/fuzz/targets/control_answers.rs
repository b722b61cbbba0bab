//! Arbitrary bytes as responses of a control plane: no panic, and the accepted name of a device parses again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::api::control::{ControlRefusal, CreatedKey, DeviceRoutes, NodeAnswer, TailscaleDevice, TokenAnswer};
use tailyard::api::vip::{VipService, VipServices};
use tailyard::model::controller::workload::identity::{DeviceName, KeyId};
use tailyard::model::controller::workload::vip_service::{DesiredVipService, ServiceOwner, release, verify_owner};

fuzz_target!(|data: &[u8]| {
    let _ = (serde_json::from_slice::<TokenAnswer>(data), serde_json::from_slice::<DeviceRoutes>(data));
    let _ = serde_json::from_slice::<ControlRefusal>(data).map(|refusal| refusal.text());
    let _ = (serde_json::from_slice::<NodeAnswer>(data), serde_json::from_slice::<VipServices>(data));
    if let Ok(key) = serde_json::from_slice::<CreatedKey>(data) {
        let _ = KeyId::parse(&key.id);
    }
    if let Ok(device) = serde_json::from_slice::<TailscaleDevice>(data)
        && let Some(name) = DeviceName::parse(&device.name)
    {
        assert_eq!(DeviceName::parse(name.as_str()), Some(name));
    }
    if let Ok(service) = serde_json::from_slice::<VipService>(data) {
        let owner = ServiceOwner { id: "here".to_owned(), ..ServiceOwner::default() };
        let answered = DesiredVipService {
            name: "svc:a".to_owned(),
            group: "g".to_owned(),
            tags: Vec::new(),
            ports: Vec::new(),
            share: false,
            adopt: true,
            taken_by: [].into(),
            sole_owner: None,
        };
        let _ = (verify_owner(Some(&service), &answered, &owner, false), release(Some(&service), &owner, "g"));
        let sole = DesiredVipService { sole_owner: Some("uid".to_owned()), ..answered };
        let _ = verify_owner(Some(&service), &sole, &owner, false);
    }
});
