//! Checks of control plane credentials: location, content, and result of a test.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use serde::Deserialize as _;
use serde_json::Value;

use super::facts::{ClusterFacts, CredentialCheck, CredentialOutcome};
use super::{Check, ReadResult, advertises, is_reconciler, page, variable};
use crate::api::tailnet::Tailnet;
use crate::model::controller::kinds::tailnet;
use crate::model::controller::kinds::tailnet::Credentials;
use crate::model::controller::workload::device_index::TAILSCALE;
use crate::model::tailnet::supervise::Secret;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialLocation {
    pub user: String,
    pub secret: String,
    pub url: String,
    keys: CredentialKeys,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CredentialKeys {
    Tailnet,
    /// OAuth client: keys of ID and secret.
    OAuth(String, String),
    Headscale(String),
}

/// Locations of the credentials of the reconciler and the Tailnets.
pub fn places(deployments: &[Value], tailnets: &[Value]) -> Vec<CredentialLocation> {
    let own = deployments.iter().find(|deployment| is_reconciler(deployment)).and_then(own);
    let tailnets = tailnets.iter().filter_map(|tailnet| {
        let tailnet: Tailnet = serde_json::from_value(tailnet.clone()).ok()?;
        Some(CredentialLocation {
            user: format!("Tailnet {}", tailnet.metadata.name.as_deref()?),
            secret: tailnet.spec.credentials.secret_name.clone(),
            url: tailnet::url(&tailnet).to_owned(),
            keys: CredentialKeys::Tailnet,
        })
    });
    own.into_iter().chain(tailnets).collect()
}

/// Location of the reconciler's own credentials, from the mounts of its Deployment.
fn own(deployment: &Value) -> Option<CredentialLocation> {
    let pod = &deployment["spec"]["template"]["spec"];
    let container = pod["containers"].as_array()?.first()?;
    let set = |name: &str| container["env"].as_array()?.iter().find(|variable| variable["name"] == name)?["value"].as_str();
    let url = set("OPERATOR_LOGIN_SERVER").filter(|url| !url.is_empty()).unwrap_or(TAILSCALE).to_owned();
    let (secret, keys) = if let Some(file) = set("TAILYARD_HEADSCALE_KEY_FILE") {
        let (secret, key) = mounted(pod, container, file)?;
        (secret, CredentialKeys::Headscale(key))
    } else {
        let (secret, id) = mounted(pod, container, set("CLIENT_ID_FILE")?)?;
        (secret, CredentialKeys::OAuth(id, mounted(pod, container, set("CLIENT_SECRET_FILE")?)?.1))
    };
    Some(CredentialLocation { user: OWN.to_owned(), secret, url, keys })
}

/// Secret and key that are mounted as this file of a container.
fn mounted(pod: &Value, container: &Value, file: &str) -> Option<(String, String)> {
    let under = |mount: &Value| file.strip_prefix(mount["mountPath"].as_str()?)?.strip_prefix('/').map(str::to_owned);
    let (mount, path) = container["volumeMounts"].as_array()?.iter().find_map(|mount| Some((mount, under(mount)?)))?;
    let volume = pod["volumes"].as_array()?.iter().find(|volume| volume["name"] == mount["name"])?;
    let items = volume["secret"]["items"].as_array();
    let key = items.and_then(|items| items.iter().find(|item| item["path"] == path)?["key"].as_str().map(str::to_owned));
    Some((volume["secret"]["secretName"].as_str()?.to_owned(), key.unwrap_or(path)))
}

/// Credentials in a Secret. The error names the missing part.
pub fn credentials(place: &CredentialLocation, secret: &Value) -> Result<Credentials<String>, String> {
    let data = secret.get("data").map(BTreeMap::<String, ByteString>::deserialize).and_then(Result::ok).unwrap_or_default();
    let text = |key: &String| {
        let text = data.get(key).and_then(|value| std::str::from_utf8(&value.0).ok()).map(str::trim);
        text.filter(|text| !text.is_empty()).map(str::to_owned).ok_or_else(|| format!("has no {key}"))
    };
    match &place.keys {
        CredentialKeys::Tailnet => tailnet::credentials(&data),
        CredentialKeys::OAuth(id, secret) => Ok(Credentials::OAuth { client_id: text(id)?, client_secret: Secret::new(text(secret)?) }),
        CredentialKeys::Headscale(key) => Ok(Credentials::Headscale { api_key: Secret::new(text(key)?) }),
    }
}

/// Credentials of the reconciler itself.
const OWN: &str = "the reconciler";

/// Whether a group that advertises has these credentials, or may have them.
fn has_advertising_group(groups: &ReadResult<Vec<Value>>, user: &str) -> bool {
    let has = |group: &Value| match group["spec"]["tailnet"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => user.strip_prefix("Tailnet ") == Some(name),
        None => user == OWN,
    };
    groups.as_ref().map_or(true, |groups| groups.iter().any(|group| advertises(group) && has(group)))
}

pub(super) fn checks(facts: &ClusterFacts) -> Vec<Check> {
    const NAME: &str = "credentials";
    let tried = match &facts.credentials {
        Ok(tried) => tried,
        Err(gap) => return vec![Check::unread(NAME, "where credentials are", gap, "list deployments.apps and tailnets.tailscale.com")],
    };
    let reconciler = facts.deployments.iter().flatten().find(|deployment| is_reconciler(deployment));
    let is_set = |name| reconciler.is_some_and(|deployment| variable(deployment, name).is_some_and(|text| !text.is_empty()));
    if tried.is_empty() && ["CLIENT_ID", "CLIENT_ID_FILE"].into_iter().any(is_set) {
        return vec![Check::ok(NAME, format!("those of {OWN} are no Secret; only the reconciler itself can try them"))];
    }
    if tried.is_empty() {
        let fix = "give the reconciler credentials, or make a Tailnet and name it in spec.tailnet of every group";
        return vec![Check::warn(NAME, "no Secret with credentials is named anywhere", fix)];
    }
    let one = |CredentialCheck { user, secret, outcome }: &CredentialCheck| {
        let of = format!("those of {user} (Secret {secret})");
        match outcome {
            CredentialOutcome::Works => Check::ok(NAME, format!("{of} work")),
            CredentialOutcome::Untested => Check::ok(NAME, format!("{of} are there; only the reconciler itself can try them")),
            CredentialOutcome::Unread(gap) => Check::unread(NAME, &of, gap, "get secrets in the reconciler's namespace"),
            CredentialOutcome::Missing(why) => {
                Check::bad(NAME, format!("{of}: {why}"), format!("make the Secret ({})", page("quickstart.md")))
            }
            CredentialOutcome::Refused(why) => {
                let pages = format!("{}, {}", page("tailscale.md"), page("headscale.md"));
                Check::bad(
                    NAME,
                    format!("{of} are refused: {why}"),
                    format!("create credentials with all scopes and the tags in use ({pages})"),
                )
            }
            CredentialOutcome::WithoutServices(why) if has_advertising_group(&facts.groups, user) => {
                let fix = format!("add the scope General/Services to the OAuth client ({})", page("tailscale.md"));
                Check::bad(NAME, format!("{of} do not permit ProxyGroups of type ingress and kube-apiserver: {why}"), fix)
            }
            CredentialOutcome::WithoutServices(_) => {
                let fix = format!("add the scope General/Services before you create one ({})", page("tailscale.md"));
                Check::warn(NAME, format!("{of} work, but do not permit ProxyGroups of type ingress and kube-apiserver"), fix)
            }
            CredentialOutcome::Unreachable(why) => Check::warn(
                NAME,
                format!("{of} could not be tried from here: {why}"),
                "run tailyard doctor where the control plane is reached, with --control-ca FILE where its authority is not a public one",
            ),
        }
    };
    tried.iter().map(one).collect()
}
