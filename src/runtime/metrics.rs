//! Metrics: registration and the Prometheus text format.
