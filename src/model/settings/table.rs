//! Table of the settings of `tailyard proxy`, `tailyard reconciler` and `tailyard nameserver` that have flags: each is declared once, with variable, default and
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

/// A section of `--help`.
struct Section {
    heading: &'static str,
    settings: &'static [Setting],
}

pub fn proxy() -> impl Iterator<Item = Setting> {
    settings(&PROXY)
}

pub fn reconciler() -> impl Iterator<Item = Setting> {
    settings(&RECONCILER)
}

pub fn nameserver() -> impl Iterator<Item = Setting> {
    settings(&NAMESERVER)
}

fn settings(sections: &'static [Section]) -> impl Iterator<Item = Setting> {
    sections.iter().flat_map(|&Section { heading, settings }| settings.iter().map(move |setting| Setting { heading, ..*setting }))
}

const fn section(heading: &'static str) -> Section {
    Section { heading, settings: &[] }
}

const fn flag(flag: &'static str, variable: &'static str, form: &'static str, default: &'static str) -> Setting {
    Setting { heading: "", flag, variable, form, default, help: "" }
}

impl Section {
    const fn of(self, settings: &'static [Setting]) -> Self {
        Self { settings, ..self }
    }
}

impl Setting {
    const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }
}

const FIREWALL_MODES: &str = "Firewall mode: auto, nftables, iptables, iptables-nft or iptables-legacy";

const PROXY: [Section; 7] = [
    section("Tailnet").of(&[
        flag("--tailnet", "TAILYARD_TAILNET", "tailscaled|static:FILE", "tailscaled").help(
            "Tailnet client: a supervised tailscaled, or a JSON file that describes one of another make (addresses, peers, services)",
        ),
        flag("--tailnet-interface", "TAILYARD_TAILNET_INTERFACE", "NAME", "tailscale0").help("Network interface of the tailnet"),
        flag("--tailscaled", "TAILYARD_TAILSCALED", "FILE", "tailscaled").help("The tailscaled program, a path or a name in PATH"),
        flag("--tailscale", "TAILYARD_TAILSCALE", "FILE", "tailscale").help("The tailscale command, a path or a name in PATH"),
        flag("--boot-timeout", "TS_BOOT_TIMEOUT", "TIME", "60s").help("Timeout of the first start until the node is connected"),
    ]),
    section("Services").of(&[
        flag("--egress-config", "TS_EGRESS_PROXIES_CONFIG_PATH", "DIR", "").help("Directory where `egress-services` is mounted"),
        flag("--egress-configmap", "TAILYARD_EGRESS_CONFIGMAP", "NAMESPACE/NAME", "")
            .help("ConfigMap with `egress-services`, which is watched"),
        flag("--ingress-config", "TS_INGRESS_PROXIES_CONFIG_PATH", "FILE", "").help("Mounted file with the L3 ingress services"),
        flag("--ingress-configmap", "TAILYARD_INGRESS_CONFIGMAP", "NAMESPACE/NAME", "")
            .help("ConfigMap with `ingress-config.json`, which is watched"),
        flag("--pod-ips", "POD_IPS", "IP[,IP]", "").help("Addresses of this Pod, one of each family"),
        flag("--allowed-targets", "TAILYARD_ALLOWED_TARGETS", "CIDR[,CIDR]", "")
            .help("Ranges allowed as targets although they are rejected by default, such as link-local ones"),
        flag("--denied-targets", "TAILYARD_DENIED_TARGETS", "CIDR[,CIDR]", "")
            .help("Ranges rejected as targets besides the API server, such as those of the cluster's Services; --allowed-targets wins"),
    ]),
    section("HTTP ingress").of(&[
        flag("--upgrades", "TAILYARD_UPGRADES", "NAME[,NAME]", "websocket").help("Protocols to which clients may upgrade a connection"),
        flag("--body-timeout", "TAILYARD_BODY_TIMEOUT", "TIME", "60s")
            .help("Idle timeout of request bodies, and of clients that read no response"),
        flag("--answer-timeout", "TAILYARD_ANSWER_TIMEOUT", "TIME", "1h").help("Idle timeout of responses from a backend"),
        flag("--tunnel-timeout", "TAILYARD_TUNNEL_TIMEOUT", "TIME", "1h").help("Idle timeout of upgraded connections"),
        flag("--max-connections", "TAILYARD_MAX_CONNECTIONS", "NUMBER", "16384")
            .help("Maximum number of client connections, a quarter of it for one client; less if file descriptors or memory are scarce"),
        flag("--kernel-tcp", "TAILYARD_KERNEL_TCP", "auto|true|false", "false").help(
            "Terminate connections to Tailscale Services in the kernel, in place of tailscaled's TCP stack; auto: where this replica can, \
             true: warn if it cannot",
        ),
    ]),
    section("API server proxy").of(&[
        flag("--api-server-url", "TAILYARD_API_SERVER_URL", "URL", "").help(
            "URL of the API server, with the base path below which it serves, as `server` in a kubeconfig (default: that of the Pod's cluster)",
        ),
        flag("--end-revoked-streams", "TAILYARD_END_REVOKED_STREAMS", "true|false", "true")
            .help("End watches and sessions of a client of the Kubernetes API that loses a right; its next requests are refused in any case"),
    ]),
    section("Kernel").of(&[
        flag("--firewall-mode", "TS_DEBUG_FIREWALL_MODE", "NAME", "auto").help(FIREWALL_MODES),
        flag("--drain-timeout", "TAILYARD_DRAIN_TIMEOUT", "TIME", "25s").help(
            "Maximum time to drain connections on shutdown; Tailyard's reconciler sets 45s, 25s fits the 30 s of the Tailscale operator's Pods",
        ),
    ]),
    section("State").of(&[
        flag("--kube-secret", "TS_KUBE_SECRET", "NAME", "")
            .help("Secret of this replica's state; empty for none (default in a cluster: tailscale)"),
        flag("--state-file", "TAILYARD_STATE_FILE", "FILE", "").help("File in place of the Secret"),
    ]),
    section("Observability").of(&[
        flag("--http-addr", "TS_LOCAL_ADDR_PORT", "IP:PORT", "")
            .help("Listener of health checks, metrics and the preStop hook (default: [::]:9002 if any of them is enabled)"),
        flag("--admin-addr", "TAILYARD_ADMIN_ADDR", "IP:PORT", "127.0.0.1:9003")
            .help("Listener of all endpoints, with /debug/plan; empty for none"),
        flag("--log-format", "TAILYARD_LOG_FORMAT", "text|json", "text").help("Log format"),
        flag("--log-filter", "TAILYARD_LOG_FILTER", "FILTER", "info")
            .help("Log filter, such as debug (Tailyard's own) or info,tailyard::proxy=debug"),
    ]),
];

const RECONCILER: [Section; 7] = [
    section("Cluster").of(&[
        flag("--namespace", "OPERATOR_NAMESPACE", "NAME", "").help("Namespace for all managed objects (default: that of the Pod)"),
        flag("--watch-namespaces", "TAILYARD_WATCH_NAMESPACES", "NAME[,NAME]", "")
            .help("Namespaces whose Services and Ingresses are watched, so that Roles in them suffice (default: all)"),
        flag("--kubeconfig", "KUBECONFIG", "FILE", "").help("A kubeconfig, to run outside of a cluster"),
        flag("--cluster-domain", "TAILYARD_CLUSTER_DOMAIN", "NAME", "")
            .help("DNS domain of the cluster (default: from the Pod's resolv.conf, else cluster.local)"),
        flag("--workers", "TAILYARD_WORKERS", "NUMBER", "4").help("Number of concurrent reconciliations"),
    ]),
    section("Proxies").of(&[
        flag("--image", "PROXY_IMAGE", "IMAGE", concat!("localhost/tailyard:", env!("CARGO_PKG_VERSION")))
            .help("Image of the proxies: Tailyard's, or the Tailscale operator's"),
        flag("--image-pull-secrets", "PROXY_IMAGE_PULL_SECRETS", "NAME[,NAME]", "")
            .help("Pull Secrets of the proxies, unless the ProxyClass names some"),
        flag("--tags", "PROXY_TAGS", "TAG[,TAG]", "tag:k8s")
            .help("Tags of the devices of ProxyGroups and standalone proxies, unless the ProxyGroup, Service or Ingress names some"),
        flag("--default-class", "PROXY_DEFAULT_CLASS", "NAME", "")
            .help("ProxyClass of ProxyGroups, and of Services and Ingresses with a standalone proxy, that name none"),
        flag("--firewall-mode", "PROXY_FIREWALL_MODE", "NAME", "auto").help(FIREWALL_MODES),
        flag("--match-port-range", "TAILYARD_MATCH_PORT_RANGE", "START-END", "10000-19999")
            .help("Ports of a Pod that egress Services are assigned, unless the ProxyGroup names a range"),
        flag("--drain-timeout", "TAILYARD_DRAIN_TIMEOUT", "TIME", "45s")
            .help("Maximum time for a replica to drain connections on shutdown"),
        flag("--failover", "TAILYARD_FAILOVER", "on|off", "on")
            .help("Whether the Pod of a replica that does not answer health probes is made unready, in place of Kubernetes' 50 s"),
        flag("--standalone", "TAILYARD_STANDALONE", "on|off", "on")
            .help("Whether a Service or Ingress that requests Tailscale and names no ProxyGroup gets a proxy of its own"),
        flag("--connectors", "TAILYARD_CONNECTORS", "on|off", "off")
            .help("Whether Connectors (subnet routers, exit nodes, app connectors) are served; off leaves them to the Tailscale operator"),
        flag("--proxy-group-policies", "TAILYARD_PROXY_GROUP_POLICIES", "on|off", "off")
            .help("Whether ProxyGroupPolicies are enforced, by ValidatingAdmissionPolicies; off leaves them to the Tailscale operator"),
        flag("--dns-configs", "TAILYARD_DNS_CONFIGS", "on|off", "off")
            .help("Whether DNSConfigs (a nameserver in the cluster) are served; off leaves them to the Tailscale operator"),
        flag("--standalone-tenants", "TAILYARD_STANDALONE_TENANTS", "JSON", "")
            .help("Namespaces that may have such proxies, a list of tenants as in spec.tailyard.tenants of a ProxyGroup (default: all)"),
        flag("--tenancy", "TAILYARD_TENANCY", "bounded|open", "bounded").help(
            "Limits of namespaces in ProxyGroups that name no tenants; bounded: 5,000 ports, 100 names, 50 new certificates a week, \
             no tags, no names of other clusters",
        ),
        flag("--permitted-tags", "TAILYARD_PERMITTED_TAGS", "TAG[,TAG]", "").help(
            "Tags, or prefixes with a final *, that objects may request by tailscale.com/tags where no tenants are named, besides the default \
             tags and those of their ProxyGroup",
        ),
        flag("--allowed-targets", "TAILYARD_ALLOWED_TARGETS", "CIDR[,CIDR]", "")
            .help("Ranges allowed as targets of all proxies, also within --denied-targets, such as a Service of the cluster"),
        flag("--denied-targets", "TAILYARD_DENIED_TARGETS", "CIDR[,CIDR]", "")
            .help("Ranges rejected as targets of all proxies, whatever their ProxyClass allows"),
        flag("--proxy-group-types", "TAILYARD_PROXY_GROUP_TYPES", "NAME[,NAME]", "egress,ingress,kube-apiserver")
            .help("Types of the ProxyGroups to manage; others are left to the Tailscale operator"),
        flag("--impersonate-users", "TAILYARD_IMPERSONATE_USERS", "NAME[,NAME]", "").help(
            "Users that ProxyGroups of type kube-apiserver in mode auth may impersonate; * permits all but those of Kubernetes (system:). The \
             reconciler needs the same right",
        ),
        flag("--impersonate-groups", "TAILYARD_IMPERSONATE_GROUPS", "NAME[,NAME]", "").help("Groups that they may impersonate, likewise"),
    ]),
    section("API server proxy").of(&[
        flag("--api-server-proxy", "APISERVER_PROXY", "true|noauth|false", "").help(
            "Whether a device of its own serves the Kubernetes API: true impersonates its clients, with --impersonate-users or \
             --api-server-proxy-all-users; with noauth they have credentials of their own (default: false)",
        ),
        flag("--api-server-proxy-all-users", "TAILYARD_API_SERVER_PROXY_ALL_USERS", "on|off", "off").help(
            "Whether it may impersonate all users and groups but those of Kubernetes, whatever --impersonate-users lists for ProxyGroups. The \
             reconciler needs the same right",
        ),
        flag("--api-server-proxy-image", "TAILYARD_API_SERVER_PROXY_IMAGE", "IMAGE", "")
            .help("Its image, which must be Tailyard's (default: that of --image)"),
        flag("--operator-hostname", "OPERATOR_HOSTNAME", "NAME", "tailscale-operator").help("Host name of that device"),
        flag("--operator-tags", "OPERATOR_INITIAL_TAGS", "TAG[,TAG]", "tag:k8s-operator").help("Tags of that device"),
        flag("--operator-secret", "OPERATOR_SECRET", "NAME", "operator")
            .help("Secret of the Tailscale operator, whose device it takes over once that operator is stopped"),
        flag("--api-server-proxy-http", "TAILYARD_API_SERVER_PROXY_HTTP", "on|off", "off")
            .help("Whether it serves HTTP, inside the tailnet's encryption, in place of HTTPS"),
        flag("--api-server-proxy-certificate", "TAILYARD_API_SERVER_PROXY_CERTIFICATE", "NAME", "")
            .help("Secret of its certificate, in place of one of the control plane"),
    ]),
    section("Default ProxyGroups").of(&[
        flag("--default-ingress-group", "TAILYARD_DEFAULT_INGRESS_GROUP", "NAME", "")
            .help("ProxyGroup of Ingresses and Services that name none and are to be reached from the tailnet"),
        flag("--default-egress-group", "TAILYARD_DEFAULT_EGRESS_GROUP", "NAME", "")
            .help("ProxyGroup of Services that name none and have a target in the tailnet"),
    ]),
    section("Ingress").of(&[
        flag("--ingress-class", "OPERATOR_INGRESS_CLASS_NAME", "NAME", "tailscale").help("IngressClass of the Ingresses to advertise"),
        flag("--cluster-id", "TAILYARD_CLUSTER_ID", "ID", "")
            .help(
            "ID of this cluster in multi-cluster Services (default: from the UID of the namespace kube-system and the reconciler's \
             namespace; after a move to another one set --previous-cluster-ids)",
        ),
        flag("--previous-cluster-ids", "TAILYARD_PREVIOUS_CLUSTER_IDS", "ID[,ID]", "")
            .help("Previous IDs of this cluster, such as the node ID of the Tailscale operator that it replaces"),
        flag("--shared-acme-account", "OPERATOR_SHARED_ACME_ACCOUNT_KEY", "BOOL", "").help(
            "Whether all ProxyGroups of a tailnet share one ACME account, in place of one each (default: false; \
             proxies of Ingresses without ProxyGroup: true)",
        ),
        flag("--acme-directory", "TAILYARD_ACME_DIRECTORY", "URL", "")
            .help("Directory of the ACME server, unless the ProxyClass selects one (default: that of Let's Encrypt)"),
    ]),
    section("Control plane").of(&[
        flag("--login-server", "OPERATOR_LOGIN_SERVER", "URL", "")
            .help("URL, for ProxyGroups that name no Tailnet (default: that of Tailscale)"),
        flag("--client-id-file", "CLIENT_ID_FILE", "FILE", "")
            .help("File with the ID of the OAuth client; the variable CLIENT_ID alone selects workload identity federation"),
        flag("--client-secret-file", "CLIENT_SECRET_FILE", "FILE", "").help("File with the secret of the OAuth client"),
        flag("--headscale-key-file", "TAILYARD_HEADSCALE_KEY_FILE", "FILE", "").help("File with an API key of headscale"),
        flag("--control-ca", "TAILYARD_CONTROL_CA", "FILE", "").help("Additional trusted CAs, in PEM"),
    ]),
    section("Observability").of(&[
        flag("--admin-addr", "TAILYARD_ADMIN_ADDR", "IP:PORT", "[::]:9002").help("Listener of health checks and metrics; empty for none"),
        flag("--log-format", "TAILYARD_LOG_FORMAT", "text|json", "text").help("Log format"),
        flag("--log-filter", "TAILYARD_LOG_FILTER", "FILTER", "info")
            .help("Log filter, such as debug (Tailyard's own) or info,tailyard::reconciler=debug"),
    ]),
];

const NAMESERVER: [Section; 2] = [
    section("Records").of(&[
        flag("--configmap", "TAILYARD_DNS_CONFIGMAP", "NAMESPACE/NAME", "").help("ConfigMap with `records.json`, which is watched"),
        flag("--records-file", "TAILYARD_DNS_RECORDS_FILE", "FILE", "")
            .help("File with the records, read at startup: the mounted ConfigMap, for starts without the API server"),
        flag("--kubeconfig", "KUBECONFIG", "FILE", "").help("A kubeconfig, to run outside of a cluster"),
        flag("--listen", "TAILYARD_DNS_ADDR", "IP:PORT", "[::]:1053").help("Address of queries, over UDP and TCP"),
        flag("--drain-timeout", "TAILYARD_DNS_DRAIN_TIMEOUT", "TIME", "10s")
            .help("Time from the termination signal to exit, in which queries are answered"),
    ]),
    section("Observability").of(&[
        flag("--admin-addr", "TAILYARD_ADMIN_ADDR", "IP:PORT", "[::]:9002").help("Listener of health checks and metrics; empty for none"),
        flag("--log-format", "TAILYARD_LOG_FORMAT", "text|json", "text").help("Log format"),
        flag("--log-filter", "TAILYARD_LOG_FILTER", "FILTER", "info")
            .help("Log filter, such as debug (Tailyard's own) or info,tailyard::nameserver=debug"),
    ]),
];
