//! Keeps tailscaled running.
