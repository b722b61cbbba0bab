//! The connection tracking of this network namespace, over ctnetlink.
