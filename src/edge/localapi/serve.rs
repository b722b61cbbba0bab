//! Serve config of the daemon: read with its `ETag`, and replaced only if unchanged since.

use hyper::{Method, StatusCode};

use super::{LocalApi, LocalApiError, READ_TIMEOUT, WRITE_TIMEOUT, encode, json, request};
use crate::api::serve::ServeConfig;

const CALL: &str = "serve-config";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeState {
    /// Serve config; empty if it was never set.
    pub config: ServeConfig,
    pub etag: Option<String>,
}

impl LocalApi {
    pub async fn serve_config(&self) -> Result<ServeState, LocalApiError> {
        let answer = self.call(CALL, Method::GET, CALL, Vec::new(), READ_TIMEOUT).await?;
        let etag = answer.headers().get("Etag").and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let config: Option<ServeConfig> = json(CALL, answer.body())?;
        Ok(ServeState { config: config.unwrap_or_default(), etag })
    }

    /// Replaces the serve config. Returns `false`, without a change, if the current config no longer matches the `ETag`. Refused before the
    /// first netmap, and if the handler type of a port or Tailscale Service changes (see [`crate::model::tailnet::serve_config::steps`]).
    pub async fn set_serve_config(&self, config: &ServeConfig, etag: Option<&str>) -> Result<bool, LocalApiError> {
        let mut request = request(CALL, Method::POST, CALL, encode(CALL, config)?)?;
        if let Some(value) = etag.and_then(|etag| etag.parse().ok()) {
            request.headers_mut().insert("If-Match", value);
        }
        match self.exchange(CALL, request, WRITE_TIMEOUT).await {
            Ok(_) => Ok(true),
            Err(LocalApiError::Refused { status: StatusCode::PRECONDITION_FAILED, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
