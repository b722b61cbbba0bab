//! What the daemon serves: read with its tag, and replaced only if nobody else has done so in between.

use hyper::{Method, StatusCode};

use super::{LocalApi, LocalApiError, READ, WRITE, encode, json, request};
use crate::api::serve::ServeConfig;

const CALL: &str = "serve-config";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeState {
    /// The config; one that was never set is empty.
    pub config: ServeConfig,
    pub etag: Option<String>,
}

impl LocalApi {
    pub async fn serve_config(&self) -> Result<ServeState, LocalApiError> {
        let answer = self.call(CALL, Method::GET, CALL, Vec::new(), READ).await?;
        let etag = answer.headers().get("Etag").and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let config: Option<ServeConfig> = json(CALL, answer.body())?;
        Ok(ServeState { config: config.unwrap_or_default(), etag })
    }

    /// Replaces what the daemon serves; false if that is not any more what the tag says, and then nothing changes. Refused before
    /// the first netmap, and where a port or a Tailscale Service is to be served in another way than before (see
    /// [`crate::model::tailnet::serve_config::steps`]).
    pub async fn set_serve_config(&self, config: &ServeConfig, etag: Option<&str>) -> Result<bool, LocalApiError> {
        let mut request = request(CALL, Method::POST, CALL, encode(CALL, config)?)?;
        if let Some(value) = etag.and_then(|etag| etag.parse().ok()) {
            request.headers_mut().insert("If-Match", value);
        }
        match self.exchange(CALL, request, WRITE).await {
            Ok(_) => Ok(true),
            Err(LocalApiError::Refused { status: StatusCode::PRECONDITION_FAILED, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
