//! Keeps the DNS answers fresh.
