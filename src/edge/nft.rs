//! nftables backend: our table, created with the nft program, changed and read over netlink.
//!
//! The whole table is text, which nft loads in one transaction; a change of elements is a netlink batch, without a process. An audit first
//! compares the generation, a number that every transaction in the namespace increments: it is unchanged unless another process wrote. Only
//! our own table is changed. [`crate::model::firewall::nft`] decides the content.

mod link;
mod notices;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, process::ExitStatus};

use self::link::NftSocket;
use crate::model::base::net::InterfaceName;
use crate::model::firewall::nft::element::{edits, elements};
use crate::model::firewall::nft::{self, dump};
use crate::model::firewall::ruleset::{Delta, Ruleset};
use crate::model::firewall::{Audit, Traffic};
use crate::runtime::command::{self, CommandError, error_output};

pub use self::notices::NotificationStream;

/// Timeout of a run of nft; a load of 100,000 mappings takes about a second.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Our table in the network namespace of the thread that opened it.
#[derive(Debug, Clone)]
pub struct Nft {
    program: PathBuf,
    link: Arc<Mutex<NftSocket>>,
    /// Whether the kernel lacks conntrack timeouts.
    without_timeouts: bool,
}

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub enum NftError {
    #[error("cannot run {program:?}: {source}; install nftables in the image, or choose an iptables backend")]
    Missing { program: PathBuf, source: io::Error },
    #[error("{program:?} did not end within {TIMEOUT:?} and was killed")]
    Timeout { program: PathBuf },
    #[error("nft refused to {what} ({status}): {stderr}")]
    Refused { what: &'static str, status: ExitStatus, stderr: String },
    #[error("the kernel refused to {what}: {source}; CAP_NET_ADMIN is needed")]
    Kernel { what: &'static str, source: io::Error },
    /// Other processes changed nftables during each attempt to read it.
    #[error("nftables is being changed by others too fast to be read")]
    Unsteady,
    /// The blocking task was cancelled: the process is exiting.
    #[error("the work was abandoned at shutdown")]
    Abandoned,
}

impl NftError {
    /// Closed set of values for metric labels.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

impl Nft {
    /// Opens a netlink socket in the calling thread's network namespace; `program` is `nft` or its path.
    pub fn open(program: impl Into<PathBuf>) -> Result<Self, NftError> {
        Ok(Self { program: program.into(), link: Arc::new(Mutex::new(NftSocket::open()?)), without_timeouts: false })
    }

    /// Checks that program and kernel support all features of our table, with a trial table that is removed afterwards. Conntrack timeouts
    /// are optional.
    pub async fn probe(&mut self, interface: &InterfaceName) -> Result<(), NftError> {
        let what = "make a trial table";
        let Err(refusal) = self.run(what, nft::trial(interface)).await else { return Ok(()) };
        self.without_timeouts = true;
        self.run(what, nft::trial(interface)).await.map_err(|_| refusal)
    }

    /// Replaces the whole table in one transaction.
    ///
    /// A large new table is created in two steps, the rules with nft and then the elements over netlink: nothing is forwarded before the
    /// second step, as before the first, and the load takes half the time. The same holds if the process may not raise its socket buffer
    /// limits (user namespace), so that nft could not send the table at once.
    pub async fn rewrite(&self, ruleset: &Ruleset) -> Result<(), NftError> {
        let all = elements(ruleset);
        let (before, absent, roomy) = self.blocking(|link| Ok((link.generation()?, link.absent()?, link.socket.send_unlimited))).await?;
        let mut transactions = 1;
        if all.len() > link::SMALL && (absent || !roomy) {
            self.run("load the rules", nft::skeleton(ruleset)).await?;
            transactions += self.blocking(move |link| link.fill(all)).await?;
        } else {
            drop(all);
            self.run("load the table", nft::table(ruleset)).await?;
        }
        self.blocking(move |link| link.settle(before.wrapping_add(transactions))).await
    }

    /// Applies a change of elements in one transaction; a change of the static part rewrites the table.
    ///
    /// Fails without a change if the elements of the changed keys in the kernel differ from `before`; then the table must be rewritten.
    pub async fn patch(&self, before: &Ruleset, delta: &Delta, after: &Ruleset) -> Result<(), NftError> {
        if delta.rewrite {
            return self.rewrite(after).await;
        }
        let edits = edits(before, delta, after);
        self.blocking(move |link| link.commit(&edits)).await
    }

    /// Compares the kernel with the ruleset: one request if no other process wrote since, otherwise a dump of the table.
    pub async fn audit(&self, ruleset: &Ruleset) -> Result<Audit, NftError> {
        if self.blocking(NftSocket::untouched).await? {
            return Ok(Audit::Same);
        }
        let ruleset = ruleset.clone();
        self.blocking(move |link| link.audit(&ruleset)).await
    }

    /// Turns the disco mute on or off: it corrupts tailscaled's disco packets ([`nft::mute`]).
    pub async fn mute(&self, on: bool) -> Result<(), NftError> {
        let text = if on { nft::mute() } else { nft::unmute() };
        self.run("keep back packets outside the tunnel", text).await
    }

    /// Drops new connections from the tailnet, until the disco mute is turned off ([`nft::drop_new_connections`]).
    pub async fn drop_new_connections(&self, interface: &InterfaceName) -> Result<(), NftError> {
        self.run("drop new connections", nft::drop_new_connections(interface)).await
    }

    /// [`Self::drop_new_connections`], unless our table exists; returns whether it does not.
    pub async fn drop_new_connections_without_table(&self, interface: &InterfaceName) -> Result<bool, NftError> {
        let absent = self.blocking(NftSocket::absent).await?;
        if absent {
            self.drop_new_connections(interface).await?;
        }
        Ok(absent)
    }

    /// Removes the table and the disco mute ([`Self::mute`]), if they exist.
    pub async fn remove(&self) -> Result<(), NftError> {
        self.run("remove the table", nft::removal() + &nft::unmute()).await
    }

    /// Counters of each match port since the creation of its element; a retarget restarts the flow counter, bytes continue.
    pub async fn counters(&self) -> Result<Traffic, NftError> {
        let dumped = self.blocking(|link| link.elements(dump::counting())).await?;
        Ok(dump::traffic(&dumped))
    }

    /// Subscribes to changes of nftables by other processes, in the network namespace of the calling thread.
    pub fn changes(&self) -> Result<NotificationStream, NftError> {
        NotificationStream::open(self.link.lock().unwrap_or_else(PoisonError::into_inner).socket.port)
    }

    /// Runs nft on a text, in one transaction. Its listings are not parsed, nor is its error output, which messages have.
    async fn run(&self, what: &'static str, text: String) -> Result<(), NftError> {
        let program = || self.program.clone();
        let text = if self.without_timeouts { nft::without_timeouts(&text) } else { text };
        let output = command::run(program(), &["-f", "-"], &text, TIMEOUT).await.map_err(|error| match error {
            CommandError::Run(source) => NftError::Missing { program: program(), source },
            CommandError::Timeout(_) => NftError::Timeout { program: program() },
        })?;
        if output.status.success() { Ok(()) } else { Err(NftError::Refused { what, status: output.status, stderr: error_output(&output) }) }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut NftSocket) -> Result<T, NftError> + Send + 'static,
    ) -> Result<T, NftError> {
        let link = self.link.clone();
        let work = move || work(&mut link.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(work).await.map_err(|_| NftError::Abandoned)?
    }
}
