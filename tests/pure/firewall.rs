//! The renderers of rulesets, held against what a ruleset means.

mod iptables;
mod nft;
mod nft_wire;
mod oracle;
