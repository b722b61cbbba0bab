//! nftables: our table made whole by the nft program, changed and read by netlink.
//!
//! The whole table is text, loaded by nft in one transaction; a change of elements is a netlink batch of our own, which
//! costs no process. An audit first asks for the generation, a number that every transaction of anybody raises: it is
//! what ours left behind unless somebody else wrote. Only our own table is ever touched. What is to be held is decided
//! elsewhere ([`crate::model::firewall::nft`]).

mod link;
mod notices;
mod program;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, process::ExitStatus};

use self::link::NftSocket;
use self::program::run;
use crate::model::base::net::InterfaceName;
use crate::model::firewall::nft::element::{edits, elements};
use crate::model::firewall::nft::{self, dump};
use crate::model::firewall::ruleset::{Delta, Ruleset};
use crate::model::firewall::{Audit, Traffic};

pub use self::notices::NotificationStream;

/// How long one run of nft may take; a load of 100,000 mappings takes about a second.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Our table in the network namespace of the thread that opened it.
#[derive(Debug, Clone)]
pub struct Nft {
    program: PathBuf,
    link: Arc<Mutex<NftSocket>>,
}

/// Why nftables did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The program cannot be started.
    #[error("cannot run {program:?}: {source}; install nftables in the image, or choose an iptables backend")]
    Missing { program: PathBuf, source: io::Error },
    /// The program did not end in time.
    #[error("{program:?} did not end within {TIMEOUT:?} and was killed")]
    Timeout { program: PathBuf },
    /// The program refused the text.
    #[error("nft refused to {what} ({status}): {stderr}")]
    Refused {
        /// What was to be done.
        what: &'static str,
        status: ExitStatus,
        stderr: String,
    },
    /// The kernel refused a netlink request.
    #[error("the kernel refused to {what}: {source}; CAP_NET_ADMIN is needed")]
    Kernel {
        /// What was to be done.
        what: &'static str,
        source: io::Error,
    },
    /// Others changed nftables again and again while it was being read.
    #[error("nftables is being changed by others too fast to be read")]
    Unsteady,
    /// The blocking work was cancelled: the process is ending.
    #[error("the work was abandoned at shutdown")]
    Abandoned,
}

impl NftError {
    /// A closed set of words for metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "Missing",
            Self::Timeout { .. } => "Timeout",
            Self::Refused { .. } => "Refused",
            Self::Kernel { .. } => "Kernel",
            Self::Unsteady => "Unsteady",
            Self::Abandoned => "Abandoned",
        }
    }
}

impl Nft {
    /// Opens a netlink socket in the calling thread's network namespace; `program` is `nft` or a path to it.
    pub fn open(program: impl Into<PathBuf>) -> Result<Self, NftError> {
        Ok(Self { program: program.into(), link: Arc::new(Mutex::new(NftSocket::open()?)) })
    }

    /// Finds out whether program and kernel can do all that our table needs, by making one like it and removing it again.
    pub async fn probe(&self, interface: &InterfaceName) -> Result<(), NftError> {
        run(&self.program, &["-f", "-"], "make a trial table", nft::trial(interface)).await
    }

    /// Makes the table whole, in one transaction, whatever stood there.
    ///
    /// A large table is made in two steps where there was none, the rules by nft and then the elements by netlink: nothing is relayed before
    /// the second step, as before the first, and the kernel is done in half the time. Likewise where the process may not raise its socket
    /// buffers (a user namespace) and nft could not send it at once.
    pub async fn rewrite(&self, ruleset: &Ruleset) -> Result<(), NftError> {
        let all = elements(ruleset);
        let (before, absent, roomy) = self.blocking(|link| Ok((link.generation()?, link.absent()?, link.roomy()))).await?;
        let mut transactions = 1;
        if all.len() > link::SMALL && (absent || !roomy) {
            run(&self.program, &["-f", "-"], "load the rules", nft::skeleton(ruleset)).await?;
            transactions += self.blocking(move |link| link.fill(all)).await?;
        } else {
            drop(all);
            run(&self.program, &["-f", "-"], "load the table", nft::table(ruleset)).await?;
        }
        self.blocking(move |link| link.settle(before.wrapping_add(transactions))).await
    }

    /// Applies a change of elements, in one transaction; a change of the static part rewrites the table.
    ///
    /// It fails, and changes nothing, if the kernel does not hold what `before` says of the changed keys: then the table is to be rewritten.
    pub async fn patch(&self, before: &Ruleset, delta: &Delta, after: &Ruleset) -> Result<(), NftError> {
        if delta.rewrite {
            return self.rewrite(after).await;
        }
        let edits = edits(before, delta, after);
        self.blocking(move |link| link.commit(&edits)).await
    }

    /// Compares the kernel with what it should hold: one question if nobody wrote since, the whole table otherwise.
    pub async fn audit(&self, ruleset: &Ruleset) -> Result<Audit, NftError> {
        if self.blocking(NftSocket::untouched).await? {
            return Ok(Audit::Same);
        }
        let ruleset = ruleset.clone();
        self.blocking(move |link| link.audit(&ruleset)).await
    }

    /// Keeps back what tailscaled says to its peers outside the tunnel, or lets it speak again.
    pub async fn mute(&self, on: bool) -> Result<(), NftError> {
        let text = if on { nft::mute() } else { nft::unmute() };
        run(&self.program, &["-f", "-"], "keep back packets outside the tunnel", text).await
    }

    /// Removes the table and what [`Self::mute`] made, if they are there.
    pub async fn remove(&self) -> Result<(), NftError> {
        run(&self.program, &["-f", "-"], "remove the table", nft::removal() + &nft::unmute()).await
    }

    /// What was counted for each match port since its element was made; a retarget starts its flows anew, its bytes go on.
    pub async fn counters(&self) -> Result<Traffic, NftError> {
        let dumped = self.blocking(|link| link.elements(dump::counting())).await?;
        Ok(dump::traffic(&dumped))
    }

    /// Listens for changes that somebody else makes to nftables, in the network namespace of the calling thread.
    pub fn changes(&self) -> Result<NotificationStream, NftError> {
        NotificationStream::open(self.link.lock().unwrap_or_else(PoisonError::into_inner).port())
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
