//! Scenarios of a group of two replicas under load.

use crate::stage::Scenario;

mod changes;
mod faults;
mod many;
mod outages;
mod watch;

/// Scenarios that run in this order, and in a soak in random order.
pub(super) const REPEATABLE: [Scenario; 12] = [
    ("a rolling restart", changes::a_rolling_restart_loses_nothing),
    ("two replicas to three and back", changes::scaling_loses_nothing_and_restarts_nobody_else),
    ("a leaving replica with established connections", changes::a_leaving_replica_resets_what_outlives_its_grace),
    ("a replica killed", faults::a_killed_replica_is_left_out_once_kubernetes_sees_it),
    ("a container killed", faults::a_killed_container_passes_new_connections_to_its_sibling),
    ("a supervisor that crashes", faults::a_supervisor_that_crashes_is_not_noticed),
    ("tailscaled killed", faults::a_killed_tailscaled_is_hardly_noticed),
    ("no reconciler", outages::targets_move_without_a_reconciler),
    ("a node cut off", faults::a_replica_on_a_lost_node_is_left_out),
    ("a node cut one way", faults::a_replica_on_a_node_that_receives_nothing_is_left_out),
    ("a dead Pod network", faults::a_replica_without_pod_network_is_left_out_until_it_is_reached_again),
    ("a node that hangs", faults::a_replica_on_a_hung_node_is_left_out),
];

/// Scenarios that follow: after an outage of the API server a kube-proxy reads endpoints up to a minute late, as its watch returns with a
/// backoff.
pub(super) const LAST: [Scenario; 3] = [
    ("many Services", many::many_services_follow_a_lost_node_and_a_restart),
    ("no API server", outages::without_an_api_server_everything_goes_on),
    ("a container killed without an API server", outages::a_container_starts_without_an_api_server),
];

/// Number of Services of the long scenario with many: `TAILYARD_SERVICES`.
pub(super) fn many_services() -> Option<usize> {
    kit::setting("TAILYARD_SERVICES")
}
