//! ACME account: its key is in a Secret that outlives Pods and is shared by replicas.
//!
//! A key is stored before use, so that a crash leaves no account without its key. An unreadable key is not overwritten; a key whose account
//! the server has closed is replaced.

use std::collections::BTreeMap;

use bytes::Bytes;
use tokio::sync::Mutex;

use crate::edge::acme::{AccountKey, Acme, AcmeError, AcmeServer};
use crate::edge::kube::{ApiRefusal, Cluster, KubeError, Values, VersionedSecret};
use crate::model::base::hash::sha256_raw;
use crate::model::ingress::cert_orders::OrderFailure;
use crate::model::ingress::cert_store::FailedOrder;
use crate::model::ingress::certificate::CertificateError;

/// Maximum attempts at storing a key against concurrent writers.
const TRIES: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountAt {
    pub secret: String,
    pub field: String,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum IssueError {
    #[error("the Secret {secret} of the ACME account does not exist; the reconciler makes it")]
    NoAccountSecret { secret: String },
    #[error("the ACME account's key in the Secret {secret} changes all the time; do two programs with different settings share it?")]
    AccountContended { secret: String },
    #[error("the ACME account's key: {0}")]
    Secret(#[from] KubeError),
    #[error(transparent)]
    Acme(#[from] AcmeError),
    #[error("the certificate that was issued cannot be used: {0}")]
    Certificate(#[from] CertificateError),
}

impl IssueError {
    /// Metric label and Event reason; closed set.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NoAccountSecret { .. } => "NoAccountSecret",
            Self::AccountContended { .. } => "AccountContended",
            Self::Secret(error) => error.reason(),
            Self::Acme(error) => error.reason(),
            Self::Certificate(_) => "BadCertificate",
        }
    }

    pub(super) fn failed(&self) -> FailedOrder {
        let failure = match self {
            Self::Acme(error) => OrderFailure { retry_after: error.retry_after(), outage: error.is_outage() },
            Self::Certificate(_) => OrderFailure::default(),
            _ => OrderFailure { retry_after: None, outage: true },
        };
        FailedOrder { failure, reason: self.reason(), message: self.to_string() }
    }
}

pub(super) struct Accounts {
    cluster: Cluster,
    server: AcmeServer,
    at: AccountAt,
    current: Mutex<Option<Acme>>,
}

impl Accounts {
    pub(super) fn new(cluster: Cluster, server: AcmeServer, at: AccountAt) -> Self {
        Self { cluster, server, at, current: Mutex::default() }
    }

    /// Returns the account; logs in on first use.
    pub(super) async fn get(&self) -> Result<Acme, IssueError> {
        let mut current = self.current.lock().await;
        if let Some(acme) = &*current {
            return Ok(acme.clone());
        }
        let acme = match Acme::log_in(&self.server, self.key(None).await?).await {
            Err(error) if error.is_account() => {
                let closed = self.key(None).await?;
                tracing::warn!(reason = error.reason(), "the ACME account is closed; creating another: {error}");
                Acme::log_in(&self.server, self.key(Some(&closed)).await?).await?
            }
            done => done?,
        };
        *current = Some(acme.clone());
        Ok(acme)
    }

    /// Forces a login at the next use.
    pub(super) async fn forget(&self) {
        *self.current.lock().await = None;
    }

    /// Stored key; creates one if missing, or if only that of a closed account exists.
    async fn key(&self, closed: Option<&AccountKey>) -> Result<AccountKey, IssueError> {
        for _ in 0..TRIES {
            let secret = self.cluster.noted(&self.at.secret).await?;
            let secret = secret.ok_or_else(|| IssueError::NoAccountSecret { secret: self.at.secret.clone() })?;
            if let Some(key) = self.stored(&secret)?
                && Some(&key) != closed
            {
                return Ok(key);
            }
            let made = AccountKey::generate()?;
            let values = Values::from([(self.at.field.clone(), Bytes::from(made.pem().to_owned()))]);
            match self.cluster.note(&self.at.secret, &secret.version, &BTreeMap::new(), &values).await {
                Ok(_) => return Ok(made),
                Err(error) if error.refusal() == Some(ApiRefusal::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(IssueError::AccountContended { secret: self.at.secret.clone() })
    }

    fn stored(&self, secret: &VersionedSecret) -> Result<Option<AccountKey>, IssueError> {
        match secret.values.get(&self.at.field).filter(|text| !text.is_empty()) {
            Some(text) => Ok(Some(AccountKey::read(text)?)),
            None => Ok(None),
        }
    }
}

/// Fingerprint of an account in certificate Secrets.
pub(super) fn fingerprint(key: &AccountKey) -> Vec<u8> {
    sha256_raw(key.pem().as_bytes())
}
