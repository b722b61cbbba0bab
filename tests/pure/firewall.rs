//! Renderers of rulesets, compared with the evaluation of the ruleset.

mod iptables;
mod nft;
mod nft_wire;
mod oracle;
