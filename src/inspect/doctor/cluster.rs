//! Facts of a cluster. Reads each object once, checks each right once, and tests credentials with reads only.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::{self, StreamExt};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::edge::control::{ClientCredentials, ControlClient, ControlError, ControlSettings, Rate};
use crate::edge::kube::{Cluster, Follow, KubeError, Resource};
use crate::inspect::{OF_USERS, PROXIES, gap, live_status};
use crate::model::controller::kinds::tailnet;
use crate::model::controller::workload::objects::Kind;
use crate::model::diagnostics::doctor::ReadResult;
use crate::model::diagnostics::doctor::admission::POLICY;
use crate::model::diagnostics::doctor::cluster::{
    ClusterFacts, CredentialCheck, CredentialLocation, CredentialOutcome, DEFINITIONS, credentials, places,
};
use crate::model::diagnostics::doctor::rights::{self, Right};
use crate::model::diagnostics::doctor::{is_reconciler, variable};
use crate::model::diagnostics::overview::{ClusterView, StatusPart};

const ACCOUNT: &str = "tailyard-reconciler";
const LEASE: &str = "tailyard-reconciler";
/// A Lease without renewal for this time has no holder: a candidate takes over earlier.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval of reads of the Lease.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Namespace of a cluster's system components.
const SYSTEM: &str = "kube-system";
/// Maximum concurrent requests.
const AT_A_TIME: usize = 8;
/// Number of proxies' accounts that are checked; the reconciler writes the Roles of all in the same way.
const PROXY_ACCOUNTS: usize = 10;
/// Timeout of a control plane request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Collects all facts.
pub(super) async fn facts(cluster: &Cluster, server: String, ca: Option<&Path>) -> ClusterFacts {
    let ((lease, renewed), facts) = tokio::join!(lease(cluster), objects(cluster, server, ca));
    ClusterFacts { lease, renewed, ..facts }
}

/// All facts except the Lease, whose check takes a while.
async fn objects(cluster: &Cluster, server: String, ca: Option<&Path>) -> ClusterFacts {
    let namespace = cluster.namespace();
    let follow = |resource, of: Option<&str>, labels, fields| Follow { resource, namespace: of.map(str::to_owned), labels, fields };
    let list = async |resource, of, labels| cluster.list(&follow(resource, of, labels, None)).await.map_err(|error| gap(&error));
    let look = async |resource, of, name: &str| cluster.look(resource, of, name).await.map_err(|error| gap(&error));
    let mut definitions = BTreeMap::new();
    for name in DEFINITIONS {
        definitions.insert(name, look(Resource::DEFINITION, None, name).await);
    }
    let (deployments, groups, tailnets) =
        tokio::join!(list(Resource::DEPLOYMENT, None, None), list(Resource::PROXY_GROUP, None, None), list(Resource::TAILNET, None, None),);
    let required = reconciler_rights(cluster.namespace(), deployments.as_deref().unwrap_or_default());
    let mut unreconciled = BTreeMap::new();
    for resource in Resource::NOT_RECONCILED {
        unreconciled.insert(resource.kind, list(resource, None, None).await);
    }
    let sets = list(Kind::StatefulSet.into(), Some(namespace), Some(PROXIES)).await;
    let warnings = follow(Resource::EVENT, None, None, Some(Resource::INGRESS_WARNINGS));
    let failures = follow(Resource::EVENT, Some(namespace), None, Some(Resource::CREATE_FAILURES));
    let tried = match &deployments {
        Ok(deployments) => Ok(tried(cluster, deployments, tailnets.as_deref().unwrap_or_default(), ca).await),
        Err(gap) => Err(gap.clone()),
    };
    let pods = list(Resource::POD, Some(namespace), Some(PROXIES)).await;
    let reconciler = deployments.iter().flatten().find(|deployment| is_reconciler(deployment));
    let [sets_of, groups_of] = [&sets, &groups].map(|objects| objects.as_deref().unwrap_or_default());
    let proxies = rights::impersonating_proxies(namespace, sets_of, groups_of, reconciler);
    let mut view = ClusterView::new(namespace);
    view.take(StatusPart::Pods, pods.iter().flatten());
    ClusterFacts {
        server,
        live: live_status(cluster, view.with_status_endpoint()).await,
        definitions,
        denied: denied(cluster, required, proxies).await,
        policy: look(Kind::AdmissionPolicy.into(), None, POLICY).await,
        policy_binding: look(Kind::AdmissionBinding.into(), None, POLICY).await,
        deployments,
        groups,
        sets,
        failures: cluster.list(&failures).await.map_err(|error| gap(&error)),
        unreconciled,
        lease: Ok(None),
        renewed: false,
        pods,
        services: list(Resource::SERVICE, None, Some(OF_USERS)).await,
        ingresses: list(Resource::INGRESS, None, None).await,
        namespaces: list(Resource::NAMESPACE, None, None).await,
        classes: list(Resource::INGRESS_CLASS, None, None).await,
        ingress_events: cluster.list(&warnings).await.map_err(|error| gap(&error)),
        now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        nodes: list(Resource::NODE, None, None).await,
        ranges: list(Resource::SERVICE_RANGE, None, None).await,
        dns: look(Resource::SERVICE, Some(SYSTEM), "kube-dns").await,
        kube_proxy: look(Resource::CONFIG_MAP, Some(SYSTEM), "kube-proxy").await,
        cilium: look(Resource::CONFIG_MAP, Some(SYSTEM), "cilium-config").await,
        credentials: tried,
        namespace: namespace.to_owned(),
    }
}

/// The Lease, and whether it was renewed within [`RENEWAL_TIMEOUT`].
async fn lease(cluster: &Cluster) -> (ReadResult<Option<Value>>, bool) {
    let look = async || cluster.look(Resource::LEASE, Some(cluster.namespace()), LEASE).await.map_err(|error| gap(&error));
    let time =
        |lease: &ReadResult<Option<Value>>| lease.as_ref().ok().and_then(Option::as_ref).map(|lease| lease["spec"]["renewTime"].clone());
    let first = look().await;
    let Some(before) = time(&first) else { return (first, false) };
    let end = Instant::now() + RENEWAL_TIMEOUT;
    while Instant::now() < end {
        sleep(POLL_INTERVAL).await;
        let now = look().await;
        if time(&now).is_some_and(|now| now != before) {
            return (now, true);
        }
    }
    (first, false)
}

/// Rights that the reconciler requires with the settings of its Deployment.
fn reconciler_rights(namespace: &str, deployments: &[Value]) -> Vec<Right> {
    let reconciler = deployments.iter().find(|deployment| is_reconciler(deployment));
    let setting = |name| reconciler.and_then(|deployment| variable(deployment, name)).unwrap_or_default();
    let watched = setting("TAILYARD_WATCH_NAMESPACES").split(',').map(str::trim).filter(|name| !name.is_empty());
    let mut rights = rights::reconciler(namespace, &watched.map(str::to_owned).collect::<Vec<_>>());
    rights.retain(|right| !right.failover() || setting("TAILYARD_FAILOVER") != "off");
    if !setting("TAILYARD_IMPERSONATE_USERS").is_empty() || setting("TAILYARD_API_SERVER_PROXY_ALL_USERS") == "on" {
        rights.extend(rights::impersonation());
    }
    rights
}

/// Required rights that the accounts of the reconciler and of proxies lack.
async fn denied(cluster: &Cluster, reconciler: Vec<Right>, proxies: Vec<(String, Vec<Right>)>) -> BTreeMap<String, ReadResult<Vec<Right>>> {
    let namespace = cluster.namespace();
    // A review of one's own rights needs no right, e.g. for the reconciler in its Pod; a review of others does.
    let own = cluster.who().await.unwrap_or_default();
    let mut denied = BTreeMap::new();
    let mut wanted = vec![(ACCOUNT.to_owned(), reconciler)];
    wanted.extend(proxies.into_iter().take(PROXY_ACCOUNTS));
    for (account, rights) in wanted {
        let user = format!("system:serviceaccount:{namespace}:{account}");
        let reviews = stream::iter(rights).map(|right| {
            let user = Some(user.as_str()).filter(|user| *user != own);
            async move { cluster.allowed(&right, user).await.map(|allowed| (!allowed).then_some(right)) }
        });
        let answers: Vec<_> = reviews.buffer_unordered(AT_A_TIME).collect().await;
        let answers: Result<Vec<_>, KubeError> = answers.into_iter().collect();
        let missing = answers.map(|answers| answers.into_iter().flatten().collect::<Vec<_>>());
        let missing = missing.map(|mut missing| {
            missing.sort();
            missing
        });
        denied.insert(format!("{namespace}/{account}"), missing.map_err(|error| gap(&error)));
    }
    denied
}

/// Tests all configured credentials.
async fn tried(cluster: &Cluster, deployments: &[Value], tailnets: &[Value], ca: Option<&Path>) -> Vec<CredentialCheck> {
    let places = places(deployments, tailnets);
    let tries = places.iter().map(|place| async {
        let outcome = attempt(cluster, place, ca).await;
        CredentialCheck { user: place.user.clone(), secret: place.secret.clone(), outcome }
    });
    stream::iter(tries).buffered(AT_A_TIME).collect().await
}

async fn attempt(cluster: &Cluster, place: &CredentialLocation, ca: Option<&Path>) -> CredentialOutcome {
    let secret = match cluster.look(Resource::SECRET, Some(cluster.namespace()), &place.secret).await {
        Ok(Some(secret)) => secret,
        Ok(None) => return CredentialOutcome::Missing("it does not exist".to_owned()),
        Err(error) => return CredentialOutcome::Unread(gap(&error)),
    };
    let credentials = match credentials(place, &secret) {
        Ok(tailnet::Credentials::OAuth { client_id, client_secret }) => ClientCredentials::OAuth { client_id, client_secret },
        Ok(tailnet::Credentials::Headscale { api_key }) => ClientCredentials::Headscale { api_key },
        // The token must be issued for the reconciler's account.
        Ok(tailnet::Credentials::Identity { .. }) => return CredentialOutcome::Untested,
        Err(why) => return CredentialOutcome::Missing(why),
    };
    let ca = ca.map(Path::to_owned);
    let settings = ControlSettings { url: place.url.clone(), credentials, ca, rate: Rate::DEFAULT, deadline: PROBE_TIMEOUT };
    match ControlClient::new(settings) {
        Ok(control) => probe(&control).await,
        Err(error) => CredentialOutcome::Unreachable(error.to_string()),
    }
}

async fn probe(control: &ControlClient) -> CredentialOutcome {
    let is_refused =
        |error: &ControlError| matches!(error, ControlError::Denied { .. } | ControlError::Refused { .. } | ControlError::Absent { .. });
    match control.probe().await {
        Ok(()) => {}
        Err(error) if is_refused(&error) => return CredentialOutcome::Refused(error.to_string()),
        Err(error) => return CredentialOutcome::Unreachable(error.to_string()),
    }
    match control.probe_services().await {
        Err(error) if is_refused(&error) => CredentialOutcome::WithoutServices(error.to_string()),
        _ => CredentialOutcome::Works,
    }
}
