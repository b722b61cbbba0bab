//! `tailyard migrate check`: lists the objects of a cluster with the Tailscale operator, and checks what a migration takes over.

use std::io::Write;

use serde_json::{Map, Value};

use super::doctor::{print, unreachable};
use super::{InspectError, OF_USERS, gap};
use crate::edge::kube::{CallFault, Cluster, Follow, KubeError, MAX_ITEMS, Resource};
use crate::model::diagnostics::doctor::ReadResult;
use crate::model::diagnostics::doctor::cluster::ClusterFacts;
use crate::model::diagnostics::doctor::is_reconciler;
use crate::model::diagnostics::migration::{MigrationFacts, PAGE, checks, exit_code, planned};
use crate::model::diagnostics::overview::Gap;

#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Values of our chart; `None` for the settings of the reconciler in the cluster, else of the Tailscale operator.
    pub values: Option<Map<String, Value>>,
    pub json: bool,
}

/// Writes the findings and returns the exit code.
pub async fn run(cluster: Result<Cluster, KubeError>, options: &CheckOptions, out: &mut dyn Write) -> Result<u8, InspectError> {
    let found = match cluster {
        Ok(cluster) => match cluster.version().await {
            Ok(_) => checks(&Box::pin(facts(&cluster, options.values.as_ref())).await),
            Err(error) => vec![unreachable(&error)],
        },
        Err(error) => vec![unreachable(&error)],
    };
    print(&found, options.json, PAGE, out)?;
    Ok(exit_code(&found))
}

async fn facts(cluster: &Cluster, values: Option<&Map<String, Value>>) -> MigrationFacts {
    let namespace = cluster.namespace();
    let (deployments, groups, proxy_classes) = tokio::join!(
        list(cluster, Resource::DEPLOYMENT, None),
        list(cluster, Resource::PROXY_GROUP, None),
        list(cluster, Resource::PROXY_CLASS, None),
    );
    let (services, ingresses, namespaces, classes) = tokio::join!(
        list(cluster, Resource::SERVICE, Some(OF_USERS)),
        list(cluster, Resource::INGRESS, None),
        list(cluster, Resource::NAMESPACE, None),
        list(cluster, Resource::INGRESS_CLASS, None),
    );
    let deployments = match (deployments, values) {
        (Ok(mut deployments), Some(values)) => {
            deployments.retain(|deployment| !is_reconciler(deployment));
            deployments.push(planned::deployment(values, namespace));
            Ok(deployments)
        }
        (deployments, _) => deployments,
    };
    let mut facts = ClusterFacts { deployments, groups, services, ingresses, namespaces, classes, ..ClusterFacts::new(namespace) };
    for resource in Resource::NOT_RECONCILED {
        facts.unreconciled.insert(resource.kind, list(cluster, resource, None).await);
    }
    MigrationFacts { cluster: facts, proxy_classes }
}

/// Objects of a kind; none if the cluster does not have the kind. A list that is not complete is no answer.
async fn list(cluster: &Cluster, resource: Resource, labels: Option<&'static str>) -> ReadResult<Vec<Value>> {
    let objects = cluster.list(&Follow { resource, namespace: None, labels, fields: None }).await;
    match objects {
        Ok(objects) if objects.len() >= MAX_ITEMS => Err(Gap::Failed(format!("there are {MAX_ITEMS} or more"))),
        Ok(objects) => Ok(objects),
        Err(KubeError::Call { fault: CallFault::Refused { code: 404, .. }, .. }) => Ok(Vec::new()),
        Err(error) => Err(gap(&error)),
    }
}
