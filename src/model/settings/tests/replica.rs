//! Settings of Pods that share an identity or a name with others.

use super::*;

#[test]
fn wireguard_port_is_stable_per_pod() {
    let port = |pairs: &[(&str, &str)]| daemon(&read(pairs)).env["PORT"].parse::<u16>().expect("a port");
    let pod = |name: &str, ip: &str| port(&[("POD_NAME", name), ("POD_IP", ip)]);
    assert_eq!(pod("eg-0", "10.0.0.5"), pod("eg-0", "10.0.0.5"));
    let ports: BTreeSet<_> = (0..20).map(|i| pod(&format!("eg-{i}"), "10.0.0.5")).collect();
    assert!(ports.len() > 15 && ports.iter().all(|port| *port >= 61_000), "{ports:?}");
    assert_eq!(port(&[("POD_NAME", "eg-0"), ("PORT", "7777")]), 7777);
}

#[test]
fn config_from_api_requires_directory_and_pod_name() {
    let dir = ("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", "/run/tailyard/config");
    let all = read(&[dir, ("POD_NAME", "eg-0"), ("TAILYARD_CONFIG_FROM_API", "true")]);
    assert!(daemon(&all).fill_config);
    assert!(!daemon(&read(&[dir, ("POD_NAME", "eg-0")])).fill_config);
    assert_eq!(faults(&[("TAILYARD_CONFIG_FROM_API", "true")]).len(), 2);
}

#[test]
fn acme_directory_and_account_are_read() {
    let issuing = |env: &[(&str, &str)]| read(env).issuing;
    let staging = "https://acme-staging-v02.api.letsencrypt.org/directory";
    assert_eq!(issuing(&[("TS_DEBUG_ACME_DIRECTORY_URL", staging)]).directory, staging);
    let both = [("TS_DEBUG_ACME_DIRECTORY_URL", staging), ("TAILYARD_ACME_DIRECTORY", "https://ca.example/acme")];
    assert_eq!(issuing(&both).directory, "https://ca.example/acme");
    let account = [("TS_ACME_ACCOUNT_SECRET_NAME", "tailscale-acme-accounts"), ("TS_ACME_ACCOUNT_FIELD", "_default.acme-account.key.pem")];
    assert_eq!(issuing(&account).account, Some(("tailscale-acme-accounts".into(), "_default.acme-account.key.pem".into())));
    assert_eq!(issuing(&[("TAILYARD_CERT_LEADER_TIMEOUT", "1m")]).away, Duration::from_mins(1));
    let name_each = |pairs: &[(&str, &str)]| {
        let faults = faults(pairs);
        assert_eq!(faults.len(), pairs.len(), "{faults:?}");
        assert!(pairs.iter().all(|(name, _)| faults.iter().any(|fault| fault.contains(name))), "{faults:?}");
    };
    name_each(&[("TS_ACME_ACCOUNT_FIELD", "x")]);
    name_each(&[("TAILYARD_ACME_DIRECTORY", "ca.example"), ("TAILYARD_CERT_LEADER_TIMEOUT", "0")]);
}

#[test]
fn userspace_group_member_serves_only_sites() {
    let group = [
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ("POD_NAME", "in-0"),
        ("TS_KUBE_SECRET", "in-0"),
        ("TS_SERVE_CONFIG", "/etc/proxies/serve-config.json"),
        ("TAILYARD_INGRESS_CONFIGMAP", "tailscale/in-ingress-config"),
        ("TS_USERSPACE", "true"),
    ];
    let settings = read(&group);
    assert!(daemon(&settings).userspace && !settings.forwards() && settings.limits_advertising());
    assert!(settings.serve.is_some_and(|serve| serve.configmap.is_some()));
}

#[test]
fn kernel_terminates_connections_only_with_a_tunnel_and_rules() {
    let group = [
        ("TS_INGRESS_PROXIES_CONFIG_PATH", "/etc/proxies/ingress-config.json"),
        ("TAILYARD_STATE_FILE", "/state.json"),
        ("TAILYARD_KERNEL_TCP", "true"),
    ];
    let decided = |settings: Settings| settings.kernel_tcp().map_err(KernelTcpObstacle::reason);
    let with = |pairs: &[(&str, &str)]| decided(read(&[&group[..], pairs].concat()));
    assert_eq!((with(&[]), with(&[("TAILYARD_KERNEL_TCP", "auto")])), (Ok(()), Ok(())));
    assert_eq!(with(&[("TAILYARD_KERNEL_TCP", "false")]), Err("Disabled"));
    assert_eq!(decided(read(&group[..2])), Err("Disabled"));
    assert_eq!(with(&[("TAILYARD_SERVE_ON_NODE_ADDRESS", "true")]), Err("NoTailscaleServices"));
    assert_eq!(with(&[("TAILYARD_TAILNET", "static:/node.json")]), Err("OtherClient"));
    assert_eq!(decided(read(&[("TAILYARD_KERNEL_TCP", "true"), ("TS_USERSPACE", "true")])), Err("Userspace"));
    assert_eq!(decided(read(&[("TAILYARD_KERNEL_TCP", "auto"), ("TS_USERSPACE", "false")])), Err("NoRules"));
}

#[test]
fn standby_pod_has_two_names() {
    let names = |pairs: &[(&str, &str)]| (read(pairs).pod.name, read(pairs).pod.object);
    let (first, own) = ("ts-web-1a2b3-0".to_owned(), "ts-web-4c5d6-0".to_owned());
    assert_eq!(names(&[("POD_NAME", &first)]), (Some(first.clone()), Some(first.clone())));
    assert_eq!(names(&[("POD_NAME", &first), ("TAILYARD_POD_NAME", &own)]), (Some(first.clone()), Some(own.clone())));
}

#[test]
fn active_lease_requires_a_cluster_and_the_uid_of_the_pod() {
    let lease = ("TAILYARD_ACTIVE_LEASE", "ts-web-1a2b3-0");
    let (server, uid) = (("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("POD_UID", "7d5c"));
    let expected = ActiveLease { name: "ts-web-1a2b3-0".into(), pod_uid: "7d5c".into() };
    assert_eq!(read(&[lease, server, uid]).active_lease, Some(expected));
    assert_eq!(read(&[server, uid]).active_lease, None);
    assert!(faults(&[lease, server])[0].contains("POD_UID"));
    assert!(faults(&[lease, uid])[0].contains("KUBERNETES_SERVICE_HOST"));
}

#[test]
fn clients_of_the_cluster_are_served_at_the_addresses_of_the_pod() {
    let on = ("TAILYARD_SERVE_ON_POD_ADDRESS", "true");
    let (serve, ips) = (("TS_SERVE_CONFIG", "/etc/proxies/serve-config.json"), ("POD_IPS", "10.0.0.5,fd00::5"));
    let addresses = |pairs: &[(&str, &str)]| read(pairs).pod_sites.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(addresses(&[on, serve, ips]), ["10.0.0.5", "fd00::5"]);
    assert!(addresses(&[serve, ips]).is_empty());
    assert!(faults(&[on, serve])[0].contains("POD_IPS"));
    assert!(faults(&[on, ips])[0].contains("TS_SERVE_CONFIG"));
}
