//! Fixture of the unit tests: the stored objects of a version, without secrets.

use std::fmt::Write as _;
use std::fs;
use std::string::FromUtf8Error;

use k8s_openapi::ByteString;
use kit::cluster::chart::{CONTROL, NAMESPACE};
use serde_json::{Value, json};

use super::inventory::{MANAGED, OWNED_KINDS};
use super::site::{FORMER, Site};

const FILE: &str = "tests/golden/upgrade/stored.json";
/// Prefixes of secret texts, which are replaced as far as they have letters, digits and hyphens.
const SECRETS: [&str; 4] = ["privkey:", "nlpriv:", "tskey-auth-", "tskey-client-"];
/// Markers of a private key in PEM.
const PEM: [&str; 2] = ["-----BEGIN PRIVATE KEY-----\n", "-----END PRIVATE KEY-----"];

/// Writes objects, devices and Tailscale Services, one a line.
pub(super) fn write(site: &Site) {
    let is_ours = |object: &Value| object["metadata"]["labels"][MANAGED] == "true";
    let mut objects = site.objects(&format!("{OWNED_KINDS},pods"));
    objects.retain(is_ours);
    objects.extend(site.list(&["get", "services,ingresses,endpointslices,rolebindings", "-n", "default", "-o", "json"]));
    objects.extend(site.list(&["get", "proxygroups,proxyclasses,ingressclasses,namespaces", "-o", "json"]));
    objects.iter_mut().for_each(scrub);
    let lines = |items: &[Value]| items.iter().map(Value::to_string).collect::<Vec<_>>().join(",\n");
    let (devices, services) = (site.cluster.tailnet.devices(), site.vip_services());
    let time = k8s_openapi::jiff::Timestamp::now();
    let settings = json!({"image": FORMER, "namespace": NAMESPACE, "server": CONTROL, "time": time.as_second()});
    let mut text = format!("{{\"settings\": {settings},\n");
    for (name, items) in [("objects", objects), ("devices", devices), ("services", services)] {
        let _infallible = write!(text, "\"{name}\": [\n{}\n]{}", lines(&items), if name == "services" { "}\n" } else { ",\n" });
    }
    let path = kit::root().join(FILE);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("written");
}

/// Removes what only the API server uses, and secrets.
fn scrub(object: &mut Value) {
    object["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    let is_secret = object["kind"] == "Secret";
    for value in object["data"].as_object_mut().into_iter().flat_map(|data| data.values_mut()).filter(|_| is_secret) {
        let content: ByteString = serde_json::from_value(value.take()).expect("Base64");
        let content = String::from_utf8(content.0).map_or_else(FromUtf8Error::into_bytes, |text| without_secrets(text).into_bytes());
        *value = json!(ByteString(content));
    }
}

/// Replaces private keys and auth keys by invented ones of the same form.
fn without_secrets(mut text: String) -> String {
    for prefix in SECRETS {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
        replace_after(&mut text, prefix, |rest| "0".repeat(rest.bytes().take_while(is_part).count()));
    }
    replace_after(&mut text, PEM[0], |rest| {
        let body = rest.find(PEM[1]).unwrap_or(rest.len());
        rest[..body].chars().map(|letter| if letter.is_whitespace() { letter } else { 'A' }).collect()
    });
    text
}

/// Replaces the begin of what follows each occurrence of a text by another of the same length.
fn replace_after(text: &mut String, prefix: &str, replacement: impl Fn(&str) -> String) {
    let mut from = 0;
    while let Some(found) = text[from..].find(prefix) {
        from += found + prefix.len();
        let new = replacement(&text[from..]);
        text.replace_range(from..from + new.len(), &new);
    }
}
