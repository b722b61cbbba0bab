//! The ruleset as the input of iptables-restore: one text for each family, ports as a tree.
