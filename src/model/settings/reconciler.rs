//! Settings of `tailyard reconciler`: the variables of the Tailscale operator's own Deployment, and some of ours.
//!
//! The rules of a replica's settings apply: all faults reported at once, flags before variables. Settings of features that we do not have
//! are noted and otherwise ignored.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::issuing::acme_directory;
use super::source::SettingSource;
use super::{Faults, FirewallMode, Flags, Kube, Log, SettingFault, read};
use crate::api::proxygroup::{ApiServerMode, Impersonation, ProxyGroupType, Tenant};
use crate::model::api_server::impersonation::EVERY_NAME;
use crate::model::controller::policy::annotations::{dns_label, is_tag};
use crate::model::controller::policy::assignment::{AssignmentRules, DefaultGroups, StandaloneScope};
use crate::model::controller::policy::operator_device::OperatorDevice;
use crate::model::controller::policy::tenancy::parse::{is_tag_pattern, parse};
use crate::model::controller::policy::tenancy::{DefaultTenancy, Patterns};
use crate::model::controller::workload::device_index::TAILSCALE;
use crate::model::controller::workload::match_ports::MatchPortRange;
use crate::model::controller::workload::settings::GroupSettings;
use crate::model::controller::workload::vip_service::ServiceOwner;

/// Variables of the Tailscale operator's Deployment without effect here.
const WITHOUT_MEANING: [&str; 3] = ["OPERATOR_DEFAULT_LOAD_BALANCER", "K8S_PROXY_IMAGE", "PROXY_PRIORITY_CLASS_NAME"];

const ON_OFF: [(&str, bool); 2] = [("on", true), ("off", false)];
const TENANCIES: [(&str, DefaultTenancy); 2] = [("bounded", DefaultTenancy::Bounded), ("open", DefaultTenancy::Open)];
/// Description of a valid group name.
const GROUP: &str = "the name of a ProxyGroup";

/// All settings of `tailyard reconciler`.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Reconciler {
    /// Namespace of all managed objects; default: that of the Pod, or of the kubeconfig.
    pub namespace: Option<String>,
    /// Namespaces of watched user Services; empty for all.
    pub service_namespaces: Vec<String>,
    /// Kubernetes API, in a Pod.
    pub kube: Option<Kube>,
    pub kubeconfig: Option<PathBuf>,
    /// Candidate name in leader election: the Pod's name.
    pub name: Option<String>,
    /// Node of the Pod (`NODE_NAME`): failover distinguishes replicas on it.
    pub node: Option<String>,
    /// Service account of tokens that are exchanged for access to a control plane.
    pub service_account: String,
    /// Cluster domain; default: from the Pod's resolver.
    pub cluster_domain: Option<String>,
    pub default_class: Option<String>,
    /// Settings of all workloads; namespace, cluster domain and ID are completed from the cluster.
    pub workloads: GroupSettings,
    /// Control plane of groups that name no Tailnet.
    pub control: DefaultControlPlane,
    /// The device that serves the Kubernetes API, if requested.
    pub operator_device: Option<OperatorDevice>,
    /// Secret of the Tailscale operator's own device, which ours replaces.
    pub operator_secret: String,
    /// Whether Services that name no group have proxies of their own.
    pub standalone: bool,
    /// Whether Connectors are served.
    pub connectors: bool,
    /// Whether `ProxyGroupPolicies` are enforced.
    pub group_policies: bool,
    /// Whether `DNSConfigs` are served.
    pub dns_configs: bool,
    /// Groups of objects that name none.
    pub default_groups: DefaultGroups,
    /// Class of the Ingresses to advertise.
    pub ingress_class: String,
    /// Whether Pods of lost replicas are made unready.
    pub failover: bool,
    /// Number of concurrent reconciliations.
    pub workers: usize,
    /// Listener of health checks and metrics; `None` if disabled.
    pub admin_addr: Option<SocketAddr>,
    pub log: Log,
    /// Invalid values and settings without effect: logged at startup.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultControlPlane {
    pub url: String,
    /// Credentials; `None` if every group must name a Tailnet.
    pub credentials: Option<DefaultCredentials>,
    /// Additional trusted CAs.
    pub ca: Option<PathBuf>,
}

/// Credentials of the reconciler's own control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefaultCredentials {
    /// OAuth client of Tailscale.
    OAuth { id: PathBuf, secret: PathBuf },
    /// Federated client, with the token that the kubelet projects.
    Identity { id: String, token: PathBuf },
    /// API key of headscale.
    Headscale { key: PathBuf },
}

impl Reconciler {
    /// Path of the projected token of a federated client in the Tailscale operator's Deployment.
    pub const IDENTITY_TOKEN: &'static str = "/var/run/secrets/tailscale/serviceaccount/token";

    /// Reads environment and flags. The error contains all faults.
    pub fn read(env: &BTreeMap<String, String>, flags: &Flags) -> Result<Self, Faults> {
        let mut source = SettingSource::new(env, flags);
        let settings = Self::read_from(&mut source);
        if source.faults.is_empty() { Ok(settings) } else { Err(Faults(source.faults)) }
    }

    /// Settings of a reconciler with this environment, as far as they are valid.
    pub fn of_environment(env: &BTreeMap<String, String>) -> Self {
        Self::read_from(&mut SettingSource::new(env, &Flags::reconciler()))
    }

    /// Rules for objects without an annotation, before anything of the cluster is known.
    pub fn assignment(&self) -> AssignmentRules {
        AssignmentRules {
            ingress_class: self.ingress_class.clone(),
            defaults: self.default_groups.clone(),
            standalone: StandaloneScope::new(self.standalone, &self.service_namespaces),
            device: self.operator_device.clone(),
            connectors: self.connectors,
            ..AssignmentRules::default()
        }
    }

    /// Whether Pods get the right to impersonate users, which the reconciler then has itself.
    pub fn grants_impersonation(&self) -> bool {
        let device = self.operator_device.as_ref().filter(|device| device.mode.impersonates()).map(|device| &device.impersonation);
        device.into_iter().chain([&self.workloads.impersonation]).any(|names| !names.users.is_empty())
    }

    fn read_from(source: &mut SettingSource<'_>) -> Self {
        let kube = read::kube(source);
        let kubeconfig = source.path("KUBECONFIG");
        if kube.is_none() && kubeconfig.is_none() {
            source
                .faults
                .push(SettingFault::Needs { setting: "tailyard reconciler outside a cluster".to_owned(), needs: "--kubeconfig FILE" });
        }
        for variable in WITHOUT_MEANING {
            if source.text(variable).is_some() {
                source.notes.push(format!("{variable} has no effect"));
            }
        }
        let workloads = workloads(source);
        Self {
            namespace: source.parsed("OPERATOR_NAMESPACE", "the name of a namespace", label),
            service_namespaces: source.list("TAILYARD_WATCH_NAMESPACES", "names of namespaces separated by commas", label),
            kube,
            kubeconfig,
            name: source.owned("POD_NAME"),
            node: source.owned("NODE_NAME"),
            service_account: source.owned("OPERATOR_SERVICE_ACCOUNT_NAME").unwrap_or_else(|| "tailyard-reconciler".to_owned()),
            cluster_domain: source.owned("TAILYARD_CLUSTER_DOMAIN"),
            default_class: source.owned("PROXY_DEFAULT_CLASS"),
            operator_device: operator_device(source, &workloads.impersonation),
            workloads,
            control: control(source),
            operator_secret: source.parsed("OPERATOR_SECRET", "the name of a Secret", secret).unwrap_or_default(),
            standalone: source.one_of("TAILYARD_STANDALONE", "one of on, off", &ON_OFF).unwrap_or_default(),
            connectors: source.one_of("TAILYARD_CONNECTORS", "one of on, off", &ON_OFF).unwrap_or_default(),
            group_policies: source.one_of("TAILYARD_PROXY_GROUP_POLICIES", "one of on, off", &ON_OFF).unwrap_or_default(),
            dns_configs: source.one_of("TAILYARD_DNS_CONFIGS", "one of on, off", &ON_OFF).unwrap_or_default(),
            default_groups: DefaultGroups {
                ingress: source.parsed("TAILYARD_DEFAULT_INGRESS_GROUP", GROUP, label),
                egress: source.parsed("TAILYARD_DEFAULT_EGRESS_GROUP", GROUP, label),
            },
            ingress_class: source.owned("OPERATOR_INGRESS_CLASS_NAME").unwrap_or_default(),
            failover: source.one_of("TAILYARD_FAILOVER", "one of on, off", &ON_OFF).unwrap_or_default(),
            workers: source
                .parsed("TAILYARD_WORKERS", "a number from 1 to 64", |text| text.parse().ok().filter(|n| (1..=64).contains(n)))
                .unwrap_or_default(),
            // The whole Pod network may scrape it: it serves no operations that change anything, and no secrets.
            admin_addr: read::admin_addr(source),
            log: read::log(source),
            notes: std::mem::take(&mut source.notes),
        }
    }
}

/// Cluster domain, from the search list of a Pod's `resolv.conf`: `<namespace>.svc.D`, `svc.D` and `D`.
pub fn cluster_domain(resolv_conf: &str, namespace: &str) -> Option<String> {
    let search = resolv_conf.lines().rev().find_map(|line| line.trim().strip_prefix("search "))?;
    let domains: Vec<&str> = search.split_whitespace().map(|domain| domain.trim_end_matches('.')).collect();
    let domain = domains.iter().find_map(|domain| domain.strip_prefix(namespace)?.strip_prefix(".svc."))?;
    domains.contains(&format!("svc.{domain}").as_str()).then(|| domain.to_owned())
}

fn label(text: &str) -> Option<String> {
    dns_label(text).then(|| text.to_owned())
}

fn secret(name: &str) -> Option<String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    (!name.is_empty() && name.len() <= 253 && name.chars().all(inner)).then(|| name.to_owned())
}

fn permitted_tags(source: &mut SettingSource<'_>) -> Patterns {
    let pattern = |text: &str| is_tag_pattern(text).then(|| text.to_owned());
    Patterns::new(source.list(
        "TAILYARD_PERMITTED_TAGS",
        "tags such as tag:web or prefixes such as tag:team-*, separated by commas",
        pattern,
    ))
}

fn standalone_tenants(source: &mut SettingSource<'_>) -> Vec<Tenant> {
    const VARIABLE: &str = "TAILYARD_STANDALONE_TENANTS";
    let Some(text) = source.text(VARIABLE) else { return Vec::new() };
    parse(text).unwrap_or_else(|why| {
        let setting = source.spelled(VARIABLE);
        source.faults.push(SettingFault::Content { setting, why });
        Vec::new()
    })
}

fn group_type(name: &str) -> Option<ProxyGroupType> {
    match name {
        "egress" => Some(ProxyGroupType::Egress),
        "ingress" => Some(ProxyGroupType::Ingress),
        "kube-apiserver" => Some(ProxyGroupType::KubeApiServer),
        _ => None,
    }
}

fn workloads(source: &mut SettingSource<'_>) -> GroupSettings {
    const SHARED: &str = "OPERATOR_SHARED_ACME_ACCOUNT_KEY";
    let usual = GroupSettings::new(String::new(), source.owned("PROXY_IMAGE").unwrap_or_default());
    GroupSettings {
        image_pull_secrets: source.list("PROXY_IMAGE_PULL_SECRETS", "names of Secrets separated by commas", secret),
        tags: source.list("PROXY_TAGS", "tags separated by commas, each like tag:k8s", |tag| is_tag(tag).then(|| tag.to_owned())),
        firewall: firewall(source),
        ports: source.parsed("TAILYARD_MATCH_PORT_RANGE", "a range of ports such as 10000-19999", ports).unwrap_or(usual.ports),
        drain_timeout: source.duration("TAILYARD_DRAIN_TIMEOUT"),
        types: source.list("TAILYARD_PROXY_GROUP_TYPES", "some of egress, ingress, kube-apiserver, separated by commas", group_type),
        cluster: service_owner(source),
        shared_account: source.text(SHARED).is_some().then(|| source.boolean(SHARED, false)),
        tenancy: source.one_of("TAILYARD_TENANCY", "one of bounded, open", &TENANCIES).unwrap_or_default(),
        standalone_tenants: Arc::new(standalone_tenants(source)),
        permitted_tags: permitted_tags(source),
        allowed_targets: read::nets(source, "TAILYARD_ALLOWED_TARGETS"),
        denied_targets: read::nets(source, "TAILYARD_DENIED_TARGETS"),
        acme_directory: acme_directory(source, "TAILYARD_ACME_DIRECTORY"),
        impersonation: impersonation(source),
        api_server_image: source.owned("TAILYARD_API_SERVER_PROXY_IMAGE"),
        ..usual
    }
}

/// The device that serves the Kubernetes API, by the variables of the Tailscale operator's own. `listed`: users and groups that `ProxyGroup`s
/// may impersonate.
fn operator_device(source: &mut SettingSource<'_>, listed: &Impersonation) -> Option<OperatorDevice> {
    const MODE: &str = "APISERVER_PROXY";
    /// Its deprecated name.
    const AUTH: &str = "AUTH_PROXY";
    source.exclusive(MODE, AUTH);
    let former = source.boolean(AUTH, false).then_some(true);
    let impersonates = source.one_of(MODE, "one of true, noauth, false", &[("true", Some(true)), ("noauth", Some(false)), ("false", None)]);
    let hostname = source.parsed("OPERATOR_HOSTNAME", "a DNS label", label).unwrap_or_default();
    let tag = |tag: &str| is_tag(tag).then(|| tag.to_owned());
    let tags = source.list("OPERATOR_INITIAL_TAGS", "tags separated by commas, each like tag:k8s-operator", tag);
    let is_http = source.one_of("TAILYARD_API_SERVER_PROXY_HTTP", "one of on, off", &ON_OFF).unwrap_or_default();
    let certificate = source.parsed("TAILYARD_API_SERVER_PROXY_CERTIFICATE", "the name of a Secret", secret);
    let is_all = source.one_of("TAILYARD_API_SERVER_PROXY_ALL_USERS", "one of on, off", &ON_OFF).unwrap_or_default();
    let mode = if former.or(impersonates.flatten())? { ApiServerMode::Auth } else { ApiServerMode::NoAuth };
    let every = || vec![EVERY_NAME.to_owned()];
    let impersonation = if is_all { Impersonation { users: every(), groups: every() } } else { listed.clone() };
    Some(OperatorDevice { mode, impersonation, hostname, tags, is_http, certificate })
}

/// Users and groups that the reconciler may impersonate, and so grant.
fn impersonation(source: &mut SettingSource<'_>) -> Impersonation {
    let name = |name: &str| (!name.is_empty() && name.len() <= 256 && !name.contains(char::is_control)).then(|| name.to_owned());
    Impersonation {
        users: source.list("TAILYARD_IMPERSONATE_USERS", "names of users separated by commas, or *", name),
        groups: source.list("TAILYARD_IMPERSONATE_GROUPS", "names of groups separated by commas, or *", name),
    }
}

fn service_owner(source: &SettingSource<'_>) -> ServiceOwner {
    let former = source.owned("TAILYARD_PREVIOUS_CLUSTER_IDS").unwrap_or_default();
    let former = former.split(',').map(str::trim).filter(|id| !id.is_empty()).map(str::to_owned).collect();
    ServiceOwner { id: source.owned("TAILYARD_CLUSTER_ID").unwrap_or_default(), former }
}

fn firewall(source: &mut SettingSource<'_>) -> Option<String> {
    let parsed = |text: &str| FirewallMode::named(text).map(|_| text.to_owned());
    let read = source.parsed("PROXY_FIREWALL_MODE", "one of auto, nftables, iptables, iptables-nft, iptables-legacy", parsed);
    read.filter(|mode| mode != "auto")
}

fn ports(text: &str) -> Option<MatchPortRange> {
    let (from, to) = text.split_once('-')?;
    MatchPortRange::new(from.trim().parse().ok()?, to.trim().parse().ok()?)
}

fn control(source: &mut SettingSource<'_>) -> DefaultControlPlane {
    const KEY: &str = "TAILYARD_HEADSCALE_KEY_FILE";
    for other in ["CLIENT_ID_FILE", "CLIENT_SECRET_FILE", "CLIENT_ID"] {
        source.exclusive(KEY, other);
    }
    source.exclusive("CLIENT_ID", "CLIENT_ID_FILE");
    let (id_file, secret_file) = (source.path("CLIENT_ID_FILE"), source.path("CLIENT_SECRET_FILE"));
    source.needs("CLIENT_ID_FILE", secret_file.is_some(), "CLIENT_SECRET_FILE");
    source.needs("CLIENT_SECRET_FILE", id_file.is_some(), "CLIENT_ID_FILE");
    let login = source.parsed("OPERATOR_LOGIN_SERVER", "a URL such as https://headscale.example.com", |text| {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
        (!host.is_empty()).then(|| text.trim_end_matches('/').to_owned())
    });
    source.needs(KEY, login.is_some(), "OPERATOR_LOGIN_SERVER");
    let credentials = match (source.path(KEY), id_file, secret_file, source.owned("CLIENT_ID")) {
        (Some(key), ..) => Some(DefaultCredentials::Headscale { key }),
        (_, Some(id), Some(secret), _) => Some(DefaultCredentials::OAuth { id, secret }),
        (_, _, _, Some(id)) => Some(DefaultCredentials::Identity { id, token: Reconciler::IDENTITY_TOKEN.into() }),
        _ => None,
    };
    DefaultControlPlane { url: login.unwrap_or_else(|| TAILSCALE.to_owned()), credentials, ca: source.path("TAILYARD_CONTROL_CA") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let cluster = [("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
        cluster.iter().chain(pairs).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Reconciler, Faults> {
        Reconciler::read(&env(pairs), &Flags::reconciler())
    }

    #[test]
    fn environment_of_the_tailscale_operator_is_sufficient() {
        let settings = read(&[
            ("OPERATOR_NAMESPACE", "tailscale"),
            ("PROXY_IMAGE", "tailscale/tailscale:v1.102.0"),
            ("PROXY_IMAGE_PULL_SECRETS", "pull, mirror.example"),
            ("PROXY_TAGS", "tag:k8s, tag:prod"),
            ("PROXY_FIREWALL_MODE", "auto"),
            ("CLIENT_ID_FILE", "/oauth/client_id"),
            ("CLIENT_SECRET_FILE", "/oauth/client_secret"),
            ("APISERVER_PROXY", "false"),
            ("K8S_PROXY_IMAGE", "tailscale/k8s-proxy:v1.102.0"),
        ])
        .expect("settings");
        assert_eq!((settings.namespace.as_deref(), settings.workloads.firewall.as_deref(), settings.workers), (Some("tailscale"), None, 4));
        assert_eq!(settings.workloads.tags, ["tag:k8s", "tag:prod"]);
        assert_eq!(settings.workloads.image_pull_secrets, ["pull", "mirror.example"]);
        assert_eq!(settings.control.url, TAILSCALE);
        let files = DefaultCredentials::OAuth { id: "/oauth/client_id".into(), secret: "/oauth/client_secret".into() };
        assert_eq!(settings.control.credentials, Some(files));
        assert_eq!((settings.operator_device, settings.notes), (None, vec!["K8S_PROXY_IMAGE has no effect".to_owned()]));
    }

    #[test]
    fn api_server_proxy_of_the_tailscale_operator_is_a_device() {
        let mode = |pairs: &[(&str, &str)]| read(pairs).map(|settings| settings.operator_device.map(|device| device.mode));
        let table = [
            (&[("APISERVER_PROXY", "true")][..], Some(ApiServerMode::Auth)),
            (&[("APISERVER_PROXY", "noauth")], Some(ApiServerMode::NoAuth)),
            (&[("APISERVER_PROXY", "false")], None),
            (&[("APISERVER_PROXY", ""), ("AUTH_PROXY", "true")], Some(ApiServerMode::Auth)),
            (&[("AUTH_PROXY", "false")], None),
            (&[], None),
        ];
        for (pairs, wanted) in table {
            assert_eq!(mode(pairs).expect("settings"), wanted, "{pairs:?}");
        }
        for bad in [&[("APISERVER_PROXY", "yes")][..], &[("APISERVER_PROXY", "false"), ("AUTH_PROXY", "true")]] {
            assert_eq!(mode(bad).expect_err("a fault").0.len(), 1, "{bad:?}");
        }
        let device = |pairs: &[(&str, &str)]| read(&[&[("APISERVER_PROXY", "true")], pairs].concat()).expect("settings").operator_device;
        let usual = device(&[]).expect("a device");
        assert_eq!(
            (usual.hostname.as_str(), usual.tags, usual.is_http),
            ("tailscale-operator", vec!["tag:k8s-operator".to_owned()], false)
        );
        let own =
            device(&[("OPERATOR_HOSTNAME", "kube"), ("OPERATOR_INITIAL_TAGS", "tag:a, tag:b"), ("TAILYARD_API_SERVER_PROXY_HTTP", "on")]);
        let own = own.expect("a device");
        assert_eq!((own.hostname.as_str(), own.tags, own.is_http), ("kube", vec!["tag:a".to_owned(), "tag:b".to_owned()], true));
    }

    #[test]
    fn all_invalid_settings_are_reported_at_once() {
        let bad = [
            ("OPERATOR_NAMESPACE", "No"),
            ("PROXY_IMAGE_PULL_SECRETS", "pull,"),
            ("PROXY_TAGS", "k8s"),
            ("PROXY_FIREWALL_MODE", "pf"),
            ("TAILYARD_MATCH_PORT_RANGE", "20000-10000"),
            ("TAILYARD_WORKERS", "0"),
            ("TAILYARD_FAILOVER", "no"),
            ("TAILYARD_STANDALONE", "yes"),
            ("TAILYARD_STANDALONE_TENANTS", r#"[{"namespaceSelector": {}, "name": ["a"]}]"#),
            ("CLIENT_ID_FILE", "/id"),
            ("TAILYARD_HEADSCALE_KEY_FILE", "/key"),
            ("TAILYARD_ACME_DIRECTORY", "http://ca.example/directory"),
        ];
        let faults = read(&bad).expect_err("faults");
        assert_eq!(faults.0.len(), 13, "{faults}");
        assert!(faults.to_string().contains("TAILYARD_STANDALONE_TENANTS is invalid: tenant 0: the tenant has the field name"), "{faults}");
        let nowhere = Reconciler::read(&BTreeMap::new(), &Flags::reconciler()).expect_err("no API");
        assert!(nowhere.to_string().contains("--kubeconfig"), "{nowhere}");
    }

    #[test]
    fn credentials_depend_on_the_control_plane() {
        let headscale = [("OPERATOR_LOGIN_SERVER", "https://hs.example.com/"), ("TAILYARD_HEADSCALE_KEY_FILE", "/key")];
        let control = read(&headscale).expect("settings").control;
        assert_eq!(
            (control.url.as_str(), control.credentials),
            ("https://hs.example.com", Some(DefaultCredentials::Headscale { key: "/key".into() }))
        );
        let identity = read(&[("CLIENT_ID", "abc")]).expect("settings").control.credentials;
        assert_eq!(identity, Some(DefaultCredentials::Identity { id: "abc".into(), token: Reconciler::IDENTITY_TOKEN.into() }));
        assert_eq!(read(&[]).expect("settings").control.credentials, None, "each group may name a Tailnet");
    }

    #[test]
    fn cluster_domain_is_read_from_resolv_conf() {
        let of = |text: &str| cluster_domain(text, "ts");
        assert_eq!(of("nameserver 10.0.0.10\nsearch ts.svc.example.org svc.example.org example.org\n").as_deref(), Some("example.org"));
        assert_eq!(of("search ts.svc.cluster.local. svc.cluster.local. cluster.local.").as_deref(), Some("cluster.local"));
        assert_eq!(of("search example.org"), None);
        assert_eq!(of("search ts.svc.a svc.b"), None);
    }
}
