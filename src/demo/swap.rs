//! Timed config change: from the file's swap until it is in force on every ready replica.
//!
//! A probe repeats requests through a replica until the new target answers. From then on the ledger accepts no other answer there, so that
//! the load detects a replica that falls back.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::scoreboard::{ReplicaRow, Scoreboard, ScoreboardChange, SharedScoreboard, look};
use crate::load::make;
use crate::load::protocol::TargetProtocol;
use crate::model::base::net::{Family, Proto};
use crate::model::diagnostics::load::{Attempt, AttemptFailure, Lane, TargetIdentity};

/// Time after which a change counts as lost.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a probe's request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Number of requests without a pause; later ones are a millisecond apart.
const EAGER: u64 = 16;

/// Waits until a change of these services, written at `written`, is in force on every ready replica.
///
/// `change` is the kind of change, for the figures; `None` for changes that a replica missed during its restart. Returns the time until the
/// last replica applied it.
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
    // A replica that was killed or drained meanwhile need not apply it.
    if board.members.get(usize::from(lane.replica)).is_some_and(|member| member.ready) {
        board.add_fault(&format!("service {} by replica {}: {what}", lane.service, lane.replica));
    }
}

/// Probes the service's families; settles the lane when the last one is confirmed.
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

/// Sends requests until the expected target answers, or until connections are refused if none is expected; returns that time.
async fn probe(board: &SharedScoreboard, attempt: Attempt, expected: Option<TargetIdentity>, start: Instant) -> Result<Duration, String> {
    let begun = Instant::now();
    for nonce in 0.. {
        let report = make(TargetProtocol::Identity, attempt, nonce, start, start.elapsed(), (TIMEOUT, false)).await;
        match look(board).checked_report(&report).outcome {
            Ok(answer) if Some(answer) == expected => return Ok(report.ended),
            Err(AttemptFailure::Refused) if expected.is_none() => return Ok(report.ended),
            // During the change the service refuses, or the previous target answers.
            Ok(_) | Err(AttemptFailure::Refused) => {}
            // A removal may reset connections that were opened before it.
            Err(AttemptFailure::Reset) if expected.is_none() => {}
            Err(failure) => return Err(format!("a probe failed: {failure:?}")),
        }
        if begun.elapsed() > CHANGE_TIMEOUT {
            break;
        }
        if nonce > EAGER {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Err(format!("the change was not in force after {} s", CHANGE_TIMEOUT.as_secs()))
}

/// Settles changes that ready replicas missed during their restart.
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
