//! Start of the API server proxy.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::edge::kube::SERVICE_ACCOUNT;
use crate::edge::tls::TlsError;
use crate::model::api_server::upstream::ApiServerUpstream;
use crate::model::base::netmap::NetMap;
use crate::model::front_end::vhosts::Vhosts;
use crate::proxy::front_end::credentials::UpstreamCredentials;
use crate::runtime::tasks::Tasks;

use super::callers::{Callers, LookupOfService};
use super::stats::ApiServerStats;
use super::{ApiServerService, reachability};

pub struct ApiServerInputs<'a> {
    pub upstream: Option<&'a ApiServerUpstream>,
    pub lookup_of: LookupOfService,
    pub netmap: watch::Receiver<Option<Arc<NetMap>>>,
    pub sites: watch::Receiver<Arc<Vhosts>>,
    pub end_revoked_streams: bool,
}

/// State of the API server proxy, for readiness and scrapes.
#[derive(Debug, Clone)]
pub struct ApiServerPart {
    pub stats: ApiServerStats,
    /// Why the API server is unreachable, if a virtual host needs it.
    pub fault: watch::Receiver<Option<String>>,
}

/// Starts the tasks of the service, which are idle without a virtual host of the API server. Fails if TLS cannot be initialized.
pub fn start(inputs: ApiServerInputs<'_>, tasks: &mut Tasks) -> Result<(ApiServerService, ApiServerPart), TlsError> {
    let ApiServerInputs { upstream, lookup_of, netmap, sites, end_revoked_streams } = inputs;
    let (credentials, work) = UpstreamCredentials::follow(PathBuf::from(SERVICE_ACCOUNT))?;
    let mut needed = sites.clone();
    tasks.run_until_stop("credentials for the API server", async move {
        if needed.wait_for(|sites| reachability::is_needed(sites)).await.is_ok() {
            work.await;
        }
    });
    let (sender, fault) = watch::channel(None);
    tasks.run_until_stop("reachability of the API server", reachability::follow(upstream.map(ApiServerUpstream::url), sites, sender));
    let callers = Callers::new(lookup_of, netmap);
    let base = upstream.map(|upstream| upstream.base.clone()).unwrap_or_default();
    let service = ApiServerService::new(callers, credentials, base, end_revoked_streams);
    let part = ApiServerPart { stats: service.stats(), fault };
    Ok((service, part))
}
