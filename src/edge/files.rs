//! Mounted configs: kubelet's atomic swaps and plain files.
