//! One pass over a `ProxyGroup` and all its egress Services: what is observed goes in, what is to be done comes out.
//!
//! The unit of work is the group, whether or not its object exists, so that the egress config has one writer and a thousand
//! Services that change together cost one write of it. Level-triggered: a pass knows nothing of the ones before it and
//! remembers nothing; what it must find again it leaves on objects. Nothing is done here; see [`Pass`] for who does what.

mod observed;
mod outcome;

pub use observed::{Capabilities, GroupSettings, Observed, Replica, ReplicaConfig, ReplicaState, TailnetState};
pub use outcome::{ConfigDraft, ControlAction, Delete, GroupUpdate, Notice, Pass, ServiceUpdate, Subject};
