//! The Kubernetes API server: one ConfigMap to watch, one Secret to write.
