//! Script of the demo: continuous config changes, one killed replica and one drained replica.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::DemoError;
use super::replicas::{Launch, ReplicaProcess};
use super::scoreboard::{ReplicaPhase, ReplicaRow, ScoreboardChange, SharedScoreboard, look};
use super::services::{DemoService, Volume, target_letter};
use super::swap::{catch_up, seen_in_force};
use super::topology::Topology;
use crate::model::diagnostics::load::Lane;

/// Interval of config changes.
const CONFIG_INTERVAL: Duration = Duration::from_millis(200);
/// Number of probed services of a change that affects all: it is one transaction.
const PROBED: usize = 8;
/// Maximum time after a replica's exit for clients to receive its resets, on a busy machine.
const RESET_DELAY: Duration = Duration::from_secs(2);
/// Maximum time for attempts on a service to end before it is removed: longer than any attempt lasts.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(12);

/// A fault at a scheduled time, with the replica's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultInjection {
    Kill(usize),
    Revive(usize),
    /// The replica gets SIGTERM and is restarted after its exit.
    Leave(usize),
}

/// Times in percent of the whole; a fault that stops a replica waits until the others can replace it.
const BLOWS: [(u32, FaultInjection); 3] = [(25, FaultInjection::Kill(0)), (40, FaultInjection::Revive(0)), (55, FaultInjection::Leave(1))];

/// Sequence of changes, repeated.
const ROUND: [ScenarioStep; 8] = [
    ScenarioStep::Retarget,
    ScenarioStep::Retarget,
    ScenarioStep::Add,
    ScenarioStep::Retarget,
    ScenarioStep::Retarget,
    ScenarioStep::Remove,
    ScenarioStep::Retarget,
    ScenarioStep::All,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScenarioStep {
    Retarget,
    Add,
    /// Removes the oldest added service.
    Remove,
    /// All services but the first get other targets, in one change.
    All,
}

#[derive(Debug)]
pub struct Script<'t> {
    pub topology: &'t Topology,
    pub board: SharedScoreboard,
    pub volume: Volume,
    pub replicas: Vec<ReplicaProcess>,
    pub launch: Launch,
    /// Number of services that are never removed: the first ones.
    pub lasting: u16,
    /// The number of the next new service.
    pub next: u16,
    pub dice: fastrand::Rng,
}

impl Script<'_> {
    /// Runs the script until `end`, an offset from the start.
    pub async fn play(&mut self, end: Duration) -> Result<(), DemoError> {
        let mut blows = BLOWS.into_iter().map(|(hundredths, fault)| (end * hundredths / 100, fault)).peekable();
        let mut steps = ROUND.into_iter().cycle();
        while self.now() < end {
            let next = self.now() + CONFIG_INTERVAL;
            self.watch_over().await?;
            catch_up(&self.board).await;
            while let Some((_, fault)) = blows.next_if(|(at, fault)| *at <= self.now() && self.can(*fault)) {
                self.inject(fault)?;
            }
            if let Some(step) = steps.next() {
                self.change(step).await?;
            }
            tokio::time::sleep(next.saturating_sub(self.now())).await;
        }
        Ok(())
    }

    /// Waits, after the load, until every replica is ready again.
    pub async fn settle_down(&mut self, limit: Duration) -> Result<(), DemoError> {
        let until = self.now() + limit;
        while look(&self.board).members.iter().any(|member| !member.ready) {
            self.watch_over().await?;
            if self.now() > until {
                look(&self.board).add_fault(&format!("a replica was not ready {} s after the load's end", limit.as_secs()));
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        catch_up(&self.board).await;
        Ok(())
    }

    fn did(&self, what: &str, took: Duration) {
        look(&self.board).latest = format!("{what}, in force after {:.1} ms", took.as_secs_f64() * 1e3);
    }

    pub fn now(&self) -> Duration {
        look(&self.board).now()
    }

    /// Handles exited processes: restarts a drained replica; any other exit is a fault, except after a kill.
    pub async fn watch_over(&mut self) -> Result<(), DemoError> {
        for (number, replica) in self.replicas.iter_mut().enumerate() {
            let Some(status) = replica.ended()? else { continue };
            all_noticed(&self.board, number).await;
            let mut board = look(&self.board);
            let Some(life) = board.members.get(number).map(|member| member.life) else { continue };
            match life {
                ReplicaPhase::Killed => {}
                ReplicaPhase::Leaving => {
                    if !status.success() {
                        board.add_fault(&format!("replica {number} left with {status}"));
                    }
                    // In a cluster the Pod's network would be gone now, and they would hang.
                    let hung = board.members.get(number).map_or(0, |member| member.connections);
                    if hung > 0 {
                        board.add_fault(&format!("replica {number} left {hung} connections behind without a reset"));
                    }
                    board.add_event(format!("replica {number} has left; it is started again"));
                    set_life(&mut board, number, ReplicaPhase::Restarting);
                    replica.start(&self.launch)?;
                }
                ReplicaPhase::Running | ReplicaPhase::Restarting => {
                    board.add_fault(&format!("replica {number} ended by itself: {status}"));
                    board.add_event(format!("replica {number} ended by itself: {status}"));
                    set_life(&mut board, number, ReplicaPhase::Killed);
                }
            }
        }
        Ok(())
    }

    /// Whether the other replicas can replace this one, and it can receive the signal.
    pub fn can(&self, fault: FaultInjection) -> bool {
        match fault {
            FaultInjection::Kill(number) => look(&self.board).can_spare(number),
            // A second SIGTERM would shorten a drain that has begun.
            FaultInjection::Leave(number) => {
                let board = look(&self.board);
                board.can_spare(number) && board.members.get(number).is_some_and(ReplicaRow::serves)
            }
            FaultInjection::Revive(_) => true,
        }
    }

    pub fn inject(&mut self, fault: FaultInjection) -> Result<(), DemoError> {
        let (FaultInjection::Kill(number) | FaultInjection::Revive(number) | FaultInjection::Leave(number)) = fault;
        let Some(replica) = self.replicas.get_mut(number) else { return Ok(()) };
        let mut board = look(&self.board);
        match fault {
            FaultInjection::Kill(_) => {
                board.open_window(number);
                replica.signal(Signal::SIGKILL);
                board.add_event(format!("replica {number} is killed (SIGKILL)"));
            }
            FaultInjection::Revive(_) => {
                set_life(&mut board, number, ReplicaPhase::Restarting);
                replica.start(&self.launch)?;
                board.add_event(format!("replica {number} is started again"));
            }
            FaultInjection::Leave(_) => {
                set_life(&mut board, number, ReplicaPhase::Leaving);
                replica.signal(Signal::SIGTERM);
                board.add_event(format!("replica {number} is asked to leave (SIGTERM)"));
            }
        }
        Ok(())
    }

    /// Makes a change and waits until it is in force on every ready replica.
    pub async fn change(&mut self, step: ScenarioStep) -> Result<(), DemoError> {
        match step {
            ScenarioStep::Retarget => self.retarget().await,
            ScenarioStep::Add => self.add().await,
            ScenarioStep::Remove => self.remove().await,
            ScenarioStep::All => self.retarget_all().await,
        }
    }

    /// Gives a random service another target; never the first if there are more.
    async fn retarget(&mut self) -> Result<(), DemoError> {
        let Some(service) = self.dice.choice(self.moved()) else { return Ok(()) };
        let from = look(&self.board).rows.get(&service.number).map_or(service.target, |row| row.service.target);
        look(&self.board).write(service);
        let written = self.put()?;
        let took = seen_in_force(&self.board, &[service.number], Some(ScoreboardChange::Retarget), written).await;
        self.did(&format!("{}: {} → {}", service.name(), target_letter(from), target_letter(service.target)), took);
        Ok(())
    }

    /// Gives all services but the first other targets, in one change.
    async fn retarget_all(&mut self) -> Result<(), DemoError> {
        let moved = self.moved();
        for service in &moved {
            look(&self.board).write(*service);
        }
        let written = self.put()?;
        let numbers: Vec<u16> = moved.iter().map(|service| service.number).collect();
        let took = self.all_seen(&numbers, Some(ScoreboardChange::Retarget), written).await;
        self.did(&format!("{} services to their next target at once", numbers.len()), took);
        Ok(())
    }

    /// Moves each name to another target, and with it the services whose target is a name. `publish` sends the mapping to the replicas'
    /// tailnets. Waits until every ready replica applies it; returns the duration.
    pub async fn rename(&mut self, publish: impl FnOnce(&[u16])) -> Duration {
        let (moved, names) = {
            let mut board = look(&self.board);
            (board.rename(), board.names.clone())
        };
        let written = self.now();
        publish(&names);
        let took = self.all_seen(&moved, None, written).await;
        self.did("the names of the targets each to the next one", took);
        took
    }

    /// Waits until a change of all these services, of which some are probed, is in force on every ready replica.
    async fn all_seen(&self, numbers: &[u16], change: Option<ScoreboardChange>, written: Duration) -> Duration {
        let (probed, rest) = numbers.split_at(PROBED.min(numbers.len()));
        let took = seen_in_force(&self.board, probed, change, written).await;
        // It is one transaction: if some services, of both families, are in force on a replica, so are the rest.
        let mut board = look(&self.board);
        let now = board.now();
        for lane in rest.iter().flat_map(|service| board.lanes(*service)).collect::<Vec<_>>() {
            let settled = |service: &u16| board.ledger.is_settled(Lane { service: (*service).into(), ..lane });
            if probed.iter().all(settled) {
                board.ledger.settle(lane, now);
            }
        }
        took
    }

    async fn add(&mut self) -> Result<(), DemoError> {
        let service = DemoService { number: self.next, target: self.dice.u16(..self.targets()) };
        self.next += 1;
        look(&self.board).write(service);
        let written = self.put()?;
        let took = seen_in_force(&self.board, &[service.number], Some(ScoreboardChange::Add), written).await;
        self.did(&format!("{} added, to {}", service.name(), target_letter(service.target)), took);
        look(&self.board).activate(service.number);
        Ok(())
    }

    /// Removes the oldest added service, once it is unused.
    async fn remove(&mut self) -> Result<(), DemoError> {
        let Some(number) = look(&self.board).rows.keys().copied().find(|number| *number >= self.lasting) else { return Ok(()) };
        self.empty(number).await;
        look(&self.board).write_removal(number);
        let written = self.put_without(Some(number))?;
        let took = seen_in_force(&self.board, &[number], Some(ScoreboardChange::Remove), written).await;
        self.did(&format!("{} removed", DemoService { number, target: 0 }.name()), took);
        look(&self.board).rows.remove(&number);
        Ok(())
    }

    /// Stops new connections to a service; returns when those in flight have ended.
    async fn empty(&self, number: u16) {
        let until = self.now() + ATTEMPT_TIMEOUT;
        loop {
            {
                let mut board = look(&self.board);
                let Some(row) = board.rows.get_mut(&number) else { return };
                row.active = false;
                if row.under_way == 0 || board.now() > until {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Services that may change, each with its next target.
    fn moved(&self) -> Vec<DemoService> {
        let targets = self.targets();
        let board = look(&self.board);
        let spared = usize::from(self.lasting > 1);
        board.rows.values().skip(spared).map(|row| DemoService { target: (row.service.target + 1) % targets, ..row.service }).collect()
    }

    fn targets(&self) -> u16 {
        u16::try_from(self.topology.targets.len()).unwrap_or(u16::MAX).max(1)
    }

    /// Writes the config of the board's services; returns the time of the swap.
    pub fn put(&mut self) -> Result<Duration, DemoError> {
        self.put_without(None)
    }

    fn put_without(&mut self, removed: Option<u16>) -> Result<Duration, DemoError> {
        let all = look(&self.board).rows.values().map(|row| row.service).collect::<Vec<_>>();
        let services = all.into_iter().filter(|service| Some(service.number) != removed);
        let at = self.volume.write(self.topology, services).map_err(DemoError::io("write the egress config"))?;
        Ok(at.saturating_duration_since(look(&self.board).start))
    }
}

/// Waits until the long-lived connections by an exited replica have ended: its last resets are in flight.
async fn all_noticed(board: &SharedScoreboard, replica: usize) {
    let until = look(board).now() + RESET_DELAY;
    let open = || {
        let board = look(board);
        board.now() < until && board.members.get(replica).is_some_and(|member| member.connections > 0)
    };
    while open() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn set_life(board: &mut super::scoreboard::Scoreboard, replica: usize, life: ReplicaPhase) {
    if let Some(member) = board.members.get_mut(replica) {
        member.life = life;
    }
}
