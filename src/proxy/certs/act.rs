//! Executes decisions: writes of notes and certificates, orders, and ARI queries.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinError;

use super::account::{Accounts, IssueError, fingerprint};
use super::clock::{self, CertClock};
use super::{CertWork, NOTE};
use crate::api::issuance::OrderNote;
use crate::api::names::ACCOUNT_FINGERPRINT;
use crate::edge::acme::RecordFailure;
use crate::edge::kube::{ApiRefusal, KubeError, Values, VersionedSecret};
use crate::edge::localapi::LocalApi;
use crate::model::ingress::cert_orders::{OrderAction, OrderEvent, RenewalWindow, WriteResult};
use crate::model::ingress::cert_store::{Issued, note_text};

/// Retry interval of failed ARI queries.
const ARI_RETRY_INTERVAL: Duration = Duration::from_hours(1);

pub(super) enum Done {
    Claimed(String, Result<VersionedSecret, KubeError>),
    Stored(String, Result<VersionedSecret, KubeError>),
    Ended(String, u64, Result<Issued, IssueError>),
    Suggested(String, Option<(RenewalWindow, Duration)>),
    ClockRead(CertClock),
}

impl CertWork {
    pub(super) fn act(&mut self, action: OrderAction) {
        match action {
            OrderAction::Claim { name, version, note } => self.write(name, &version, Some(&note), Values::new(), Done::Claimed),
            OrderAction::Release { name, version, note } => self.write(name, &version, Some(&note), Values::new(), Done::Stored),
            OrderAction::Store { name, version } => {
                let values = self.store.issued(&name).map(values).unwrap_or_default();
                self.write(name, &version, None, values, Done::Stored);
            }
            OrderAction::Order { name, replaces } => self.order(name, replaces),
            OrderAction::Abandon(name) => {
                if let Some((_, order)) = self.orders.remove(&name) {
                    order.abort();
                }
            }
            OrderAction::Suggest { name, certificate } => {
                let accounts = self.accounts.clone();
                self.running.spawn(async move {
                    let ask = async { Ok::<_, IssueError>(accounts.get().await?.suggestion(&certificate).await?) };
                    let outcome = ask.await.unwrap_or_else(|error| {
                        tracing::debug!(reason = error.reason(), name, "{error}");
                        None
                    });
                    Done::Suggested(name, outcome)
                });
            }
        }
    }

    fn write(
        &mut self,
        name: String,
        version: &str,
        note: Option<&OrderNote>,
        values: Values,
        done: fn(String, Result<VersionedSecret, KubeError>) -> Done,
    ) {
        let text = note.map(|note| note_text(note, self.store.failure(&name)));
        let (cluster, secret, version) = (self.cluster.clone(), self.store.secret(&name), version.to_owned());
        self.running.spawn(async move {
            let annotations = BTreeMap::from([(NOTE, text)]);
            done(name, cluster.note(&secret, &version, &annotations, &values).await)
        });
    }

    fn order(&mut self, name: String, replaces: Option<String>) {
        self.begun += 1;
        let number = self.begun;
        let reusable = self.store.reusable(&name, self.clock.now());
        let replaces = replaces.map(|id| (id, self.store.fingerprint(&name)));
        let (accounts, api) = (self.accounts.clone(), self.api.clone());
        let order = self.running.spawn({
            let name = name.clone();
            async move {
                let ended = match reusable {
                    Some(pair) => Ok(pair),
                    None => issue(&accounts, &api, &name, replaces).await,
                };
                Done::Ended(name, number, ended)
            }
        });
        self.orders.insert(name, (number, order));
    }

    pub(super) fn done(&mut self, done: Result<Done, JoinError>) {
        // Aborted.
        let Ok(done) = done else { return };
        match done {
            Done::Claimed(name, outcome) => {
                let written = self.written(&name, outcome);
                self.step(OrderEvent::Claimed(name, written));
            }
            Done::Stored(name, outcome) => {
                let written = self.written(&name, outcome);
                self.step(OrderEvent::Stored(name, written));
            }
            Done::Ended(name, number, ended) => {
                if self.orders.get(&name).is_none_or(|(current, _)| *current != number) {
                    return;
                }
                self.orders.remove(&name);
                let end = ended.map_err(|error| error.failed());
                let end = self.store.ended(&name, end);
                self.step(OrderEvent::Ended(name, end));
            }
            Done::Suggested(name, answer) => {
                let (window, again) = answer.map_or((None, Some(ARI_RETRY_INTERVAL)), |(window, again)| (Some(window), Some(again)));
                self.step(OrderEvent::Suggested(name, window, again));
            }
            Done::ClockRead(clock) => {
                (self.clock, self.is_clock_checked) = (clock, true);
                let cluster = self.cluster.clone();
                self.running.spawn(async { Done::ClockRead(clock::read_after(clock::READ_INTERVAL, cluster).await) });
                self.lead();
            }
        }
    }

    fn written(&mut self, name: &str, outcome: Result<VersionedSecret, KubeError>) -> WriteResult {
        match outcome {
            Ok(noted) => {
                let secret = self.store.secret(name);
                self.store.put(&secret, noted, self.clock.now());
                self.store.record(name).map_or(WriteResult::Failed, WriteResult::Done)
            }
            Err(error) if error.refusal() == Some(ApiRefusal::Conflict) => WriteResult::Conflict,
            Err(error) => {
                tracing::warn!(reason = error.reason(), name, "{error}");
                WriteResult::Failed
            }
        }
    }
}

/// Orders a certificate. `replaces`: the previous certificate and the fingerprint of its account.
async fn issue(accounts: &Accounts, api: &LocalApi, name: &str, replaces: Option<(String, Bytes)>) -> Result<Issued, IssueError> {
    tracing::info!(name, replaces = replaces.as_ref().map(|(id, _)| id), "ordering a certificate");
    let set_txt = |record: String, value: String| -> std::pin::Pin<Box<dyn Future<Output = Result<(), RecordFailure>> + Send>> {
        let api = api.clone();
        Box::pin(async move { api.set_dns(&record, &value).await.map_err(Into::into) })
    };
    let mut acme = accounts.get().await?;
    let same_key = |key: &[u8]| replaces.as_ref().filter(|(_, by)| by.is_empty() || by == key).map(|(id, _)| id.as_str());
    let pair = match acme.order(name, same_key(&fingerprint(acme.key())), &set_txt).await {
        Err(error) if error.is_account() => {
            // The account was closed: retry once with another.
            accounts.forget().await;
            acme = accounts.get().await?;
            acme.order(name, same_key(&fingerprint(acme.key())), &set_txt).await?
        }
        done => done?,
    };
    Ok(Issued::new(name, pair, fingerprint(acme.key()).into())?)
}

fn values(issued: &Issued) -> Values {
    let bytes = |text: &[u8]| Bytes::copy_from_slice(text);
    Values::from([
        ("tls.crt".to_owned(), bytes(&issued.pair.chain)),
        ("tls.key".to_owned(), bytes(&issued.pair.key)),
        (ACCOUNT_FINGERPRINT.to_owned(), issued.by.clone()),
    ])
}
