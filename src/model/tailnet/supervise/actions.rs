//! Actions of the supervision, and the login state from the IPN bus.

use std::time::Duration;

use super::settings::Secret;
use crate::model::tailnet::ipn_bus::BackendState;

/// Time since the start of the process.
pub type At = Duration;

/// Login state from the IPN bus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BusState {
    pub state: BackendState,
    /// A login failure is reported.
    pub login_broken: bool,
    /// A node key of an earlier login exists.
    pub have_node_key: bool,
    /// The daemon could not read its stored state and started without it: it never logs in.
    pub no_store: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum DaemonAction {
    Spawn,
    Terminate,
    Kill,
    /// Deliver [`super::DaemonEvent::Tick`] at this time, at the latest.
    Wake(At),
    /// Set the preferences of a two-step node.
    TellPrefs,
    /// Log a two-step node in; responds with [`super::AuthEvent::LoggedIn`].
    Login,
    /// Log in with this key; responds with [`super::AuthEvent::LoggedIn`].
    LoginWith(Secret),
    /// Disconnect from the control server; responds with [`super::AuthEvent::Left`].
    DisconnectControl,
    /// Write to the state Secret, retrying; responds with [`super::AuthEvent::Written`].
    Write(StateWrite),
    /// The daemon cannot be started: end the process with this message.
    GiveUp(String),
}

/// A change of the state Secret.
///
/// After a change that clears device fields, the status writer writes them again with the next netmap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateWrite {
    /// Request another key from the operator: set `reissue_authkey` to the failed one (may be empty).
    RequestReissue { failed: Secret },
    /// Another key was received: delete `reissue_authkey`, `device_id`, `device_fqdn` and `device_ips`. With `identity` the daemon restarts
    /// as another device: also delete its `_machinekey`, `_current-profile`, `_profiles` and the current profile.
    ClearReissue { identity: bool },
    /// Logged in with `TS_AUTH_ONCE`: delete `authkey`.
    RemoveAuthKey,
}
