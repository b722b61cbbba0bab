//! Common interface of the firewalls, so that one table of tests covers all of them.

use tailyard::edge::iptables::{Iptables, Variant};
use tailyard::edge::nft::Nft;
use tailyard::model::firewall::ruleset::{Ruleset, diff};
use tailyard::model::firewall::{Audit, Traffic, nft};

use kit::netns::Node;

/// Firewall of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// nftables, written by netlink.
    Nftables,
    /// nftables, written by the nft program with the JSON that `tailyard plan --diff` prints.
    NftablesJson,
    /// iptables on nftables.
    IptablesNft,
    /// iptables on `ip_tables`.
    IptablesLegacy,
}

/// A firewall in a node's namespace, and its ruleset.
pub(crate) struct Firewall {
    node: Node,
    kind: Kind,
    pub(crate) ruleset: Ruleset,
}

enum Kind {
    Nft(Nft, Backend),
    Iptables(Iptables),
}

impl Firewall {
    /// Opens the firewall and loads the ruleset.
    pub(crate) fn load(backend: Backend, node: &Node, ruleset: Ruleset) -> Self {
        let kind = match backend {
            Backend::Nftables | Backend::NftablesJson => {
                Kind::Nft(node.ns.run(|| Nft::open("nft")).expect("the namespace").expect("nftables"), backend)
            }
            Backend::IptablesNft => Kind::Iptables(Iptables::open(Variant::Nft)),
            Backend::IptablesLegacy => Kind::Iptables(Iptables::open(Variant::Legacy)),
        };
        let firewall = Self { node: node.clone(), kind, ruleset };
        firewall.rewrite();
        firewall
    }

    /// Rewrites the complete ruleset.
    pub(crate) fn rewrite(&self) {
        let work = async || match &self.kind {
            Kind::Nft(nft, _) => nft.rewrite(&self.ruleset).await.expect("a rewrite"),
            Kind::Iptables(iptables) => {
                iptables.rewrite(&self.ruleset).await.expect("a rewrite");
                iptables.note().await.expect("a look");
            }
        };
        self.node.ns.block_on(work).expect("the namespace");
    }

    /// Applies the difference, and nothing else.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Ruleset)) {
        self.try_change(change).expect("a patch");
    }

    /// Like `change`, but may be refused; then nothing has changed.
    pub(crate) fn try_change(&mut self, change: impl FnOnce(&mut Ruleset)) -> Result<(), String> {
        let (before, mut after) = (&self.ruleset, self.ruleset.clone());
        change(&mut after);
        let delta = diff(before, &after);
        let work = async || match &self.kind {
            Kind::Nft(_, Backend::NftablesJson) => {
                let text = serde_json::to_string(&nft::delta(before, &delta, &after)).expect("plain data");
                let (loaded, _, complaint) = self.node.try_feed(&["nft", "-j", "-f", "-"], &text);
                if loaded { Ok(()) } else { Err(complaint) }
            }
            Kind::Nft(nft, _) => nft.patch(before, &delta, &after).await.map_err(|fault| fault.to_string()),
            Kind::Iptables(iptables) => {
                let patched = iptables.patch(before, &delta, &after).await.map_err(|fault| fault.to_string());
                iptables.note().await.expect("a look");
                patched
            }
        };
        self.node.ns.block_on(work).expect("the namespace")?;
        self.ruleset = after;
        Ok(())
    }

    /// The nftables client; panics for iptables.
    pub(crate) fn nft(&self) -> &Nft {
        match &self.kind {
            Kind::Nft(nft, _) => nft,
            Kind::Iptables(_) => panic!("iptables"),
        }
    }

    /// Compares the kernel's rules with the ruleset.
    pub(crate) fn audit(&self) -> Audit {
        let work = async || match &self.kind {
            Kind::Nft(nft, _) => nft.audit(&self.ruleset).await.expect("an audit"),
            Kind::Iptables(iptables) => iptables.audit(&self.ruleset).await.expect("an audit"),
        };
        self.node.ns.block_on(work).expect("the namespace")
    }

    /// Traffic counters of the rules.
    pub(crate) fn counters(&self) -> Traffic {
        let work = async || match &self.kind {
            Kind::Nft(nft, _) => nft.counters().await.expect("counters"),
            Kind::Iptables(iptables) => iptables.counters().await.expect("counters"),
        };
        self.node.ns.block_on(work).expect("the namespace")
    }

    /// Removes all rules.
    pub(crate) fn remove(&self) {
        let work = async || match &self.kind {
            Kind::Nft(nft, _) => nft.remove().await.expect("a removal"),
            Kind::Iptables(iptables) => iptables.remove().await.expect("a removal"),
        };
        self.node.ns.block_on(work).expect("the namespace");
    }
}

/// Generates every test for every firewall, in a module for each so that a failure names the firewall.
macro_rules! on_every_backend {
    ($($test:ident),+ $(,)?) => {
        mod nftables { $(#[test] fn $test() { super::$test(crate::kernel::firewall::Backend::Nftables); })+ }
        mod nftables_json { $(#[test] fn $test() { super::$test(crate::kernel::firewall::Backend::NftablesJson); })+ }
        mod iptables_nft { $(#[test] fn $test() { super::$test(crate::kernel::firewall::Backend::IptablesNft); })+ }
        mod iptables_legacy { $(#[test] fn $test() { super::$test(crate::kernel::firewall::Backend::IptablesLegacy); })+ }
    };
}
pub(crate) use on_every_backend;
