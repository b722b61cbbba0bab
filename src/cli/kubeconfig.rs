//! `tailyard kubeconfig`: entries of an API server proxy in the user's kubeconfig files.
//!
//! Files, precedence and lock files are those of kubectl, so that both may run at the same time. A file that cannot be parsed is not touched.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::cluster::block_on;
use crate::edge::files::{read_one, replace_of_user};
use crate::edge::localapi::LocalApi;
use crate::model::kubeconfig::{Access, Address, KubeconfigFault, remove};

/// Arguments of `tailyard kubeconfig`.
#[derive(Debug, clap::Args)]
pub(super) struct KubeconfigArgs {
    /// DNS name or URL of the API server proxy: `status.url` of its ProxyGroup. tailscaled of this machine completes a short name
    #[arg(value_name = "NAME|URL")]
    address: String,
    /// Name of the context; default: the DNS name
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Namespace of the context
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// CA that issued the proxy's certificate, PEM; default: the public CAs
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
    /// Existing user entry for the context: in mode noauth the API server accepts its credentials only
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Do not change the current context
    #[arg(long)]
    keep_context: bool,
    /// Change this file; default: those of KUBECONFIG, else ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Print a kubeconfig of its own and change no file
    #[arg(long, conflicts_with_all = ["remove", "user", "keep_context", "kubeconfig"])]
    print: bool,
    /// Remove the entries
    #[arg(long, conflicts_with_all = ["context", "namespace", "certificate_authority", "user", "keep_context"])]
    remove: bool,
    /// LocalAPI socket of tailscaled
    #[arg(long, value_name = "FILE", env = "TS_SOCKET", default_value = "/var/run/tailscale/tailscaled.sock")]
    socket: PathBuf,
}

/// Changes the files, or prints a kubeconfig. Fails if a file cannot be parsed, edited or written.
pub(super) fn run(args: &KubeconfigArgs, out: &mut dyn Write) -> Result<ExitCode> {
    let access = Access {
        address: address(args)?,
        context: args.context.clone(),
        namespace: args.namespace.clone(),
        authority: args.certificate_authority.as_deref().map(authority).transpose()?,
        user: args.user.clone(),
        keep_context: args.keep_context,
    };
    if args.print {
        write!(out, "{}", access.print()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let paths = paths(args)?;
    let _locks = lock(&paths)?;
    let texts = paths.iter().map(|path| text(path)).collect::<Result<Vec<_>>>()?;
    let changed = if args.remove { remove(&access.address, &texts) } else { access.add(&texts) };
    let changed = changed.map_err(|fault| located(fault, &paths))?;
    let mut writes = paths.iter().zip(changed).filter_map(|(path, text)| Some((path, text?))).peekable();
    if writes.peek().is_none() {
        writeln!(out, "nothing to change")?;
    }
    for (path, text) in writes {
        replace_of_user(path, text.as_bytes())?;
        writeln!(out, "changed {}", path.display())?;
    }
    if !args.remove {
        writeln!(out, "context {} is for {}", access.context_name(), access.address.url())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The address with the tailnet's domain, which is that of this machine's own node.
fn address(args: &KubeconfigArgs) -> Result<Address> {
    let address = Address::parse(&args.address)?;
    if !address.is_short() {
        return Ok(address);
    }
    let needs = || format!("{} has no domain, and tailscaled does not name it; use the full DNS name", address.name());
    let (status, _) = block_on(LocalApi::new(&args.socket).status_without_peers())?.with_context(needs)?;
    let full = address.clone().in_domain_of(&status.node.unwrap_or_default().dns_name);
    if full.is_short() {
        bail!(needs());
    }
    Ok(full)
}

/// Full path of a CA file: kubectl looks for a relative one beside the kubeconfig.
fn authority(path: &Path) -> Result<String> {
    let full = fs::canonicalize(path).with_context(|| path.display().to_string())?;
    full.into_os_string().into_string().ok().context("the path of the CA is not UTF-8 text")
}

/// Files in kubectl's order of precedence.
fn paths(args: &KubeconfigArgs) -> Result<Vec<PathBuf>> {
    if let Some(path) = &args.kubeconfig {
        return Ok(vec![path.clone()]);
    }
    let mut paths = Vec::new();
    for path in env::split_paths(&env::var_os("KUBECONFIG").unwrap_or_default()) {
        if !path.as_os_str().is_empty() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        let home = env::var_os("HOME").filter(|home| !home.is_empty()).context("HOME is not set; name a file by --kubeconfig")?;
        paths.push(Path::new(&home).join(".kube/config"));
    }
    Ok(paths)
}

fn text(path: &Path) -> Result<Option<String>> {
    let content = read_one(path)?.map(|content| String::from_utf8(content.into()));
    content.transpose().with_context(|| format!("{}: not UTF-8 text", path.display()))
}

/// A fault with its file.
fn located(fault: KubeconfigFault, paths: &[PathBuf]) -> anyhow::Error {
    match &fault {
        KubeconfigFault::Document(index, document) => match paths.get(*index) {
            Some(path) => anyhow::anyhow!("{}: {document}", path.display()),
            None => fault.into(),
        },
        KubeconfigFault::NoUser(_) => fault.into(),
    }
}

/// Lock files, which end with this value.
struct Locks(Vec<PathBuf>);

impl Drop for Locks {
    fn drop(&mut self) {
        for lock in &self.0 {
            // A lock file that another program removed needs no removal.
            let _ = fs::remove_file(lock);
        }
    }
}

/// Creates kubectl's lock file of each file that may be changed.
fn lock(paths: &[PathBuf]) -> Result<Locks> {
    let mut sorted = paths.to_vec();
    sorted.sort();
    let mut locks = Locks(Vec::new());
    for path in sorted {
        let mut lock = path.into_os_string();
        lock.push(".lock");
        match OpenOptions::new().write(true).create_new(true).open(&lock) {
            Ok(_) => locks.0.push(lock.into()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!("another program writes it: {} exists; delete that if none runs", lock.display());
            }
            // No directory, or a file that cannot be changed.
            Err(_) => {}
        }
    }
    Ok(locks)
}
