//! Planner: combines all inputs into a world and publishes its plan after each change.
//!
//! Publishes nothing before every input was received once, so that incomplete inputs remove nothing.

use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use tokio::sync::watch;

use crate::model::base::netmap::NetMap;
use crate::model::config::{EgressConfig, IngressConfig};
use crate::model::plan::targets::TargetPolicy;
use crate::model::plan::world::{VhostListeners, World};
use crate::model::plan::{Planned, Reason};

use crate::proxy::forwarding::resolve::ResolvedNames;
use crate::proxy::tailnet::config_values::ConfigValues;

/// Inputs that change at run time; `None` means not received yet.
#[derive(Debug, Clone)]
pub struct Inputs {
    pub egress: watch::Receiver<Option<Arc<EgressConfig>>>,
    pub ingress: watch::Receiver<Option<Arc<IngressConfig>>>,
    /// Listeners of virtual hosts; those of an earlier process are closed.
    pub listeners: watch::Receiver<Arc<VhostListeners>>,
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
    pub names: watch::Receiver<ResolvedNames>,
    pub values: ConfigValues,
}

/// Publishes the plan of the newest world; ends when all senders are dropped.
pub async fn run(base: World, mut inputs: Inputs, planned: watch::Sender<Option<Arc<Planned>>>) {
    let mut last: Option<Arc<Planned>> = None;
    loop {
        if let Some(world) = inputs.world(&base) {
            let next = Arc::new(match &last {
                Some(last) => last.next(&world),
                None => Planned::new(&world),
            });
            log_refusals(last.as_deref(), &next);
            last = Some(Arc::clone(&next));
            planned.send_replace(Some(next));
        }
        // An input whose sender is dropped is final; the others continue.
        tokio::select! {
            Ok(()) = inputs.egress.changed() => {}
            Ok(()) = inputs.ingress.changed() => {}
            Ok(()) = inputs.listeners.changed() => {}
            Ok(()) = inputs.netmap.changed() => {}
            Ok(()) = inputs.names.changed() => {}
            Ok(()) = inputs.values.rules.changed() => {}
            Ok(()) = inputs.values.siblings.changed() => {}
            else => return,
        }
    }
}

/// Logs targets that are newly rejected because of their addresses.
fn log_refusals(before: Option<&Planned>, after: &Planned) {
    let nothing = OrdMap::new();
    let before = before.map_or(&nothing, |before| &before.plan.rejected);
    for item in before.diff(&after.plan.rejected) {
        let (name, current, reasons) = match item {
            DiffItem::Add(name, reasons) => (name, None, reasons),
            DiffItem::Update { old: (_, existing), new: (name, reasons) } => (name, Some(existing), reasons),
            DiffItem::Remove(..) => continue,
        };
        let refused = reasons.iter().filter(|reason| matches!(reason, Reason::Forbidden { .. }));
        for reason in refused.filter(|reason| current.is_none_or(|entry| !entry.contains(reason))) {
            tracing::warn!(service = %name, reason = reason.reason(), "target rejected: {reason}");
        }
    }
}

impl Inputs {
    /// Current world; `None` before every input was received.
    fn world(&mut self, base: &World) -> Option<World> {
        let egress = self.egress.borrow_and_update().clone();
        let ingress = self.ingress.borrow_and_update().clone();
        let listeners = Arc::clone(&self.listeners.borrow_and_update());
        let netmap = self.netmap.borrow_and_update().clone();
        let names = Arc::clone(&self.names.borrow_and_update());
        let targets = TargetPolicy { rules: Arc::clone(&self.values.rules.borrow_and_update()), ..base.targets.clone() };
        let siblings = Arc::clone(&self.values.siblings.borrow_and_update());
        Some(World { egress: egress?, ingress: ingress?, listeners, netmap: Some(netmap?), names, targets, siblings, ..base.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::base::net::InterfaceName;
    use crate::proxy::tailnet::config_values;

    #[tokio::test]
    async fn no_plan_before_all_inputs_are_present() {
        let (egress, rx_egress) = watch::channel(None);
        let (_ingress, rx_ingress) = watch::channel(Some(Arc::default()));
        let (netmap, rx_netmap) = watch::channel(None);
        let (_names, rx_names) = watch::channel(ResolvedNames::default());
        let (tx, mut planned) = watch::channel(None);
        let inputs = Inputs {
            egress: rx_egress,
            ingress: rx_ingress,
            listeners: watch::channel(Arc::default()).1,
            netmap: rx_netmap,
            names: rx_names,
            values: config_values::channel(None).1,
        };
        tokio::spawn(run(World::empty(InterfaceName::tailscale0(), [].into()), inputs, tx));
        netmap.send_replace(Some(Arc::new(NetMap::default())));
        tokio::task::yield_now().await;
        assert!(planned.borrow_and_update().is_none());
        let text = br#"{"a":{"tailnetTarget":{"ip":"100.64.0.2"},"ports":[{"protocol":"TCP","matchPort":1,"targetPort":1}]}}"#;
        egress.send_replace(Some(Arc::new(EgressConfig::parse(text).expect("a config"))));
        let found = planned.wait_for(Option::is_some).await.expect("the task lives");
        assert_eq!(found.as_ref().map(|planned| planned.ruleset.ports.len()), Some(1));
    }
}
