//! The flags of `tailyard reconciler`. Each stands for a variable of the environment and wins over it; what they mean, and
//! which of them fit together, is [`crate::model::settings::reconciler`]'s business.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::proxy::{SETTINGS, environment};
use crate::model::settings::Flags;
use crate::model::settings::reconciler::Reconciler as Settings;

/// Keep everything that ProxyGroups need in a cluster: replicas, Services, configs, keys, conditions.
///
/// Reads the same environment as the Tailscale operator. Several may run: the one that holds the Lease writes, the others
/// stand by. Settings are checked together: with anything wrong, every fault is printed and the exit status is 64.
// The text of --help is read in a terminal, where backticks would only be noise.
#[allow(clippy::doc_markdown)]
#[derive(Debug, Clone, Default, Args)]
pub struct ReconcilerArgs {
    /// Where everything is made [env: OPERATOR_NAMESPACE; default: the Pod's own]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    namespace: Option<String>,
    /// Look for Services in these namespaces only, so that Roles in them are enough [env: TAILYARD_WATCH_NAMESPACES; default: everywhere]
    #[arg(long, value_name = "NAME[,NAME]", help_heading = "Cluster")]
    watch_namespaces: Option<String>,
    /// A kubeconfig, for running outside a cluster [env: KUBECONFIG]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<String>,
    /// The domain of the cluster's names [env: TAILYARD_CLUSTER_DOMAIN; default: as the Pod's resolv.conf has it, else cluster.local]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    cluster_domain: Option<String>,

    /// The image of the proxies: Tailyard's, or the Tailscale operator's stock image [env: PROXY_IMAGE; default: what make image makes of this version]
    #[arg(long, value_name = "IMAGE", help_heading = "Proxies")]
    image: Option<String>,
    /// Secrets to pull the image with, where the ProxyClass names none [env: PROXY_IMAGE_PULL_SECRETS]
    #[arg(long, value_name = "NAME[,NAME]", help_heading = "Proxies")]
    image_pull_secrets: Option<String>,
    /// The tags of devices of groups that name none [env: PROXY_TAGS; default: tag:k8s]
    #[arg(long, value_name = "TAG[,TAG]", help_heading = "Proxies")]
    tags: Option<String>,
    /// The ProxyClass of groups that name none [env: PROXY_DEFAULT_CLASS]
    #[arg(long, value_name = "NAME", help_heading = "Proxies")]
    default_class: Option<String>,
    /// What holds the rules: auto, nftables, iptables, iptables-nft or iptables-legacy [env: PROXY_FIREWALL_MODE; default: auto]
    #[arg(long, value_name = "NAME", help_heading = "Proxies")]
    firewall: Option<String>,
    /// The ports of a Pod that services are given, unless the group says otherwise [env: TAILYARD_PORTS; default: 10000-19999]
    #[arg(long, value_name = "FROM-TO", help_heading = "Proxies")]
    ports: Option<String>,
    /// How long a leaving replica forwards for the flows that it has [env: TAILYARD_DRAIN_GRACE; default: 45s]
    #[arg(long, value_name = "TIME", help_heading = "Proxies")]
    drain_grace: Option<String>,

    /// What namespaces may have of ProxyGroups that name no tenants: bounded (5,000 ports, 100 names, 50 new certificates a week, no tags, no names of other clusters) or open [env: TAILYARD_TENANCY; default: bounded]
    #[arg(long, value_name = "NAME", help_heading = "Proxies")]
    tenancy: Option<String>,

    /// The types of the ProxyGroups that are served; others are left to the Tailscale operator [env: TAILYARD_GROUP_TYPES; default: egress,ingress]
    #[arg(long, value_name = "NAME[,NAME]", help_heading = "Ingress")]
    group_types: Option<String>,
    /// The IngressClass of the Ingresses that ProxyGroups publish [env: OPERATOR_INGRESS_CLASS_NAME; default: tailscale]
    #[arg(long, value_name = "NAME", help_heading = "Ingress")]
    ingress_class: Option<String>,
    /// What this cluster is called among those that share names [env: TAILYARD_CLUSTER_ID; default: made of the UID of kube-system]
    #[arg(long, value_name = "ID", help_heading = "Ingress")]
    cluster_id: Option<String>,
    /// What it was called before, such as the node id of the Tailscale operator whose place this takes [env: TAILYARD_FORMER_CLUSTER_IDS]
    #[arg(long, value_name = "ID[,ID]", help_heading = "Ingress")]
    former_cluster_ids: Option<String>,
    /// Whether certificates are ordered with one account for each tailnet, unless the group says otherwise [env: OPERATOR_SHARED_ACME_ACCOUNT_KEY; default: true with our image, false with the stock image]
    #[arg(long, value_name = "BOOL", help_heading = "Ingress")]
    shared_acme_account: Option<String>,
    /// The directory of the ACME server that certificates are ordered from, for groups whose class does not say [env: TAILYARD_ACME_DIRECTORY; default: Let's Encrypt's]
    #[arg(long, value_name = "URL", help_heading = "Ingress")]
    acme_directory: Option<String>,

    /// The control plane's URL, for groups that name no Tailnet [env: OPERATOR_LOGIN_SERVER; default: Tailscale's]
    #[arg(long, value_name = "URL", help_heading = "Control plane")]
    login_server: Option<String>,
    /// The file of the OAuth client's id [env: CLIENT_ID_FILE; CLIENT_ID alone: workload identity federation]
    #[arg(long, value_name = "FILE", help_heading = "Control plane")]
    client_id_file: Option<String>,
    /// The file of its secret [env: CLIENT_SECRET_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Control plane")]
    client_secret_file: Option<String>,
    /// The file of an API key of headscale [env: TAILYARD_HEADSCALE_KEY_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Control plane")]
    headscale_key_file: Option<String>,
    /// Certificate authorities to believe besides the public ones, PEM [env: TAILYARD_CONTROL_CA]
    #[arg(long, value_name = "FILE", help_heading = "Control plane")]
    control_ca: Option<String>,

    /// How many groups are worked on at a time [env: TAILYARD_WORKERS; default: 4]
    #[arg(long, value_name = "COUNT", help_heading = "Process")]
    workers: Option<String>,
    /// Where health and metrics are served; empty for nowhere [env: TAILYARD_ADMIN_ADDR; default: [::]:9002]
    #[arg(long, value_name = "IP:PORT", help_heading = "Process")]
    admin_addr: Option<String>,
    /// The shape of log lines: text or json [env: TAILYARD_LOG_FORMAT; default: text]
    #[arg(long, value_name = "NAME", help_heading = "Process")]
    log_format: Option<String>,
    /// Which log lines are written, such as debug or info,tailyard::reconciler=debug [env: TAILYARD_LOG; default: info]
    #[arg(long, value_name = "FILTER", help_heading = "Process")]
    log_filter: Option<String>,
}

/// Runs the reconciler with the environment and these flags. Settings at fault are all listed, and the code is 64.
pub(super) fn run(args: ReconcilerArgs) -> Result<ExitCode> {
    let settings = match Settings::read(&environment(), &args.into()) {
        Ok(settings) => settings,
        Err(faults) => {
            writeln!(std::io::stderr(), "{faults}")?;
            return Ok(ExitCode::from(SETTINGS));
        }
    };
    super::begin(settings.log.json, &settings.log.filter)?;
    for note in &settings.notes {
        tracing::info!("{note}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().context("the runtime")?;
    let ended = runtime.block_on(crate::reconciler::run(settings));
    if let Err(error) = &ended {
        tracing::error!("{error}");
    }
    Ok(if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl From<ReconcilerArgs> for Flags {
    fn from(args: ReconcilerArgs) -> Self {
        Self::new()
            .with("--namespace", args.namespace)
            .with("--watch-namespaces", args.watch_namespaces)
            .with("--kubeconfig", args.kubeconfig)
            .with("--cluster-domain", args.cluster_domain)
            .with("--image", args.image)
            .with("--image-pull-secrets", args.image_pull_secrets)
            .with("--tags", args.tags)
            .with("--default-class", args.default_class)
            .with("--firewall", args.firewall)
            .with("--ports", args.ports)
            .with("--drain-grace", args.drain_grace)
            .with("--group-types", args.group_types)
            .with("--ingress-class", args.ingress_class)
            .with("--tenancy", args.tenancy)
            .with("--cluster-id", args.cluster_id)
            .with("--former-cluster-ids", args.former_cluster_ids)
            .with("--shared-acme-account", args.shared_acme_account)
            .with("--acme-directory", args.acme_directory)
            .with("--login-server", args.login_server)
            .with("--client-id-file", args.client_id_file)
            .with("--client-secret-file", args.client_secret_file)
            .with("--headscale-key-file", args.headscale_key_file)
            .with("--control-ca", args.control_ca)
            .with("--workers", args.workers)
            .with("--admin-addr", args.admin_addr)
            .with("--log-format", args.log_format)
            .with("--log-filter", args.log_filter)
    }
}
