//! iptables backend, nft or legacy variant: runs its programs to restore our chains (all or some), to audit them and to read their
//! counters.
//!
//! A restore is one atomic transaction for each table and family; a table too large for that is restored chain by chain. Of the
//! iptables-save output, which is in the input format of iptables-restore, only the names of our chains and the counters are used. Foreign
//! chains are never flushed. [`crate::model::firewall::iptables`] decides the content.

mod program;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::program::Programs;
use crate::model::base::net::{Family, InterfaceName};
use crate::model::firewall::iptables::{Jump, LeftoverRules, chains_in, delta, ours, remove, replace, traffic, trial};
use crate::model::firewall::ruleset::{Delta, Ruleset};
use crate::model::firewall::{Audit, Traffic};

pub use self::program::{IptablesError, Variant};

/// Number of rules that fit the default socket buffer in one transaction.
const STEP: usize = 400;

/// Our chains in the network namespace of the calling thread.
#[derive(Debug, Clone)]
pub struct Iptables {
    pub variant: Variant,
    written: Arc<Mutex<Option<WrittenRules>>>,
}

/// Last written rules.
#[derive(Debug)]
struct WrittenRules {
    ruleset: Ruleset,
    /// Dump of our chains right after the write; `None` until it is read.
    dumps: Option<BTreeMap<Family, Vec<String>>>,
}

impl Iptables {
    /// Creates a handle for this variant, without any I/O.
    pub fn open(variant: Variant) -> Self {
        Self { variant, written: Arc::default() }
    }

    /// Checks that programs and kernel support all features in use, with unreferenced trial chains that are removed afterwards.
    pub async fn probe(&self, interface: &InterfaceName) -> Result<(), IptablesError> {
        for programs in self.families() {
            let (make, unmake) = trial(interface, programs.family);
            programs.restore("make trial chains", make).await?;
            programs.restore("remove trial chains", unmake).await?;
        }
        Ok(())
    }

    /// Replaces all our chains, in one transaction for each table and family. [`Self::note`] must follow.
    pub async fn rewrite(&self, ruleset: &Ruleset) -> Result<(), IptablesError> {
        self.lock().take();
        for programs in self.families() {
            let found = self.found(programs).await?;
            let text = |step| replace(ruleset, programs.family, &found, step);
            if let Err(whole) = programs.restore("load the chains", text(usize::MAX)).await {
                // In a user namespace a large table may exceed the socket buffer limit of the process.
                programs.restore("load the chains", text(STEP)).await.map_err(|_| whole)?;
            }
        }
        self.wrote(ruleset);
        Ok(())
    }

    /// Applies the chains that differ; a change of the static part rewrites all. [`Self::note`] must follow.
    pub async fn patch(&self, before: &Ruleset, change: &Delta, after: &Ruleset) -> Result<(), IptablesError> {
        if change.rewrite {
            return self.rewrite(after).await;
        }
        self.lock().take();
        for programs in self.families() {
            if let Some(text) = delta(before, change, after, programs.family) {
                programs.restore("change chains", text).await?;
            }
        }
        self.wrote(after);
        Ok(())
    }

    /// Reads the written chains back for later audits. Separate from the write, so that callers can report the ruleset as active before.
    pub async fn note(&self) -> Result<(), IptablesError> {
        let dumps = self.dumps().await?;
        if let Some(written) = &mut *self.lock() {
            written.dumps = Some(dumps);
        }
        Ok(())
    }

    /// Compares a dump of our chains with the dump right after the write.
    pub async fn audit(&self, ruleset: &Ruleset) -> Result<Audit, IptablesError> {
        let drifted = |what: &str| Ok(Audit::Drifted { what: what.to_owned() });
        let dumps = self.dumps().await?;
        match &*self.lock() {
            Some(written) if written.ruleset != *ruleset => drifted("other rules were written"),
            Some(WrittenRules { dumps: Some(noted), .. }) if *noted == dumps => Ok(Audit::Same),
            Some(WrittenRules { dumps: Some(_), .. }) => drifted("the chains are not as they were made"),
            Some(WrittenRules { dumps: None, .. }) => drifted("what was written was never looked at"),
            None => drifted("nothing was written"),
        }
    }

    /// Removes all our chains and rules.
    pub async fn remove(&self) -> Result<(), IptablesError> {
        self.lock().take();
        for programs in self.families().filter(|programs| programs.has_tables()) {
            if let Some(text) = remove(&self.found(programs).await?) {
                programs.restore("remove the chains", text).await?;
            }
        }
        Ok(())
    }

    /// Counters of each match port since the last write of its counting chain.
    pub async fn counters(&self) -> Result<Traffic, IptablesError> {
        let Some(ruleset) = self.lock().as_ref().map(|written| written.ruleset.clone()) else { return Ok(Traffic::new()) };
        let mut sum = Traffic::new();
        for programs in self.families() {
            for (key, counted) in traffic(&ruleset, programs.family, &programs.save(true).await?) {
                let counters = sum.entry(key).or_default();
                counters.flows = counters.flows.saturating_add(counted.flows);
                counters.packets = counters.packets.saturating_add(counted.packets);
                counters.bytes = counters.bytes.saturating_add(counted.bytes);
            }
        }
        Ok(sum)
    }

    /// Stores the written ruleset.
    fn wrote(&self, ruleset: &Ruleset) {
        *self.lock() = Some(WrittenRules { ruleset: ruleset.clone(), dumps: None });
    }

    async fn dumps(&self) -> Result<BTreeMap<Family, Vec<String>>, IptablesError> {
        let mut dumps = BTreeMap::new();
        for programs in self.families() {
            dumps.insert(programs.family, ours(&programs.save(false).await?));
        }
        Ok(dumps)
    }

    /// Finds our existing chains and jumps. Jumps are found by the exit status of `--check`.
    async fn found(&self, programs: Programs) -> Result<LeftoverRules, IptablesError> {
        let chains = chains_in(&programs.save(false).await?).collect();
        let mut found = LeftoverRules { chains, ..LeftoverRules::default() };
        for jump in Jump::ALL {
            // A jump cannot exist without its target chain.
            if found.chains.contains(&(jump.table, jump.to.to_string())) && programs.check(jump).await? {
                found.jumps.insert(jump);
            }
        }
        Ok(found)
    }

    /// Programs of each family that this network namespace has.
    fn families(&self) -> impl Iterator<Item = Programs> {
        let here = |family: &Family| *family == Family::V4 || Path::new("/proc/thread-self/net/if_inet6").exists();
        let variant = self.variant;
        Family::ALL.into_iter().filter(here).map(move |family| Programs { variant, family })
    }

    fn lock(&self) -> MutexGuard<'_, Option<WrittenRules>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
