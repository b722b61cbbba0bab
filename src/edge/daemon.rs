//! tailscaled as a child process.
