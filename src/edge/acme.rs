//! ACME client (RFC 8555): account, orders with the dns-01 challenge, and renewal information (RFC 9773).
//!
//! An order is attempted once and returns its result; the caller decides when to order and when to retry. The callback of [`Acme::order`]
//! sets the TXT record of the challenge. Nothing is stored on disk, and no key is logged. Authorizations are deactivated after each order:
//! they belong to the account, which other proxies may share.

use std::cell::Cell;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize as _;
use serde::de::value::BorrowedStrDeserializer;
use tokio::time::timeout;

use crate::model::ingress::cert_orders::RenewalWindow;
use crate::model::ingress::certificate::Pair;

mod error;
mod http;
mod key;

pub use error::AcmeError;
pub use key::AccountKey;

use error::ErrorHead;
use http::AcmeHttp;

/// Polling of an order; the caller's own timeout is shorter.
const POLL: RetryPolicy = RetryPolicy::new().initial_delay(Duration::from_millis(100)).backoff(1.3).timeout(Duration::from_mins(4));
/// Timeout of the deactivation of authorizations, which delays a new certificate.
const DEACTIVATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum retries after a `badNonce` error, in addition to those of the ACME client.
const NONCES: u8 = 8;

/// Callback that sets a TXT record; arguments: name, value.
pub type SetTxt<'a> = &'a (dyn Fn(String, String) -> Pin<Box<dyn Future<Output = Result<(), RecordFailure>> + Send>> + Send + Sync);
pub type RecordFailure = Box<dyn std::error::Error + Send + Sync>;

tokio::task_local! {
    /// Head of the last error response; one per call.
    static REFUSED: Cell<Option<ErrorHead>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeServer {
    pub directory: String,
    /// File with additional trusted CAs, PEM: for a server with a private CA.
    pub ca: Option<PathBuf>,
}

/// Account on an ACME server. Cheap to clone.
#[derive(Clone)]
pub struct Acme {
    account: Account,
    key: Arc<AccountKey>,
}

/// Repeats a call while the server rejects its nonce (`badNonce`).
macro_rules! with_nonce {
    ($call:expr) => {{
        let mut attempts = NONCES;
        loop {
            match $call.await {
                Err(Error::Api(problem)) if attempts > 0 && error::is(&problem, "badNonce") => attempts -= 1,
                done => break done,
            }
        }
    }};
}

impl Acme {
    /// Logs in with the account key; creates the account if it does not exist.
    pub async fn log_in(server: &AcmeServer, key: AccountKey) -> Result<Self, AcmeError> {
        let http = AcmeHttp::new(server)?;
        let log_in = async {
            with_nonce!(async {
                let (signer, pkcs8) = key.parts()?;
                let builder = Account::builder_with_http(Box::new(http.clone()));
                builder.create_from_key((signer, pkcs8), server.directory.clone()).await
            })
        };
        let (account, _credentials) = call("log in", log_in).await?;
        Ok(Self { account, key: Arc::new(key) })
    }

    pub fn key(&self) -> &AccountKey {
        &self.key
    }

    /// Orders a certificate for a name. `replaces` is the ID of the certificate to renew, if this account ordered it.
    pub async fn order(&self, name: &str, replaces: Option<&str>, set_txt: SetTxt<'_>) -> Result<Pair, AcmeError> {
        let mut order = match (self.new_order(name, replaces).await, replaces) {
            // Already replaced, or unknown to the server: `replaces` is only a hint, so the order is repeated without it.
            (Err(AcmeError::Refused { kind, .. }), Some(_)) if !matches!(kind, "RateLimited" | "ServerError") => {
                self.new_order(name, None).await?
            }
            (made, _) => made?,
        };
        let issued = self.issue(&mut order, name, set_txt).await;
        let work = call("deactivate the authorizations", deactivate(&mut order));
        match timeout(DEACTIVATION_TIMEOUT, work).await {
            // Those of a failed order are rarely valid.
            Ok(Err(error)) if issued.is_ok() => {
                tracing::warn!(
                    name,
                    reason = error.reason(),
                    "the account may order this name without another proof for some time: {error}"
                );
            }
            Err(_late) => tracing::warn!(name, "the account may order this name without another proof for some time: no response"),
            Ok(_) => {}
        }
        issued
    }

    /// Proves the name, and fetches the certificate.
    async fn issue(&self, order: &mut Order, name: &str, set_txt: SetTxt<'_>) -> Result<Pair, AcmeError> {
        self.prove(order, set_txt).await?;
        if order.state().status == OrderStatus::Pending {
            let status = call("wait for the proof", async { with_nonce!(order.poll_ready(&POLL)) }).await;
            match status {
                Ok(OrderStatus::Ready) => {}
                Ok(_) | Err(AcmeError::Refused { .. }) => return Err(self.why_invalid(order, name).await),
                Err(error) => return Err(error),
            }
        }
        let key = call("finalize", async { with_nonce!(order.finalize()) }).await?;
        let chain = call("fetch the certificate", async { with_nonce!(order.poll_certificate(&POLL)) }).await?;
        Ok(Pair { chain: chain.into_bytes().into(), key: key.into_bytes().into() })
    }

    /// Fetches the suggested renewal window of a certificate and the time until the next request; `None` if the server has none.
    pub async fn suggestion(&self, certificate: &str) -> Result<Option<(RenewalWindow, Duration)>, AcmeError> {
        let Some(id) = identifier(certificate) else { return Ok(None) };
        match call("read the renewal window", self.account.renewal_info(&id)).await {
            Ok((info, again)) => {
                let time = |at: i64| Timestamp::from_second(at).unwrap_or(Timestamp::MAX);
                let window = info.suggested_window;
                Ok(Some((RenewalWindow { start: time(window.start.unix_timestamp()), end: time(window.end.unix_timestamp()) }, again)))
            }
            Err(AcmeError::Unsupported) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn new_order(&self, name: &str, replaces: Option<&str>) -> Result<Order, AcmeError> {
        let identifiers = [Identifier::Dns(name.to_owned())];
        let order = async |replaces: Option<&str>| {
            let mut wanted = NewOrder::new(&identifiers);
            if let Some(id) = replaces.and_then(identifier) {
                wanted = wanted.replaces(id);
            }
            call("order", async { with_nonce!(self.account.new_order(&wanted)) }).await
        };
        match order(replaces).await {
            Err(AcmeError::Unsupported) => order(None).await,
            made => made,
        }
    }

    /// Completes the pending authorizations of an order.
    async fn prove(&self, order: &mut Order, set_txt: SetTxt<'_>) -> Result<(), AcmeError> {
        call("read what is to be proven", async { with_nonce!(read(order)) }).await?;
        let mut authorizations = order.authorizations();
        while let Some(Ok(mut authorization)) = authorizations.next().await {
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => return Err(AcmeError::Invalid { name: authorization.identifier().to_string(), why: format!("{status:?}") }),
            }
            let name = authorization.identifier().to_string();
            let mut challenge = authorization.challenge(ChallengeType::Dns01).ok_or(AcmeError::NoDns { name: name.clone() })?;
            let record = format!("_acme-challenge.{}", name.trim_start_matches("*."));
            let set = set_txt(record.clone(), challenge.key_authorization().dns_value()).await;
            set.map_err(|source| AcmeError::Record { record, source })?;
            call("have a name checked", async { with_nonce!(challenge.set_ready()) }).await?;
        }
        Ok(())
    }

    /// Error of an invalid order, with the server's reason.
    async fn why_invalid(&self, order: &mut Order, name: &str) -> AcmeError {
        let mut why = "the server does not say why".to_owned();
        let mut authorizations = order.authorizations();
        while let Some(Ok(mut authorization)) = authorizations.next().await {
            if authorization.refresh().await.is_ok()
                && let Some(problem) = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref())
            {
                why = problem.detail.clone().unwrap_or_else(|| problem.to_string());
            }
        }
        AcmeError::Invalid { name: name.to_owned(), why }
    }
}

/// Fetches the authorizations of an order, which caches them.
async fn read(order: &mut Order) -> Result<(), Error> {
    let mut authorizations = order.authorizations();
    while let Some(found) = authorizations.next().await {
        found?;
    }
    Ok(())
}

/// Deactivates the authorizations of an order (RFC 8555, 7.5.2).
async fn deactivate(order: &mut Order) -> Result<(), Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        with_nonce!(async { authorization.deactivate().await.map(|_state| ()) })?;
    }
    Ok(())
}

/// Parses a certificate ID; `None` if it has no authority key identifier.
fn identifier(id: &str) -> Option<CertificateIdentifier<'_>> {
    let deserializer: BorrowedStrDeserializer<'_, serde::de::value::Error> = BorrowedStrDeserializer::new(id);
    CertificateIdentifier::deserialize(deserializer).ok().filter(|_| !id.starts_with('.'))
}

/// Runs one call; its error has the status and `Retry-After` of the response in addition to the problem document.
async fn call<T>(what: &'static str, work: impl Future<Output = Result<T, Error>>) -> Result<T, AcmeError> {
    REFUSED
        .scope(Cell::new(None), async {
            let done = work.await;
            done.map_err(|fault| AcmeError::of(what, fault, REFUSED.with(Cell::take)))
        })
        .await
}
