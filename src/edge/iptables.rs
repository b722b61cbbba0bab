//! iptables, of either make, by its own programs: our chains restored whole or in part, saved to be audited and counted.
//!
//! A restore is one step for each table and family: it is taken whole or not at all (a table too large for that: chain by chain). What iptables-save writes is the form
//! that iptables-restore reads; of it the names of our own chains and the counters are used. It never flushes a chain that
//! is not ours. What is to be held is decided elsewhere ([`crate::model::firewall::iptables`]).

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

/// How many rules fit a socket's default buffer in one step.
const STEP: usize = 400;

/// Our chains in the network namespace of the calling thread.
#[derive(Debug, Clone)]
pub struct Iptables {
    variant: Variant,
    written: Arc<Mutex<Option<WrittenRules>>>,
}

/// What was written last.
#[derive(Debug)]
struct WrittenRules {
    ruleset: Ruleset,
    /// What a dump said of ours right after; nothing before it was looked at.
    dumps: Option<BTreeMap<Family, Vec<String>>>,
}

impl Iptables {
    /// The chains that this make of iptables holds; nothing is done yet.
    pub fn open(variant: Variant) -> Self {
        Self { variant, written: Arc::default() }
    }

    /// Which make it is.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Finds out whether programs and kernel can do all that we need, by chains that nothing jumps to and that are taken away again.
    pub async fn probe(&self, interface: &InterfaceName) -> Result<(), IptablesError> {
        for programs in self.families() {
            let (make, unmake) = trial(interface, programs.family());
            programs.restore("make trial chains", make).await?;
            programs.restore("remove trial chains", unmake).await?;
        }
        Ok(())
    }

    /// Makes all of ours anew, whatever of it stands, in one step for each table and family. [`Self::note`] is to follow.
    pub async fn rewrite(&self, ruleset: &Ruleset) -> Result<(), IptablesError> {
        self.lock().take();
        for programs in self.families() {
            let found = self.found(programs).await?;
            let text = |step| replace(ruleset, programs.family(), &found, step);
            if let Err(whole) = programs.restore("load the chains", text(usize::MAX)).await {
                // In a user namespace a large table may be more than the process may send at once.
                programs.restore("load the chains", text(STEP)).await.map_err(|_| whole)?;
            }
        }
        self.wrote(ruleset);
        Ok(())
    }

    /// Sends the chains that differ; a change of the static part makes all anew. [`Self::note`] is to follow.
    pub async fn patch(&self, before: &Ruleset, change: &Delta, after: &Ruleset) -> Result<(), IptablesError> {
        if change.rewrite {
            return self.rewrite(after).await;
        }
        self.lock().take();
        for programs in self.families() {
            if let Some(text) = delta(before, change, after, programs.family()) {
                programs.restore("change chains", text).await?;
            }
        }
        self.wrote(after);
        Ok(())
    }

    /// Looks at what was written, for later audits. Not a part of the writing: what is in force can be told before.
    pub async fn note(&self) -> Result<(), IptablesError> {
        let dumps = self.dumps().await?;
        if let Some(written) = &mut *self.lock() {
            written.dumps = Some(dumps);
        }
        Ok(())
    }

    /// Compares what a dump says of ours with what one said right after it was written.
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

    /// Takes away all of ours that stands.
    pub async fn remove(&self) -> Result<(), IptablesError> {
        self.lock().take();
        for programs in self.families().filter(|programs| programs.has_tables()) {
            if let Some(text) = remove(&self.found(programs).await?) {
                programs.restore("remove the chains", text).await?;
            }
        }
        Ok(())
    }

    /// What was counted for each match port since the chain that counts it was last sent.
    pub async fn counters(&self) -> Result<Traffic, IptablesError> {
        let Some(ruleset) = self.lock().as_ref().map(|written| written.ruleset.clone()) else { return Ok(Traffic::new()) };
        let mut sum = Traffic::new();
        for programs in self.families() {
            for (key, counted) in traffic(&ruleset, programs.family(), &programs.save(true).await?) {
                let counters = sum.entry(key).or_default();
                counters.flows = counters.flows.saturating_add(counted.flows);
                counters.packets = counters.packets.saturating_add(counted.packets);
                counters.bytes = counters.bytes.saturating_add(counted.bytes);
            }
        }
        Ok(sum)
    }

    /// Remembers what was written.
    fn wrote(&self, ruleset: &Ruleset) {
        *self.lock() = Some(WrittenRules { ruleset: ruleset.clone(), dumps: None });
    }

    async fn dumps(&self) -> Result<BTreeMap<Family, Vec<String>>, IptablesError> {
        let mut dumps = BTreeMap::new();
        for programs in self.families() {
            dumps.insert(programs.family(), ours(&programs.save(false).await?));
        }
        Ok(dumps)
    }

    /// What of ours stands. Whether a jump does is the exit status of a check.
    async fn found(&self, programs: Programs) -> Result<LeftoverRules, IptablesError> {
        let chains = chains_in(&programs.save(false).await?).collect();
        let mut found = LeftoverRules { chains, ..LeftoverRules::default() };
        for jump in Jump::ALL {
            // A rule cannot stand whose chain does not.
            if found.chains.contains(&(jump.table, jump.to.to_string())) && programs.check(jump).await? {
                found.jumps.insert(jump);
            }
        }
        Ok(found)
    }

    /// The programs of each family that this network namespace has.
    fn families(&self) -> impl Iterator<Item = Programs> {
        let here = |family: &Family| *family == Family::V4 || Path::new("/proc/thread-self/net/if_inet6").exists();
        let variant = self.variant;
        Family::ALL.into_iter().filter(here).map(move |family| Programs::new(variant, family))
    }

    fn lock(&self) -> MutexGuard<'_, Option<WrittenRules>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
