//! Long-lived flows, and the readiness probes of the replicas.

use std::time::{Duration, Instant};

use super::replicas::is_ready;
use super::scoreboard::{ReplicaPhase, Scoreboard, SharedScoreboard, look};
use crate::load::flows::{FlowUpdate, Rhythm, hold};
use crate::load::protocol::TargetProtocol;
use crate::model::base::net::{Family, Proto};
use crate::model::diagnostics::load::{Attempt, AttemptFailure, Lane, TargetIdentity};

/// Interval of a flow's requests.
const REQUEST_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of readiness probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// Delay before a broken flow is reopened.
const REOPEN_DELAY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
pub struct HeldFlow {
    pub service: u16,
    /// Replica that it uses while ready.
    pub replica: u8,
    pub family: Family,
    pub proto: Proto,
}

/// The flows of the demo: to a service that never changes and to one that often does, by each replica, family and protocol.
pub fn flows(services: u16) -> Vec<HeldFlow> {
    let changed = if services > 2 { 2 } else { 0 };
    let of = |service: u16, twist: u8| {
        (0..4_u8).map(move |n| HeldFlow {
            service,
            replica: (n + twist) % 2,
            family: Family::ALL[usize::from(n / 2)],
            proto: if (n + n / 2) % 2 == 0 { Proto::Tcp } else { Proto::Udp },
        })
    };
    of(0, 0).chain(of(changed, 1)).collect()
}

/// Keeps a flow open forever: by its replica, or by another ready one while that is not ready.
pub async fn keep(board: SharedScoreboard, flow: HeldFlow) {
    loop {
        let (attempt, start) = {
            let board = look(&board);
            (by_ready_replica(&board, flow), board.start)
        };
        if let Some(attempt) = attempt
            && let Err(failure) = hold_one(&board, attempt, start).await
        {
            broken(&mut look(&board), attempt, failure);
        }
        tokio::time::sleep(REOPEN_DELAY).await;
    }
}

fn by_ready_replica(board: &Scoreboard, flow: HeldFlow) -> Option<Attempt> {
    let members = u8::try_from(board.members.len()).ok()?;
    let ready = |replica: &u8| board.members.get(usize::from(*replica)).is_some_and(|member| member.ready);
    let replica = (0..members).map(|n| (flow.replica + n) % members).find(ready)?;
    board.attempt(Lane { service: flow.service.into(), replica }, flow.family, flow.proto)
}

async fn hold_one(board: &SharedScoreboard, attempt: Attempt, start: Instant) -> Result<(), AttemptFailure> {
    let mut first: Option<TargetIdentity> = None;
    let (mut opened, mut behind) = (false, None);
    let outcome = hold(attempt, &TargetProtocol::Identity, Rhythm::always(REQUEST_INTERVAL), start, |beat| {
        let mut board = look(board);
        match beat {
            FlowUpdate::Open { .. } => {
                opened = true;
                board.count_flow(attempt, true);
            }
            FlowUpdate::Lost => board.flows.datagrams_lost += 1,
            FlowUpdate::Answered { by, began, ended } => {
                board.flows.answered += 1;
                // A connection keeps its target when the service changes; a UDP flow follows the service.
                let wrong = match (attempt.proto, first) {
                    (Proto::Tcp, Some(first)) => (by != first).then(|| "another target than at first".to_owned()),
                    _ => board.wrong_for_flow(attempt.lane, began, ended, by),
                };
                if let Some(what) = wrong {
                    board.flows.wrong_target += 1;
                    let (at, Lane { service, replica }) = (began.as_secs_f64(), attempt.lane);
                    board.faults.push(format!(
                        "{at:.2} s: a {} flow of service {service} by replica {replica} was answered by {what}",
                        attempt.proto
                    ));
                }
                first.get_or_insert(by);
                if attempt.proto == Proto::Udp {
                    let before = std::mem::replace(&mut behind, board.behind(attempt.lane, began, ended, by));
                    board.followed.extend(before.filter(|_| behind.is_none()));
                }
            }
        }
    })
    .await;
    if opened {
        look(board).count_flow(attempt, false);
    }
    outcome
}

/// Counts a broken flow. A draining replica resets connections that outlive its drain timeout; a hung connection is a fault even then.
fn broken(board: &mut Scoreboard, attempt: Attempt, failure: AttemptFailure) {
    let life = board.members.get(usize::from(attempt.lane.replica)).map(|member| member.life);
    let leaving = matches!(life, Some(ReplicaPhase::Leaving | ReplicaPhase::Restarting));
    let orderly = attempt.proto == Proto::Udp || matches!(failure, AttemptFailure::Reset | AttemptFailure::Closed);
    if leaving && orderly {
        board.flows.handed_over += 1;
        board.add_event(format!("a {} flow was ended by its leaving replica {} and is reopened", attempt.proto, attempt.lane.replica));
        return;
    }
    board.flows.broken += 1;
    let lane = attempt.lane;
    board.add_fault(&format!("a {} flow of service {} by replica {} broke: {failure:?}", attempt.proto, lane.service, lane.replica));
}

/// Probes a replica's readiness forever, as a kubelet does, and records the results on the board.
pub async fn listen(board: SharedScoreboard, replica: usize, admin: std::net::SocketAddr) {
    let mut ticks = tokio::time::interval(PROBE_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let began = look(&board).now();
        let ready = is_ready(admin).await;
        look(&board).record_probe(replica, began, ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_cover_each_protocol_and_family_of_each_replica() {
        let flows = flows(10);
        for (proto, family, replica) in
            Proto::ALL.into_iter().flat_map(|p| Family::ALL.into_iter().flat_map(move |f| [(p, f, 0), (p, f, 1)]))
        {
            let found = flows.iter().filter(|flow| (flow.proto, flow.family, flow.replica) == (proto, family, replica)).count();
            assert_eq!(found, 1, "{proto} {family} replica {replica}");
        }
    }
}
