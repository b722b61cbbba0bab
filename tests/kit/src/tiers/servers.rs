//! Builds the servers that tiers need, in the background and with low priority.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::process::{self, End};
use super::table::Tier;

/// A cold build of all servers takes a quarter of an hour on two processors.
const BUILD_LIMIT: Duration = Duration::from_hours(1);
/// Go's own builds are parallel: more at once would only use more memory.
const BUILDS_AT_ONCE: usize = 2;

/// The result of one build, for the tiers that wait for it, by index.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) tiers: Vec<usize>,
    pub(super) result: Result<(), String>,
}

/// A set of servers, and the tiers that need exactly this set.
type Need = (Vec<&'static str>, Vec<usize>);

/// Running builds. They end with this value, processes of the compiler among them.
#[derive(Debug)]
pub(super) struct Builds(Vec<JoinHandle<()>>);

impl Drop for Builds {
    fn drop(&mut self) {
        process::stop();
        for thread in self.0.drain(..) {
            // A panic has been printed.
            let _ended = thread.join();
        }
    }
}

/// Builds the servers of the tiers and sends a result for each tier that needs servers, unless the runner stops before.
pub(super) fn build<News: From<Built> + Send + 'static>(script: &'static str, tiers: &[&'static Tier], sender: &Sender<News>) -> Builds {
    let queue = Arc::new(Mutex::new(needs(tiers)));
    let start = |_| {
        let (queue, sender) = (Arc::clone(&queue), sender.clone());
        thread::spawn(move || {
            let pop = || if process::stopped() { None } else { queue.lock().unwrap_or_else(PoisonError::into_inner).pop() };
            while let Some((names, tiers)) = pop() {
                let report = Built { tiers, result: run(script, &names) };
                if sender.send(report.into()).is_err() {
                    break;
                }
            }
        })
    };
    Builds((0..BUILDS_AT_ONCE).map(start).collect())
}

/// Each distinct need once; small ones last, which is where builds are taken from.
fn needs(tiers: &[&'static Tier]) -> Vec<Need> {
    let mut needs = BTreeMap::<Vec<&'static str>, Vec<usize>>::new();
    for (id, tier) in tiers.iter().enumerate().filter(|(_, tier)| !tier.servers.is_empty()) {
        needs.entry(tier.servers.concat()).or_default().push(id);
    }
    let mut needs: Vec<Need> = needs.into_iter().collect();
    needs.sort_by_key(|(names, _)| std::cmp::Reverse(names.len()));
    needs
}

fn run(script: &str, names: &[&str]) -> Result<(), String> {
    let mut command = process::command("nice");
    command.args(["-n", "10", script]).args(names).stdout(Stdio::null());
    match process::run(&mut command, BUILD_LIMIT) {
        Ok(End::Exited(status)) if status.success() => Ok(()),
        Ok(end) => Err(format!("{script} {}: the process {end}", names.join(" "))),
        Err(error) => Err(format!("{script}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::table::TAILYARD;

    #[test]
    fn each_server_list_is_built_once_smallest_first() {
        let tiers: Vec<&Tier> =
            ["kernel", "kube", "certs", "soak"].iter().filter_map(|name| TAILYARD.tiers.iter().find(|tier| tier.name == *name)).collect();
        let mut needs = needs(&tiers);
        assert_eq!(needs.pop(), Some((vec!["etcd", "kube-apiserver"], vec![1, 3])));
        assert_eq!(needs.pop().map(|(_, tiers)| tiers), Some(vec![2]));
        assert_eq!(needs.pop(), None, "the tier without servers has no need");
    }
}
