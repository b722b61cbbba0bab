//! The flags of `tailyard proxy`. Each stands for a variable of the environment and wins over it; what they mean, and
//! which of them fit together, is [`crate::model::settings`]' business.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::model::settings::{Flags, INIT, Init, Settings, Tailnet};
use crate::runtime::init;

/// The exit code for settings at fault (`EX_USAGE`).
pub(super) const SETTINGS: u8 = 64;

/// Forward the services of a ProxyGroup replica.
///
/// Reads the same environment as the Tailscale operator's proxy image. A flag wins over the variable that it stands for.
/// Settings are checked together: with anything wrong, every fault is printed and the exit status is 64.
// The text of --help is read in a terminal, where backticks would only be noise.
#[allow(clippy::doc_markdown)]
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ProxyArgs {
    /// What makes the tailnet: a tailscaled that is started and supervised, or one of another make described by a file
    /// (JSON: own addresses, peers, services; read again on change) [env: TAILYARD_TAILNET; default: tailscaled]
    #[arg(long, value_name = "tailscaled|static:FILE", help_heading = "Tailnet")]
    tailnet: Option<String>,
    /// The interface behind which the tailnet is [env: TAILYARD_TAILNET_INTERFACE; default: tailscale0]
    #[arg(long, value_name = "NAME", help_heading = "Tailnet")]
    tailnet_interface: Option<String>,
    /// The tailscaled program [env: TAILYARD_TAILSCALED; default: tailscaled, searched in PATH]
    #[arg(long, value_name = "FILE", help_heading = "Tailnet")]
    tailscaled: Option<String>,
    /// The tailscale command [env: TAILYARD_TAILSCALE; default: tailscale, searched in PATH]
    #[arg(long, value_name = "FILE", help_heading = "Tailnet")]
    tailscale: Option<String>,
    /// How long the first start may take until the node is connected [env: TS_BOOT_TIMEOUT; default: 60s]
    #[arg(long, value_name = "TIME", help_heading = "Tailnet")]
    boot_timeout: Option<String>,

    /// The directory in which `egress-services` is mounted [env: TS_EGRESS_PROXIES_CONFIG_PATH]
    #[arg(long, value_name = "DIR", help_heading = "Services")]
    egress_config: Option<String>,
    /// The ConfigMap that holds `egress-services`; watched, so that a change counts at once [env: TAILYARD_EGRESS_CONFIGMAP]
    #[arg(long, value_name = "NAMESPACE/NAME", help_heading = "Services")]
    egress_configmap: Option<String>,
    /// The mounted file of L3 ingress services [env: TS_INGRESS_PROXIES_CONFIG_PATH]
    #[arg(long, value_name = "FILE", help_heading = "Services")]
    ingress_config: Option<String>,
    /// The ConfigMap that holds `ingress-config.json` [env: TAILYARD_INGRESS_CONFIGMAP]
    #[arg(long, value_name = "NAMESPACE/NAME", help_heading = "Services")]
    ingress_configmap: Option<String>,
    /// This Pod's own addresses, one of each family [env: POD_IPS]
    #[arg(long, value_name = "IP[,IP]", help_heading = "Services")]
    pod_ips: Option<String>,
    /// Ranges that may be targets although they are link-local, the tailnet's or otherwise refused [env: TAILYARD_ALLOWED_TARGETS]
    #[arg(long, value_name = "CIDR[,CIDR]", help_heading = "Services")]
    allowed_targets: Option<String>,
    /// Ranges that are refused as targets, such as those of the cluster's Services and nodes; the API server always is
    /// [env: TAILYARD_DENIED_TARGETS]
    #[arg(long, value_name = "CIDR[,CIDR]", help_heading = "Services")]
    denied_targets: Option<String>,

    /// Protocols to which clients of sites may upgrade, separated by commas [env: TAILYARD_UPGRADES; default: websocket]
    #[arg(long, value_name = "NAME[,NAME]", help_heading = "Sites")]
    upgrades: Option<String>,
    /// How long a client may send nothing of a body, or take nothing of an answer [env: TAILYARD_BODY_TIMEOUT; default: 60s]
    #[arg(long, value_name = "TIME", help_heading = "Sites")]
    body_timeout: Option<String>,
    /// How long a backend may send nothing of an answer [env: TAILYARD_ANSWER_TIMEOUT; default: 1h]
    #[arg(long, value_name = "TIME", help_heading = "Sites")]
    answer_timeout: Option<String>,
    /// How long nothing may pass through an upgraded connection [env: TAILYARD_TUNNEL_TIMEOUT; default: 1h]
    #[arg(long, value_name = "TIME", help_heading = "Sites")]
    tunnel_timeout: Option<String>,
    /// Maximum number of client connections, of which one client may have a quarter; fewer if file descriptors or memory are scarce
    /// [env: TAILYARD_MAX_CONNECTIONS; default: 16384]
    #[arg(long, value_name = "NUMBER", help_heading = "Sites")]
    max_connections: Option<String>,

    /// What holds the rules: auto, nftables, iptables, iptables-nft or iptables-legacy [env: TS_DEBUG_FIREWALL_MODE;
    /// default: auto, the first that works]
    #[arg(long, value_name = "NAME", help_heading = "Kernel")]
    backend: Option<String>,
    /// How long leaving may take: flows go on, what is left of them is reset, tailscaled is stopped [env: TAILYARD_DRAIN_GRACE; default: 25s]
    #[arg(long, value_name = "TIME", help_heading = "Kernel")]
    drain_grace: Option<String>,

    /// The Secret that holds this replica's state; empty for none [env: TS_KUBE_SECRET; default in a cluster: tailscale]
    #[arg(long, value_name = "NAME", help_heading = "State")]
    kube_secret: Option<String>,
    /// A file in place of the Secret [env: TAILYARD_STATE_FILE]
    #[arg(long, value_name = "FILE", help_heading = "State")]
    state_file: Option<String>,

    /// Where health, metrics and the preStop hook are served [env: TS_LOCAL_ADDR_PORT; default: [::]:9002 if any of them is on]
    #[arg(long, value_name = "IP:PORT", help_heading = "Observing")]
    http_addr: Option<String>,
    /// Where everything is served, /debug/plan included; empty for nowhere [env: TAILYARD_ADMIN_ADDR; default: 127.0.0.1:9003]
    #[arg(long, value_name = "IP:PORT", help_heading = "Observing")]
    admin_addr: Option<String>,
    /// The shape of log lines: text or json [env: TAILYARD_LOG_FORMAT; default: text]
    #[arg(long, value_name = "NAME", help_heading = "Observing")]
    log_format: Option<String>,
    /// Which log lines are written, such as debug or info,tailyard::proxy=debug [env: TAILYARD_LOG; default: info]
    #[arg(long, value_name = "FILTER", help_heading = "Observing")]
    log_filter: Option<String>,
}

const AFTER_HELP: &str = "Examples:
  A replica on this machine, without a cluster and without tailscaled:
    tailyard proxy --tailnet static:netmap.json --tailnet-interface ts0 --egress-config ./config --state-file state.json
  In a Pod of the Tailscale operator nothing needs to be given: its environment says it all.";

/// Runs a replica with the environment and these flags. Settings at fault are all listed, and the code is 64.
pub(super) fn run(args: ProxyArgs) -> Result<ExitCode> {
    let settings = match Settings::read(&environment(), &args.into()) {
        Ok(settings) => settings,
        Err(faults) => {
            writeln!(std::io::stderr(), "{faults}")?;
            return Ok(ExitCode::from(SETTINGS));
        }
    };
    if std::process::id() == 1 && matches!(settings.tailnet, Tailnet::Tailscaled(_)) {
        return init::keep(INIT).map(ExitCode::from).context("the first process of the container");
    }
    if settings.init.is_some() {
        init::hear().context("signals")?;
    }
    super::begin(settings.log.json, &settings.log.filter)?;
    if let Some(Init { restarts: 1.., why }) = &settings.init {
        tracing::error!("the process before this one crashed ({why}); what it had forwarded meanwhile went on: please report this");
    }
    for note in &settings.notes {
        tracing::warn!("{note}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().context("the runtime")?;
    let ended = runtime.block_on(crate::proxy::run(settings));
    // Blocking work that is still under way (a reset's last wait) is not worth waiting for.
    runtime.shutdown_background();
    // A task's failure is logged already, as the last line.
    Ok(match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_crash() => ExitCode::from(init::CRASHED),
        Err(_) => ExitCode::FAILURE,
    })
}

/// The environment; what is not UTF-8 is none of ours.
pub(super) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

impl From<ProxyArgs> for Flags {
    fn from(args: ProxyArgs) -> Self {
        Self::new()
            .with("--tailnet", args.tailnet)
            .with("--tailnet-interface", args.tailnet_interface)
            .with("--tailscaled", args.tailscaled)
            .with("--tailscale", args.tailscale)
            .with("--boot-timeout", args.boot_timeout)
            .with("--egress-config", args.egress_config)
            .with("--egress-configmap", args.egress_configmap)
            .with("--ingress-config", args.ingress_config)
            .with("--ingress-configmap", args.ingress_configmap)
            .with("--pod-ips", args.pod_ips)
            .with("--upgrades", args.upgrades)
            .with("--body-timeout", args.body_timeout)
            .with("--answer-timeout", args.answer_timeout)
            .with("--tunnel-timeout", args.tunnel_timeout)
            .with("--max-connections", args.max_connections)
            .with("--allowed-targets", args.allowed_targets)
            .with("--denied-targets", args.denied_targets)
            .with("--backend", args.backend)
            .with("--drain-grace", args.drain_grace)
            .with("--kube-secret", args.kube_secret)
            .with("--state-file", args.state_file)
            .with("--http-addr", args.http_addr)
            .with("--admin-addr", args.admin_addr)
            .with("--log-format", args.log_format)
            .with("--log-filter", args.log_filter)
    }
}
