use super::*;
use crate::model::tailnet::supervise::{Login, StateStore};

mod faults;
mod replica;

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn read(pairs: &[(&str, &str)]) -> Settings {
    Settings::read(&env(pairs), &Flags::proxy()).unwrap_or_else(|faults| panic!("{faults}"))
}

fn faults(pairs: &[(&str, &str)]) -> Vec<String> {
    match Settings::read(&env(pairs), &Flags::proxy()) {
        Ok(settings) => panic!("no faults in {settings:?}"),
        Err(faults) => faults.0.iter().map(ToString::to_string).collect(),
    }
}

fn daemon(settings: &Settings) -> &DaemonSettings {
    match &settings.tailnet {
        TailnetMode::Tailscaled(daemon) => daemon,
        TailnetMode::Static(file) => panic!("a static tailnet in {file:?}"),
    }
}

fn two_step(settings: &Settings) -> &crate::model::tailnet::supervise::TwoStep {
    match &daemon(settings).login {
        Login::TwoStep(steps) => steps,
        Login::ConfigDir(dir) => panic!("one step, by {dir:?}"),
    }
}

/// Variables that the operator sets in a Pod of an egress group.
fn egress_pod() -> Vec<(&'static str, &'static str)> {
    vec![
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
        ("POD_IP", "10.0.0.5"),
        ("POD_IPS", "10.0.0.5,fd00::5"),
        ("POD_NAME", "eg-0"),
        ("POD_UID", "7d5c"),
        ("TS_KUBE_SECRET", "eg-0"),
        ("TS_USERSPACE", "false"),
        ("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", "/etc/tsconfig/eg-0"),
        ("TS_EGRESS_PROXIES_CONFIG_PATH", "/etc/proxies"),
        ("TS_EGRESS_SERVICES_CONFIG_PATH", "/etc/proxies/egress-services"),
        ("TS_INTERNAL_APP", "k8s-operator-proxygroup-egress"),
        ("TS_ENABLE_HEALTH_CHECK", "true"),
        ("TS_ENABLE_METRICS", "true"),
        ("TS_LOCAL_ADDR_PORT", "10.0.0.5:9002"),
        ("TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT", "false"),
        ("TS_DEBUG_FIREWALL_MODE", "auto"),
    ]
}

#[test]
fn environment_of_an_egress_pod_is_read() {
    let settings = read(&egress_pod());
    let expected = Settings {
        unreachable_note: None,
        tailnet: settings.tailnet.clone(),
        interface: InterfaceName::tailscale0(),
        pod: Pod {
            name: Some("eg-0".into()),
            object: Some("eg-0".into()),
            uid: Some("7d5c".into()),
            node: None,
            node_ip: None,
            ips: ["10.0.0.5", "fd00::5"].map(|ip| ip.parse().expect("an address")).into(),
        },
        single: Single::None,
        connector: false,
        cluster_via_ingress: false,
        targets: TargetPolicy { api_server: "10.96.0.1".parse().ok(), ..TargetPolicy::default() },
        config_dir: Some("/etc/tsconfig/eg-0".into()),
        egress: Some(ConfigInput { path: Some("/etc/proxies".into()), configmap: None }),
        ingress: None,
        serve: None,
        k8s_proxy: None,
        node_sites: false,
        pod_sites: BTreeSet::new(),
        cert_share: CertShare::Off,
        issuing: Issuing {
            directory: "https://acme-v02.api.letsencrypt.org/directory".into(),
            ca: None,
            account: None,
            away: Duration::from_mins(10),
        },
        auto_advertise: false,
        state: StateOut::Secret("eg-0".into()),
        active_lease: None,
        kube: Some(Kube { server: "https://10.96.0.1:443".into() }),
        api_server: ApiServerUpstream::read("https://10.96.0.1"),
        front_end: FrontEndSettings::default(),
        backend: FirewallMode::Auto,
        http: Some(HttpListener { address: "10.0.0.5:9002".parse().expect("an address"), metrics: true, preshutdown: true }),
        health_addr: None,
        admin_addr: Some("127.0.0.1:9003".parse().expect("an address")),
        drain_timeout: Duration::from_secs(25),
        log: Log { json: false, filter: "info".into() },
        init: None,
        notes: vec!["TS_EGRESS_SERVICES_CONFIG_PATH has no effect: TS_EGRESS_PROXIES_CONFIG_PATH took its place".into()],
    };
    assert_eq!(settings, expected);
    assert_eq!(daemon(&settings).login, Login::ConfigDir("/etc/tsconfig/eg-0".into()));
    assert_eq!(daemon(&settings).state, StateStore::KubeSecret { name: "eg-0".into(), dir: None });
    assert!(!daemon(&settings).userspace);
    let ports: Vec<_> = settings.reserved().iter().map(ToString::to_string).collect();
    assert_eq!(ports, ["tcp/9002", "tcp/9003"]);
    assert!(settings.forwards());
}

#[test]
fn empty_environment_is_a_userspace_node() {
    let settings = read(&[]);
    let daemon = daemon(&settings);
    assert_eq!((daemon.userspace, daemon.boot_timeout), (true, Duration::from_mins(1)));
    assert_eq!((daemon.socket.as_path(), &daemon.state), ("/tmp/tailscaled.sock".as_ref(), &StateStore::Memory));
    assert_eq!((settings.http, settings.auto_advertise, settings.kube.is_some()), (None, true, false));
    assert_eq!((settings.state.clone(), settings.forwards()), (StateOut::None, false));
    assert_eq!(settings.notes, Vec::<String>::new());
}

#[test]
fn pod_of_a_connector_forwards_in_the_kernel_unless_its_class_says_otherwise() {
    let app = ("TS_INTERNAL_APP", "k8s-operator-connector-resource");
    for (userspace, forwards) in [(None, true), (Some("false"), true), (Some("true"), false)] {
        let variables: Vec<_> = [app].into_iter().chain(userspace.map(|text| ("TS_USERSPACE", text))).collect();
        let settings = read(&variables);
        assert_eq!((settings.connector, settings.forwards(), daemon(&settings).userspace), (true, forwards, !forwards), "{userspace:?}");
    }
}

#[test]
fn init_process_variable_is_parsed() {
    let init = |text| read(&[("TAILYARD_INIT", text)]).init;
    assert_eq!(init("0"), Some(Init::default()));
    assert_eq!(init("2 signal SIGKILL"), Some(Init { restarts: 2, why: "signal SIGKILL".into() }));
    assert_eq!(faults(&[("TAILYARD_INIT", "yes")]), [r#"TAILYARD_INIT="yes" is not a number, and why it is not 0"#]);
}

#[test]
fn a_flag_wins_over_its_variable_and_is_named_in_faults() {
    let variables = env(&[("TS_DEBUG_FIREWALL_MODE", "iptables"), ("TAILYARD_ADMIN_ADDR", "127.0.0.1:1")]);
    let flags = Flags::proxy()
        .with("--firewall-mode", Some("iptables-legacy".into()))
        .with("--admin-addr", Some(String::new()))
        .with("--tailnet", Some("static:/lab/netmap.json".into()))
        .with("--egress-config", Some("/lab/config".into()))
        .with("--log-format", None);
    let settings = Settings::read(&variables, &flags).expect("good settings");
    assert_eq!((settings.backend, settings.admin_addr), (FirewallMode::IptablesLegacy, None));
    assert_eq!(settings.tailnet, TailnetMode::Static("/lab/netmap.json".into()));

    let flags = Flags::proxy().with("--firewall-mode", Some("pf".into())).with("--tailnet", Some("static:".into()));
    let found = Settings::read(&variables, &flags).expect_err("two faults").to_string();
    assert_eq!(
        found,
        "--tailnet=\"static:\" is not tailscaled or static:FILE\n\
         --firewall-mode=\"pf\" is not one of auto, nftables, iptables, iptables-nft, iptables-legacy"
    );
}

#[test]
fn http_addr_flag_enables_health_and_metrics() {
    let flags = Flags::proxy().with("--http-addr", Some("127.0.0.1:0".into()));
    let settings = Settings::read(&BTreeMap::new(), &flags).expect("good settings");
    let address = "127.0.0.1:0".parse().expect("an address");
    assert_eq!(settings.http, Some(HttpListener { address, metrics: true, preshutdown: false }));
}

#[test]
fn allowed_and_denied_targets_are_cidr_lists() {
    let flags = Flags::proxy().with("--denied-targets", Some("10.96.0.0/12, fd00:96::/112".into()));
    let settings = Settings::read(&env(&[("TAILYARD_ALLOWED_TARGETS", "100.100.0.0/16")]), &flags).expect("good settings");
    let text = |nets: &[ipnet::IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(text(&settings.targets.allowed), ["100.100.0.0/16"]);
    assert_eq!(text(&settings.targets.denied), ["10.96.0.0/12", "fd00:96::/112"]);
    let found = faults(&[("TAILYARD_ALLOWED_TARGETS", "10.0.0.1")]);
    assert_eq!(found, ["TAILYARD_ALLOWED_TARGETS=\"10.0.0.1\" is not a list of CIDRs such as 10.96.0.0/12,fd00:96::/112"]);
}

#[test]
fn prestop_hook_is_served_in_pods_of_the_tailscale_operator_alone() {
    let hook = |more: &[(&str, &str)]| {
        let egress = [("TS_EGRESS_PROXIES_CONFIG_PATH", "/etc/proxies"), ("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("POD_NAME", "eg-0")];
        read(&[&egress[..], more].concat()).http.is_some_and(|http| http.preshutdown)
    };
    let operator = ("TS_INTERNAL_APP", "k8s-operator-proxygroup-egress");
    let ours = [operator, ("TAILYARD_CONFIG_FROM_API", "true"), ("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", "/etc/tsconfig/eg-0")];
    assert_eq!([hook(&[operator]), hook(&[]), hook(&ours)], [true, false, false]);
}

#[test]
fn second_cluster_address_is_of_the_other_family() {
    let single = |other: &str| read(&[("TS_DEST_IP", "10.0.0.1"), ("TAILYARD_OTHER_DEST_IP", other)]).single;
    let addresses = |other: &str| single(other).cluster_addresses().map(|ip| ip.to_string()).collect::<Vec<_>>();
    assert_eq!(addresses("fd00:96::1"), ["10.0.0.1", "fd00:96::1"]);
    assert_eq!(addresses("10.0.0.2"), ["10.0.0.1"]);
    assert_eq!(
        faults(&[("TS_DEST_IP", "10.0.0.1"), ("TAILYARD_OTHER_DEST_IP", "x")]),
        [r#"TAILYARD_OTHER_DEST_IP="x" is not an IP address"#]
    );
}

#[test]
fn serve_listeners_take_cluster_traffic_only_where_it_is_forwarded() {
    let via = ("EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS", "true");
    let of_ingress = [via, ("POD_IP", "10.0.0.1"), ("TS_SERVE_CONFIG", "/s")];
    let passed = |environment: &[(&str, &str)]| daemon(&read(environment)).env.get("TS_SERVE_ALLOW_ALL_INTERFACES").cloned();
    assert_eq!(passed(&of_ingress).as_deref(), Some("true"));
    assert_eq!(passed(&of_ingress[1..]), None, "bound to the tunnel device");
    assert_eq!(passed(&[("TS_DEST_IP", "10.0.0.1")]), None);
    let own = [&of_ingress[..], &[("TS_SERVE_ALLOW_ALL_INTERFACES", "false")]].concat();
    assert_eq!(passed(&own), None, "tailscaled inherits the Pod's own value");
}

#[test]
fn forwarding_modes_default_to_the_kernel_device() {
    assert!(!daemon(&read(&[("TS_DEST_IP", "10.0.0.1")])).userspace);
    assert!(daemon(&read(&[("EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS", "false")])).userspace);
}

#[test]
fn two_step_login_settings_are_read() {
    let settings = read(&[
        ("TS_AUTH_KEY", "old-name"),
        ("TS_AUTHKEY", "new-name"),
        ("TS_ROUTES", ""),
        ("TS_ACCEPT_DNS", "true"),
        ("TS_EXTRA_ARGS", "--accept-dns=false  --shields-up"),
        ("TS_STATE_DIR", "/var/lib/tailscale"),
        ("TS_TAILSCALED_EXTRA_ARGS", "--verbose 1 --debug=:8080"),
        ("TS_DEBUG_ADDR_PORT", "127.0.0.1:9001"),
    ]);
    let steps = two_step(&settings);
    assert_eq!(steps.auth_key.as_ref().map(crate::model::tailnet::supervise::Secret::reveal), Some("new-name"));
    assert_eq!((steps.routes.as_deref(), steps.accept_dns), (Some(""), Some(false)));
    assert_eq!(steps.extra_args, ["--shields-up"]);
    let daemon = daemon(&settings);
    assert_eq!(daemon.state, StateStore::Dir("/var/lib/tailscale".into()));
    assert_eq!((daemon.extra_args.len(), daemon.debug_addr.as_deref()), (3, None), "its own --debug wins");
}

#[test]
fn only_replica_zero_has_writable_cert_share() {
    let share = |name| read(&[("TS_EXPERIMENTAL_CERT_SHARE", "true"), ("POD_NAME", name)]);
    let mode = |name| daemon(&share(name)).env.get("TS_CERT_SHARE_MODE").cloned();
    assert_eq!((mode("ing-0").as_deref(), mode("ing-1").as_deref(), mode("ing-10").as_deref()), (Some("rw"), Some("ro"), Some("ro")));
    assert!(!daemon(&read(&[("POD_NAME", "ing-0")])).env.contains_key("TS_CERT_SHARE_MODE"));
}

#[test]
fn tailscaled_reports_no_listening_ports_unless_requested() {
    let portlist = |pairs: &[(&str, &str)]| daemon(&read(pairs)).env.get("TS_PORTLIST").cloned();
    assert_eq!(portlist(&[]).as_deref(), Some("false"));
    assert_eq!(portlist(&[("TS_PORTLIST", "true")]), None, "it inherits the variable");
}

#[test]
fn api_server_address_comes_from_the_environment() {
    let server = |pairs: &[(&str, &str)]| read(pairs).kube.map(|kube| kube.server);
    let (host, port) = (("KUBERNETES_SERVICE_HOST", "fd00:96::1"), ("KUBERNETES_SERVICE_PORT", "443"));
    let by_name = ("TS_KUBERNETES_READ_API_SERVER_ADDRESS_FROM_ENV", "false");
    assert_eq!(server(&[host, port]).as_deref(), Some("https://[fd00:96::1]:443"));
    assert_eq!(server(&[host, port, by_name]).as_deref(), Some("https://kubernetes.default.svc"));
    assert_eq!(server(&[host]).as_deref(), Some("https://kubernetes.default.svc"));
    let daemon_by_address = |pairs: &[(&str, &str)]| daemon(&read(pairs)).env.contains_key(by_name.0);
    let (host4, port_https) = ((host.0, "10.96.0.1"), ("KUBERNETES_SERVICE_PORT_HTTPS", "443"));
    assert!(daemon_by_address(&[host4, port_https]));
    for other in [&[host4, port_https, by_name][..], &[host4, port], &[host, port_https], &[]] {
        assert!(!daemon_by_address(other), "{other:?}");
    }
    assert_eq!(read(&[host]).state, StateOut::Secret("tailscale".into()));
    assert_eq!(read(&[host, ("TS_KUBE_SECRET", "")]).state, StateOut::None);
    assert_eq!(read(&[host, ("TAILYARD_STATE_FILE", "/s")]).state, StateOut::File("/s".into()));
    assert_eq!(read(&[("TS_KUBE_SECRET", "s")]).state, StateOut::None);
}

#[test]
fn api_server_of_the_proxy_is_that_of_the_pod_or_has_a_url_with_a_base_path() {
    const URL: &str = "TAILYARD_API_SERVER_URL";
    let (host, port) = (("KUBERNETES_SERVICE_HOST", "fd00:96::1"), ("KUBERNETES_SERVICE_PORT", "443"));
    let url = |pairs: &[(&str, &str)]| read(pairs).api_server.map(|upstream| upstream.url());
    assert_eq!(url(&[host, port]).as_deref(), Some("https://[fd00:96::1]:443"));
    assert_eq!(url(&[]), None);
    let other = [host, port, (URL, "https://api.example/k8s/clusters/c-1/")];
    assert_eq!(url(&other).as_deref(), Some("https://api.example:443/k8s/clusters/c-1"));
    assert_eq!(read(&other).kube, read(&other[..2]).kube, "state and config stay with the Pod's cluster");
    assert!(faults(&other[2..])[0].contains("KUBERNETES_SERVICE_HOST"));
    for invalid in ["api.example", "http://api.example", "https://me@api.example", "https://api.example/a/../b", "https://api.example:0/a"]
    {
        let faults = faults(&[host, port, (URL, invalid)]);
        assert!(faults.len() == 1 && faults[0].contains(URL) && faults[0].contains("such as https://"), "{faults:?}");
    }
}

#[test]
fn pod_addresses_are_one_of_each_family() {
    let ips = |text: &str| read(&[("POD_IPS", text), ("POD_IP", "10.9.9.9")]).pod.ips.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(ips("10.0.0.1,10.0.0.2"), ["10.0.0.2"]);
    assert_eq!(ips("fd00:0::5, 10.0.0.1"), ["10.0.0.1", "fd00::5"]);
    assert_eq!(ips(""), ["10.9.9.9"]);
}

#[test]
fn flags_and_variables_are_unique() {
    for settings in [table::proxy().collect::<Vec<_>>(), table::reconciler().collect()] {
        let flags: BTreeSet<_> = settings.iter().map(|setting| setting.flag).collect();
        let variables: BTreeSet<_> = settings.iter().map(|setting| setting.variable).collect();
        assert_eq!((flags.len(), variables.len()), (settings.len(), settings.len()));
    }
}

#[test]
fn front_end_limits_are_read() {
    let set = read(&[
        ("TAILYARD_UPGRADES", "websocket, SPDY/3.1"),
        ("TAILYARD_BODY_TIMEOUT", "30s"),
        ("TAILYARD_ANSWER_TIMEOUT", "5m"),
        ("TAILYARD_TUNNEL_TIMEOUT", "24h"),
        ("TAILYARD_MAX_CONNECTIONS", "500"),
        ("TAILYARD_END_REVOKED_STREAMS", "false"),
        ("TAILYARD_KERNEL_TCP", "true"),
    ]);
    let expected = FrontEndSettings {
        upgrades: Upgrades::read("websocket,spdy/3.1").expect("protocols"),
        body_timeout: Duration::from_secs(30),
        answer_timeout: Duration::from_mins(5),
        tunnel_timeout: Duration::from_hours(24),
        max_connections: 500,
        end_revoked_streams: false,
        kernel_tcp: KernelTcpMode::On,
    };
    assert_eq!(set.front_end, expected);
    for (variable, value) in [
        ("TAILYARD_UPGRADES", "websocket,h2c"),
        ("TAILYARD_MAX_CONNECTIONS", "0"),
        ("TAILYARD_BODY_TIMEOUT", "0s"),
        ("TAILYARD_KERNEL_TCP", "yes"),
    ] {
        assert!(faults(&[(variable, value)])[0].contains(variable));
    }
}

#[test]
fn whole_address_modes_reserve_the_wireguard_port() {
    let ports = |pairs: &[(&str, &str)]| read(pairs).reserved().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(ports(&[("TS_TAILNET_TARGET_IP", "100.64.0.9")]).contains(&"udp/41641".to_owned()));
    assert!(ports(&[("TS_TAILNET_TARGET_FQDN", "a.b"), ("PORT", "7777")]).contains(&"udp/7777".to_owned()));
    assert!(!ports(&[("TS_DEST_IP", "10.0.0.9")]).iter().any(|port| port.starts_with("udp")));
}

#[test]
fn each_firewall_mode_of_the_definition_is_known() {
    let definition = serde_json::to_value(crate::api::crd::definitions()).expect("JSON");
    let place = "/4/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/tailyard/properties/firewallMode/enum";
    let names: Vec<String> = serde_json::from_value(definition.pointer(place).cloned().expect("an enum")).expect("names");
    assert_eq!(names, FirewallMode::NAMES.map(|(name, _)| name));
}
