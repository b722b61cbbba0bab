//! Renames and deletion of a group of type `kube-apiserver` at any time, and replicas that do not serve.

use super::*;

const DOMAIN: &str = "tail1234.ts.net";

/// Whether every replica has a config that advertises the host name of a URL, with its route and its Tailscale Service.
fn is_served(world: &World, url: &str) -> bool {
    let label = url.strip_prefix("https://").and_then(|dns| dns.strip_suffix(DOMAIN)?.strip_suffix('.')).expect("a name of the tailnet");
    let (name, replicas) = (format!("svc:{label}"), world.observed_replicas("kube"));
    let advertises = |replica: &ObservedReplica| replica.config.as_ref().is_some_and(|config| config.advertises().any(|own| own == name));
    world.hosted.vips.contains_key(&name) && world.config("kube").routes.contains_key(&name) && replicas.values().all(advertises)
}

#[test]
fn served_name_stays_until_another_one_is_served() {
    for seed in 0..30 {
        let mut random = fastrand::Rng::with_seed(seed);
        let hostname = |name: &str| spec(json!({"kubeAPIServer": {"hostname": name}}));
        let mut world = kube(json!({"kubeAPIServer": {"hostname": "a"}}));
        world.settle();
        let mut wanted = "a";
        for _ in 0..6 {
            wanted = ["a", "b", "c"][random.usize(..3)];
            world.hosted.slow_orders = random.bool();
            world.group("kube", hostname(wanted));
            for _ in 0..random.usize(..12) {
                world.round();
                let shown = url(&world).unwrap_or_else(|| panic!("seed {seed}: no URL"));
                assert!(is_served(&world, &shown), "seed {seed}: {shown}");
                let is_new = shown == format!("https://{wanted}.{DOMAIN}");
                assert!(is_new || state(&world, CONFIGURED).is_some_and(|(status, _)| status == "False"), "seed {seed}: {shown}");
                world.now += random.i64(0..120);
            }
        }
        world.hosted.slow_orders = false;
        world.settle();
        assert_eq!(url(&world), Some(format!("https://{wanted}.{DOMAIN}")), "seed {seed}");
        assert_eq!(world.hosted.vips.keys().collect::<Vec<_>>(), [&format!("svc:{wanted}")], "seed {seed}");
        assert_eq!(world.ready("kube").1, "ProxyGroupReady", "seed {seed}");
    }
}

#[test]
fn group_that_is_deleted_at_any_time_leaves_nothing() {
    for rounds in 0..20 {
        let mut world = kube(json!({}));
        world.rounds(rounds);
        world.delete_group("kube");
        world.settle();
        let remaining: Vec<_> = world.objects.keys().collect();
        assert!(world.groups.is_empty() && remaining.is_empty(), "after {rounds} rounds: {remaining:?}");
        assert!(world.hosted.vips.is_empty() && world.devices.is_empty(), "after {rounds} rounds: {:?}", world.hosted.vips);
    }
}

#[test]
fn replica_that_is_unapproved_or_unready_does_not_count() {
    let mut world = kube(json!({}));
    world.settle();
    world.set_ready("kube-0", &json!({"type": "Ready", "status": "False", "reason": "ContainersNotReady"}));
    world.asleep.insert("kube-0".to_owned());
    world.pass("kube");
    assert_eq!(world.says("kube", CONFIGURED).2, "1/2 proxy backends ready and advertising");
    assert_eq!(url(&world), Some(format!("https://kube.{DOMAIN}")));
    world.asleep.clear();
    world.hosted.unapproved.insert("svc:kube".to_owned());
    world.rounds(10);
    let configured = world.says("kube", CONFIGURED);
    assert_eq!((configured.0.as_str(), configured.1.as_str()), ("False", "KubeAPIServerProxyNoBackends"), "{configured:?}");
    assert_eq!(world.ready("kube").1, "ProxyGroupCreating");
    assert_eq!(url(&world), Some(format!("https://kube.{DOMAIN}")), "its name stays");
}
