//! tailscaled's LocalAPI over its unix socket.
