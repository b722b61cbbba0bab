//! Leaves without hanging a flow.
