//! The Lease of a group that says which replica orders certificates: read and written, nothing decided.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::{CallFault, Cluster, KubeError, Verb, within};
use crate::api::names::{FIELD_MANAGER, ISSUER_ASKED};
use crate::model::ingress::cert_leader::{CertLeaderStep, LeaseView};

impl Cluster {
    /// What the Lease says, and when it was last renewed; nothing if it does not exist.
    pub async fn issuer(&self, name: &str) -> Result<Option<(LeaseView, Option<Timestamp>)>, KubeError> {
        match within(|| self.call(Verb::Get, "Lease", name), self.leases().get(name)).await {
            Ok(lease) => Ok(Some(view_of(lease))),
            Err(KubeError::Call { fault: CallFault::Refused { code: 404, .. }, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes a step for the replica of this name, if the Lease is still of this version; it is made if there was none. Returns
    /// what it says now.
    pub async fn set_issuer(&self, name: &str, version: Option<&str>, step: CertLeaderStep, replica: &str) -> Result<LeaseView, KubeError> {
        let holder = if step == CertLeaderStep::Hold { replica } else { "" };
        let time = MicroTime(Timestamp::now());
        let Some(version) = version else {
            // The group owns the Lease as it owns the state Secret, so that both are deleted with it.
            let state = within(|| self.call(Verb::Get, "Secret", replica), self.secrets().get_metadata_opt(replica)).await?;
            let owner_references = state.and_then(|state| state.metadata.owner_references);
            let metadata = ObjectMeta { name: Some(name.to_owned()), owner_references, ..ObjectMeta::default() };
            let spec = LeaseSpec { holder_identity: Some(holder.to_owned()), renew_time: Some(time), ..LeaseSpec::default() };
            let lease = Lease { metadata, spec: Some(spec) };
            let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
            let made = within(|| self.call(Verb::Create, "Lease", name), self.leases().create(&parameters, &lease)).await?;
            return Ok(view_of(made).0);
        };
        let handback = (step == CertLeaderStep::Ask).then_some(replica);
        let mut patch = json!({"metadata": {"resourceVersion": version, "annotations": {ISSUER_ASKED: handback}}});
        if step != CertLeaderStep::Ask {
            patch["spec"] = json!({"holderIdentity": holder, "renewTime": time});
        }
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let written =
            within(|| self.call(Verb::Patch, "Lease", name), self.leases().patch(name, &parameters, &Patch::Merge(patch))).await?;
        Ok(view_of(written).0)
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

fn view_of(lease: Lease) -> (LeaseView, Option<Timestamp>) {
    let handback = lease.metadata.annotations.is_some_and(|all| all.contains_key(ISSUER_ASKED));
    let spec = lease.spec.unwrap_or_default();
    let version = lease.metadata.resource_version.unwrap_or_default();
    (LeaseView { version, holder: spec.holder_identity.unwrap_or_default(), handback }, spec.renew_time.map(|time| time.0))
}
