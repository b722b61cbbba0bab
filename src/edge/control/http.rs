//! HTTPS requests to a control plane: rate limit, timeout, and conversion of error responses.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use super::{ClientCredentials, ControlError, ControlSettings};
use crate::api::control::ControlRefusal;
use crate::model::base::rate::TokenBucket;
use crate::runtime::https;

/// Pause after a 429 or 503 response without `Retry-After`.
const DEFAULT_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Maximum pause: a wrong header must not stop a group for a day.
const MAX_RETRY_DELAY: Duration = Duration::from_mins(15);
/// Maximum characters of an error body that is not the known JSON.
const TEXT: usize = 200;

#[derive(Debug, Clone)]
pub(super) struct ControlHttp {
    client: Client,
    base: String,
    /// Hint in the error after rejected credentials.
    advice: &'static str,
    deadline: Duration,
    began: Instant,
    pace: Arc<Mutex<RequestPace>>,
}

#[derive(Debug)]
struct RequestPace {
    bucket: TokenBucket,
    not_before: Option<Instant>,
}

impl ControlHttp {
    pub(super) fn new(settings: &ControlSettings) -> Result<Self, ControlError> {
        let builder = https::builder(settings.ca.as_deref())?;
        let base = settings.url.trim_end_matches('/').to_owned();
        let url = reqwest::Url::parse(&base).map_err(|error| ControlError::Settings(format!("the URL {base:?}: {error}")))?;
        if !matches!(url.scheme(), "https" | "http") || url.host().is_none() {
            return Err(ControlError::Settings(format!("the URL {base:?} is not one of https")));
        }
        let client = https::build(builder)?;
        let pace = RequestPace { bucket: TokenBucket::new(settings.rate.burst, settings.rate.per_second), not_before: None };
        Ok(Self {
            client,
            base,
            advice: advice(&settings.credentials),
            deadline: settings.deadline,
            began: Instant::now(),
            pace: Arc::new(Mutex::new(pace)),
        })
    }

    /// Builds a request without sending it; `path` begins with a slash.
    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    /// Sends a request within the rate limit and parses the response.
    pub(super) async fn answer<T: DeserializeOwned>(&self, call: &'static str, request: RequestBuilder) -> Result<T, ControlError> {
        let body = self.send(call, request).await?;
        serde_json::from_slice(&body).map_err(|source| ControlError::Answer { call, source })
    }

    /// Sends a request within the rate limit and ignores the body of a success.
    pub(super) async fn done(&self, call: &'static str, request: RequestBuilder) -> Result<(), ControlError> {
        self.send(call, request).await.map(drop)
    }

    async fn send(&self, call: &'static str, request: RequestBuilder) -> Result<Bytes, ControlError> {
        let work = async {
            sleep(self.turn(call)?).await;
            let unreachable =
                |source: reqwest::Error| ControlError::Unreachable { call, url: self.base.clone(), source: source.without_url() };
            let response = request.send().await.map_err(unreachable)?;
            let (status, headers) = (response.status(), response.headers().clone());
            let body = response.bytes().await.map_err(unreachable)?;
            if status.is_success() { Ok(body) } else { Err(self.refusal(call, status, &headers, &body)) }
        };
        timeout(self.deadline, work).await.unwrap_or(Err(ControlError::Deadline { call, after: self.deadline }))
    }

    /// Time until the rate limit allows a request; an error during a pause, or if the time exceeds the timeout.
    fn turn(&self, call: &'static str) -> Result<Duration, ControlError> {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(rest) = pace.not_before.and_then(|end| end.checked_duration_since(now)).filter(|rest| !rest.is_zero()) {
            return Err(ControlError::Paused { call, after: rest });
        }
        pace.not_before = None;
        let wait = pace.bucket.take(now.saturating_duration_since(self.began));
        if wait >= self.deadline {
            pace.bucket.refund();
            return Err(ControlError::Paused { call, after: wait });
        }
        Ok(wait)
    }

    fn refusal(&self, call: &'static str, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ControlError {
        if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
            let after = pause(headers, SystemTime::now()).unwrap_or(DEFAULT_RETRY_DELAY).min(MAX_RETRY_DELAY);
            self.pace.lock().unwrap_or_else(PoisonError::into_inner).not_before = Some(Instant::now() + after);
            return ControlError::Paused { call, after };
        }
        let message = words(body);
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                ControlError::Denied { call, status: status.as_u16(), message, advice: self.advice }
            }
            StatusCode::NOT_FOUND => ControlError::Absent { call, message },
            _ => ControlError::Refused { call, status: status.as_u16(), message },
        }
    }
}

fn advice(credentials: &ClientCredentials) -> &'static str {
    match credentials {
        ClientCredentials::OAuth { .. } => "check ID and secret of the OAuth client",
        ClientCredentials::Identity { .. } => "check issuer, subject and audience of the federated client",
        ClientCredentials::Headscale { .. } => "check the API key: it may have expired (headscale apikeys list)",
    }
}

/// `Retry-After`, in seconds or as a date.
fn pause(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).ok(),
    }
}

/// Message of an error response.
fn words(body: &[u8]) -> String {
    let text = serde_json::from_slice::<ControlRefusal>(body).ok().and_then(|refusal| refusal.text());
    text.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned()).chars().take(TEXT).collect()
}
