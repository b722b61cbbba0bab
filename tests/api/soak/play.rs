//! Executes a schedule on the demo's stage: config changes and faults when they are due. Samples the processes each second.

use std::path::PathBuf;
use std::time::Duration;

use tailyard::demo::DemoError;
use tailyard::demo::replicas::ReplicaProcess;
use tailyard::demo::scenario::{FaultInjection, Script};
use tailyard::demo::scoreboard::look;
use tailyard::demo::swap::catch_up;
use tokio::task::JoinHandle;

use crate::soak::api::{Api, State};
use crate::soak::daemon::{self, Peers};
use crate::soak::growth::{Samples, sample};
use crate::soak::schedule::{Outage, REPLICAS, Schedule, Trouble};
use crate::soak::state::is_current;

/// Interval of checks for due events.
const TICK: Duration = Duration::from_millis(20);
/// Duration of an invalid config.
const SPOILT: Duration = Duration::from_millis(200);
/// Interval of process samples.
const SAMPLES: Duration = Duration::from_secs(1);
/// Time limit for state writes after the last outage: replicas retry at most 36 s apart.
const WRITTEN: Duration = Duration::from_mins(1);

/// Time after the exit of a tailscaled in which its replica may still look ready: it is unready within a second, and readiness is polled
/// twenty times a second.
const NOTICED: Duration = Duration::from_millis(1_500);

/// Execution of a schedule.
pub(crate) struct Play<'s, 't> {
    script: &'s mut Script<'t>,
    api: &'s Api,
    /// Current peers of the tailnet.
    peers: Peers,
    /// Suspended tailscaleds.
    hangs: Vec<JoinHandle<()>>,
    /// Delay of the last fault after its due time.
    late: Duration,
    /// Replica with the last fault of its tailscaled, and the end of the time in which it may look ready but become unready.
    unsure: Option<(usize, Duration)>,
    /// Last outage of the API server.
    outage: Option<JoinHandle<()>>,
    /// Times that the replicas took to follow renamed targets.
    pub(crate) renames: Vec<Duration>,
}

impl<'s, 't> Play<'s, 't> {
    pub(crate) fn new(script: &'s mut Script<'t>, api: &'s Api) -> Self {
        Self {
            script,
            api,
            peers: Peers::default(),
            hangs: Vec::new(),
            late: Duration::ZERO,
            unsure: None,
            outage: None,
            renames: Vec::new(),
        }
    }

    /// Plays until `end`, an offset from the start, and records samples of the processes.
    pub(crate) async fn play(&mut self, schedule: Schedule, end: Duration, samples: &mut Samples) -> Result<(), DemoError> {
        let (mut changes, mut troubles) = (schedule.changes.into_iter().peekable(), schedule.troubles.into_iter().peekable());
        let mut measure_at = Duration::ZERO;
        while self.script.now() < end {
            self.script.watch_over().await?;
            catch_up(&self.script.board).await;
            while let Some((at, trouble)) = troubles.next_if(|(at, trouble)| self.is_due(*at, *trouble) && self.can(*trouble)) {
                self.late = self.script.now().saturating_sub(at);
                self.befall(trouble).await?;
            }
            if let Some((_, step)) = changes.next_if(|(at, _)| *at <= self.script.now()) {
                self.script.change(step).await?;
            }
            if self.script.now() >= measure_at {
                measure_at = self.script.now() + SAMPLES;
                for pid in self.script.replicas.iter().filter_map(ReplicaProcess::pid) {
                    samples.entry(pid).or_default().extend(sample(pid, self.script.now()));
                }
            }
            tokio::time::sleep(TICK).await;
        }
        if let Some((_, revive)) = troubles.next_if(|(_, trouble)| is_revival(*trouble)) {
            self.befall(revive).await?;
        }
        Ok(())
    }

    /// A replica that was killed late restarts equally late.
    fn is_due(&self, at: Duration, trouble: Trouble) -> bool {
        let late = if is_revival(trouble) { self.late } else { Duration::ZERO };
        at + late <= self.script.now()
    }

    fn can(&self, trouble: Trouble) -> bool {
        match trouble {
            Trouble::Replica(fault @ FaultInjection::Revive(_)) => self.script.can(fault),
            Trouble::Replica(fault @ (FaultInjection::Kill(number) | FaultInjection::Leave(number))) => {
                self.is_sure(number) && self.script.can(fault)
            }
            Trouble::DaemonKilled(number) | Trouble::DaemonHangs(number, _) => {
                let is_there = self.script.replicas.get(number).is_some_and(|replica| replica.pid().is_some());
                is_there && self.is_sure(number) && self.script.can(FaultInjection::Leave(number))
            }
            // A replica learns names only from its tailscaled; a resumed one may answer again before it has sent them.
            Trouble::Renamed => self.hangs.iter().all(JoinHandle::is_finished),
            Trouble::Api(_) => self.outage.as_ref().is_none_or(JoinHandle::is_finished),
            Trouble::BadConfig | Trouble::Peers(_) => true,
        }
    }

    /// Whether the readiness of all replicas but `number` is reliable.
    fn is_sure(&self, number: usize) -> bool {
        self.unsure.is_none_or(|(struck, until)| struck == number || until < self.script.now())
    }

    /// Marks a replica's readiness as unreliable for this long; that of a previously marked one is reliable by now.
    fn doubt(&mut self, number: usize, lasts: Duration) {
        let before = self.unsure.filter(|(struck, _)| *struck == number).map_or(Duration::ZERO, |(_, until)| until);
        self.unsure = Some((number, before.max(self.script.now() + lasts)));
    }

    async fn befall(&mut self, trouble: Trouble) -> Result<(), DemoError> {
        println!("{:8.2} s: {trouble:?}", self.script.now().as_secs_f64());
        match trouble {
            Trouble::Replica(fault) => self.script.inject(fault)?,
            Trouble::BadConfig => {
                self.script.volume.write_bytes(b"{\"half a con").map_err(DemoError::io("write the egress config"))?;
                tokio::time::sleep(SPOILT).await;
                self.script.put()?;
            }
            Trouble::Peers(others) => {
                self.peers.others = others;
                for replica in 0..REPLICAS {
                    let own = self.script.launch.own(replica.into());
                    daemon::describe(&own, replica, &self.peers);
                    daemon::write_line(&own, "CUT");
                }
            }
            Trouble::Renamed => self.rename().await,
            Trouble::DaemonKilled(number) => {
                self.doubt(number, NOTICED);
                daemon::write_line(&self.script.launch.own(number), "EXIT 9");
            }
            Trouble::DaemonHangs(number, lasts) => {
                self.doubt(number, lasts + NOTICED);
                self.hangs.retain(|hang| !hang.is_finished());
                let replica = self.script.replicas.get(number).and_then(ReplicaProcess::pid);
                self.hangs.extend(replica.map(|replica| tokio::spawn(daemon::hang(replica, lasts))));
            }
            Trouble::Api(outage) => {
                let owns = (0..REPLICAS).map(|replica| self.script.launch.own(replica.into())).collect();
                self.outage = Some(tokio::spawn(suffer(self.api.clone(), outage, owns)));
            }
        }
        Ok(())
    }

    /// Rotates the targets' names, in the tailnets of all replicas.
    async fn rename(&mut self) {
        let (launch, peers) = (self.script.launch.clone(), &mut self.peers);
        let took = self.script.rename(|names| {
            peers.names = names.to_vec();
            for replica in 0..REPLICAS {
                let own = launch.own(replica.into());
                daemon::describe(&own, replica, peers);
                daemon::write_names(&own, peers);
            }
        });
        self.renames.push(took.await);
    }

    /// Waits until the API server and every replica are back and the current states are written.
    pub(crate) async fn end(&mut self) -> Result<(), DemoError> {
        self.script.settle_down(WRITTEN).await?;
        if let Some(outage) = self.outage.take() {
            outage.await.expect("the API server is back");
        }
        let until = self.script.now() + WRITTEN;
        loop {
            let states = self.api.states().await;
            let Some(fault) = self.fault_of(&states) else { return Ok(()) };
            if self.script.now() > until {
                look(&self.script.board).add_fault(&fault);
                return Ok(());
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// First state Secret with unexpected contents, as an error.
    fn fault_of(&self, states: &[State]) -> Option<String> {
        let board = look(&self.script.board);
        let (replica, state) = (0..).zip(states).find(|(replica, state)| !is_current(&board, *replica, state))?;
        Some(format!("the state Secret of replica {replica} is not what it should be: {state:?}"))
    }
}

fn is_revival(trouble: Trouble) -> bool {
    matches!(trouble, Trouble::Replica(FaultInjection::Revive(_)))
}

/// Causes an outage of the API server. While it is killed, a starting tailscaled cannot read its state from the Secret.
async fn suffer(api: Api, outage: Outage, owns: Vec<PathBuf>) {
    let lead_to_secret = |is_there| owns.iter().for_each(|own| daemon::lead_to_secret(own, is_there));
    lead_to_secret(matches!(outage, Outage::Hangs(_)));
    api.suffer(outage).await;
    lead_to_secret(true);
}
