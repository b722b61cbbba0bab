//! A replica: configs and four parts, tailnet, forwarding, ingress and state. Each part starts from the previous ones;
//! [`crate::proxy::shutdown`] has the order of shutdown.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};

use crate::edge::kube::Cluster;
use crate::model::settings::Settings;
use crate::model::tailnet::advertise::Advertised;
use crate::runtime::tasks::Tasks;

use crate::proxy::config::inputs::ConfigPart;
use crate::proxy::forwarding::start::ForwardingPart;
use crate::proxy::ingress::start::{IngressInputs, IngressPart};
use crate::proxy::k8s_proxy;
use crate::proxy::state_secret::start::{StateInputs, StatePart};
use crate::proxy::tailnet::start::{TailnetInputs, TailnetPart};

#[derive(Debug)]
pub struct Replica {
    pub settings: Arc<Settings>,
    pub configs: ConfigPart,
    pub tailnet: TailnetPart,
    pub forwarding: ForwardingPart,
    /// `None` where tailscaled's config alone decides what is advertised.
    pub ingress: Option<IngressPart>,
    /// `None` without a state Secret or file.
    pub state: Option<StatePart>,
}

impl Replica {
    /// Starts every part. The HTTP listeners start afterwards.
    pub async fn start(settings: Settings, cluster: Option<&Cluster>, tasks: &mut Tasks) -> Self {
        let settings = Arc::new(settings);
        let (advertised, advertise) = watch::channel(Advertised::default());
        let (writes, requests) = mpsc::channel(8);
        let k8s_proxy = settings.k8s_proxy.as_ref().map(|k8s_proxy| k8s_proxy::start(k8s_proxy, cluster, tasks));
        let advertise = settings.limits_advertising().then_some(advertise);
        let inputs = TailnetInputs { writes, advertise, k8s_proxy: k8s_proxy.clone() };
        let tailnet = TailnetPart::start(&settings, cluster, inputs, tasks);
        let sites = k8s_proxy.map(|configs| k8s_proxy::serve_configs(configs, tailnet.netmap.clone()).boxed());
        let configs = ConfigPart::start(&settings, cluster, sites, tasks);
        let forwarding = ForwardingPart::start(&settings, cluster, &configs, &tailnet, tasks).await;
        let inputs = IngressInputs { settings: &settings, cluster, configs: &configs, tailnet: &tailnet, forwarding: &forwarding };
        let ingress = IngressPart::start(inputs, advertised, tasks);
        let inputs = StateInputs { settings: &settings, cluster, tailnet: &tailnet, forwarding: &forwarding, ingress: ingress.as_ref() };
        let state = StatePart::start(inputs, requests, tasks).await;
        Self { settings, configs, tailnet, forwarding, ingress, state }
    }
}
