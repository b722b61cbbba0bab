//! `tailyard proxy`: a replica with the settings of the environment and of the command line.

use std::process::ExitCode;

use anyhow::{Context, Result};

use super::flags::Configured;
use super::service;
use crate::model::settings::{Faults, Flags, INIT, Init, K8sProxySettings, K8sProxySource, Settings, TailnetMode};
use crate::runtime::{init, telemetry};

/// The command `tailyard proxy`.
#[derive(Debug)]
pub struct ProxyCommand;

impl Configured for ProxyCommand {
    const AFTER_HELP: &'static str = "Examples:
  A replica on this machine, without a cluster and without tailscaled:
    tailyard proxy --tailnet static:netmap.json --tailnet-interface ts0 --egress-config ./config --state-file state.json
  In a Pod of the Tailscale operator no flags are needed: the environment has all settings.";

    fn none() -> Flags {
        Flags::proxy()
    }
}

/// Runs a replica with the environment and these flags. All invalid settings are listed, and the exit code is 64.
pub(super) fn run(flags: &Flags) -> Result<ExitCode> {
    let source = match service::settings(K8sProxySource::read, flags)? {
        Ok(source) => source,
        Err(code) => return Ok(code),
    };
    if source.is_some() && std::process::id() == 1 {
        return init::keep(INIT).map(ExitCode::from).context("the first process of the container");
    }
    let settings = match source {
        Some(source) => service::checked(of_k8s_proxy(flags, source)?)?,
        None => service::settings(Settings::read, flags)?,
    };
    let settings = match settings {
        Ok(settings) => settings,
        Err(code) => return Ok(code),
    };
    if std::process::id() == 1 && matches!(settings.tailnet, TailnetMode::Tailscaled(_)) {
        return init::keep(INIT).map(ExitCode::from).context("the first process of the container");
    }
    if settings.init.is_some() {
        init::unblock_signals().context("signals")?;
    }
    telemetry::init(settings.log.json, &settings.log.filter).context("logs")?;
    if let Some(Init { restarts: 1.., why }) = &settings.init {
        let effect = if settings.active_lease.is_none() { "forwarding continued" } else { "tailscaled ended with it" };
        tracing::error!("the previous supervisor process crashed ({why}); {effect}; please report this");
    }
    for note in &settings.notes {
        tracing::warn!("{note}");
    }
    let runtime = service::runtime()?;
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

/// Settings in a Pod of the Tailscale operator for an API server proxy: waits for its config. A stop request ends the process meanwhile.
fn of_k8s_proxy(flags: &Flags, source: K8sProxySource) -> Result<Result<Settings, Faults>> {
    let env = service::environment();
    if env.contains_key(INIT) {
        init::unblock_signals().context("signals")?;
    }
    let config = {
        let _logs = telemetry::temporary(source.json).context("logs")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
        runtime.block_on(crate::proxy::k8s_proxy::load(&source))
    };
    Ok(Settings::of_k8s_proxy(&env, flags, K8sProxySettings { reference: source.reference, config }))
}
