//! Check of a replica's state Secret.

use std::collections::{BTreeMap, BTreeSet};

use tailyard::api::egress::{EgressStatus, KEY, PortMap};
use tailyard::api::state::DEVICE_ID;
use tailyard::demo::scoreboard::Scoreboard;
use tailyard::demo::services::{DemoService, of_family};
use tailyard::demo::topology::{FIRST_REPLICA, FIRST_TARGET, tailnet_nets};

use crate::soak::api::{KEPT, State};

/// Target of a service in the format of statuses: addresses and ports.
type Led = (BTreeSet<String>, BTreeSet<PortMap>);

/// Whether a state Secret has the replica's own node and Pod address, the current targets of all services and of no others, and
/// tailscaled's keys.
pub(crate) fn is_current(board: &Scoreboard, replica: u8, state: &State) -> bool {
    let Some(member) = board.members.get(usize::from(replica)) else { return false };
    let own = format!("n{}", FIRST_REPLICA + replica);
    let Some(status) = state.get(KEY).and_then(|text| serde_json::from_str::<EgressStatus>(text).ok()) else { return false };
    let preserved = KEPT.iter().all(|(key, value)| state.get(*key).is_some_and(|found| found == value));
    preserved
        && state.get(DEVICE_ID) == Some(&own)
        && status.pod_ipv4 == member.pod[0].to_string()
        && status_entries(status) == wanted(board)
}

fn status_entries(status: EgressStatus) -> BTreeMap<String, Led> {
    let services = status.services.unwrap_or_default().into_iter();
    let entries = services.map(|(name, service)| {
        (name, (service.tailnet_target_ips.unwrap_or_default().into_iter().collect(), service.ports.into_iter().collect()))
    });
    entries.collect()
}

fn wanted(board: &Scoreboard) -> BTreeMap<String, Led> {
    board.rows.values().map(|row| (row.service.name(), leads(board, row.service))).collect()
}

fn leads(board: &Scoreboard, service: DemoService) -> Led {
    let identity = board.identity(service);
    let site = tailnet_nets(FIRST_TARGET + u8::try_from(identity.target).expect("few targets")).map(|net| net.addr());
    let addresses = service.families().iter().map(|family| of_family(site, *family).to_string());
    let port = |protocol: &str| PortMap {
        protocol: protocol.to_owned(),
        match_port: service.match_port().into(),
        target_port: identity.port.into(),
    };
    (addresses.collect(), ["TCP", "UDP"].map(port).into())
}
