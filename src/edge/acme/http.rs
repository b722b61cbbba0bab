//! HTTP transport of the ACME client, with the same HTTPS client as the control planes.
//!
//! The ACME client reads only the body of an error response; its head is stored here for the caller.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};

use super::error::ErrorHead;
use super::{AcmeError, AcmeServer, REFUSED};
use crate::runtime::https;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Default `Retry-After` of renewal information, in seconds (RFC 9773, 4.3.3).
const SUGGESTION: HeaderValue = HeaderValue::from_static("21600");
/// Maximum `Retry-After`: the longest known rate limit is weekly.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(7 * 24);

#[derive(Debug, Clone)]
pub(super) struct AcmeHttp(reqwest::Client);

impl AcmeHttp {
    pub(super) fn new(server: &AcmeServer) -> Result<Self, AcmeError> {
        let client = https::builder(server.ca.as_deref()).and_then(|builder| https::build(builder.timeout(REQUEST_TIMEOUT)));
        client.map(Self).map_err(|error| AcmeError::Client(error.to_string()))
    }
}

impl HttpClient for AcmeHttp {
    fn request(&self, request: Request<BodyWrapper<Bytes>>) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.0.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            let ask = head.method == Method::GET;
            let request = reqwest::Request::try_from(Request::from_parts(head, body.to_bytes())).map_err(other)?;
            let answer = client.execute(request).await.map_err(other)?;
            let (status, mut headers) = (answer.status(), answer.headers().clone());
            let wanted = limit_retry_after(&mut headers, SystemTime::now());
            if !status.is_success() {
                let head_of_error = ErrorHead { status: status.as_u16(), retry_after: wanted };
                let _ = REFUSED.try_with(|refused| refused.set(Some(head_of_error)));
            } else if ask && wanted.is_none() {
                headers.insert(RETRY_AFTER, SUGGESTION);
            }
            let mut whole = Response::new(Full::new(answer.bytes().await.map_err(other)?));
            (*whole.status_mut(), *whole.headers_mut()) = (status, headers);
            Ok(BytesResponse::from(whole))
        })
    }
}

fn other(error: reqwest::Error) -> Error {
    Error::Other(Box::new(error))
}

/// `Retry-After`: seconds or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wanted = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wanted.min(MAX_RETRY_AFTER))
}

/// Limits `Retry-After`, from which the ACME client computes a time without checking for overflow; an unreadable one is removed.
fn limit_retry_after(headers: &mut HeaderMap, now: SystemTime) -> Option<Duration> {
    let wanted = retry_after(headers, now);
    headers.remove(RETRY_AFTER);
    headers.extend(wanted.map(|wanted| (RETRY_AFTER, HeaderValue::from(wanted.as_secs()))));
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_limited_for_the_acme_client() {
        let limited = |text: &str| {
            let mut headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().expect("a value"))]);
            let wanted = limit_retry_after(&mut headers, SystemTime::UNIX_EPOCH);
            (wanted, headers.get(RETRY_AFTER).map(|value| value.to_str().expect("text").to_owned()))
        };
        assert_eq!(limited("120"), (Some(Duration::from_mins(2)), Some("120".to_owned())));
        for endless in [u64::MAX.to_string().as_str(), "Fri, 31 Dec 9999 23:59:59 GMT"] {
            assert_eq!(limited(endless), (Some(MAX_RETRY_AFTER), Some("604800".to_owned())), "{endless}");
        }
        assert_eq!(limited("soon"), (None, None));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Fri, 31 Dec 1999 23:59:00 GMT").expect("a date");
        let read = |text: &str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, text.parse().expect("a value"))]), now);
        assert_eq!(read("120"), Some(Duration::from_mins(2)));
        assert_eq!(read("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::from_secs(59)));
        assert_eq!(read("Fri, 31 Dec 1999 23:58:59 GMT"), Some(Duration::ZERO));
        assert_eq!(read("99999999999"), Some(MAX_RETRY_AFTER));
        assert_eq!((read("soon"), retry_after(&HeaderMap::new(), now)), (None, None));
    }
}
