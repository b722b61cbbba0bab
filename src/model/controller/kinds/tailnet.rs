//! Validation of a `Tailnet`: credentials in its Secret, status and finalizer.
//!
//! Pure: the control plane's verdict on the credentials and the time are arguments.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;

use crate::api::condition::{Condition, TAILNET_READY, reason};
use crate::api::names::FINALIZER;
use crate::api::tailnet::{Tailnet, TailnetStatus};
use crate::model::base::conditions;
use crate::model::base::conditions::{ConditionStatus, DesiredCondition};
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::control_plane::Capabilities;
use crate::model::controller::workload::device_index::TAILSCALE;
use crate::model::controller::workload::finalizers;
use crate::model::controller::workload::finalizers::Validation;
use crate::model::tailnet::supervise::Secret;

/// Credentials of a control plane; the variant also selects its API. `Token`: source of a federated client's token, an audience or a
/// location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials<Token = String> {
    /// OAuth client of Tailscale.
    OAuth { client_id: String, client_secret: Secret },
    /// Federated client of Tailscale: exchanges a token of the reconciler's service account.
    Identity { client_id: String, token: Token },
    /// API key of headscale.
    Headscale { api_key: Secret },
}

impl<Token> Credentials<Token> {
    /// Token source of a federated client; `None` for others.
    pub fn token(&self) -> Option<&Token> {
        if let Self::Identity { token, .. } = self { Some(token) } else { None }
    }

    /// The same credentials with another token source.
    pub fn with_token<Other>(self, from: impl FnOnce(Token) -> Other) -> Credentials<Other> {
        match self {
            Self::OAuth { client_id, client_secret } => Credentials::OAuth { client_id, client_secret },
            Self::Identity { client_id, token } => Credentials::Identity { client_id, token: from(token) },
            Self::Headscale { api_key } => Credentials::Headscale { api_key },
        }
    }
}

/// Verdict of a control plane on credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlPlaneVerdict {
    /// Credentials accepted, with the control plane's capabilities.
    Valid(Capabilities),
    /// The Secret has no valid credentials, with the reason.
    InvalidSecret(String),
    /// Credentials rejected or control plane unavailable, with its message.
    Refused(String),
}

/// Parses credentials. The error names the missing keys. An audience has priority over a client secret, as in the Tailscale operator.
pub fn credentials(data: &BTreeMap<String, ByteString>) -> Result<Credentials, String> {
    let text = |key: &str| {
        let text = data.get(key).and_then(|value| std::str::from_utf8(&value.0).ok()).map(str::trim);
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    if let Some(key) = text("api_key") {
        return Ok(Credentials::Headscale { api_key: Secret::new(key) });
    }
    let Some(client_id) = text("client_id") else {
        return Err("has neither client_id (Tailscale) nor api_key (headscale)".to_owned());
    };
    match (text("audience"), text("client_secret")) {
        (Some(audience), _) => Ok(Credentials::Identity { client_id, token: audience }),
        (None, Some(secret)) => Ok(Credentials::OAuth { client_id, client_secret: Secret::new(secret) }),
        (None, None) => Err("has client_id but neither client_secret nor audience".to_owned()),
    }
}

/// URL of a Tailnet's control plane.
pub fn url(tailnet: &Tailnet) -> &str {
    tailnet.spec.login_url.as_deref().filter(|url| !url.is_empty()).unwrap_or(TAILSCALE)
}

/// Plans finalizer and status. `users` are the groups that use it; they delay its deletion.
pub fn validate(tailnet: &Tailnet, verdict: &ControlPlaneVerdict, users: &[WorkloadKey], now: Timestamp) -> Validation<TailnetStatus> {
    let is_terminating = tailnet.metadata.deletion_timestamp.is_some();
    let mut validation = Validation::default();
    if is_terminating && users.is_empty() {
        validation.finalizers = finalizers::change(&tailnet.metadata, FINALIZER, false);
        return validation;
    }
    if !is_terminating {
        validation.finalizers = finalizers::change(&tailnet.metadata, FINALIZER, true);
    }
    let (status, reason, mut message) = match verdict {
        ControlPlaneVerdict::Valid(capabilities) => {
            let lacking = capabilities.lacking().map(|lacking| format!("; {lacking}")).unwrap_or_default();
            (ConditionStatus::True, reason::TAILNET_VALID, format!("the credentials work{lacking}"))
        }
        ControlPlaneVerdict::InvalidSecret(why) => (ConditionStatus::False, reason::INVALID_SECRET, why.clone()),
        ControlPlaneVerdict::Refused(why) => (ConditionStatus::False, reason::INVALID_OAUTH, why.clone()),
    };
    if is_terminating {
        let users: Vec<_> = users.iter().map(WorkloadKey::name).collect();
        message = format!("{message}; it goes when these ProxyGroups are gone or have left it: {}", users.join(", "));
    }
    let mut conditions: Vec<Condition> = tailnet.status.clone().unwrap_or_default().conditions;
    let generation = tailnet.metadata.generation.unwrap_or_default();
    let wanted = DesiredCondition { kind: TAILNET_READY, status, reason, message: message.clone(), generation };
    if conditions::set(&mut conditions, &wanted, now) {
        validation.status = Some(TailnetStatus { conditions });
        validation.warnings.extend((status != ConditionStatus::True || is_terminating).then_some((reason, message)));
    }
    validation
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WORKS: ControlPlaneVerdict = ControlPlaneVerdict::Valid(Capabilities::TAILSCALE);

    fn data(values: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
        values.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect()
    }

    fn tailnet() -> Tailnet {
        let object = json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "Tailnet", "metadata": {"name": "t", "generation": 1},
            "spec": {"credentials": {"secretName": "s"}}});
        serde_json::from_value(object).expect("a tailnet")
    }

    #[test]
    fn secret_has_exactly_one_kind_of_credentials() {
        let oauth = credentials(&data(&[("client_id", "i\n"), ("client_secret", "s")]));
        assert_eq!(oauth, Ok(Credentials::OAuth { client_id: "i".into(), client_secret: Secret::new("s") }));
        let identity = credentials(&data(&[("client_id", "i"), ("client_secret", "s"), ("audience", "a")]));
        assert_eq!(identity, Ok(Credentials::Identity { client_id: "i".into(), token: "a".to_owned() }));
        let headscale = credentials(&data(&[("api_key", "k")]));
        assert_eq!(headscale, Ok(Credentials::Headscale { api_key: Secret::new("k") }));
        for missing in [data(&[]), data(&[("client_id", " ")]), data(&[("client_id", "i")]), data(&[("client_secret", "s")])] {
            credentials(&missing).expect_err("something is missing");
        }
    }

    #[test]
    fn validation_result_sets_the_condition_once() {
        let mut tailnet = tailnet();
        let validation = validate(&tailnet, &WORKS, &[], Timestamp::UNIX_EPOCH);
        assert_eq!((validation.finalizers.clone(), validation.warnings.len()), (Some(vec![FINALIZER.to_owned()]), 0));
        tailnet.status = validation.status;
        tailnet.metadata.finalizers = validation.finalizers;
        assert_eq!(validate(&tailnet, &WORKS, &[], Timestamp::UNIX_EPOCH), Validation::default());
        let refused = validate(&tailnet, &ControlPlaneVerdict::Refused("no".into()), &[], Timestamp::UNIX_EPOCH);
        assert_eq!(refused.warnings, [("InvalidOAuth", "no".to_owned())]);
        assert_eq!(refused.status.expect("news").conditions[0].reason, "InvalidOAuth");
    }

    #[test]
    fn missing_capabilities_are_named_in_the_valid_condition() {
        let validation = validate(&tailnet(), &ControlPlaneVerdict::Valid(Capabilities::HEADSCALE), &[], Timestamp::UNIX_EPOCH);
        let condition = validation.status.expect("news").conditions.remove(0);
        assert_eq!((condition.status.as_str(), condition.reason.as_str(), validation.warnings.len()), ("True", "TailnetValid", 0));
        assert!(condition.message.contains("no Tailscale Services and issues no certificates"), "{}", condition.message);
    }

    #[test]
    fn only_workload_identity_credentials_have_a_token() {
        let identity = Credentials::Identity { client_id: "i".into(), token: "a" };
        assert_eq!(identity.token(), Some(&"a"));
        assert_eq!(identity.with_token(str::len), Credentials::Identity { client_id: "i".into(), token: 1 });
        assert_eq!(Credentials::<&str>::Headscale { api_key: Secret::new("k") }.token(), None);
    }

    #[test]
    fn used_tailnet_keeps_its_finalizer_and_names_its_users() {
        let mut tailnet = tailnet();
        tailnet.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        tailnet.metadata.deletion_timestamp = Some(conditions::seconds(Timestamp::UNIX_EPOCH));
        let validation = validate(&tailnet, &WORKS, &[WorkloadKey::of_group("g")], Timestamp::UNIX_EPOCH);
        assert_eq!(validation.finalizers, None);
        assert!(validation.status.expect("news").conditions[0].message.contains("ProxyGroups"), "it says why it stays");
        let validation = validate(&tailnet, &ControlPlaneVerdict::InvalidSecret("gone".into()), &[], Timestamp::UNIX_EPOCH);
        assert_eq!(validation.finalizers, Some(Vec::new()));
    }
}
