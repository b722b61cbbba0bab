//! When to ask DNS again, and which answer is in force.
