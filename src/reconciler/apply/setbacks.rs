//! Errors of single Services during a pass.
//!
//! The API server may reject a write of one Service, because of an admission policy of its namespace or a concurrent write. This does not
//! affect other Services: the error is set aside and reported on the Service, and the complete pass is retried at the end. An error that
//! would affect every call is never set aside.

use crate::model::controller::key::WorkloadKey;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ActError;
use crate::api::condition::reason;
use crate::edge::kube::{ApiRefusal, KubeError};
use crate::model::controller::workload::actions::Notice;

/// Errors that were set aside.
#[derive(Debug, Default)]
pub struct PartialErrors(Mutex<SetAside>);

#[derive(Debug, Default)]
struct SetAside {
    /// Lasting ones, for the schedule of Events: each retry meets them again.
    faults: Vec<Notice>,
    first: Option<KubeError>,
}

impl PartialErrors {
    /// Sets aside an error that concerns only this Service; returns any other outcome.
    pub(super) fn record(&self, subject: WorkloadKey, done: Result<(), KubeError>) -> Result<(), KubeError> {
        match done {
            Err(error) if error.refused() => {
                let mut errors = self.errors();
                if error.refusal() != Some(ApiRefusal::Conflict) {
                    errors.faults.push(Notice { subject, warning: true, reason: reason::CONFIGURATION_FAILED, message: error.to_string() });
                }
                errors.first.get_or_insert(error);
                Ok(())
            }
            done => done,
        }
    }

    /// Takes the faults of Services.
    pub fn take_faults(&self) -> Vec<Notice> {
        std::mem::take(&mut self.errors().faults)
    }

    /// Takes the error of the pass.
    pub(super) fn end(&self) -> Result<(), ActError> {
        self.errors().first.take().map_or(Ok(()), |error| Err(ActError::Service(error)))
    }

    fn errors(&self) -> MutexGuard<'_, SetAside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
            assert!(setbacks.record(subject(), failed(CallFault::Refused { code, message: "no".into() })).is_ok(), "{code}");
        }
        for code in [401, 429, 503] {
            assert!(setbacks.record(subject(), failed(CallFault::Refused { code, message: "no".into() })).is_err(), "{code}");
        }
        assert!(setbacks.record(subject(), failed(CallFault::Timeout(std::time::Duration::from_secs(1)))).is_err());
        let faults = setbacks.take_faults();
        assert_eq!(faults.len(), 3, "another writer's change emits no Event: {faults:?}");
        assert_eq!(setbacks.end().expect_err("the first").reason(), "Forbidden");
    }

    #[test]
    fn no_errors_end_well() {
        let none = PartialErrors::default();
        assert!(none.take_faults().is_empty() && none.end().is_ok());
    }
}
