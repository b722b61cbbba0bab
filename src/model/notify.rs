//! Folds the messages of tailscaled's bus into a netmap.
