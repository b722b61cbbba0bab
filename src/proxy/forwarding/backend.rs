//! Firewall of this network namespace, for the ruleset writer.

use std::future::pending;

use tokio::sync::{mpsc, watch};

use crate::edge::nft::{Nft, NotificationStream};
use crate::model::base::net::InterfaceName;
use crate::model::firewall::Audit;
use crate::model::firewall::ruleset::{Delta, Ruleset};
use crate::model::plan::Planned;
use crate::model::settings::{FirewallMode, Settings};

use crate::proxy::forwarding::firewall::ActiveFirewall;
use crate::proxy::forwarding::flow_cleanup::Applied;
use crate::proxy::forwarding::ruleset_sync::{Kernel, SyncFault};

/// The kernel; its firewall is selected by [`Self::prepare`], or at the first write that succeeds.
pub struct LiveKernel {
    backend: FirewallMode,
    interface: InterfaceName,
    /// Whether new connections from the tailnet are dropped until a ruleset forwards them.
    drops_new_connections: bool,
    chosen: watch::Sender<Option<ActiveFirewall>>,
    changes: Option<NotificationStream>,
    applied: mpsc::UnboundedSender<Applied>,
    /// Another firewall may have rules of an earlier start.
    leftovers: bool,
}

impl LiveKernel {
    /// A kernel without selected firewall; the receiver gets the selection. Applied rulesets are sent to `applied`.
    pub fn new(settings: &Settings, applied: mpsc::UnboundedSender<Applied>) -> (Self, watch::Receiver<Option<ActiveFirewall>>) {
        let (chosen, firewall) = watch::channel(None);
        let (backend, interface) = (settings.backend, settings.interface.clone());
        (Self { backend, interface, drops_new_connections: false, chosen, changes: None, applied, leftovers: true }, firewall)
    }

    /// Selects the firewall before the first write. With `drops_new_connections`, new connections from the tailnet are dropped until that write, so that
    /// clients repeat them: tailscaled is connected before the rules exist. Rules of an earlier process stay in force. Errors are those of
    /// the first write.
    pub async fn prepare(&mut self, drops_new_connections: bool) {
        let prepared = async {
            if let ActiveFirewall::Nft(nft) = self.firewall().await?
                && drops_new_connections
            {
                self.drops_new_connections = nft.drop_new_connections_without_table(&self.interface).await?;
            }
            Ok::<(), SyncFault>(())
        };
        if let Err(fault) = prepared.await {
            tracing::debug!(reason = fault.reason, "the firewall is selected again at the first write: {}", fault.message);
        }
    }

    /// Ends the drop of new connections.
    async fn open(&mut self, nft: &Nft, ruleset: &Ruleset) -> Result<(), SyncFault> {
        if self.drops_new_connections && !ruleset.from_tailnet.is_empty() {
            nft.mute(false).await?;
            self.drops_new_connections = false;
        }
        Ok(())
    }

    async fn firewall(&mut self) -> Result<ActiveFirewall, SyncFault> {
        if let Some(firewall) = &*self.chosen.borrow() {
            return Ok(firewall.clone());
        }
        let firewall = ActiveFirewall::choose(self.backend, &self.interface).await?;
        tracing::info!(firewall = %firewall, "firewall mode selected");
        self.changes = firewall.changes();
        self.chosen.send_replace(Some(firewall.clone()));
        Ok(firewall)
    }
}

impl Kernel for LiveKernel {
    async fn rewrite(&mut self, ruleset: &Ruleset) -> Result<(), SyncFault> {
        match self.firewall().await? {
            ActiveFirewall::Nft(nft) => {
                nft.rewrite(ruleset).await?;
                self.open(&nft, ruleset).await?;
            }
            ActiveFirewall::Iptables(iptables) => iptables.rewrite(ruleset).await?,
        }
        Ok(())
    }

    async fn patch(&mut self, before: &Ruleset, delta: &Delta, after: &Ruleset) -> Result<(), SyncFault> {
        match self.firewall().await? {
            ActiveFirewall::Nft(nft) => {
                nft.patch(before, delta, after).await?;
                self.open(&nft, after).await?;
            }
            ActiveFirewall::Iptables(iptables) => iptables.patch(before, delta, after).await?,
        }
        Ok(())
    }

    async fn note(&mut self) -> Result<(), SyncFault> {
        let firewall = self.firewall().await?;
        // Only after their replacement is in force.
        if std::mem::take(&mut self.leftovers) {
            firewall.remove_others().await;
        }
        match firewall {
            ActiveFirewall::Nft(_) => Ok(()),
            ActiveFirewall::Iptables(iptables) => Ok(iptables.note().await?),
        }
    }

    async fn drifted(&mut self, wanted: &Ruleset) -> Result<bool, SyncFault> {
        let audit = match self.firewall().await? {
            ActiveFirewall::Nft(nft) => nft.audit(wanted).await?,
            ActiveFirewall::Iptables(iptables) => iptables.audit(wanted).await?,
        };
        match audit {
            Audit::Same => Ok(false),
            Audit::Drifted { what } => {
                tracing::warn!("ruleset drift detected: {what}");
                Ok(true)
            }
        }
    }

    async fn disturbed(&mut self) {
        let Some(changes) = &mut self.changes else { return pending().await };
        if let Err(error) = changes.next().await {
            tracing::warn!(reason = error.reason(), "cannot subscribe to ruleset changes; drift is detected by a timer only: {error}");
            self.changes = None;
        }
    }

    fn applied(&mut self, ruleset: &Ruleset, planned: &Planned) {
        // Without receiver the process is ending.
        let _ = self.applied.send(Applied { rules: ruleset.clone(), netmap: planned.world.netmap.clone() });
    }
}
