//! Clients of proxy Pods: with the token of their service account, and no other rights than its Role.

use std::fs;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{Api, PostParams};

use super::{Cluster, NAMESPACE};

impl Cluster {
    /// The client of a service account of the namespace, with a token as the kubelet mounts it into Pods.
    pub async fn client_of_account(&self, account: &str) -> kube::Client {
        let api: Api<ServiceAccount> = Api::namespaced(self.admin(), NAMESPACE);
        let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
        let made: TokenRequest = api.create_subresource("token", account, &PostParams::default(), &request).await.expect("a token");
        let user = format!("account-{account}");
        fs::create_dir_all(self.path(&user)).expect("directory");
        fs::write(self.path(&user).join("token"), made.status.and_then(|status| status.token).expect("a token")).expect("token");
        fs::copy(self.path("certs/apiserver.crt"), self.path(&user).join("ca.crt")).expect("a certificate");
        self.client_of(&user).await
    }
}

/// HTTP status of a request for a Secret.
pub async fn read_status(secrets: &Api<Secret>, name: &str) -> u16 {
    match secrets.get(name).await {
        Ok(_) => 200,
        Err(kube::Error::Api(refusal)) => refusal.code,
        Err(error) => panic!("Secret {name}: {error}"),
    }
}
