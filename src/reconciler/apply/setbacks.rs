//! Errors of single Services during a pass.
//!
//! The API server may reject a write of one Service, because of an admission policy of its namespace or a concurrent write. This does not
//! affect other Services: the error is set aside and reported on the Service, and the complete pass is retried at the end. An error that
//! would affect every call is never set aside.

use crate::model::controller::key::WorkloadKey;
use std::sync::{Mutex, PoisonError};

use super::ActError;
use crate::api::condition::reason;
use crate::edge::kube::{ApiRefusal, KubeError};
use crate::model::controller::workload::actions::Notice;

/// Errors that were set aside.
#[derive(Debug, Default)]
pub(super) struct PartialErrors(Mutex<Vec<(WorkloadKey, KubeError)>>);

impl PartialErrors {
    /// Sets aside an error that concerns only this Service; returns any other outcome.
    pub(super) fn aside(&self, subject: WorkloadKey, done: Result<(), KubeError>) -> Result<(), KubeError> {
        match done {
            Err(error) if error.refused() => {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).push((subject, error));
                Ok(())
            }
            done => done,
        }
    }

    /// Returns the Events to write and the error of the pass.
    pub(super) fn end(self) -> (Vec<Notice>, Result<(), ActError>) {
        let setbacks = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let lasting = setbacks.iter().filter(|(_, error)| error.refusal() != Some(ApiRefusal::Conflict));
        let notice = |(subject, error): &(WorkloadKey, KubeError)| {
            let (subject, message) = (subject.clone(), error.to_string());
            Notice { subject, warning: true, reason: reason::CONFIGURATION_FAILED, message }
        };
        let notices = lasting.map(notice).collect();
        let first = setbacks.into_iter().next();
        (notices, first.map_or(Ok(()), |(_, error)| Err(ActError::Service(error))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::kube::{ApiCall, CallFault, Verb};

    fn failed(fault: CallFault) -> Result<(), KubeError> {
        let call = ApiCall { verb: Verb::Patch, kind: "Service", namespace: "u".into(), name: "s".into() };
        Err(KubeError::Call { call, fault })
    }

    fn subject() -> WorkloadKey {
        WorkloadKey::Service("u".into(), "s".into())
    }

    #[test]
    fn only_errors_of_a_single_object_are_set_aside() {
        let setbacks = PartialErrors::default();
        for code in [403, 409, 422, 500] {
            assert!(setbacks.aside(subject(), failed(CallFault::Refused { code, message: "no".into() })).is_ok(), "{code}");
        }
        for code in [401, 429, 503] {
            assert!(setbacks.aside(subject(), failed(CallFault::Refused { code, message: "no".into() })).is_err(), "{code}");
        }
        assert!(setbacks.aside(subject(), failed(CallFault::Timeout(std::time::Duration::from_secs(1)))).is_err());
        let (events, ended) = setbacks.end();
        assert_eq!(events.len(), 3, "another writer's change emits no Event: {events:?}");
        assert_eq!(ended.expect_err("the first").reason(), "Forbidden");
    }

    #[test]
    fn no_errors_end_well() {
        let (events, ended) = PartialErrors::default().end();
        assert!(events.is_empty() && ended.is_ok());
    }
}
