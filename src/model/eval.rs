//! A small evaluator of rulesets: what happens to a packet, told without a kernel.
