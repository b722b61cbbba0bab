//! What the Pod may do with its state Secret, asked of the API before it is tried.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;

use super::error::ACCESS_REVIEW;
use super::{Call, Cluster, KubeError, Verb, within};

/// What may be done with a Secret. A check that failed counts as the peer counts it: `get` and `update` as allowed, for the
/// calls themselves will tell; `patch` and `create` as not known.
#[derive(Debug, Default)]
pub struct Permissions {
    /// What is not allowed, with the rule that would allow it.
    pub denied: Vec<Call>,
    /// Which checks failed, and how.
    pub unknown: Vec<(Verb, KubeError)>,
}

impl Permissions {
    /// Whether the API said no.
    #[must_use]
    pub fn denies(&self, verb: Verb) -> bool {
        self.denied.iter().any(|call| call.verb == verb)
    }

    /// Whether the API said yes.
    #[must_use]
    pub fn grants(&self, verb: Verb) -> bool {
        !self.denies(verb) && !self.unknown.iter().any(|(unknown, _)| *unknown == verb)
    }
}

impl Cluster {
    /// What the Pod may do with the Secret of this name: get, update, patch, create.
    pub async fn permissions(&self, secret: &str) -> Permissions {
        let mut permissions = Permissions::default();
        for verb in [Verb::Get, Verb::Update, Verb::Patch, Verb::Create] {
            match self.may(verb, secret).await {
                Ok(true) => {}
                Ok(false) => permissions.denied.push(self.call(verb, "Secret", secret)),
                Err(error) => permissions.unknown.push((verb, error)),
            }
        }
        permissions
    }

    async fn may(&self, verb: Verb, secret: &str) -> Result<bool, KubeError> {
        let resource = ResourceAttributes {
            namespace: Some(self.namespace.clone()),
            verb: Some(verb.name().to_owned()),
            resource: Some("secrets".to_owned()),
            name: Some(secret.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(resource), ..SelfSubjectAccessReviewSpec::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let call = || self.call(Verb::Create, ACCESS_REVIEW, secret);
        let answer = within(call, api.create(&PostParams::default(), &review)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}
