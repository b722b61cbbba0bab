//! A client of the API server: its identity in the tailnet as impersonation headers, and its right to open sessions.
//!
//! The identity is tailscaled's WhoIs answer about the connection's address, and nothing else. In mode `auth` every header by which a client
//! could name another user, or use credentials of its own, is removed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL, TRAILER};

use crate::api::routes::ApiServerSite;
use crate::api::whois::WhoIs;
use crate::model::front_end::vhosts::headers::{self, RequestInfo};

use super::ApiRoute;
use super::grants::{Grants, MAX_GROUPS};
use super::refusal::ApiServerRefusal;
use super::subject::{self, SubjectError, SubjectName};

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
/// Extra values of the user, for the API server's audit log. A key's slash is escaped.
const NODE: HeaderName = HeaderName::from_static("impersonate-extra-tailyard.io%2fnode");
const ADDRESS: HeaderName = HeaderName::from_static("impersonate-extra-tailyard.io%2faddress");
const LOGIN: HeaderName = HeaderName::from_static("impersonate-extra-tailyard.io%2flogin");

/// End of the domains of Tailscale's tailnets, where each login has an `@`.
const TAILSCALE: &str = ".ts.net";
/// Prefix of `WebSocket` protocols that carry a bearer token.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Impersonation headers; `None` in mode `noauth`.
    identity: Option<HeaderMap>,
    grants: Grants,
}

impl Caller {
    /// Reads WhoIs of the client's address. `domain`: that of the tailnet, by the proxy's own name.
    pub fn of(whois: &WhoIs, (address, domain): (IpAddr, Option<&str>), site: &ApiServerSite) -> Result<Self, ApiServerRefusal> {
        let grants = Grants::read(&whois.cap_map)?;
        let identity = site.mode.impersonates().then(|| impersonation(whois, (address, domain), &grants, site)).transpose()?;
        Ok(Self { identity, grants })
    }

    /// Whether a later lookup of the client takes no right away, so that its streams may continue.
    pub fn is_within(&self, later: &Self) -> bool {
        let values = |caller: &Self, name: &HeaderName| -> BTreeSet<HeaderValue> {
            caller.identity.iter().flat_map(|identity| identity.get_all(name)).cloned().collect()
        };
        values(self, &USER) == values(later, &USER)
            && values(self, &GROUP).is_subset(&values(later, &GROUP))
            && (self.grants.enforces_recorder || !later.grants.enforces_recorder)
    }

    /// Name of the impersonated user; `None` in mode `noauth`.
    pub fn user(&self) -> Option<&str> {
        self.identity.as_ref()?.get(USER)?.to_str().ok()
    }

    /// Decides whether a request may pass: under an enforced recorder no session does, as there is no recording yet.
    pub fn permit(&self, route: &ApiRoute) -> Result<(), ApiServerRefusal> {
        if !self.grants.enforces_recorder {
            return Ok(());
        }
        if self.grants.reports_requests {
            return Err(ApiServerRefusal::Unreported);
        }
        if route.may_open_session { Err(ApiServerRefusal::Unrecorded) } else { Ok(()) }
    }

    /// Converts a request's headers into those for the API server. Identity is added after the headers that `Connection` names are removed.
    pub fn forward(&self, headers: &mut HeaderMap, about: RequestInfo<'_>) {
        headers::end_to_end(headers);
        headers::forward(headers, RequestInfo { identity: None, app_caps: &[], ..about });
        headers.remove(TRAILER);
        remove(headers, is_remote_user);
        let Some(identity) = &self.identity else { return };
        remove(headers, is_credential);
        remove_token_protocols(headers);
        for (name, value) in identity {
            headers.append(name, value.clone());
        }
    }
}

/// Removes forbidden fields from a request's trailers. They name no user in either mode.
pub fn trailers(trailers: &mut HeaderMap) {
    headers::trailers(trailers);
    remove(trailers, |name| is_remote_user(name) || is_credential(name));
}

/// Impersonation headers of a client. A tagged node without granted groups has its tags as groups.
fn impersonation(
    whois: &WhoIs,
    (address, domain): (IpAddr, Option<&str>),
    grants: &Grants,
    site: &ApiServerSite,
) -> Result<HeaderMap, ApiServerRefusal> {
    let (node, tags, login) = (whois.node.name.trim_end_matches('.'), &whois.node.tags, whois.user_profile.login_name.as_str());
    let permitted = |name: SubjectName| Ok::<_, SubjectError>(name.permitted(&site.permit_system)?.into_value());
    let user = if tags.is_empty() { login } else { node };
    if user.is_empty() {
        return Err(ApiServerRefusal::Nameless);
    }
    let is_distinct = if tags.is_empty() { !is_name_in(login, domain) } else { is_device_name(node, domain) };
    if !is_distinct {
        return Err(ApiServerRefusal::Ambiguous(subject::shown(user)));
    }
    let mut headers = HeaderMap::new();
    headers.insert(USER, permitted(SubjectName::read(user)?)?);
    for group in &grants.groups {
        let group = group.clone();
        headers.append(GROUP, if site.permit_all_system { group.into_value() } else { permitted(group)? });
    }
    for tag in tags.iter().take(if grants.groups.is_empty() { MAX_GROUPS } else { 0 }) {
        headers.append(GROUP, permitted(SubjectName::read(tag)?)?);
    }
    if site.send_extra {
        let extra = [(NODE, node), (ADDRESS, &address.to_string()), (LOGIN, if tags.is_empty() { login } else { "" })];
        for (name, value) in extra.into_iter().filter(|(_, value)| !value.is_empty()) {
            headers.insert(name, SubjectName::read(value)?.into_value());
        }
    }
    Ok(headers)
}

/// Whether a name is that of a device: a host in the tailnet's domain, or at Tailscale in that of a tailnet which shares the device. A tagged
/// device chooses its host name, which could be a user's login: headscale has logins without `@`, and tailnets without a domain.
fn is_device_name(node: &str, domain: Option<&str>) -> bool {
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    let is_host_in = |domain: &str| node.strip_suffix(domain).and_then(|host| host.strip_suffix('.')).is_some_and(is_label);
    let is_shared = |domain: &str| domain.ends_with(TAILSCALE) && node.ends_with(TAILSCALE) && node.split('.').all(is_label);
    domain.is_some_and(|domain| is_host_in(domain) || is_shared(domain))
}

/// Whether a login could be the name of a device in the tailnet's domain.
fn is_name_in(login: &str, domain: Option<&str>) -> bool {
    let is_in = |domain: &str| login.strip_suffix(domain).is_some_and(|host| host.ends_with('.'));
    !login.contains('@') && domain.is_some_and(is_in)
}

fn remove(headers: &mut HeaderMap, is_claim: impl Fn(&HeaderName) -> bool) {
    let claims: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name)).cloned().collect();
    for name in claims {
        headers.remove(name);
    }
}

/// Whether a front proxy names a user in this header (`X-Remote-User`, `-Group`, `-Uid`, `-Extra-…`), with any separators.
fn is_remote_user(name: &HeaderName) -> bool {
    let mut words = words(name);
    words.next() == Some("x") && words.next().is_some_and(|word| word.starts_with("remote"))
}

/// Whether a header names a user or has credentials, with any separators.
fn is_credential(name: &HeaderName) -> bool {
    *name == AUTHORIZATION || words(name).next().is_some_and(|word| word.starts_with("impersonate") || word == "authorization")
}

fn words(name: &HeaderName) -> impl Iterator<Item = &str> {
    name.as_str().split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

/// Removes bearer tokens among `WebSocket` protocols, which the API server accepts in place of `Authorization`.
fn remove_token_protocols(headers: &mut HeaderMap) {
    if !headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
        return;
    }
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let protocols = values.flat_map(|value| value.split(',')).map(str::trim);
    let others: Vec<&str> = protocols.filter(|protocol| !protocol.to_ascii_lowercase().starts_with(TOKEN_PROTOCOL)).collect();
    let joined = HeaderValue::from_str(&others.join(", ")).ok().filter(|joined| !joined.is_empty());
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    headers.extend(joined.map(|joined| (SEC_WEBSOCKET_PROTOCOL, joined)));
}

#[cfg(test)]
mod tests;
