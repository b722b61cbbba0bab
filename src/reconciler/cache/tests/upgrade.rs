//! Upgrade of stored objects: what commit 992f5d25 stored in a real cluster, with what its control plane listed, is taken over as it is.
//!
//! A change of Pod templates fails here: it restarts every proxy of an existing installation. `UPDATE_GOLDEN=1 make upgrade FROM=<commit>`
//! writes the file.

use k8s_openapi::jiff::Timestamp;

use super::cluster::{Cluster, ObjectId};
use super::*;
use crate::api::control::TailscaleDevice;
use crate::api::names;
use crate::api::vip::{OWNERS, Owners, VipService};
use crate::model::controller::workload::actions::{ControlAction, GroupPlan};
use crate::model::controller::workload::identity::{Device, DeviceAddresses, DeviceId, DeviceLabel, DeviceName, DeviceRecord};
use crate::model::controller::workload::objects::ingress::IngressConfigMap;
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::controller::workload::vip_service::ServiceOwner;

const STORED: &str = include_str!("../../../../tests/golden/upgrade/stored.json");
/// Every workload.
const KEYS: [&str; 5] = ["default/out", "default/solo", "eg", "in", "ingress/default/alone"];
/// Objects that a former version did not make: the record of certificate orders of standalone Ingresses.
const NEW_OBJECTS: [&str; 1] = ["ConfigMap tailyard-certificates-default"];
/// Number of replicas: two of each group, and one of each standalone proxy.
const REPLICAS: usize = 7;

/// The stored cluster before the first pass, its objects changed by `edit`.
fn stored(edit: impl Fn(&mut Value)) -> Cluster {
    let mut stored: Value = serde_json::from_str(STORED).expect("JSON");
    let text = |key: &str| stored["settings"][key].as_str().expect("a text").to_owned();
    let (image, namespace, server) = (text("image"), text("namespace"), text("server"));
    let now = stored["settings"]["time"].as_i64().expect("seconds");
    let services: Vec<VipService> = serde_json::from_value(stored["services"].take()).expect("Tailscale Services");
    let owners: Owners = serde_json::from_str(&services[0].annotations[OWNERS]).expect("owners");
    let id = owners.owner_refs[0].operator_id.clone();
    let owner = ServiceOwner { id, ..ServiceOwner::default() };
    let settings = GroupSettings { tags: vec!["tag:k8s".into()], cluster: owner, ..GroupSettings::new(namespace, image) };
    let vips = services.into_iter().map(|service| (service.name.clone(), service)).collect();
    let mut cluster = Cluster::of(settings, server, vips, now);
    for mut object in serde_json::from_value::<Vec<Value>>(stored["objects"].take()).expect("objects") {
        edit(&mut object);
        let kind = object["kind"].as_str().expect("a kind").to_owned();
        cluster.put_watched(&kind, object);
    }
    for device in serde_json::from_value::<Vec<TailscaleDevice>>(stored["devices"].take()).expect("devices") {
        let (id, device) = listed(device);
        cluster.devices.insert(id, device);
    }
    assert_eq!(Cluster::keys(&cluster.cache), KEYS.map(str::to_owned).into());
    cluster
}

/// A device as its control plane lists it.
fn listed(device: TailscaleDevice) -> (DeviceId, Device) {
    let name = DeviceName::parse(&device.name).map_or(DeviceLabel::Unknown, DeviceLabel::Whole);
    let addresses = DeviceAddresses::parse(device.addresses.iter().map(String::as_str));
    let created = device.created.parse::<Timestamp>().ok();
    let id = DeviceId::parse(&device.node_id).expect("an ID");
    (id, Device { id: device.node_id, hostname: device.hostname, tags: device.tags, name, addresses, created, key: None })
}

/// Fails if a plan deletes, restarts or replaces something.
fn assert_harmless(key: &str, plan: &GroupPlan, before: &BTreeMap<ObjectId, Value>) {
    assert!(plan.delete.is_empty(), "{key} deletes {:?}", plan.delete);
    for action in &plan.control {
        let is_harmless = matches!(
            action,
            ControlAction::RecordDevice { .. } | ControlAction::ListServices { .. } | ControlAction::PublishService { .. }
        );
        assert!(is_harmless, "{key}: {action:?}");
    }
    for manifest in &plan.apply {
        let object = &manifest.object;
        let existing = before.get(&(object.kind.name(), object.namespace.clone(), object.name.clone()));
        let Some(existing) = existing else {
            assert!(NEW_OBJECTS.contains(&&*format!("{} {}", object.kind.name(), object.name)), "{key} creates {object}");
            continue;
        };
        if object.kind == Kind::StatefulSet {
            let template = "/spec/template";
            let [planned, stored] = [&manifest.value, existing].map(|value| value.pointer(template).expect("a template"));
            assert!(is_within(planned, stored), "{key} restarts the Pods of {object}: {planned}\n{stored}");
        }
    }
}

/// Whether an object has these fields; the API server adds defaults.
fn is_within(fields: &Value, object: &Value) -> bool {
    match (fields, object) {
        (Value::Object(fields), Value::Object(object)) => {
            fields.iter().all(|(key, field)| is_within(field, object.get(key).unwrap_or(&Value::Null)))
        }
        (Value::Array(fields), Value::Array(object)) => {
            fields.len() == object.len() && fields.iter().zip(object).all(|(field, object)| is_within(field, object))
        }
        _ => fields == object || (fields.is_null() && object.is_null()),
    }
}

/// Runs passes over all keys until none changes anything; returns their number.
fn settle(cluster: &mut Cluster) -> usize {
    let mut pass = || KEYS.iter().filter(|key| cluster.pass(key)).count() > 0;
    (0..10).take_while(|_| pass()).count()
}

/// Device records by config Secret.
fn records(cluster: &Cluster) -> BTreeMap<String, DeviceRecord> {
    let annotation = |object: &Value| serde_json::from_str(object["metadata"]["annotations"][names::DEVICE].as_str()?).ok();
    cluster.objects.iter().filter_map(|((_, _, name), object)| Some((name.clone(), annotation(object)?))).collect()
}

/// Fails unless the objects of a settled cluster are those stored before, with the device records of what the control plane lists.
fn assert_preserved(cluster: &Cluster, before: &Cluster) {
    assert!(cluster.minted.is_empty() && cluster.takeovers.is_empty(), "{:?} {:?}", cluster.minted, cluster.takeovers);
    assert_eq!(cluster.vips, before.vips);
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    for (id, object) in &before.objects {
        let after = cluster.objects.get(id).unwrap_or_else(|| panic!("{id:?} is gone"));
        assert_eq!(uid(after), uid(object), "{id:?} is replaced");
        if id.2.ends_with("-ingress-config") {
            // A former version wrote no addresses of Tailscale Services.
            let mut config = IngressConfigMap::read(after);
            config.routes.values_mut().for_each(|site| site.addresses.clear());
            assert_eq!(config, IngressConfigMap::read(object), "{id:?}");
            continue;
        }
        let fields: &[&str] = match id.0 {
            "Secret" if object["metadata"]["labels"][names::SECRET_TYPE] == "certs" => &["/data"],
            "ConfigMap" => &["/data", "/binaryData"],
            "Service" | "Ingress" if id.1 == "default" => &["/spec", "/status/loadBalancer"],
            "Service" => &["/spec/ports"],
            "ProxyGroup" => &["/status/devices", "/status/url"],
            _ => &[],
        };
        for field in fields {
            assert_eq!(after.pointer(field), object.pointer(field), "{field} of {id:?}");
        }
    }
    let new = cluster.objects.keys().filter(|id| !before.objects.contains_key(*id));
    assert_eq!(new.map(|(kind, _, name)| format!("{kind} {name}")).collect::<Vec<_>>(), NEW_OBJECTS);
    let records = records(cluster);
    assert_eq!(records.len(), REPLICAS);
    for (config, record) in records {
        let replica = config.strip_suffix(names::CONFIG_SECRET_SUFFIX).expect("a config Secret");
        let state = cluster.object("Secret", "tailscale", replica).expect("a state Secret");
        assert_eq!(state["data"]["device_id"], super::cluster::encoded(record.id.as_str()), "{config}");
        let device = &cluster.devices[&record.id];
        assert_eq!((&record.addresses, record.name.clone().map(DeviceLabel::Whole)), (&device.addresses, Some(device.name.clone())));
        assert_eq!(record.tags, ["tag:k8s"]);
    }
}

#[test]
fn first_passes_over_stored_objects_preserve_them_and_complete_their_records() {
    let (before, mut cluster) = (stored(|_| {}), stored(|_| {}));
    let reversed = cluster.cache_of(&cluster.objects, true);
    for key in KEYS {
        let plan = cluster.plan(&cluster.cache, key);
        assert_harmless(key, &plan, &before.objects);
        assert_eq!(cluster.plan(&reversed, key), plan, "watches deliver in any order");
    }
    assert!(settle(&mut cluster) < 10);
    assert_preserved(&cluster, &before);
    let written = cluster.writes.len();
    assert_eq!((settle(&mut cluster), cluster.writes.len()), (0, written), "later passes write nothing");
}

#[test]
fn stored_objects_without_device_records_are_adopted_by_the_control_plane() {
    let without_record = |object: &mut Value| {
        if let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") {
            annotations.remove(names::DEVICE);
        }
    };
    let (before, mut cluster) = (stored(without_record), stored(without_record));
    assert!(records(&before).is_empty());
    for key in KEYS {
        assert_harmless(key, &cluster.plan(&cluster.cache, key), &before.objects);
    }
    settle(&mut cluster);
    assert_preserved(&cluster, &before);
}
