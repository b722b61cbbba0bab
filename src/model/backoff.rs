//! Retry as a value: jittered, bounded, told the time instead of asking for it.
