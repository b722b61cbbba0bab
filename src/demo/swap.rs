//! A change of the config, timed: from the moment the file is in place until every ready replica acts on it.
//!
//! A probe asks through a replica again and again; the first answer of the new target ends it. From then on the ledger
//! takes no other answer there, so a replica that fell back would be found out by the load.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::scoreboard::{ReplicaRow, Scoreboard, ScoreboardChange, SharedScoreboard, look};
use crate::load::make;
use crate::load::protocol::Talk;
use crate::model::base::net::{Family, Proto};
use crate::model::diagnostics::load::{Attempt, AttemptFailure, Lane, TargetIdentity};

/// How long a change may take before it counts as lost.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a probe waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How many probes follow one another at once; later ones are a millisecond apart.
const EAGER: u64 = 16;

/// Waits until every ready replica acts on a change of these services that was put in place at `written`.
///
/// `change` names what was done, for the figures; nothing for changes that a replica missed while it was away. Returns
/// how long it took until the last of them did.
pub async fn seen_in_force(board: &SharedScoreboard, services: &[u16], change: Option<ScoreboardChange>, written: Duration) -> Duration {
    let lanes: Vec<Lane> = {
        let board = look(board);
        let ready = |lane: &Lane| board.members.get(usize::from(lane.replica)).is_some_and(ReplicaRow::serves);
        services.iter().flat_map(|service| board.lanes(*service)).filter(ready).collect()
    };
    let probes = lanes.into_iter().map(|lane| async move { (lane, probe_lane(board, lane, written).await) });
    let mut slowest = Duration::ZERO;
    for (lane, answered) in join_all(probes).await {
        let mut board = look(board);
        match answered {
            Ok(after) => {
                slowest = slowest.max(after);
                if let Some(change) = change {
                    board.swaps.push((change, after));
                }
                if let Some(row) = u16::try_from(lane.service).ok().and_then(|service| board.rows.get_mut(&service)) {
                    row.last_swap = Some(after);
                }
            }
            Err(what) => lost(&mut board, lane, &what),
        }
    }
    slowest
}

fn lost(board: &mut Scoreboard, lane: Lane, what: &str) {
    // A replica that was killed or left meanwhile owes nothing.
    if board.members.get(usize::from(lane.replica)).is_some_and(|member| member.ready) {
        let at = board.now().as_secs_f64();
        board.faults.push(format!("{at:.1} s: service {} by replica {}: {what}", lane.service, lane.replica));
    }
}

/// Both families, so far as the service has them; settles the lane when the last one is seen.
async fn probe_lane(board: &SharedScoreboard, lane: Lane, written: Duration) -> Result<Duration, String> {
    let (attempts, expected, start) = {
        let board = look(board);
        let number = u16::try_from(lane.service).unwrap_or_default();
        let families: &[Family] = board.rows.get(&number).map_or(&[], |row| row.service.families());
        let attempts: Vec<Attempt> = families.iter().filter_map(|family| board.attempt(lane, *family, Proto::Tcp)).collect();
        (attempts, board.ledger.target(lane), board.start)
    };
    let mut last = written;
    for answered in join_all(attempts.into_iter().map(|attempt| probe(board, attempt, expected, start))).await {
        last = last.max(answered?);
    }
    let mut board = look(board);
    let now = board.now();
    board.ledger.settle(lane, now);
    Ok(last.saturating_sub(written))
}

/// Asks until the expected target answers, or until nobody does if nobody is expected; says when that was.
async fn probe(board: &SharedScoreboard, attempt: Attempt, expected: Option<TargetIdentity>, start: Instant) -> Result<Duration, String> {
    let begun = Instant::now();
    for nonce in 0.. {
        let report = make(Talk::Identity, attempt, nonce, start, start.elapsed(), TIMEOUT).await;
        match look(board).checked_report(&report).outcome {
            Ok(answer) if Some(answer) == expected => return Ok(report.ended),
            Err(AttemptFailure::Refused) if expected.is_none() => return Ok(report.ended),
            // A service that is just coming or going refuses, or is answered by the target of before.
            Ok(_) | Err(AttemptFailure::Refused) => {}
            // One that is just going may end what was begun before.
            Err(AttemptFailure::Reset) if expected.is_none() => {}
            Err(failure) => return Err(format!("a probe failed: {failure:?}")),
        }
        if begun.elapsed() > LIMIT {
            break;
        }
        if nonce > EAGER {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Err(format!("the change was not in force after {} s", LIMIT.as_secs()))
}

/// Settles what ready replicas have missed while they were away.
pub async fn catch_up(board: &SharedScoreboard) {
    let missed: Vec<u16> = {
        let board = look(board);
        let unsettled = |service: &u16| board.lanes(*service).any(|lane| !board.ledger.is_settled(lane));
        board.rows.keys().copied().filter(unsettled).collect()
    };
    if !missed.is_empty() {
        let now = look(board).now();
        seen_in_force(board, &missed, None, now).await;
    }
}
