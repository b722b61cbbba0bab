//! Failover: replicas that do not answer health probes are detected, and their Pods made unready, long before Kubernetes does so.
//!
//! Each reconciler process probes every replica. The holder of the failover Lease notes a suspicion on the Pod; a process that reaches the
//! replica removes the note. Otherwise the holder sets the condition `Ready` to `False`, so that Services send no new connections to it,
//! and notes that. A living kubelet restores the condition, but also delivers the note to the replica, which then fails its readiness
//! probe until it is probed again. At least one replica of a group stays ready. Of a standalone proxy with
//! standby, the claim of the lost active Pod passes to the waiting one. Pure: times are arguments.

pub use detector::{Detector, DetectorTurn, Observation, PROBE_TIMEOUT, Probe};
pub use note::{NoteStep, PodChange};
pub use reception::Reception;
pub use replica::{ReplicaPod, ReplicaReadiness, Succession};

mod detector;
mod note;
mod reception;
mod replica;
