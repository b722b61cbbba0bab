//! The DNS servers of the Pod.
