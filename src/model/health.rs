//! Readiness as a list of named blockers.
