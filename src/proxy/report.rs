//! Writes the state Secret.
