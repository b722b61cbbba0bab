//! Start of ingress: HTTP front end and advertising, where decided here.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::api::routes::Host;
use crate::edge::kube::Cluster;
use crate::edge::tls::TlsError;
use crate::model::api_server::upstream::{self, ApiServerUpstream};
use crate::model::config::source::ServeContent;
use crate::model::front_end::kernel_tcp::KernelTcpMode;
use crate::model::front_end::vhosts::shares::Shares;
use crate::model::front_end::vhosts::{Vhosts, shared_host};
use crate::model::settings::Settings;
use crate::model::tailnet::advertise::{AdvertiseMode, AdvertiseStatus, Advertised, WithdrawalProgress};
use crate::runtime::resources;
use crate::runtime::tasks::Tasks;
use crate::runtime::watch_ext::put;

use crate::proxy::api_server;
use crate::proxy::api_server::callers::LookupOfService;
use crate::proxy::api_server::start::{ApiServerInputs, ApiServerPart};
use crate::proxy::certs::{self, CertOutputs};
use crate::proxy::config::inputs::ConfigPart;
use crate::proxy::forwarding::start::ForwardingPart;
use crate::proxy::front_end::vhosts::VhostService;
use crate::proxy::front_end::{self, Closing, FrontEnd, Limits, Loopback, endpoints, identify};
use crate::proxy::ingress::advertise;
use crate::proxy::ingress::serve_config_writer::{self, ServeStatus};
use crate::proxy::ingress::services::SiteService;
use crate::proxy::tailnet::daemon::DaemonHandle;
use crate::proxy::tailnet::start::TailnetPart;

/// The running ingress part: advertising and the HTTP front end.
#[derive(Debug)]
pub struct IngressPart {
    pub advertise_status: watch::Receiver<AdvertiseStatus>,
    pub serving: watch::Receiver<ServeStatus>,
    /// The HTTP front end, if it can serve.
    pub front_end: Option<Listening>,
    /// Progress of the withdrawal.
    pub(super) withdrawal: watch::Sender<WithdrawalProgress>,
}

#[derive(Debug, Clone, Copy)]
pub struct IngressInputs<'a> {
    pub settings: &'a Settings,
    pub cluster: Option<&'a Cluster>,
    pub configs: &'a ConfigPart,
    pub tailnet: &'a TailnetPart,
    pub forwarding: &'a ForwardingPart,
}

#[derive(Debug)]
pub struct Listening {
    pub handle: FrontEnd,
    pub api_server: ApiServerPart,
    /// Certificates, if Secrets are available.
    pub certs: Option<CertOutputs>,
    /// Closing state of the front end.
    pub closing: watch::Sender<Closing>,
    /// True after the last connection has ended.
    pub closed: watch::Receiver<bool>,
}

impl IngressPart {
    /// Starts ingress; tailscaled's supervision follows `advertised`. `None` where tailscaled's config alone decides.
    pub fn start(inputs: IngressInputs<'_>, advertised: watch::Sender<Advertised>, tasks: &mut Tasks) -> Option<Self> {
        let IngressInputs { settings, configs, tailnet, forwarding, .. } = inputs;
        let daemon = tailnet.daemon.as_ref().filter(|_| settings.limits_advertising())?;
        let how = AdvertiseMode { serves: settings.serve.is_some(), on_node: settings.node_sites, auto_advertise: settings.auto_advertise };
        let (withdrawal, withdrawal_watch) = watch::channel(WithdrawalProgress::default());
        let front_end = if how.serves { Listening::start(inputs, daemon, &withdrawal_watch, tasks) } else { None };
        let (wanted, to_serve) = watch::channel(None);
        let (serving_in, serving) = watch::channel(ServeStatus::default());
        let (status_sender, advertise_status) = watch::channel(AdvertiseStatus::default());
        let inputs = advertise::Inputs {
            daemon: daemon.state(),
            netmap: tailnet.netmap.clone(),
            served: configs.serve.services.clone(),
            ingress: configs.ingress.services.clone(),
            programmed: forwarding.programmed.clone(),
            in_place: front_end.as_ref().map_or_else(|| watch::channel(Arc::default()).1, |front_end| front_end.handle.in_place.clone()),
            serving: serving.clone(),
            paths: forwarding.warmup.clone(),
            withdrawal: withdrawal_watch,
        };
        let outputs = advertise::AdvertiseOutputs { wanted, advertised, listeners: forwarding.listeners.clone(), status: status_sender };
        tasks.run_until_stop("advertise", advertise::run(inputs, how, outputs));
        let inputs = serve_config_writer::Inputs { daemon: daemon.state(), wanted: to_serve };
        tasks.run_until_stop("serve", serve_config_writer::run(daemon.api.clone(), inputs, serving_in));
        Some(Self { advertise_status, serving, front_end, withdrawal })
    }
}

impl Listening {
    /// Starts the front end; logs and returns `None` if TLS cannot be initialized.
    fn start(
        inputs: IngressInputs<'_>,
        daemon: &DaemonHandle,
        withdrawal: &watch::Receiver<WithdrawalProgress>,
        tasks: &mut Tasks,
    ) -> Option<Self> {
        let IngressInputs { settings, cluster, configs, tailnet, forwarding } = inputs;
        let (sites_sender, sites) = watch::channel(Arc::default());
        let upstream = settings.api_server.clone();
        let work = follow(configs.serve.services.clone(), settings.node_sites, upstream.clone(), sites_sender);
        tasks.run_until_stop("sites", work);
        let (endpoints_sender, endpoints) = watch::channel(Arc::default());
        if let Some(cluster) = cluster.cloned() {
            tasks.run_until_stop("endpoints", endpoints::follow(cluster, sites.clone(), endpoints_sender));
        }
        let dialed = endpoints::publish_dialed(sites.clone(), endpoints.clone(), forwarding.backends.clone());
        tasks.run_until_stop("addresses of backends", dialed);
        let front_end = &settings.front_end;
        let limits = client_limits(settings);
        let (closing, told_to_close) = watch::channel(Closing::default());
        let certs = cluster.and_then(|cluster| certify(settings, cluster, daemon, tailnet, &sites, tasks));
        let netmap = tailnet.netmap.clone();
        let (api, progress) = (daemon.api.clone(), withdrawal.clone());
        let lookup_of: LookupOfService =
            Box::new(move |service| identify::with_grants(identify::by(api.clone(), service), progress.clone()));
        let inputs = ApiServerInputs {
            upstream: upstream.as_ref(),
            lookup_of,
            netmap,
            sites: sites.clone(),
            end_revoked_streams: front_end.end_revoked_streams,
        };
        let set_up = |error: &TlsError| tracing::error!(reason = error.reason(), "cannot start the HTTP ingress: {error}");
        let (service, api_server) = api_server::start::start(inputs, tasks).inspect_err(set_up).ok()?;
        let inputs = front_end::Inputs {
            certificates: certs.as_ref().map_or_else(|| watch::channel(Arc::default()).1, |certs| certs.pairs.clone()),
            sites,
            endpoints,
            closing: told_to_close,
            node: settings.pod.node.clone(),
            loopback: Loopback::Named,
            kernel_tcp: chosen_kernel_tcp(settings),
            pod_addresses: settings.pod_sites.clone(),
            limits,
            upgrades: front_end.upgrades.clone(),
        };
        let lookup = identify::with_grants(identify::by(daemon.api.clone(), ""), withdrawal.clone());
        let (handle, work) = VhostService::new(Some(lookup))
            .and_then(|vhosts| front_end::create(inputs, SiteService { vhosts, api_server: service }))
            .inspect_err(set_up)
            .ok()?;
        let (ended, closed) = watch::channel(false);
        tasks.run_until_stop("listeners", async move {
            work.await;
            ended.send_replace(true);
            // Keep the sender for later receivers.
            std::future::pending::<()>().await;
        });
        Some(Self { handle, api_server, certs, closing, closed })
    }
}

/// Limits of clients, by the settings and the resources of the container; logs those of connections.
fn client_limits(settings: &Settings) -> Limits {
    let front_end = &settings.front_end;
    let shares = Shares::of(resources::descriptors(), resources::memory(), front_end.max_connections);
    tracing::info!(shares.connections, shares.site, shares.source, "client connections are limited, of the process, a site and a client");
    Limits {
        body_timeout: front_end.body_timeout,
        answer_timeout: front_end.answer_timeout,
        tunnel_timeout: front_end.tunnel_timeout,
        shares,
        ..Limits::of(settings.drain_timeout)
    }
}

/// Whether connections to Tailscale Services may end in the kernel; logs the choice.
fn chosen_kernel_tcp(settings: &Settings) -> bool {
    let chosen = settings.kernel_tcp();
    match (chosen, settings.front_end.kernel_tcp) {
        (Ok(()), _) => tracing::info!("kernel TCP is used: connections to Tailscale Services end in the kernel"),
        (Err(obstacle), KernelTcpMode::On) => {
            let reason = obstacle.reason();
            tracing::warn!(
                reason,
                "kernel TCP cannot be used: connections end in tailscaled's TCP stack; unset TAILYARD_KERNEL_TCP, or set auto"
            );
        }
        (Err(obstacle), _) => {
            tracing::info!(reason = obstacle.reason(), "kernel TCP is not used: connections end in tailscaled's TCP stack");
        }
    }
    chosen.is_ok()
}

/// Starts certificate orders and copies; `None` without Secrets.
fn certify(
    settings: &Settings,
    cluster: &Cluster,
    daemon: &DaemonHandle,
    tailnet: &TailnetPart,
    sites: &watch::Receiver<Arc<Vhosts>>,
    tasks: &mut Tasks,
) -> Option<CertOutputs> {
    let settings = certs::Settings::of(settings)?;
    let (sender, wanted) = watch::channel(Arc::default());
    tasks.run_until_stop("names of sites", names(sites.clone(), sender));
    let inputs = certs::Inputs { cluster: cluster.clone(), api: daemon.api.clone(), wanted, netmap: tailnet.netmap.clone() };
    Some(certs::start(tasks, &settings, inputs))
}

/// Publishes the names of virtual hosts with TLS. Ends when the sender is dropped.
async fn names(mut sites: watch::Receiver<Arc<Vhosts>>, wanted: watch::Sender<Arc<BTreeMap<String, Host>>>) {
    loop {
        let hosts = shared_host::certificates(&sites.borrow_and_update());
        put(&wanted, Arc::new(hosts));
        if sites.changed().await.is_err() {
            return;
        }
    }
}

/// Publishes the virtual hosts of the config in force. Ends when the sender is dropped.
async fn follow(
    mut served: watch::Receiver<Option<Arc<ServeContent>>>,
    on_node: bool,
    upstream: Option<ApiServerUpstream>,
    sites: watch::Sender<Arc<Vhosts>>,
) {
    loop {
        if let Some(served) = served.borrow_and_update().as_ref() {
            let listened = shared_host::listened(&served.sites, on_node);
            put(&sites, upstream::routed(upstream.as_ref(), &listened));
        }
        if served.changed().await.is_err() {
            return;
        }
    }
}
