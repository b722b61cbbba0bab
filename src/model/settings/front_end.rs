//! Settings of HTTP client limits.

use super::{FrontEndSettings, source::SettingSource};
use crate::model::front_end::kernel_tcp::KernelTcpMode;
use crate::model::front_end::vhosts::headers::Upgrades;

pub(super) fn front_end(source: &mut SettingSource<'_>) -> FrontEndSettings {
    let upgrades = "names of protocols separated by commas such as websocket, and none of h2c, HTTP and TLS";
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    FrontEndSettings {
        upgrades: source.parsed("TAILYARD_UPGRADES", upgrades, Upgrades::read).unwrap_or_default(),
        body_timeout: source.duration("TAILYARD_BODY_TIMEOUT"),
        answer_timeout: source.duration("TAILYARD_ANSWER_TIMEOUT"),
        tunnel_timeout: source.duration("TAILYARD_TUNNEL_TIMEOUT"),
        max_connections: source.parsed("TAILYARD_MAX_CONNECTIONS", "a number above zero", number).unwrap_or_default(),
        end_revoked_streams: source.boolean("TAILYARD_END_REVOKED_STREAMS", true),
        kernel_tcp: source.parsed("TAILYARD_KERNEL_TCP", "auto, true or false", KernelTcpMode::read).unwrap_or_default(),
    }
}
