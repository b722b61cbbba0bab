//! The life of tailscaled as a state machine: events in, actions out.
