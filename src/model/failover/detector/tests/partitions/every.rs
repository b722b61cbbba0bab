//! Every partition of processes, replicas and the API server, one after the other.

use super::*;

/// Paths that are broken from [`BREAK`] to [`REPAIR`].
#[derive(Debug, Clone, Copy)]
struct Partition {
    /// Nodes of the two processes; replicas are on `n0` and `n1`.
    nodes: [usize; 2],
    /// Bits: path of each process to each replica, of each process to the API server, of each kubelet to the API server.
    broken: u8,
}

const BREAK: u64 = 1500;
const REPAIR: u64 = 14_000;

impl Partition {
    fn all() -> impl Iterator<Item = Self> {
        let nodes = [[0, 1], [0, 2], [1, 2], [2, 2], [0, 0]];
        nodes.into_iter().flat_map(|nodes| (0..=u8::MAX).map(move |broken| Self { nodes, broken }))
    }

    fn works(self, bit: usize) -> bool {
        self.broken & (1 << bit) == 0
    }

    fn reaches(self, process: usize, replica: usize) -> bool {
        self.works(2 * process + replica)
    }

    fn has_api(self, process: usize) -> bool {
        self.works(4 + process)
    }

    /// Whether a process reaches a replica on another node than its own.
    fn is_connected(self, process: usize) -> bool {
        (0..2).any(|replica| replica != self.nodes[process] && self.reaches(process, replica))
    }

    /// Whether a process reaches the replica by a network and not only by a common node.
    fn proves(self, process: usize, replica: usize) -> bool {
        self.reaches(process, replica) && (self.nodes[process] != replica || self.is_connected(process))
    }

    /// Whether such a process reaches the API server, too.
    fn is_reached(self, replica: usize) -> bool {
        (0..2).any(|process| self.has_api(process) && self.proves(process, replica))
    }

    /// Whether a process finds only this replica unreachable, and none reaches it.
    fn is_lost(self, replica: usize) -> bool {
        let finds = |process: usize| {
            self.has_api(process) && self.is_connected(process) && !self.reaches(process, replica) && self.reaches(process, 1 - replica)
        };
        !(0..2).any(|process| self.proves(process, replica)) && (0..2).any(finds)
    }

    /// Time until a lost replica is out. It is longer if the process that finds it may have to wait for the Lease.
    fn limit(self, replica: usize) -> u64 {
        let may_suspect_the_other = |process: usize| self.reaches(process, replica) && !self.reaches(process, 1 - replica);
        if (0..2).any(|process| self.has_api(process) && may_suspect_the_other(process)) { 2500 } else { 2000 }
    }

    fn faults(self) -> Vec<(u64, Fault)> {
        let mut faults = Vec::new();
        for (time, on) in [(BREAK, false), (REPAIR, true)] {
            let mut add = |bit, fault| faults.extend((!self.works(bit)).then_some((time, fault)));
            for process in 0..2 {
                for replica in 0..2 {
                    add(2 * process + replica, Fault::Link { process, replica, on });
                }
                add(4 + process, Fault::ApiOf { process, on });
                add(6 + process, Fault::Kubelet { replica: process, on });
            }
        }
        faults
    }
}

/// In every partition: a replica is ready at any time; one that is reached stays ready; one that is lost is out within [`Partition::limit`] and
/// stays out until the repair; five seconds after it all are ready, without notes.
#[test]
fn every_partition_takes_out_unreachable_replicas_alone_and_never_the_last_ready_one() {
    let (mut lost, mut reached, mut failures) = (0, 0, Vec::new());
    for partition in Partition::all() {
        let mut world = World::new(2, u64::from(partition.broken), false);
        world.restores = MEASURED;
        for (process, node) in world.processes.iter_mut().zip(partition.nodes) {
            process.detector.node = Some(format!("n{node}"));
        }
        let look = |world: &World, now: u64| {
            let ready: Vec<bool> = world.api.pods.iter().map(is_ready).collect();
            prop_assert!(ready.contains(&true), "no replica is ready after {now} ms");
            for (replica, is_ready) in ready.into_iter().enumerate() {
                let is_out = (BREAK + partition.limit(replica)..REPAIR).contains(&now) && partition.is_lost(replica);
                let stays = now < REPAIR && partition.is_reached(replica);
                prop_assert!(!(is_out && is_ready), "replica {replica} is ready after {now} ms");
                prop_assert!(is_ready || !stays, "replica {replica} is out after {now} ms");
                let is_back = is_ready && world.api.pods[replica].note.is_none();
                prop_assert!(is_back || now < REPAIR + 5000, "replica {replica} is not back after {now} ms");
            }
            Ok(())
        };
        let done = world.run_observed(partition.faults(), REPAIR + 6000, look);
        failures.extend(done.err().map(|error| format!("{partition:?}: {error}")));
        lost += usize::from((0..2).any(|replica| partition.is_lost(replica)));
        reached += usize::from((0..2).any(|replica| partition.is_reached(replica)));
    }
    assert!(failures.is_empty(), "{} failures: {:#?}", failures.len(), &failures[..failures.len().min(20)]);
    assert!(lost > 50 && reached > 300, "{lost} {reached}");
}
