//! A placeholder.
