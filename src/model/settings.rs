//! The environment and flags of the proxy, validated together.
