//! Inventory of a cluster: what an upgrade preserves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};

use super::site::Site;

/// Kinds of the objects that the reconciler creates, and of those that Kubernetes derives from them.
pub(super) const OWNED_KINDS: &str =
    "secrets,services,statefulsets,configmaps,roles,rolebindings,serviceaccounts,poddisruptionbudgets,endpointslices";
/// Label of these objects.
pub(super) const MANAGED: &str = "tailscale.com/managed";

pub(super) struct Inventory {
    /// UID of each object, by kind and name.
    objects: BTreeMap<String, String>,
    /// UID of each proxy Pod, with the number of its restarts.
    pub(super) pods: BTreeSet<String>,
    /// ID, name and addresses of each device.
    devices: BTreeSet<String>,
    /// Name and addresses of each Tailscale Service.
    names: BTreeSet<String>,
    /// What users' objects show: addresses, names and targets.
    shown: BTreeMap<String, Value>,
    certificates: usize,
    auth_keys: usize,
}

impl Inventory {
    pub(super) fn take(site: &Site) -> Self {
        let is_ours = |object: &&Value| object["metadata"]["labels"][MANAGED] == "true";
        let mut owned = site.objects(OWNED_KINDS);
        owned.extend(site.list(&["get", "rolebindings", "-n", "default", "-o", "json"]));
        let pods = site.objects("pods");
        let pod = |pod: &Value| {
            let restarts = pod["status"]["containerStatuses"].as_array().into_iter().flatten().map(|one| &one["restartCount"]);
            format!("{} {:?}", pod["metadata"]["uid"], restarts.collect::<Vec<_>>())
        };
        let users = site.list(&["get", "services,ingresses", "-n", "default", "-o", "json"]);
        let shown = |object: &Value| json!([object["status"]["loadBalancer"], object["spec"]["externalName"]]);
        Self {
            objects: owned.iter().filter(is_ours).map(|object| (name(object), object["metadata"]["uid"].to_string())).collect(),
            pods: pods.iter().filter(is_ours).map(pod).collect(),
            devices: lines(&site.cluster.tailnet.devices(), &["nodeId", "name", "addresses"]),
            names: lines(&site.vip_services(), &["name", "addrs"]),
            shown: users.iter().map(|object| (name(object), shown(object))).collect(),
            certificates: site.pebble.issued(),
            auth_keys: site.cluster.tailnet.minted_keys(),
        }
    }

    /// Fails unless everything is there afterwards, and only these objects are new. `may_be_replaced`: an object may have another UID.
    pub(super) fn assert_preserved(&self, after: &Self, new: &[&str], may_be_replaced: impl Fn(&str) -> bool) {
        println!("{after}");
        let is_lost = |name: &str, uid: &str| after.objects.get(name).is_none_or(|now| now != uid && !may_be_replaced(name));
        let lost: Vec<_> = self.objects.iter().filter(|(name, uid)| is_lost(name, uid)).collect();
        let added: Vec<_> = after.objects.keys().filter(|name| !self.objects.contains_key(*name)).collect();
        assert!(lost.is_empty(), "objects are gone or replaced: {lost:#?}");
        assert_eq!(added, new, "new objects");
        assert_eq!(self.devices, after.devices, "devices");
        assert_eq!(self.names, after.names, "Tailscale Services");
        assert_eq!(self.shown, after.shown, "users' objects");
        assert_eq!((self.certificates, self.auth_keys), (after.certificates, after.auth_keys), "certificates and auth keys");
    }
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, pods, devices, names, certificates, auth_keys, .. } = self;
        let [objects, pods, devices, names] = [objects.len(), pods.len(), devices.len(), names.len()];
        write!(f, "{objects} objects, {pods} Pods, {devices} devices, {names} Tailscale Services, ")?;
        write!(f, "{certificates} certificates issued, {auth_keys} auth keys created")
    }
}

fn name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// These fields of each item.
fn lines(items: &[Value], fields: &[&str]) -> BTreeSet<String> {
    items.iter().map(|item| fields.iter().map(|field| item[*field].to_string()).collect::<Vec<_>>().join(" ")).collect()
}
