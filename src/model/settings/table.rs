//! Table of the settings of `tailyard proxy` and `tailyard reconciler` that have flags: each is declared once, with variable, default and
//! help text. The command line and [`super::source`] read these tables.

/// A setting with its flag and variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Section of `--help`.
    pub heading: &'static str,
    /// With its two leading dashes.
    pub flag: &'static str,
    /// Environment variable; the flag has precedence.
    pub variable: &'static str,
    /// Form of the value in `--help`.
    pub form: &'static str,
    /// Default; empty for none, or for one that the help describes.
    pub default: &'static str,
    /// Help text: one phrase.
    pub help: &'static str,
}

/// Flag, variable, form, default and help.
type SettingRow = (&'static str, &'static str, &'static str, &'static str, &'static str);

pub fn proxy() -> impl Iterator<Item = Setting> {
    settings(&PROXY)
}

pub fn reconciler() -> impl Iterator<Item = Setting> {
    settings(&RECONCILER)
}

fn settings(sections: &'static [(&'static str, &'static [SettingRow])]) -> impl Iterator<Item = Setting> {
    let of = |heading: &'static str| {
        move |row: &SettingRow| {
            let (flag, variable, form, default, help) = *row;
            Setting { heading, flag, variable, form, default, help }
        }
    };
    sections.iter().flat_map(move |(heading, rows)| rows.iter().map(of(heading)))
}

const FIREWALL_MODES: &str = "Firewall mode: auto, nftables, iptables, iptables-nft or iptables-legacy";

const PROXY: [(&str, &[SettingRow]); 6] = [
    (
        "Tailnet",
        &[
            (
                "--tailnet",
                "TAILYARD_TAILNET",
                "tailscaled|static:FILE",
                "tailscaled",
                "Tailnet client: a supervised tailscaled, or a JSON file that describes one of another make (addresses, peers, services)",
            ),
            ("--tailnet-interface", "TAILYARD_TAILNET_INTERFACE", "NAME", "tailscale0", "Network interface of the tailnet"),
            ("--tailscaled", "TAILYARD_TAILSCALED", "FILE", "tailscaled", "The tailscaled program, a path or a name in PATH"),
            ("--tailscale", "TAILYARD_TAILSCALE", "FILE", "tailscale", "The tailscale command, a path or a name in PATH"),
            ("--boot-timeout", "TS_BOOT_TIMEOUT", "TIME", "60s", "Timeout of the first start until the node is connected"),
        ],
    ),
    (
        "Services",
        &[
            ("--egress-config", "TS_EGRESS_PROXIES_CONFIG_PATH", "DIR", "", "Directory where `egress-services` is mounted"),
            ("--egress-configmap", "TAILYARD_EGRESS_CONFIGMAP", "NAMESPACE/NAME", "", "ConfigMap with `egress-services`, which is watched"),
            ("--ingress-config", "TS_INGRESS_PROXIES_CONFIG_PATH", "FILE", "", "Mounted file with the L3 ingress services"),
            (
                "--ingress-configmap",
                "TAILYARD_INGRESS_CONFIGMAP",
                "NAMESPACE/NAME",
                "",
                "ConfigMap with `ingress-config.json`, which is watched",
            ),
            ("--pod-ips", "POD_IPS", "IP[,IP]", "", "Addresses of this Pod, one of each family"),
            (
                "--allowed-targets",
                "TAILYARD_ALLOWED_TARGETS",
                "CIDR[,CIDR]",
                "",
                "Ranges allowed as targets although they are rejected by default, such as link-local ones",
            ),
            (
                "--denied-targets",
                "TAILYARD_DENIED_TARGETS",
                "CIDR[,CIDR]",
                "",
                "Ranges rejected as targets, such as those of the cluster's Services; the API server is always rejected",
            ),
        ],
    ),
    (
        "HTTP ingress",
        &[
            ("--upgrades", "TAILYARD_UPGRADES", "NAME[,NAME]", "websocket", "Protocols to which clients may upgrade a connection"),
            (
                "--body-timeout",
                "TAILYARD_BODY_TIMEOUT",
                "TIME",
                "60s",
                "Idle timeout of request bodies, and of clients that read no response",
            ),
            ("--answer-timeout", "TAILYARD_ANSWER_TIMEOUT", "TIME", "1h", "Idle timeout of responses from a backend"),
            ("--tunnel-timeout", "TAILYARD_TUNNEL_TIMEOUT", "TIME", "1h", "Idle timeout of upgraded connections"),
            (
                "--max-connections",
                "TAILYARD_MAX_CONNECTIONS",
                "NUMBER",
                "16384",
                "Maximum number of client connections, a quarter of it for one client; less if file descriptors or memory are scarce",
            ),
        ],
    ),
    (
        "Kernel",
        &[
            ("--firewall-mode", "TS_DEBUG_FIREWALL_MODE", "NAME", "auto", FIREWALL_MODES),
            ("--drain-timeout", "TAILYARD_DRAIN_TIMEOUT", "TIME", "25s", "Maximum time to drain connections on shutdown"),
        ],
    ),
    (
        "State",
        &[
            (
                "--kube-secret",
                "TS_KUBE_SECRET",
                "NAME",
                "",
                "Secret of this replica's state; empty for none (default in a cluster: tailscale)",
            ),
            ("--state-file", "TAILYARD_STATE_FILE", "FILE", "", "File in place of the Secret"),
        ],
    ),
    (
        "Observability",
        &[
            (
                "--http-addr",
                "TS_LOCAL_ADDR_PORT",
                "IP:PORT",
                "",
                "Listener of health checks, metrics and the preStop hook (default: [::]:9002 if any of them is enabled)",
            ),
            (
                "--admin-addr",
                "TAILYARD_ADMIN_ADDR",
                "IP:PORT",
                "127.0.0.1:9003",
                "Listener of all endpoints, with /debug/plan; empty for none",
            ),
            ("--log-format", "TAILYARD_LOG_FORMAT", "text|json", "text", "Log format"),
            ("--log-filter", "TAILYARD_LOG_FILTER", "FILTER", "info", "Log filter, such as debug or info,tailyard::proxy=debug"),
        ],
    ),
];

const RECONCILER: [(&str, &[SettingRow]); 6] = [
    (
        "Cluster",
        &[
            ("--namespace", "OPERATOR_NAMESPACE", "NAME", "", "Namespace for all managed objects (default: that of the Pod)"),
            (
                "--watch-namespaces",
                "TAILYARD_WATCH_NAMESPACES",
                "NAME[,NAME]",
                "",
                "Namespaces whose Services and Ingresses are watched, so that Roles in them suffice (default: all)",
            ),
            ("--kubeconfig", "KUBECONFIG", "FILE", "", "A kubeconfig, to run outside of a cluster"),
            (
                "--cluster-domain",
                "TAILYARD_CLUSTER_DOMAIN",
                "NAME",
                "",
                "DNS domain of the cluster (default: from the Pod's resolv.conf, else cluster.local)",
            ),
            ("--workers", "TAILYARD_WORKERS", "NUMBER", "4", "Number of concurrent reconciliations"),
        ],
    ),
    (
        "Proxies",
        &[
            (
                "--image",
                "PROXY_IMAGE",
                "IMAGE",
                concat!("localhost/tailyard:", env!("CARGO_PKG_VERSION")),
                "Image of the proxies: Tailyard's, or the stock image of the Tailscale operator",
            ),
            (
                "--image-pull-secrets",
                "PROXY_IMAGE_PULL_SECRETS",
                "NAME[,NAME]",
                "",
                "Pull Secrets of the proxies, unless the ProxyClass names some",
            ),
            ("--tags", "PROXY_TAGS", "TAG[,TAG]", "tag:k8s", "Tags of the devices, unless the ProxyGroup names some"),
            ("--default-class", "PROXY_DEFAULT_CLASS", "NAME", "", "ProxyClass of ProxyGroups that name none"),
            ("--firewall-mode", "PROXY_FIREWALL_MODE", "NAME", "auto", FIREWALL_MODES),
            (
                "--match-port-range",
                "TAILYARD_MATCH_PORT_RANGE",
                "START-END",
                "10000-19999",
                "Ports of a Pod that egress Services are assigned, unless the ProxyGroup names a range",
            ),
            ("--drain-timeout", "TAILYARD_DRAIN_TIMEOUT", "TIME", "45s", "Maximum time for a replica to drain connections on shutdown"),
            (
                "--failover",
                "TAILYARD_FAILOVER",
                "on|off",
                "on",
                "Whether the Pod of a replica that does not answer health probes is made unready, in place of Kubernetes' 50 s",
            ),
            (
                "--standalone",
                "TAILYARD_STANDALONE",
                "on|off",
                "on",
                "Whether a Service or Ingress that requests Tailscale and names no ProxyGroup gets a proxy of its own",
            ),
            (
                "--standalone-tenants",
                "TAILYARD_STANDALONE_TENANTS",
                "JSON",
                "",
                "Namespaces that may have such proxies, a list of tenants as in spec.tailyard.tenants of a ProxyGroup (default: all)",
            ),
            (
                "--tenancy",
                "TAILYARD_TENANCY",
                "bounded|open",
                "bounded",
                "Limits of namespaces in ProxyGroups that name no tenants; bounded: 5,000 ports, 100 names, 50 new certificates a week, no tags, \
                 no names of other clusters",
            ),
            (
                "--proxy-group-types",
                "TAILYARD_PROXY_GROUP_TYPES",
                "NAME[,NAME]",
                "egress,ingress",
                "Types of the ProxyGroups to manage; others are left to the Tailscale operator",
            ),
        ],
    ),
    (
        "Default ProxyGroups",
        &[
            (
                "--default-ingress-group",
                "TAILYARD_DEFAULT_INGRESS_GROUP",
                "NAME",
                "",
                "ProxyGroup of Ingresses and Services that name none and are to be reached from the tailnet",
            ),
            (
                "--default-egress-group",
                "TAILYARD_DEFAULT_EGRESS_GROUP",
                "NAME",
                "",
                "ProxyGroup of Services that name none and have a target in the tailnet",
            ),
        ],
    ),
    (
        "Ingress",
        &[
            ("--ingress-class", "OPERATOR_INGRESS_CLASS_NAME", "NAME", "tailscale", "IngressClass of the Ingresses to advertise"),
            (
                "--cluster-id",
                "TAILYARD_CLUSTER_ID",
                "ID",
                "",
                "ID of this cluster in multi-cluster Services (default: from the UID of the namespace kube-system)",
            ),
            (
                "--previous-cluster-ids",
                "TAILYARD_PREVIOUS_CLUSTER_IDS",
                "ID[,ID]",
                "",
                "Previous IDs of this cluster, such as the node ID of the Tailscale operator that it replaces",
            ),
            (
                "--shared-acme-account",
                "OPERATOR_SHARED_ACME_ACCOUNT_KEY",
                "BOOL",
                "",
                "Whether all ProxyGroups of a tailnet share one ACME account, in place of one each (default: false; proxies of Ingresses without ProxyGroup: true)",
            ),
            (
                "--acme-directory",
                "TAILYARD_ACME_DIRECTORY",
                "URL",
                "",
                "Directory of the ACME server, unless the ProxyClass selects one (default: that of Let's Encrypt)",
            ),
        ],
    ),
    (
        "Control plane",
        &[
            (
                "--login-server",
                "OPERATOR_LOGIN_SERVER",
                "URL",
                "",
                "URL, for ProxyGroups that name no Tailnet (default: that of Tailscale)",
            ),
            (
                "--client-id-file",
                "CLIENT_ID_FILE",
                "FILE",
                "",
                "File with the ID of the OAuth client; the variable CLIENT_ID alone selects workload identity federation",
            ),
            ("--client-secret-file", "CLIENT_SECRET_FILE", "FILE", "", "File with the secret of the OAuth client"),
            ("--headscale-key-file", "TAILYARD_HEADSCALE_KEY_FILE", "FILE", "", "File with an API key of headscale"),
            ("--control-ca", "TAILYARD_CONTROL_CA", "FILE", "", "Additional trusted CAs, in PEM"),
        ],
    ),
    (
        "Observability",
        &[
            ("--admin-addr", "TAILYARD_ADMIN_ADDR", "IP:PORT", "[::]:9002", "Listener of health checks and metrics; empty for none"),
            ("--log-format", "TAILYARD_LOG_FORMAT", "text|json", "text", "Log format"),
            ("--log-filter", "TAILYARD_LOG_FILTER", "FILTER", "info", "Log filter, such as debug or info,tailyard::reconciler=debug"),
        ],
    ),
];
