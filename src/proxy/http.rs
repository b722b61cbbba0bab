//! The endpoints of a replica.
