//! Access reviews of the Pod's permissions, and tokens that identify it.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;

use super::error::ACCESS_REVIEW;
use super::{ApiCall, Cluster, KubeError, Verb, within};
use crate::model::diagnostics::doctor::rights::Right;

/// Permissions on a Secret. A failed check counts as in the Tailscale operator's proxies: `get` and `update` as allowed, since the calls
/// themselves will show it; `patch` and `create` as unknown.
#[derive(Debug, Default)]
pub struct Permissions {
    /// Denied calls; [`ApiCall::rule`] is the missing RBAC rule.
    pub denied: Vec<ApiCall>,
    /// Failed checks with their errors.
    pub unknown: Vec<(Verb, KubeError)>,
}

impl Permissions {
    /// Whether the API denied the verb.
    pub fn denies(&self, verb: Verb) -> bool {
        self.denied.iter().any(|call| call.verb == verb)
    }
}

impl Cluster {
    /// Reviews the Pod's permissions on the Secret of this name: get, update, patch, create.
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

    /// Requests a token of a service account in the client's namespace for an audience; needs `create` on its `token` subresource.
    pub async fn service_account_token(&self, name: &str, audience: &str, holds: Duration) -> Result<String, KubeError> {
        let spec = TokenRequestSpec {
            audiences: Some(vec![audience.to_owned()]),
            expiration_seconds: i64::try_from(holds.as_secs()).ok(),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let call = || self.call(Verb::Create, "ServiceAccount/token", name);
        let made: TokenRequest = within(call, api.create_subresource("token", name, &PostParams::default(), &request)).await?;
        Ok(made.status.and_then(|status| status.token).unwrap_or_default())
    }

    /// User name of this client at the API server; needs no permission.
    pub async fn who(&self) -> Result<String, KubeError> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let call = || ApiCall { namespace: String::new(), ..self.call(Verb::Create, "SelfSubjectReview", "") };
        let answer = within(call, api.create(&PostParams::default(), &SelfSubjectReview::default())).await?;
        Ok(answer.status.and_then(|status| status.user_info?.username).unwrap_or_default())
    }

    /// Whether a user has a permission; needs `create` on `subjectaccessreviews`. Without a user it reviews this client, which needs no
    /// permission.
    pub async fn allowed(&self, right: &Right, user: Option<&str>) -> Result<bool, KubeError> {
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let resource = ResourceAttributes {
            group: text(&right.group),
            resource: text(&right.resource),
            subresource: text(&right.subresource),
            verb: text(&right.verb),
            name: text(&right.name),
            namespace: text(&right.namespace),
            ..ResourceAttributes::default()
        };
        let Some(user) = user else { return self.may_self(resource).await };
        let groups =
            ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{}", self.namespace), "system:authenticated".to_owned()];
        let spec = SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups: Some(groups.into()),
            resource_attributes: Some(resource),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let call = || ApiCall { namespace: String::new(), ..self.call(Verb::Create, "SubjectAccessReview", user) };
        let answer = within(call, api.create(&PostParams::default(), &review)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    async fn may(&self, verb: Verb, secret: &str) -> Result<bool, KubeError> {
        let resource = ResourceAttributes {
            namespace: Some(self.namespace.clone()),
            verb: Some(verb.name().to_owned()),
            resource: Some("secrets".to_owned()),
            name: Some(secret.to_owned()),
            ..ResourceAttributes::default()
        };
        self.may_self(resource).await
    }

    async fn may_self(&self, resource: ResourceAttributes) -> Result<bool, KubeError> {
        let name = resource.name.clone().unwrap_or_default();
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(resource), ..SelfSubjectAccessReviewSpec::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let call = || self.call(Verb::Create, ACCESS_REVIEW, &name);
        let answer = within(call, api.create(&PostParams::default(), &review)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}
