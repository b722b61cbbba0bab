//! The ruleset in nftables' own terms: the table as text, deltas as elements.
