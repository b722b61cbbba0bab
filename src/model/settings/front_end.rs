//! Reading what the HTTP front end allows its clients.

use super::{FrontEnd, source::Source};
use crate::model::sites::headers::Upgrades;

pub(super) fn front_end(source: &mut Source<'_>) -> FrontEnd {
    let default = FrontEnd::default();
    let upgrades = "names of protocols separated by commas such as websocket, and none of h2c, HTTP and TLS";
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    FrontEnd {
        upgrades: source.parsed("TAILYARD_UPGRADES", upgrades, Upgrades::read).unwrap_or(default.upgrades),
        body_timeout: source.duration("TAILYARD_BODY_TIMEOUT", default.body_timeout),
        answer_timeout: source.duration("TAILYARD_ANSWER_TIMEOUT", default.answer_timeout),
        tunnel_timeout: source.duration("TAILYARD_TUNNEL_TIMEOUT", default.tunnel_timeout),
        max_connections: source.parsed("TAILYARD_MAX_CONNECTIONS", "a number above zero", number).unwrap_or(default.max_connections),
    }
}
