//! Forwarding switches of this network namespace.
