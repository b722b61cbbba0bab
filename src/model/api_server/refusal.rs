//! Refusals of requests by the API server proxy itself.

use http::StatusCode;

use super::framing::FramingError;
use super::grants::GrantsError;
use super::subject::SubjectError;

/// Why a request is not sent to the API server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
pub enum ApiServerRefusal {
    #[error("unknown host")]
    UnknownHost,
    #[error("a web page of another site may not send requests with the identity of its user")]
    OtherSite,
    #[error(transparent)]
    Framing(#[from] FramingError),
    #[error("the client's address is unknown in the tailnet")]
    UnknownClient,
    #[error("cannot identify the client: tailscaled did not answer; try again")]
    Unidentified,
    #[error("the client has neither a user nor a name in the tailnet")]
    Nameless,
    #[error("{0:?} could be the name of a user and of a device alike: give the tailnet a domain, and users no names in it")]
    Ambiguous(String),
    #[error(transparent)]
    Grants(#[from] GrantsError),
    #[error(transparent)]
    Subject(#[from] SubjectError),
    #[error("the session cannot be recorded: the grant enforces a recorder, and this proxy has no recording; remove enforceRecorder")]
    Unrecorded,
    #[error("the request cannot be reported: the grant enforces events, and this proxy has none; remove enforceRecorder or enableEvents")]
    Unreported,
    #[error("the proxy has no address or token of the API server yet; try again")]
    NoUpstream,
}

impl ApiServerRefusal {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// Whether another lookup may permit the request: it says nothing about the client.
    pub fn is_transient(&self) -> bool {
        self.code() == StatusCode::SERVICE_UNAVAILABLE
    }

    /// Status code of the response, whose message is the refusal's text.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::Framing(FramingError::Method) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Framing(_) => StatusCode::BAD_REQUEST,
            Self::UnknownHost => StatusCode::MISDIRECTED_REQUEST,
            Self::UnknownClient => StatusCode::UNAUTHORIZED,
            Self::Unidentified | Self::NoUpstream => StatusCode::SERVICE_UNAVAILABLE,
            Self::OtherSite
            | Self::Nameless
            | Self::Ambiguous(_)
            | Self::Grants(_)
            | Self::Subject(_)
            | Self::Unrecorded
            | Self::Unreported => StatusCode::FORBIDDEN,
        }
    }
}
