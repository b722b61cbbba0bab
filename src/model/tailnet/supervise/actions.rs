//! What supervision of tailscaled does, and the state of the login that it decides by.

use std::time::Duration;

use super::settings::Secret;
use crate::model::tailnet::ipn_bus::BackendState;

/// Time since the process began.
pub type At = Duration;

/// What the bus says of the login.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BusState {
    pub state: BackendState,
    /// It reports that its login fails.
    pub login_broken: bool,
    /// There has been a login that it still holds.
    pub have_node_key: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum DaemonAction {
    Spawn,
    Terminate,
    Kill,
    /// Come back with [`super::DaemonEvent::Tick`] at this time, at the latest.
    Wake(At),
    /// Tell the daemon what a node of two steps is to be, by preferences.
    TellPrefs,
    /// Log a node of two steps in; answer with [`super::AuthEvent::LoggedIn`].
    Login,
    /// Log in with this key; answer with [`super::AuthEvent::LoggedIn`].
    LoginWith(Secret),
    /// Leave the control server; answer with [`super::AuthEvent::Left`].
    DisconnectControl,
    /// Write to the state Secret, for as long as it takes; answer with [`super::AuthEvent::Written`].
    Write(StateWrite),
    /// It cannot be started at all: end the process with this message.
    GiveUp(String),
}

/// A change of the state Secret that supervision needs.
///
/// After either of the two that clear, whoever writes the device's fields has to write them again with the next netmap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateWrite {
    /// Ask the operator for another key: set `reissue_authkey` to the one that failed (may be empty).
    RequestReissue { failed: Secret },
    /// The other key is there: delete `reissue_authkey`, `device_id`, `device_fqdn` and `device_ips`, and with `identity` also
    /// the daemon's own `_machinekey`, `_current-profile`, `_profiles` and the profile that is the current one.
    ClearReissue {
        /// Whether the daemon starts again as another device.
        identity: bool,
    },
    /// Logged in once and for all (`TS_AUTH_ONCE`): delete `authkey`.
    RemoveAuthKey,
}
