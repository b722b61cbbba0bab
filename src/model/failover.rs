//! Failover: replicas that do not answer health probes are detected, and their Pods made unready, long before Kubernetes does so.
//!
//! Each reconciler process probes every replica. The holder of the failover Lease sets the condition `Ready` of a lost replica's Pod to
//! `False`, so that Services send no new connections to it; a living kubelet restores the condition. At least one replica of a group stays
//! ready. Of a standalone proxy with standby, the claim of the lost active Pod passes to the waiting one. Pure: times are arguments.

pub use detector::{Detector, DetectorTurn, LostReplica, PROBE_TIMEOUT, Probe};
pub use replica::{ReplicaPod, ReplicaReadiness, Succession};

mod detector;
mod replica;
