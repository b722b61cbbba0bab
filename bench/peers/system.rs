//! The compared systems: a program and its firewall.

use std::path::Path;

/// A program of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// Ours.
    Tailyard,
    /// That of the Tailscale operator's proxy image.
    Containerboot,
}

/// A program with its firewall mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct System {
    /// The program.
    pub(crate) program: Program,
    /// The value of `TS_DEBUG_FIREWALL_MODE`.
    pub(crate) firewall: &'static str,
    /// How the report calls it.
    pub(crate) name: &'static str,
    /// The name of its Pod, of its state Secret and of its node of the tailnet.
    pub(crate) pod: &'static str,
}

impl System {
    /// Ours with nftables.
    pub(crate) const OURS: Self = Self { program: Program::Tailyard, firewall: "nftables", name: "Tailyard, nftables", pod: "ours-0" };
    /// Theirs with nftables.
    pub(crate) const STOCK: Self =
        Self { program: Program::Containerboot, firewall: "nftables", name: "Tailscale proxy, nftables", pod: "stock-0" };
    /// Ours with iptables.
    pub(crate) const OURS_IPTABLES: Self =
        Self { program: Program::Tailyard, firewall: "iptables", name: "Tailyard, iptables", pod: "ours-iptables-0" };
    /// Theirs with iptables.
    pub(crate) const STOCK_IPTABLES: Self =
        Self { program: Program::Containerboot, firewall: "iptables", name: "Tailscale proxy, iptables", pod: "stock-iptables-0" };
    /// All of them; ours before theirs.
    pub(crate) const ALL: [Self; 4] = [Self::OURS, Self::STOCK, Self::OURS_IPTABLES, Self::STOCK_IPTABLES];

    /// Whether the system supports this number of services. A kernel hook has at most 1,024 base chains, and the Tailscale proxy has one
    /// for each service with nftables; with iptables it would take minutes.
    pub(crate) fn takes_part(self, size: u16) -> bool {
        self.program == Program::Tailyard || size <= 1_000
    }

    /// The Tailscale proxy with the same firewall, for comparison.
    pub(crate) fn rival(self) -> Option<Self> {
        let theirs = |other: &Self| other.program == Program::Containerboot && other.firewall == self.firewall;
        Self::ALL.into_iter().find(theirs).filter(|_| self.program == Program::Tailyard)
    }

    /// The command of its image.
    pub(crate) fn argv(self, servers: &Path) -> Vec<String> {
        match self.program {
            Program::Tailyard => vec![kit::tailyard().to_owned(), "proxy".to_owned()],
            Program::Containerboot => vec![servers.join("containerboot").display().to_string()],
        }
    }
}
