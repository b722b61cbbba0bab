//! Replicas as the reconciler sees them: config reading, planning and status are the proxy's own code at its own pace, without a kernel.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use tailyard::api::egress;
use tailyard::model::base::gzip;
use tailyard::model::base::net::InterfaceName;
use tailyard::model::plan::Planned;
use tailyard::model::plan::world::World;
use tailyard::model::tailnet::status::{Encoded, PodAddresses, ROOM, egress_status, encode};
use tailyard::proxy::state_secret::writer::MIN_WRITE_INTERVAL;
use tokio::time::{Instant, sleep_until};

/// One replica.
pub(crate) struct Replica {
    /// Its Pod.
    pub(crate) name: String,
    /// The Pod's address.
    pub(crate) address: std::net::IpAddr,
    /// Where it finds its config.
    pub(crate) configs: Api<ConfigMap>,
    /// The state Secrets.
    pub(crate) states: Api<Secret>,
}

impl Replica {
    /// Follows the config of a group and reports it as applied, without end.
    pub(crate) async fn run(self, group: String) -> Result<()> {
        let only = watcher::Config::default().fields(&format!("metadata.name={group}-egress-config"));
        let mut configs = Box::pin(watcher(self.configs.clone(), only).default_backoff().applied_objects());
        let mut planned = Planned::new(&World::empty(InterfaceName::tailscale0(), [].into()));
        let mut written = Instant::now() - Duration::from_mins(1);
        while let Some(mut newest) = configs.next().await {
            sleep_until(written + MIN_WRITE_INTERVAL).await;
            while let Some(Some(newer)) = configs.next().now_or_never() {
                newest = newer;
            }
            let config = planned.world.egress.next(&text(newest?).context("the config has no services")?.into())?;
            planned = planned.next(&World { egress: Arc::new(config), ..planned.world.clone() });
            written = Instant::now();
            self.say(&planned).await?;
        }
        Ok(())
    }

    async fn say(&self, planned: &Planned) -> Result<()> {
        let none_withheld = [].into();
        let status = egress_status(&planned.plan, &planned.world.egress, PodAddresses::of([self.address]), &none_withheld);
        let Encoded { plain, packed, .. } = encode(status, ROOM);
        let packed = packed.map_or(Value::Null, |packed| json!(ByteString(packed)));
        let patch = json!({"data": {egress::KEY: ByteString(plain), egress::KEY_COMPRESSED: packed}});
        self.states.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}

/// The services of an egress config.
fn text(config: ConfigMap) -> Option<Vec<u8>> {
    let mut data = config.binary_data?;
    match data.remove(egress::KEY_COMPRESSED) {
        Some(packed) => gzip::unpack(&packed.0, gzip::MAX_CONFIG_SIZE).ok(),
        None => data.remove(egress::KEY).map(|text| text.0),
    }
}
