//! Dispatch and settings of the command line. Exit codes: 0 done, 1 failed, 2 usage, 64 invalid settings, 70 crashed.

mod cluster;
mod crd;
mod demo;
mod doctor;
mod enable_ip_forwarding;
mod flags;
mod kubeconfig;
mod load;
mod migrate;
mod nameserver;
mod plan;
pub mod proxy;
pub mod reconciler;
mod service;
mod status;
mod uninstall;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::model::base::go_values::duration;

/// Services of a tailnet and of Kubernetes clusters, joined by groups of replicated proxies.
#[derive(Debug, Parser)]
#[command(name = "tailyard", version, about, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // In a terminal backticks would only be noise.
    #[allow(clippy::doc_markdown)]
    /// Run a replica of a ProxyGroup, or a standalone proxy: forward its services between cluster and tailnet
    ///
    /// Reads the same environment as the Tailscale operator's proxy image. A flag wins over its variable. All invalid settings are
    /// reported at once, with exit status 64.
    Proxy(Box<flags::Given<proxy::ProxyCommand>>),
    #[allow(clippy::doc_markdown)]
    /// Run the controller that creates and maintains all objects of ProxyGroups and standalone proxies
    ///
    /// Reads the same environment as the Tailscale operator. Several may run: the holder of the Lease writes, the others stand by. A
    /// flag wins over its variable. All invalid settings are reported at once, with exit status 64.
    Reconciler(Box<flags::Given<reconciler::ReconcilerCommand>>),
    // As above.
    #[allow(clippy::doc_markdown)]
    /// Run the nameserver of a DNSConfig: answer DNS queries of the cluster for names of the tailnet
    ///
    /// Authoritative for ts.net and for the domains of its records, which a ConfigMap contains; other names are refused. The last records
    /// stay in force while the API server is unavailable. A flag wins over its variable. All invalid settings are reported at once, with exit
    /// status 64.
    Nameserver(Box<flags::Given<nameserver::NameserverCommand>>),
    // As above.
    #[allow(clippy::doc_markdown)]
    /// Show ProxyGroups, standalone proxies, replicas, Services and Ingresses of a cluster
    Status(status::StatusArgs),
    /// Find out what is wrong with a cluster or a machine, and how to repair it
    Doctor(doctor::DoctorArgs),
    /// Add an API server proxy to your kubeconfig, or remove it
    ///
    /// Cluster, context and user are those that `tailscale configure kubeconfig` writes. Comments and all other entries stay byte for byte.
    /// A file that cannot be parsed is not changed.
    Kubeconfig(kubeconfig::KubeconfigArgs),
    #[allow(clippy::doc_markdown)]
    /// Release every Service, Ingress and ProxyGroup and delete their devices, before the chart is uninstalled
    ///
    /// The reconciler deletes Pods, devices, Secrets and its other objects, and removes its finalizers; users' objects stay. Needs a
    /// running reconciler, and get and patch on the Lease tailyard-reconciler.
    Uninstall(uninstall::UninstallArgs),
    // As above.
    #[allow(clippy::doc_markdown)]
    /// Prepare a migration from the Tailscale operator: convert values of its chart, check a cluster
    Migrate(migrate::MigrateArgs),
    /// Print, offline and without root, what a config turns into
    Plan(plan::PlanArgs),
    /// Enable IP forwarding in this network namespace and exit, for an init container
    EnableIpForwarding,
    /// Print the custom resource definitions, for `kubectl apply --server-side -f -`
    Crd,
    /// Print the version
    Version,
    /// Offer new connections to a service at a fixed rate, and report the outcome of each
    Load(load::LoadArgs),
    /// Show a whole group on this machine, under load; needs root or unprivileged user namespaces, no cluster and no account
    Demo(demo::DemoArgs),
}

/// A parser of flags that are durations, such as 90s or 1m30s, from `least` to `most`.
fn length(least: Duration, most: Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let length = duration(text).filter(|length| (least..=most).contains(length));
        length.ok_or_else(|| format!("must be a duration from {least:?} to {most:?}, such as 90s or 1m30s"))
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Proxy(args) => proxy::run(&args.flags),
        Command::Reconciler(args) => reconciler::run(&args.flags),
        Command::Nameserver(args) => nameserver::run(&args.flags),
        Command::Status(args) => status::run(&args, &mut std::io::stdout()),
        Command::Doctor(args) => doctor::run(&args, &mut std::io::stdout()),
        Command::Kubeconfig(args) => kubeconfig::run(&args, &mut std::io::stdout().lock()),
        Command::Uninstall(args) => uninstall::run(&args, &mut std::io::stdout()),
        Command::Migrate(args) => migrate::run(&args, &mut std::io::stdout(), &mut std::io::stderr()),
        Command::Plan(args) => plan::run(&args, &mut std::io::stdout().lock()),
        Command::EnableIpForwarding => enable_ip_forwarding::run(&mut std::io::stdout().lock()),
        Command::Crd => crd::run(&mut std::io::stdout().lock()),
        Command::Version => version(&mut std::io::stdout().lock()),
        Command::Load(args) => load::run(&args),
        Command::Demo(args) => demo::run(&args),
    };
    match done {
        Ok(code) => code,
        // The reader, such as `head`, has enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            // Nothing is left to do when standard error is closed too.
            let _ = writeln!(std::io::stderr(), "tailyard: {}", causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// Whether standard output is a pipe without a reader. Every other pipe and socket is an error of the command.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    use std::io::{Error, ErrorKind};
    let of_output = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<serde_json::Error>() {
        Some(error) => error.io_error_kind(),
        None => cause.downcast_ref::<Error>().map(Error::kind),
    };
    error.chain().next().is_some_and(|first| of_output(first) == Some(ErrorKind::BrokenPipe))
}

/// An error and its causes, without those that the text before them holds already.
fn causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        _ if text.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    })
}

fn version(out: &mut dyn std::io::Write) -> anyhow::Result<ExitCode> {
    writeln!(out, "tailyard {}", env!("CARGO_PKG_VERSION"))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command as Line, FromArgMatches};

    use super::flags::{Configured, Given};
    use super::nameserver::NameserverCommand;
    use super::proxy::ProxyCommand;
    use super::reconciler::ReconcilerCommand;
    use crate::model::settings::Flags;
    use crate::model::settings::table::Setting;

    /// What a command makes of these flags, each with a value of its own, and the help that it prints.
    fn read<C: Configured>(settings: &[Setting]) -> (Flags, String) {
        let mut command = Given::<C>::augment_args(Line::new("x"));
        let words = settings.iter().flat_map(|setting| [setting.flag.to_owned(), format!("value-of{}", setting.flag)]);
        let matches = command.clone().try_get_matches_from(std::iter::once("x".to_owned()).chain(words)).expect("all flags exist");
        (Given::<C>::from_arg_matches(&matches).expect("all flags are read").flags, command.render_long_help().to_string())
    }

    fn every_flag_reaches_the_settings_and_help_names_its_variable<C: Configured>() {
        let settings = C::none().settings().to_vec();
        let (flags, help) = read::<C>(&settings);
        let all = settings.iter().fold(C::none(), |flags, setting| flags.with(setting.flag, Some(format!("value-of{}", setting.flag))));
        assert_eq!(flags, all);
        for Setting { flag, variable, .. } in settings {
            let entry = help.split("\n      --").find(|entry| format!("--{entry}").starts_with(&format!("{flag} ")));
            assert!(entry.is_some_and(|entry| entry.contains(variable)), "{flag} does not name {variable} in {help}");
        }
    }

    #[test]
    fn every_flag_of_a_table_reaches_the_settings_and_help_names_its_variable() {
        every_flag_reaches_the_settings_and_help_names_its_variable::<ProxyCommand>();
        every_flag_reaches_the_settings_and_help_names_its_variable::<ReconcilerCommand>();
        every_flag_reaches_the_settings_and_help_names_its_variable::<NameserverCommand>();
    }

    #[test]
    fn help_groups_the_flags() {
        let (_, proxy) = read::<ProxyCommand>(&[]);
        let (_, reconciler) = read::<ReconcilerCommand>(&[]);
        let headings = [
            (proxy, &["Tailnet:", "Services:", "Kernel:", "State:", "Observability:", "[env: TS_BOOT_TIMEOUT; default: 60s]"][..]),
            (reconciler, &["Cluster:", "Proxies:", "Control plane:", "[env: PROXY_TAGS; default: tag:k8s]"]),
        ];
        for (help, headings) in headings {
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(headings.iter().all(|heading| help.contains(heading)), "{headings:?} in {help}");
        }
    }
}
