//! Invalid, missing and conflicting settings.

use super::*;

#[test]
fn all_invalid_variables_are_reported_at_once() {
    let found = faults(&[
        ("TS_DEST_IP", "10.0.0.300"),
        ("TS_EXPERIMENTAL_DEST_DNS_NAME", "db.example"),
        ("TS_USERSPACE", "true"),
        ("TS_BOOT_TIMEOUT", "90"),
        ("TS_ENABLE_METRICS", "true"),
        ("TS_LOCAL_ADDR_PORT", "localhost:9002"),
        ("POD_IPS", "10.0.0.1,fd00::1,10.0.0.2"),
        ("TS_AUDIENCE", "tailscale.com"),
        ("TAILYARD_EGRESS_CONFIGMAP", "eg"),
    ]);
    assert_eq!(
        found,
        [
            r#"POD_IPS="10.0.0.1,fd00::1,10.0.0.2" is not a list of at most two addresses, separated by a comma"#,
            "TS_DEST_IP and TS_EXPERIMENTAL_DEST_DNS_NAME exclude each other: unset one of them",
            r#"TS_DEST_IP="10.0.0.300" is not an IP address"#,
            r#"TAILYARD_EGRESS_CONFIGMAP="eg" is not a ConfigMap as NAMESPACE/NAME"#,
            "TS_DEST_IP needs TS_USERSPACE=false",
            "TS_EXPERIMENTAL_DEST_DNS_NAME needs TS_USERSPACE=false",
            "TAILYARD_EGRESS_CONFIGMAP needs TS_USERSPACE=false",
            "TS_AUDIENCE needs TS_CLIENT_ID",
            r#"TS_BOOT_TIMEOUT="90" is not a length of time above zero such as 60s or 1m30s"#,
            "TAILYARD_EGRESS_CONFIGMAP needs a cluster (KUBERNETES_SERVICE_HOST is unset)",
            r#"TS_LOCAL_ADDR_PORT="localhost:9002" is not an address and port such as 127.0.0.1:9002 or [::]:9002"#,
        ]
    );
}

#[test]
fn conflicting_settings_are_rejected() {
    let dir = ("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", "/etc/tsconfig");
    let health = ("TS_HEALTHCHECK_ADDR_PORT", "[::]:80");
    let cases: [(&[(&str, &str)], &str); 18] = [
        (&[("TS_TAILNET_TARGET_IP", "100.64.0.1"), ("TS_TAILNET_TARGET_FQDN", "a.b")], "TS_TAILNET_TARGET_IP and TS_TAILNET_TARGET_FQDN"),
        (&[("TS_DEST_IP", "10.0.0.1"), ("TS_TAILNET_TARGET_IP", "100.64.0.1")], "TS_DEST_IP and TS_TAILNET_TARGET_IP"),
        (&[("TS_ID_TOKEN", "a"), ("TS_CLIENT_SECRET", "b"), ("TS_CLIENT_ID", "c")], "TS_ID_TOKEN and TS_CLIENT_SECRET"),
        (&[("TS_ID_TOKEN", "a"), ("TS_AUDIENCE", "b"), ("TS_CLIENT_ID", "c")], "TS_ID_TOKEN and TS_AUDIENCE"),
        (&[("TS_CLIENT_SECRET", "a"), ("TS_AUDIENCE", "b"), ("TS_CLIENT_ID", "c")], "TS_CLIENT_SECRET and TS_AUDIENCE"),
        (&[("TS_AUTHKEY", "k"), ("TS_CLIENT_ID", "c")], "TS_AUTHKEY and TS_CLIENT_ID"),
        (&[("TS_AUTH_KEY", "k"), ("TS_CLIENT_SECRET", "c")], "TS_AUTH_KEY and TS_CLIENT_SECRET"),
        (&[health, ("TS_ENABLE_HEALTH_CHECK", "1")], "TS_HEALTHCHECK_ADDR_PORT and TS_ENABLE_HEALTH_CHECK"),
        (&[dir, ("TS_HOSTNAME", "h")], "TS_HOSTNAME and TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR"),
        (&[dir, ("TS_EXTRA_ARGS", "--x")], "TS_EXTRA_ARGS and "),
        (&[dir, ("TS_AUTHKEY", "k")], "TS_AUTHKEY and "),
        (&[dir, ("TS_AUTH_KEY", "k")], "TS_AUTH_KEY and "),
        (&[dir, ("TS_ROUTES", "")], "TS_ROUTES and "),
        (&[dir, ("TS_ACCEPT_DNS", "false")], "TS_ACCEPT_DNS and "),
        (&[dir, ("TS_CLIENT_ID", "c")], "TS_CLIENT_ID and "),
        (&[dir, ("TS_CLIENT_SECRET", "c")], "TS_CLIENT_SECRET and "),
        (&[dir, ("TS_CLIENT_ID", "c"), ("TS_ID_TOKEN", "c")], "TS_ID_TOKEN and "),
        (&[dir, ("TS_CLIENT_ID", "c"), ("TS_AUDIENCE", "c")], "TS_AUDIENCE and "),
    ];
    for (pairs, expected) in cases {
        let found = faults(pairs);
        assert!(found.iter().any(|fault| fault.starts_with(expected)), "{pairs:?}: {found:?}");
    }
}

#[test]
fn settings_without_their_prerequisites_are_rejected() {
    let via = ("EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS", "true");
    let tuned = ("TS_EXPERIMENTAL_ENABLE_FORWARDING_OPTIMIZATIONS", "true");
    let cases: [(&[(&str, &str)], &str); 7] = [
        (&[("TS_ID_TOKEN", "a")], "TS_ID_TOKEN needs TS_CLIENT_ID"),
        (&[via, ("POD_IP", "10.0.0.1")], "EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS needs TS_SERVE_CONFIG"),
        (&[via, ("TS_SERVE_CONFIG", "/s")], "EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS needs POD_IP"),
        (&[via, ("TS_USERSPACE", "true")], "EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS needs TS_USERSPACE=false"),
        (&[tuned], "TS_EXPERIMENTAL_ENABLE_FORWARDING_OPTIMIZATIONS needs TS_USERSPACE=false"),
        (&[("TS_EGRESS_PROXIES_CONFIG_PATH", "/etc/proxies")], "TS_EGRESS_PROXIES_CONFIG_PATH needs a place for this replica's state"),
        (
            &[("TS_INGRESS_PROXIES_CONFIG_PATH", "/i"), ("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("TS_KUBE_SECRET", "")],
            "TS_INGRESS_PROXIES_CONFIG_PATH needs a place for this replica's state",
        ),
    ];
    for (pairs, expected) in cases {
        let found = faults(pairs);
        assert!(found.iter().any(|fault| fault.starts_with(expected)), "{pairs:?}: {found:?}");
    }
}

#[test]
fn errors_never_contain_secrets() {
    let pairs = [("TS_AUTHKEY", "tskey-1"), ("TS_CLIENT_SECRET", "tskey-2"), ("TS_ID_TOKEN", "tskey-3"), ("TS_HOSTNAME", "h")];
    assert!(faults(&pairs).iter().all(|fault| !fault.contains("tskey")));
    assert!(!format!("{:?}", read(&[("TS_AUTHKEY", "tskey-1")])).contains("tskey"));
}

#[test]
fn invalid_booleans_count_as_unset() {
    let settings = read(&[("TS_AUTH_ONCE", "yes"), ("TS_USERSPACE", "maybe"), ("TS_ACCEPT_DNS", "")]);
    assert_eq!((two_step(&settings).once, daemon(&settings).userspace), (false, true));
    let notes = &settings.notes;
    assert_eq!(notes.len(), 2, "an empty one is unset: {notes:?}");
    assert!(["TS_AUTH_ONCE", "TS_USERSPACE"].iter().all(|name| notes.iter().any(|note| note.contains(name))), "{notes:?}");
}
