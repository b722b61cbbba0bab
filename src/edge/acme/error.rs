//! Errors of calls to an ACME server.

use std::time::Duration;

use instant_acme::{Error, Problem};

use super::RecordFailure;
use crate::runtime::https::causes;

/// Status and `Retry-After` of an answer that is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ErrorHead {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
}

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum AcmeError {
    #[error("cannot set up the client of the ACME server: {0}")]
    Client(String),
    /// The account key is unusable. It may belong to another user, so it is not replaced.
    #[error("the ACME account's key cannot be used: {0}; take the field out of its Secret to have another one made")]
    #[strum(serialize = "AccountKey")]
    Key(&'static str),
    /// No connection, a broken connection, or a timeout.
    #[error("cannot {what}: the ACME server cannot be reached: {source}")]
    Unreachable { what: &'static str, source: RecordFailure },
    #[error("cannot {what}: the ACME server answered {status}: {message}")]
    Refused {
        what: &'static str,
        status: u16,
        /// Problem type, from a closed set.
        kind: &'static str,
        message: String,
        retry_after: Option<Duration>,
    },
    #[error("the ACME server does not accept the proof for {name}: {why}")]
    Invalid { name: String, why: String },
    #[error("the ACME server takes no proof by DNS for {name}")]
    NoDns { name: String },
    #[error("cannot set the TXT record {record}: {source}")]
    Record { record: String, source: RecordFailure },
    #[error("cannot {what}: the ACME server did not come to an end in time")]
    Deadline { what: &'static str },
    #[error("cannot {what}: the ACME server's answer is not understood: {why}")]
    #[strum(serialize = "Malformed")]
    Answer { what: &'static str, why: String },
    #[error("the ACME server does not say when to renew")]
    Unsupported,
}

impl AcmeError {
    /// Closed set of values for metric labels and Event reasons.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused { kind, .. } => kind,
            other => other.into(),
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        if let Self::Refused { retry_after, .. } = self { *retry_after } else { None }
    }

    /// Whether the error is a temporary outage, which may end soon and does not count against the server's rate limits.
    pub fn is_outage(&self) -> bool {
        matches!(self.reason(), "Unreachable" | "ServerError" | "Record" | "BadNonce")
    }

    /// Whether the account is unknown to the server or closed.
    pub fn is_account(&self) -> bool {
        matches!(self.reason(), "Unauthorized" | "NoAccount")
    }

    pub(super) fn of(what: &'static str, fault: Error, refused: Option<ErrorHead>) -> Self {
        let status = refused.map(|answer| answer.status).unwrap_or_default();
        let retry_after = refused.and_then(|answer| answer.retry_after);
        match fault {
            Error::Api(problem) => {
                let status = problem.status.unwrap_or(status);
                Self::Refused { what, status, kind: kind(&problem, status), message: problem.to_string(), retry_after }
            }
            // A reverse proxy in front of the server answers with any body; its status has the same meaning.
            fault if status != 0 => Self::Refused { what, status, kind: by_status(status), message: fault.to_string(), retry_after },
            Error::Other(source) => Self::Unreachable { what, source: causes(&*source).into() },
            Error::Timeout(_) => Self::Deadline { what },
            Error::KeyRejected | Error::Crypto => Self::Key("it is no P-256 key"),
            Error::Unsupported(_) => Self::Unsupported,
            fault => Self::Answer { what, why: fault.to_string() },
        }
    }
}

/// Whether a problem has this error type of RFC 8555.
pub(super) fn is(problem: &Problem, name: &str) -> bool {
    problem.r#type.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:")) == Some(name)
}

fn kind(problem: &Problem, status: u16) -> &'static str {
    let name = problem.r#type.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
    match name.unwrap_or_default() {
        "rateLimited" => "RateLimited",
        "badNonce" => "BadNonce",
        "unauthorized" => "Unauthorized",
        "accountDoesNotExist" => "NoAccount",
        "alreadyReplaced" => "Replaced",
        "rejectedIdentifier" | "unsupportedIdentifier" => "RejectedName",
        "caa" => "Caa",
        "dns" => "Dns",
        "malformed" => "Malformed",
        "serverInternal" => "ServerError",
        "externalAccountRequired" | "userActionRequired" => "ActionRequired",
        _ => by_status(status),
    }
}

fn by_status(status: u16) -> &'static str {
    match status {
        401 | 403 => "Unauthorized",
        404 => "NotFound",
        429 => "RateLimited",
        500.. => "ServerError",
        _ => "Refused",
    }
}
