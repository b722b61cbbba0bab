//! Leases that the leader reads, passes to another candidate and deletes.

use k8s_openapi::api::coordination::v1::{Lease as Object, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::lease::record;
use super::{ApiCall, ApiRefusal, KubeError, LeaderClient, Verb};
use crate::api::names::RECONCILER_FIELD_MANAGER;
use crate::model::base::leader::{LeaseRecord, LeaseTerms};

impl LeaderClient {
    /// Reads a Lease in the client's namespace; `None` if it does not exist.
    pub async fn lease(&self, name: &str) -> Result<Option<LeaseRecord>, KubeError> {
        let (call, api) = self.lease_call(Verb::Get, name);
        self.write(call, api.get_opt(name)).await.map(|found| found.map(record))
    }

    /// Passes the claim of a Lease's holder to another candidate; a conflict if the Lease was written since this read.
    pub async fn pass_claim(&self, name: &str, read: &LeaseRecord, to: &str, terms: LeaseTerms) -> Result<(), KubeError> {
        let time = Some(MicroTime(Timestamp::now()));
        let spec = LeaseSpec {
            holder_identity: Some(to.to_owned()),
            lease_duration_seconds: i32::try_from(terms.lease_duration.as_secs()).ok(),
            lease_transitions: Some(read.transitions.saturating_add(1)),
            acquire_time: time.clone(),
            renew_time: time,
            ..LeaseSpec::default()
        };
        let patch = json!({"metadata": {"resourceVersion": read.version}, "spec": spec});
        let parameters = PatchParams { field_manager: Some(RECONCILER_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let (call, api) = self.lease_call(Verb::Patch, name);
        self.write(call, api.patch(name, &parameters, &Patch::Merge(patch))).await.map(drop)
    }

    /// Deletes a Lease in the client's namespace. A missing one is no error.
    pub async fn delete_lease(&self, name: &str) -> Result<(), KubeError> {
        let (call, api) = self.lease_call(Verb::Delete, name);
        match self.write(call, api.delete(name, &DeleteParams::background())).await {
            Err(error) if error.refusal() == Some(ApiRefusal::NotFound) => Ok(()),
            done => done.map(drop),
        }
    }

    fn lease_call(&self, verb: Verb, name: &str) -> (ApiCall, Api<Object>) {
        let cluster = self.cluster();
        (cluster.call(verb, "Lease", name), Api::namespaced(cluster.client.clone(), &cluster.namespace))
    }
}
