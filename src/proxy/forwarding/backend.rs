//! The firewall of this network namespace, as the writer uses them.

use std::future::pending;

use tokio::sync::{mpsc, watch};

use crate::edge::nft::NotificationStream;
use crate::model::base::net::InterfaceName;
use crate::model::firewall::Audit;
use crate::model::firewall::ruleset::{Delta, Ruleset};
use crate::model::plan::Planned;
use crate::model::settings::FirewallMode;

use crate::proxy::forwarding::firewall::ActiveFirewall;
use crate::proxy::forwarding::flow_cleanup::Applied;
use crate::proxy::forwarding::ruleset_sync::{Kernel, SyncFault};

/// The kernel; its firewall is chosen with the first write.
#[derive(Debug)]
pub struct LiveKernel {
    backend: FirewallMode,
    interface: InterfaceName,
    chosen: watch::Sender<Option<ActiveFirewall>>,
    changes: Option<NotificationStream>,
    applied: mpsc::UnboundedSender<Applied>,
    /// The rules of an earlier start may stand in another firewall.
    leftovers: bool,
}

impl LiveKernel {
    /// A kernel whose firewall is yet to be chosen; the receiver tells which one it is. What is in force is told to `applied`.
    #[must_use]
    pub fn new(
        backend: FirewallMode,
        interface: InterfaceName,
        applied: mpsc::UnboundedSender<Applied>,
    ) -> (Self, watch::Receiver<Option<ActiveFirewall>>) {
        let (chosen, firewall) = watch::channel(None);
        (Self { backend, interface, chosen, changes: None, applied, leftovers: true }, firewall)
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
        self.firewall().await?.rewrite(ruleset).await
    }

    async fn patch(&mut self, before: &Ruleset, delta: &Delta, after: &Ruleset) -> Result<(), SyncFault> {
        self.firewall().await?.patch(before, delta, after).await
    }

    async fn note(&mut self) -> Result<(), SyncFault> {
        let mut firewall = self.firewall().await?;
        // Not before rules are in force that take their place.
        if std::mem::take(&mut self.leftovers) {
            firewall.remove_others().await;
        }
        firewall.note().await
    }

    async fn drifted(&mut self, wanted: &Ruleset) -> Result<bool, SyncFault> {
        match self.firewall().await?.audit(wanted).await? {
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
        // Where nobody ends flows any more, the process ends.
        let _ = self.applied.send(Applied { rules: ruleset.clone(), netmap: planned.world.netmap.clone() });
    }
}
