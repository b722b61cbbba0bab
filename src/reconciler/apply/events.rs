//! Events of a pass, within the rates of [`EventWriter`](crate::edge::kube::EventWriter) and of the schedule of lasting faults. A failure is
//! logged.

use futures_util::stream::{StreamExt, iter};
use k8s_openapi::api::core::v1::ObjectReference;

use super::{AT_ONCE, Applier};
use crate::edge::kube::{KubeError, Resource};
use crate::model::controller::key::WorkloadKey;
use crate::model::controller::workload::actions::Notice;
use crate::model::controller::workload::observed::Observed;

impl Applier {
    /// Writes an Event about an object, or drops it beyond the rate.
    pub async fn notice(&self, about: &ObjectReference, warning: bool, reason: &str, message: &str) {
        log_failure(self.events.write_event(about, warning, reason, message).await);
    }

    /// Writes a warning about an object; returns false beyond the rate.
    pub async fn try_warn(&self, about: &ObjectReference, reason: &str, message: &str) -> bool {
        let is_admitted = self.events.admit(about);
        if is_admitted {
            log_failure(self.events.write_admitted_event(about, true, reason, message).await);
        }
        is_admitted
    }

    /// Writes Events about changes. Those beyond the rate are dropped: conditions say the same.
    pub(super) async fn write_events(&self, observed: &Observed, notices: Vec<Notice>) {
        let one = async |Notice { subject, warning, reason, message }: Notice| {
            self.notice(&self.reference(observed, &subject), warning, reason, &message).await;
        };
        iter(notices).for_each_concurrent(AT_ONCE, one).await;
    }

    /// Writes Events that the schedule of lasting faults has limited.
    pub(super) async fn write_due_events(&self, observed: &Observed, notices: Vec<Notice>) {
        let one = async |Notice { subject, warning, reason, message }: Notice| {
            let about = self.reference(observed, &subject);
            log_failure(self.events.write_admitted_event(&about, warning, reason, &message).await);
        };
        iter(notices).for_each_concurrent(AT_ONCE, one).await;
    }

    /// UID of a user's object that is not being deleted.
    pub(super) fn live_uid(&self, subject: &WorkloadKey) -> Option<String> {
        self.stores.cache().live(&subject.publisher()?)?.uid.clone()
    }

    fn reference(&self, observed: &Observed, subject: &WorkloadKey) -> ObjectReference {
        match subject {
            WorkloadKey::ProxyGroup(name) => {
                let uid = observed.group.as_ref().and_then(|group| group.metadata.uid.clone());
                Resource::PROXY_GROUP.reference("", name, uid)
            }
            WorkloadKey::Connector(name) => {
                let uid = observed.connector.as_ref().and_then(|connector| connector.metadata.uid.clone());
                Resource::CONNECTOR.reference("", name, uid)
            }
            WorkloadKey::Ingress(namespace, name) => {
                // The faults of an Ingress end after it was assigned to another workload.
                let uid = match observed.publish.ingresses.get(&(namespace.clone(), name.clone())) {
                    Some(ingress) => ingress.metadata.uid.clone(),
                    None => self.live_uid(subject),
                };
                Resource::INGRESS.reference(namespace, name, uid)
            }
            WorkloadKey::Service(namespace, name) => {
                let service = observed.services.get(&(namespace.clone(), name.clone()));
                Resource::SERVICE.reference(namespace, name, service.and_then(|service| service.metadata.uid.clone()))
            }
        }
    }
}

fn log_failure(written: Result<(), KubeError>) {
    if let Err(error) = written {
        tracing::warn!(reason = error.reason(), "cannot write an Event: {error}");
    }
}
