//! Each kind of Service that the quickstart's cluster serves besides those of its group, and what deletions leave. None of the scenarios
//! depends on the machine's speed.

mod deletions;
mod published;
mod standalone;
mod standby;

use crate::stage::{Scenario, Stage};
use kit::cluster::turn;

/// All scenarios, in the order of execution.
const ALL: [Scenario; 5] = [
    ("a Service published by a route", published::a_service_is_reached_by_a_route_that_was_approved),
    ("Services without a group", standalone::services_have_proxies_of_their_own),
    ("a proxy with standby", standby::a_waiting_pod_takes_over),
    ("a group deleted before its Service", deletions::a_group_goes_before_its_service),
    ("a Service deleted before its group", deletions::a_service_goes_before_its_group),
];

#[test]
fn each_kind_of_service_is_served_and_leaves_nothing() {
    let _turn = turn();
    Stage::start().play(&ALL);
}
