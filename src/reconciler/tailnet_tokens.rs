//! Tokens of the reconciler's service account, by which Tailnets with workload identity log in.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::edge::kube::{Cluster, KubeError};
use crate::model::tailnet::supervise::Secret;

/// Age at which a token is renewed; its lifetime is twice as long.
const RENEWAL_AGE: Duration = Duration::from_mins(30);

#[derive(Debug)]
pub struct TailnetTokens {
    cluster: Cluster,
    service_account: String,
    ca: Option<PathBuf>,
    tokens: Mutex<HashMap<String, TailnetToken>>,
}

#[derive(Debug)]
struct TailnetToken {
    sender: watch::Sender<Option<Secret>>,
    /// Audience and time of the current token.
    made: Option<(String, Instant)>,
}

impl Default for TailnetToken {
    fn default() -> Self {
        Self { sender: watch::channel(None).0, made: None }
    }
}

impl TailnetTokens {
    /// No tokens yet. Tokens are requested for this service account of the cluster's namespace.
    pub fn new(cluster: Cluster, service_account: String, ca: Option<PathBuf>) -> Self {
        Self { cluster, service_account, ca, tokens: Mutex::default() }
    }

    /// The token of our service account for a Tailnet's control plane.
    pub(super) fn token(&self, name: &str) -> watch::Receiver<Option<Secret>> {
        self.tokens().entry(name.to_owned()).or_default().sender.subscribe()
    }

    /// Requests a new token unless the current one is fresh.
    pub(super) async fn renew(&self, name: &str, audience: &str) -> Result<(), KubeError> {
        let fresh = |made: &(String, Instant)| made.0 == audience && made.1.elapsed() < RENEWAL_AGE;
        if self.tokens().get(name).and_then(|token| token.made.as_ref()).is_some_and(fresh) {
            return Ok(());
        }
        let text = self.cluster.service_account_token(&self.service_account, audience, RENEWAL_AGE * 2).await?;
        let mut tokens = self.tokens();
        let token = tokens.entry(name.to_owned()).or_default();
        token.made = Some((audience.to_owned(), Instant::now()));
        token.sender.send_replace(Some(Secret::new(text)));
        Ok(())
    }

    /// CA of control planes, if it is not a public one.
    pub(super) fn ca(&self) -> Option<&PathBuf> {
        self.ca.as_ref()
    }

    /// Forgets the token of a Tailnet.
    pub(super) fn forget(&self, name: &str) {
        self.tokens().remove(name);
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<String, TailnetToken>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
