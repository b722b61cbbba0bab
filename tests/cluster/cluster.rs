//! A group of two replicas under load on a real cluster: Pods of the image under test, on real nodes, on a real tailnet. The time limits
//! need most of the machine.
//!
//! Needs root, cgroup v1 and the programs of `tests/servers/build`.

mod scenarios;

use std::time::Duration;

use crate::stage::Stage;
use kit::cluster::turn;

#[test]
fn annotated_service_stays_connected_under_faults() {
    let _turn = turn();
    let stage = Stage::start();
    if let Some(seconds) = kit::setting("SOAK_SECONDS") {
        stage.soak(&scenarios::REPEATABLE, Duration::from_secs(seconds), kit::setting("SOAK_SEED").expect("SOAK_SEED"));
    } else {
        stage.play(&scenarios::REPEATABLE);
        stage.play(&scenarios::LAST);
    }
}
