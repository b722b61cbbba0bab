//! Gathers the inputs into one world.
