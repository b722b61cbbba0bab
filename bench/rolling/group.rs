//! A group of two replicas, as the subject of faults.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kit::cluster::chart::NAMESPACE;
use kit::cluster::pods;
use kit::operators::Stage;

use super::event::Proxies;
use crate::operators::with_services;
use crate::players::{GROUP, OURS, OperatorPair};
use crate::users::Users;

/// Time until many Services are ready.
const PATIENCE: Duration = Duration::from_mins(10);

/// The group of the active operator.
pub(crate) struct Group<'a>(pub(crate) &'a OperatorPair);

impl Group<'_> {
    /// Adds idle Services to a new group until it has this number, and waits until all are ready.
    pub(crate) fn fill(&self, services: usize) -> Result<()> {
        let cluster = &self.0.stage.cluster;
        let idle = services - 1;
        if idle == 0 || !cluster.kubectl(&["get", "service", "service-0", "--ignore-not-found"]).is_empty() {
            return Ok(());
        }
        let target = cluster.tailnet.addresses_of("db").into_iter().find(IpAddr::is_ipv4).context("an address")?.to_string();
        with_services(self.0, async |api| {
            let mut users = Users::watch(api, move |_| target.clone());
            users.make(GROUP, 0..idle).await?;
            users.ready(services, PATIENCE).await
        })?;
        self.settle();
        Ok(())
    }
}

impl Proxies for Group<'_> {
    fn stage(&self) -> &Stage {
        &self.0.stage
    }

    fn pod(&self) -> String {
        "eg-1".to_owned()
    }

    /// The Tailscale operator reverts `kubectl rollout restart`; a new label replaces its Pods.
    fn restart(&self, round: usize) -> Duration {
        let mut begun = Instant::now();
        self.0.stage.replaced("eg", || {
            begun = Instant::now();
            if *self.0.playing == OURS {
                self.0.stage.restart();
            } else {
                self.0.stage.set_class(None, &format!("round-{round}"));
            }
        });
        begun.elapsed()
    }

    /// Places one replica on each node.
    fn spread(&self) {
        let cluster = &self.0.stage.cluster;
        let nodes = ["eg-0", "eg-1"].map(|replica| pods::node(cluster, NAMESPACE, replica));
        if nodes[0] != nodes[1] {
            return;
        }
        cluster.kubectl(&["cordon", &nodes[0]]);
        cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, "eg-1"]);
        cluster.rolled_out(NAMESPACE, "statefulset/eg");
        cluster.kubectl(&["uncordon", &nodes[0]]);
        self.settle();
    }

    fn settle(&self) {
        self.0.stage.cluster.rolled_out(NAMESPACE, "statefulset/eg");
        self.0.stage.ready();
        self.0.stage.through_both_replicas();
    }
}
