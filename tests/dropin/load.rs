//! What a load of new connections meets while something changes.

use std::collections::BTreeSet;
use std::fmt;
use std::thread;

use crate::kubernetes::Cluster;
use crate::parties::PORT;

/// What became of the connections of a load.
pub(crate) struct Load {
    /// So many were answered.
    pub(crate) answered: usize,
    /// So many were not.
    pub(crate) failed: usize,
    /// The second at which each of those began that were not.
    when: Vec<String>,
}

/// Makes new connections to the Service, one after the other, from before a change until after it.
pub(crate) fn under_load(cluster: &Cluster, change: impl FnOnce()) -> Load {
    // Every connection of its own; what is not answered within two seconds has failed.
    let script = format!(
        "rm -f /tmp/over; n=0; echo > /tmp/begun; while [ ! -e /tmp/over ]; do t=$(date +%T); \
         a=$(nc -w 2 db.default.svc.cluster.local {PORT} </dev/null); \
         case \"$a\" in db\\ *) n=$((n+1));; *) echo failed $t;; esac; done; echo answered $n"
    );
    thread::scope(|scope| {
        let load = scope.spawn(|| cluster.try_in_pod("client", &["sh", "-c", &script]).expect("a load"));
        cluster.try_in_pod("client", &["sh", "-c", "while [ ! -e /tmp/begun ]; do sleep 0.1; done; sleep 1"]).expect("a load");
        let end = End(cluster);
        change();
        drop(end);
        let said = load.join().expect("no panic");
        let lines = |word: &str| said.lines().filter_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).collect::<Vec<_>>();
        let when = lines("failed");
        Load { answered: lines("answered").first().and_then(|count| count.parse().ok()).expect("a count"), failed: when.len(), when }
    })
}

/// Ends the load, however the change ends: else the test would wait for it for ever.
struct End<'a>(&'a Cluster);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let _ = self.0.try_in_pod("client", &["sh", "-c", "sleep 1; rm -f /tmp/begun; echo > /tmp/over"]);
    }
}

impl Load {
    /// In how many seconds some connection began that was not answered.
    pub(crate) fn seconds(&self) -> usize {
        self.when.iter().collect::<BTreeSet<_>>().len()
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when: BTreeSet<_> = self.when.iter().collect();
        write!(f, "{} connections answered, {} failed {when:?}", self.answered, self.failed)
    }
}
