//! Rules of the tailnet policy about this node.

use hyper::Method;

use super::{LocalApi, LocalApiError, READ_TIMEOUT, json};
use crate::api::localapi::FilterRule;

impl LocalApi {
    /// Rules by which peers reach this node, with the capabilities that they grant.
    pub async fn packet_filter_rules(&self) -> Result<Vec<FilterRule>, LocalApiError> {
        const CALL: &str = "debug-packet-filter-rules";
        let answer = self.call(CALL, Method::POST, CALL, Vec::new(), READ_TIMEOUT).await?;
        json::<Option<_>>(CALL, answer.body()).map(Option::unwrap_or_default)
    }
}
