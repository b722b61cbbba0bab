//! When a leaving replica may go.
