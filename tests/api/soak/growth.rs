//! Memory and file descriptors of processes over time, and whether they grow.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Limit for memory in the last third: the first third's times this ratio, plus this many kB for memory that the allocator retains.
const RATIO: f64 = 1.2;
const SLACK: f64 = 4_096.0;
/// Allowed increase of file descriptors: probes' connections come and go.
const DESCRIPTORS: f64 = 8.0;

/// Resource usage of a process at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// Offset from the start.
    pub(crate) at: Duration,
    /// Resident memory in kB.
    pub(crate) memory: f64,
    /// Open file descriptors.
    pub(crate) descriptors: f64,
}

/// Samples by process id.
pub(crate) type Samples = BTreeMap<u32, Vec<Sample>>;

/// Current usage of a process; `None` if it has exited.
pub(crate) fn sample(pid: u32, at: Duration) -> Option<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))?.parse().ok()?;
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some(Sample { at, memory, descriptors: f64::from(u32::try_from(descriptors).ok()?) })
}

/// Medians of the first and of the last third of the samples: memory, descriptors.
pub(crate) fn thirds(samples: &[Sample]) -> Option<[(f64, f64); 2]> {
    let (first, last) = (samples.first()?.at, samples.last()?.at);
    let third = last.saturating_sub(first) / 3;
    let median = |wanted: &dyn Fn(&Sample) -> bool, of: fn(&Sample) -> f64| {
        let mut values: Vec<_> = samples.iter().filter(|sample| wanted(sample)).map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let both =
        |of| Some((median(&|sample| sample.at <= first + third, of)?, median(&|sample| sample.at >= last.saturating_sub(third), of)?));
    Some([both(|sample| sample.memory)?, both(|sample| sample.descriptors)?])
}

/// Growth of a process that ran throughout, as text.
pub(crate) fn grown(samples: &[Sample]) -> Vec<String> {
    let Some([memory, descriptors]) = thirds(samples) else { return vec!["nothing was measured".to_owned()] };
    let growth = |grows: bool, what: &str, (from, to): (f64, f64)| grows.then(|| format!("{what} grew from {from} to {to}"));
    let memory = growth(memory.1 > memory.0 * RATIO + SLACK, "resident memory in kB", memory);
    let descriptors = growth(descriptors.1 > descriptors.0 + DESCRIPTORS, "open file descriptors", descriptors);
    memory.into_iter().chain(descriptors).collect()
}

#[test]
fn steady_growth_is_found_and_oscillation_is_not() {
    let samples = |memory: fn(f64) -> f64, descriptors: fn(f64) -> f64| -> Vec<Sample> {
        let sample = |second: u32| {
            let t = f64::from(second);
            Sample { at: Duration::from_secs(second.into()), memory: memory(t), descriptors: descriptors(t) }
        };
        (0..600).map(sample).collect()
    };
    let flat = |t: f64| 20_000.0 + 3_000.0 * (t / 7.0).sin();
    let few = |t: f64| 20.0 + (t / 5.0).cos() * 3.0;
    assert_eq!(grown(&samples(flat, few)), [""; 0]);
    assert_eq!(grown(&samples(|t| 20_000.0 + 30.0 * t, few)).len(), 1);
    assert_eq!(grown(&samples(flat, |t| 20.0 + t / 20.0)).len(), 1);
    assert_eq!(grown(&[]), ["nothing was measured"]);
}
