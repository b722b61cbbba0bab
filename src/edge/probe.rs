//! Raw TCP segments: the probe that finds a flow's sequence numbers and the resets that end it.
