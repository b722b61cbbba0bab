//! Two clusters on one tailnet. Pods of one cluster use a Service that the other publishes, through a proxy group on either side, while the
//! publishing side restarts. A name that both publish is served over HTTPS until the last cluster withdraws it.
//!
//! Both clusters, the ACME server (Pebble) and the tailnet are real; the control plane is a stand-in (`tests/servers/hosted`): Tailscale's
//! own cannot run here, and headscale has no Tailscale Services. Needs root, cgroup v1 and the programs of `tests/servers/build`.

mod both;
mod shared;
mod sides;

use std::time::Instant;

use both::Both;
use kit::cluster::chart::{self, NAMESPACE};
use kit::cluster::load::Load;
use shared::{ANSWERS, EITHER, GROUP, SHOP, Shop};
use sides::{NAME, PORT, published};

#[test]
fn service_is_used_across_clusters_during_proxy_restarts() {
    let both = Both::new();
    let sides = both.turn();
    sides.expose();
    let begin = Instant::now();
    sides.publisher.apply(&[published()]);
    sides.connect();
    sides.wait_for_answer();
    println!("first answer: {:?} after the Services and the user's group were there", begin.elapsed());
    for side in [&sides.publisher, &sides.user] {
        assert_eq!(side.doctor().faults(&[]), [""; 0]);
    }

    let to = format!("{NAME}:{PORT}");
    // Longer than WireGuard's retry of a handshake, which is after 5 s.
    let load = Load::begin(&sides.user, "load", None, &[&to, "--expect", "orders", "--rate", "20", "--timeout", "10s"]);
    let begin = Instant::now();
    sides.publisher.kubectl(&["rollout", "restart", "-n", NAMESPACE, "statefulset/in"]);
    sides.publisher.rolled_out(NAMESPACE, "statefulset/in");
    let took = begin.elapsed();
    let report = load.end();
    println!("the publishing group restarted within {took:?}: {report}");
    // A service's address is at one replica at a time: connections that are being established when it moves are cut.
    report.assert_few_failures("a restart of the publishing group");
}

#[test]
fn shared_name_is_served_over_https_until_the_last_cluster_leaves() {
    let both = Both::new();
    let sides = both.turn();
    let ([first, second], begin) = (ANSWERS, Instant::now());
    let shop = Shop::open(&sides);
    println!("a group of two replicas more on each: {:?}", begin.elapsed());

    let begin = Instant::now();
    shop.publish(0);
    shop.client.wait_for_answer("https", SHOP, first);
    println!("first answer over HTTPS: {:?} after the Ingress was there", begin.elapsed());
    assert_eq!((shop.owners().len(), shop.pebble.issued()), (1, 1), "a cluster, and its certificate");
    let begin = Instant::now();
    shop.publish(1);
    println!("the other cluster has joined within {:?}", begin.elapsed());
    assert_eq!((shop.owners().len(), shop.pebble.issued()), (2, 2), "another one, and a certificate of its own");
    assert_eq!(shop.client.get("https", SHOP).as_deref(), Ok(first), "an address stays where it is");

    // Longer than WireGuard's retry of a handshake, which is after 5 s.
    let load = shop.client.begin((SHOP, 443), EITHER, "10", "10s");
    let begin = Instant::now();
    shop.close(0);
    println!("the group that it led to has left within {:?}", begin.elapsed());
    chart::wait_gone(&sides.publisher, GROUP);
    shop.client.wait_for_answer("https", SHOP, second);
    let report = load.end();
    println!("meanwhile: {report}");
    report.assert_few_failures("the loss of one of two clusters");
    assert_eq!(shop.owners().len(), 1, "the other one's it is still");
    shop.unpublish(0);
    assert_eq!(shop.owners().len(), 1, "whose group is gone has no part in it any more");
    assert_eq!(shop.client.get("https", SHOP).as_deref(), Ok(second));

    shop.unpublish(1);
    assert_eq!(shop.owners(), Vec::<String>::new(), "the last one takes it away");
    assert!(shop.client.get("https", SHOP).is_err());
    assert_eq!(shop.pebble.issued(), 2, "nothing was ordered anew");
    shop.close(1);
}
