//! Responses in the API server's place: `Status` objects. `kubectl` and client libraries show no message of another body.

use http::StatusCode;
use serde_json::json;

/// `Content-Type` of a [`body`].
pub const CONTENT_TYPE: &str = "application/json";

/// Maximum bytes of a message: of the response to a `WebSocket` request `kubectl` reads 1 KiB.
const MAX_MESSAGE: usize = 320;
/// Seconds after which a client may repeat a request that was not sent. Client libraries repeat none without this time.
const RETRY_SECONDS: u32 = 1;

/// A `Status` object of `v1`, as JSON.
pub fn body(code: StatusCode, message: &str) -> String {
    let message = &message[..message.floor_char_boundary(MAX_MESSAGE)];
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason(code), "code": code.as_u16()});
    if let Some(seconds) = retry_after(code) {
        status["details"] = json!({"retryAfterSeconds": seconds});
    }
    status.to_string()
}

/// Value of `Retry-After`, in seconds; `None` if the request may have had an effect, or would be refused again.
pub fn retry_after(code: StatusCode) -> Option<u32> {
    matches!(code, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_SECONDS)
}

/// Reason that `k8s.io/apimachinery` has for a code.
fn reason(code: StatusCode) -> &'static str {
    match code {
        StatusCode::BAD_REQUEST | StatusCode::MISDIRECTED_REQUEST => "BadRequest",
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::PAYLOAD_TOO_LARGE => "RequestEntityTooLarge",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => "Timeout",
        _ => "InternalError",
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
    use proptest::prelude::*;

    use super::*;

    fn status(code: u16, message: &str) -> Status {
        serde_json::from_str(&body(StatusCode::from_u16(code).expect("a code"), message)).expect("a Status")
    }

    #[test]
    fn responses_are_status_objects_with_code_reason_and_message() {
        let cases = [
            (400, "BadRequest", false),
            (401, "Unauthorized", false),
            (403, "Forbidden", false),
            (405, "MethodNotAllowed", false),
            (408, "Timeout", false),
            (413, "RequestEntityTooLarge", false),
            (429, "TooManyRequests", true),
            (500, "InternalError", false),
            (502, "InternalError", false),
            (503, "ServiceUnavailable", true),
            (504, "Timeout", false),
        ];
        for (code, reason, is_repeated) in cases {
            let status = status(code, "cause; action");
            assert_eq!((status.code, status.status.as_deref()), (Some(code.into()), Some("Failure")));
            assert_eq!((status.reason.as_deref(), status.message.as_deref()), (Some(reason), Some("cause; action")));
            assert_eq!(status.details.and_then(|details| details.retry_after_seconds).is_some(), is_repeated, "{code}");
        }
    }

    proptest! {
        /// Messages show names in Rust's escaped form: without control characters.
        #[test]
        fn status_of_any_message_has_at_most_a_kibibyte(text in "(\\\\|\"|é|\\n|x|\u{202e}){0,400}", code in 400..600_u16) {
            let message = format!("{text:?}");
            let body = body(StatusCode::from_u16(code).expect("a code"), &message);
            prop_assert!(body.len() <= 1_024, "{}", body);
            prop_assert!(message.starts_with(&status(code, &message).message.expect("a message")));
        }
    }
}
