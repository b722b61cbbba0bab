//! Values of a config of the Tailscale operator's API server proxy, each of bounded length and of characters that are safe where it is used.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Maximum bytes of a document; the operator's have less than one thousand.
pub const MAX_BYTES: usize = 64 << 10;
/// Maximum Tailscale Services in a document; the operator's have one.
pub(super) const MAX_SERVICES: usize = 64;
/// Maximum static endpoints in a document; the operator's have two.
pub(super) const MAX_ENDPOINTS: usize = 16;
/// Maximum bytes of auth keys and URLs.
const MAX_TEXT: usize = 2048;
/// Maximum bytes of a DNS name, and of a Kubernetes object's name.
const MAX_NAME: usize = 253;
/// Maximum bytes of a DNS label.
const MAX_LABEL: usize = 63;

/// Name of a Tailscale Service: `svc:` and a DNS label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TailscaleServiceName(String);

impl TailscaleServiceName {
    pub fn parse(text: &str) -> Option<Self> {
        text.strip_prefix("svc:").filter(|label| is_label(label)).map(|_| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// First label of its DNS name.
    pub fn label(&self) -> &str {
        self.0.trim_start_matches("svc:")
    }
}

/// Name of a Kubernetes object, e.g. of a Secret: a DNS subdomain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesName(String);

impl KubernetesName {
    pub fn parse(text: &str) -> Option<Self> {
        let is_name = text.len() <= MAX_NAME && text.split('.').all(is_label);
        is_name.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// URL of a control server: `http` or `https`, with a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlUrl(String);

impl ControlUrl {
    pub fn parse(text: &str) -> Option<Self> {
        let uri: http::Uri = text.parse().ok().filter(|_| text.len() <= MAX_TEXT)?;
        let is_url = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty());
        (is_url && !text.contains('@')).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Minimum level of logs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogLevel {
    Debug,
    #[default]
    Info,
    Warn,
    Error,
}

impl LogLevel {
    pub fn parse(text: &str) -> Option<Self> {
        let levels = [("debug", Self::Debug), ("info", Self::Info), ("warn", Self::Warn), ("error", Self::Error)];
        // Levels above `error` end the process of the Tailscale operator's proxy, which Tailyard has no lines of.
        let above = ["dpanic", "panic", "fatal"].map(|name| (name, Self::Error));
        levels.into_iter().chain(above).find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, level)| level)
    }

    /// Directive of the log filter.
    pub fn directive(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// A host name: letters, digits, `-`, `_` and dots.
pub(super) fn host_name(text: &str) -> Option<String> {
    let is_name = (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    is_name.then(|| text.to_owned())
}

/// Name of the application that a node reports.
pub(super) fn app(text: &str) -> Option<String> {
    let is_app = (1..=MAX_LABEL).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    is_app.then(|| text.to_owned())
}

/// An auth key: printable ASCII without spaces. A path (`file:`) is none: the document gives no access to files.
pub(super) fn auth_key(text: &str) -> Option<&str> {
    (text.len() <= MAX_TEXT && text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.starts_with("file:")).then_some(text)
}

/// An address to listen on, also IPv6 in brackets.
pub(super) fn listen_address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match bare {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

/// Address and port at which peers reach a node.
pub(super) fn endpoint(text: &str) -> Option<SocketAddr> {
    text.parse::<SocketAddr>().ok().filter(|endpoint| endpoint.port() != 0 && !endpoint.ip().is_unspecified())
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_LABEL).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}
