//! Upgrade of a real cluster from another commit, with groups, standalone proxies and an ACME server: first the reconciler is exchanged,
//! then the proxies, both under load.
//!
//! Runs by hand (`make upgrade FROM=<commit>`), as it needs the other commit's binary. With `UPDATE_GOLDEN=1` the stored objects of that
//! version become the fixture of `reconciler::cache::tests::upgrade`.

mod fixture;
mod inventory;
mod site;

use std::path::PathBuf;
use std::time::Instant;

use inventory::Inventory;
use kit::cluster::images::TAILYARD;
use kit::cluster::turn;
use kit::golden;
use site::{FORMER, Site};

/// Objects that the new version adds (docs/upgrade.md): the record of certificate orders of standalone Ingresses.
const NEW_OBJECTS: [&str; 1] = ["ConfigMap/tailyard-certificates-default"];

/// Each `StatefulSet` of the proxy with standby: Kubernetes replaces no Pod that is not ready, so that of the waiting Pod is created again.
const STANDBY_SETS: &str = "StatefulSet/ts-out-";

#[test]
fn upgrade_preserves_objects_devices_and_certificates_without_a_failed_connect() {
    let _turn = turn();
    let tree: PathBuf = kit::setting("UPGRADE_FROM").expect("UPGRADE_FROM: use make upgrade");
    let site = Site::start(&tree);
    site.publish();
    let before = Inventory::take(&site);
    println!("{before}");
    if golden::is_updating() {
        fixture::write(&site);
    }

    let begin = Instant::now();
    site.measure("reconciler exchanged", || site.upgrade(FORMER));
    println!("reconciler exchanged and settled: {:?}", begin.elapsed());
    let after = Inventory::take(&site);
    before.assert_preserved(&after, &NEW_OBJECTS, |_| false);
    assert_eq!(before.pods, after.pods, "a reconciler restarts no proxy of the same image");
    site.assert_serves();

    let begin = Instant::now();
    site.measure("proxies exchanged", || site.upgrade(TAILYARD));
    println!("proxies exchanged and settled: {:?}", begin.elapsed());
    let last = Inventory::take(&site);
    before.assert_preserved(&last, &NEW_OBJECTS, |name| name.starts_with(STANDBY_SETS));
    assert!(last.pods.is_disjoint(&before.pods), "every proxy is replaced: {:#?}", last.pods);
    site.assert_serves();
}
