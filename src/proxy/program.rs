//! The only writer of the kernel.
