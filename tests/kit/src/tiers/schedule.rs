//! Schedule: which tiers start next, given which of them wait, run and have ended.
//!
//! Longest expected first. The first tier that lacks slots keeps a reservation, so that shorter ones may pass it only
//! as long as they do not delay it.

use std::cmp::Reverse;

/// Scheduling data of a tier.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) slots: u32,
    pub(super) resource: Option<&'static str>,
    pub(super) expected: u32,
    pub(super) stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its servers are being built.
    Waiting,
    Ready,
    Running,
    Ended,
}

/// The jobs to start now, by index. Never exceeds `budget`, except that a job larger than the budget runs alone; never runs two
/// jobs of one resource.
pub(super) fn next(jobs: &[Job], budget: u32) -> Vec<usize> {
    let rank = |id: usize| (Reverse(jobs[id].expected), id);
    let slots = |id: usize| jobs[id].slots.min(budget);
    let in_stage = |stage| (0..jobs.len()).filter(|&id| jobs[id].stage == stage).collect::<Vec<_>>();
    let mut running = in_stage(Stage::Running);
    let mut ready = in_stage(Stage::Ready);
    ready.sort_by_key(|&id| rank(id));

    let mut taken: Vec<&str> = running.iter().filter_map(|&id| jobs[id].resource).collect();
    let mut reserved: Option<usize> = None;
    let mut start = Vec::new();
    for id in ready {
        if jobs[id].resource.is_some_and(|resource| taken.contains(&resource)) {
            continue;
        }
        taken.extend(jobs[id].resource);
        let used: u32 = running.iter().map(|&id| slots(id)).sum();
        // Slots that lower ranks may not take from the job with the reservation.
        let reserve = reserved.map_or(0, |first| {
            let passed = running.iter().filter(|&&other| rank(other) > rank(first)).map(|&other| slots(other));
            slots(first) + passed.sum::<u32>()
        });
        if used.max(reserve) + slots(id) <= budget {
            running.push(id);
            start.push(id);
        } else {
            reserved = reserved.or(Some(id));
        }
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u32 = 3;

    fn job(slots: u32, expected: u32, stage: Stage) -> Job {
        Job { slots, resource: None, expected, stage }
    }

    #[test]
    fn longest_ready_jobs_start_within_the_budget() {
        let ready = |slots, expected| job(slots, expected, Stage::Ready);
        let jobs = [ready(1, 5), ready(2, 90), ready(2, 60), ready(1, 10), job(1, 500, Stage::Waiting)];
        assert_eq!(next(&jobs, BUDGET), [1, 3], "the other heavy job lacks a slot, a light one does not delay it");
        assert_eq!(next(&jobs, 1), [1], "a job larger than the budget runs alone");
    }

    #[test]
    fn a_heavy_job_is_not_delayed_by_shorter_ones() {
        let running = |slots, expected| job(slots, expected, Stage::Running);
        let ready = |slots, expected| job(slots, expected, Stage::Ready);
        assert_eq!(next(&[running(1, 9), running(1, 8), ready(2, 60), ready(1, 5)], BUDGET), [0_usize; 0]);
        assert_eq!(next(&[running(2, 99), ready(2, 60), ready(1, 5), ready(1, 4)], BUDGET), [2]);
    }

    #[test]
    fn jobs_of_one_resource_never_run_together() {
        let one = |expected, stage| Job { resource: Some("cluster"), ..job(1, expected, stage) };
        assert_eq!(next(&[one(5, Stage::Ready), one(9, Stage::Ready), job(1, 1, Stage::Ready)], BUDGET), [1, 2]);
        assert_eq!(next(&[one(5, Stage::Ready), one(9, Stage::Running)], BUDGET), [0_usize; 0]);
    }

    /// A generator of small numbers (Knuth's MMIX constants).
    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    #[test]
    fn every_job_of_random_sets_runs_once_within_the_limits() {
        for seed in 0..500 {
            let mut state = seed;
            let budget = u32::try_from(1 + random(&mut state, 4)).expect("small");
            let resources = [None, None, Some("cluster"), Some("api")];
            let mut jobs: Vec<Job> = (0..12)
                .map(|_| Job {
                    slots: if random(&mut state, 3) == 0 { 2 } else { 1 },
                    resource: resources[usize::try_from(random(&mut state, 4)).expect("small")],
                    expected: u32::try_from(random(&mut state, 100)).expect("small"),
                    stage: if random(&mut state, 2) == 0 { Stage::Waiting } else { Stage::Ready },
                })
                .collect();
            let mut started = 0;
            while jobs.iter().any(|job| job.stage != Stage::Ended) {
                for id in next(&jobs, budget) {
                    assert_eq!(jobs[id].stage, Stage::Ready);
                    jobs[id].stage = Stage::Running;
                    started += 1;
                }
                let running: Vec<&Job> = jobs.iter().filter(|job| job.stage == Stage::Running).collect();
                assert!(running.iter().map(|job| job.slots).sum::<u32>() <= budget || running.len() == 1, "seed {seed}");
                let mut resources: Vec<_> = running.iter().filter_map(|job| job.resource).collect();
                let all = resources.len();
                resources.sort_unstable();
                resources.dedup();
                assert_eq!(resources.len(), all, "seed {seed}");
                assert!(!running.is_empty() || jobs.iter().all(|job| job.stage != Stage::Ready), "seed {seed}: ready jobs, none runs");
                // Something happens: one job gets its servers, or one ends.
                let candidates: Vec<usize> =
                    (0..jobs.len()).filter(|&id| matches!(jobs[id].stage, Stage::Waiting | Stage::Running)).collect();
                let id = candidates[usize::try_from(random(&mut state, candidates.len() as u64)).expect("small")];
                jobs[id].stage = if jobs[id].stage == Stage::Waiting { Stage::Ready } else { Stage::Ended };
            }
            assert_eq!(started, jobs.len(), "seed {seed}");
        }
    }
}
