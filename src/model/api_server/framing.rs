//! Requests that servers could frame or address differently, which are refused.
//!
//! The HTTP server of the front end reads a request before: it rejects differing lengths, and closes the connection after a request with both
//! a length and chunks. Of what remains, an upgrade to HTTP/2 and hop-by-hop headers are removed, and trailers carry no identity
//! ([`super::caller`]).

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, Method, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    #[error("the methods CONNECT and TRACE are not supported")]
    Method,
    #[error("the request's target must be a path")]
    Target,
    #[error("the request's path has dot segments, which this API server's address does not permit")]
    DotSegments,
    #[error("the request has more than one length")]
    Lengths,
    #[error("the request's transfer coding must be chunked alone, in HTTP/1.1")]
    Coding,
}

/// Checks the head of a request.
pub fn check(parts: &Parts) -> Result<(), FramingError> {
    // An answer to TRACE would show the proxy's own headers.
    if matches!(parts.method, Method::CONNECT | Method::TRACE) {
        return Err(FramingError::Method);
    }
    // In HTTP/2 every request names scheme and host.
    let is_absolute = parts.version != Version::HTTP_2 && (parts.uri.scheme().is_some() || parts.uri.authority().is_some());
    if is_absolute || !parts.uri.path().starts_with('/') {
        return Err(FramingError::Target);
    }
    check_length(parts.version, &parts.headers)
}

fn check_length(version: Version, headers: &HeaderMap) -> Result<(), FramingError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let (length, coding) = (lengths.next(), codings.next());
    let is_number = |value: &[u8]| !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    if lengths.next().is_some() || length.is_some_and(|length| coding.is_some() || !is_number(length.as_bytes())) {
        return Err(FramingError::Lengths);
    }
    let is_chunked = |coding: &[u8]| version == Version::HTTP_11 && coding.eq_ignore_ascii_case(b"chunked");
    if codings.next().is_some() || coding.is_some_and(|coding| !is_chunked(coding.as_bytes())) {
        return Err(FramingError::Coding);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// Headers and result.
    type Case<'a> = (&'a [(&'a str, &'a str)], Result<(), FramingError>);

    fn checked(version: Version, method: &str, target: &str, headers: &[(&str, &str)]) -> Result<(), FramingError> {
        let mut request = Request::builder().version(version).method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).expect("a request").into_parts().0)
    }

    #[test]
    fn requests_that_servers_frame_differently_are_refused() {
        use FramingError::{Coding, Lengths};
        let cases: [Case<'_>; 17] = [
            (&[], Ok(())),
            (&[("content-length", "5")], Ok(())),
            (&[("Transfer-Encoding", "Chunked")], Ok(())),
            (&[("content-length", "5"), ("transfer-encoding", "chunked")], Err(Lengths)),
            (&[("transfer-encoding", "chunked"), ("content-length", "5")], Err(Lengths)),
            (&[("content-length", "5"), ("content-length", "5")], Err(Lengths)),
            (&[("content-length", "5"), ("content-length", "6")], Err(Lengths)),
            (&[("content-length", "5, 5")], Err(Lengths)),
            (&[("content-length", "+5")], Err(Lengths)),
            (&[("content-length", "-0")], Err(Lengths)),
            (&[("content-length", "0x5")], Err(Lengths)),
            (&[("content-length", "")], Err(Lengths)),
            (&[("transfer-encoding", "gzip, chunked")], Err(Coding)),
            (&[("transfer-encoding", "chunked, identity")], Err(Coding)),
            (&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], Err(Coding)),
            (&[("transfer-encoding", "\tchunked")], Err(Coding)),
            (&[("transfer-encoding", "xchunked")], Err(Coding)),
        ];
        for (headers, expected) in cases {
            assert_eq!(checked(Version::HTTP_11, "POST", "/api", headers), expected, "{headers:?}");
        }
        for version in [Version::HTTP_10, Version::HTTP_2] {
            assert_eq!(checked(version, "POST", "/api", &[("transfer-encoding", "chunked")]), Err(Coding));
        }
    }

    #[test]
    fn target_of_a_request_is_a_path() {
        use FramingError::{Method, Target};
        let cases = [
            (Version::HTTP_11, "GET", "/api/v1/x/../y//z?watch=1", Ok(())),
            (Version::HTTP_10, "GET", "//other.example/api", Ok(())),
            (Version::HTTP_2, "GET", "https://api.tail.ts.net/api", Ok(())),
            (Version::HTTP_11, "GET", "https://api.tail.ts.net/api", Err(Target)),
            (Version::HTTP_11, "GET", "http://user:password@10.0.0.1/api", Err(Target)),
            (Version::HTTP_11, "GET", "api.tail.ts.net:443", Err(Target)),
            (Version::HTTP_11, "OPTIONS", "*", Err(Target)),
            (Version::HTTP_11, "CONNECT", "10.0.0.1:443", Err(Method)),
            (Version::HTTP_2, "CONNECT", "10.0.0.1:443", Err(Method)),
            (Version::HTTP_11, "TRACE", "/api", Err(Method)),
        ];
        for (version, method, target, expected) in cases {
            assert_eq!(checked(version, method, target, &[]), expected, "{method} {target}");
        }
    }
}
