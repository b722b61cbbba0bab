//! Minimum transfer rate of a body: limits how long one side of a transfer may stall.
//!
//! With only an idle timeout, a client that sends one byte a minute could hold a connection forever. So waiting times add up and bytes
//! reduce them: a transfer at [`MIN_RATE`] never times out, a slower one ends.

use std::time::Duration;

/// Bytes per second.
pub const MIN_RATE: u32 = 64;

/// Remaining waiting time, with earlier remainders, after this number of bytes.
pub fn unpaid(waited: Duration, bytes: usize) -> Duration {
    waited.saturating_sub(Duration::from_secs(u64::try_from(bytes).unwrap_or(u64::MAX)) / MIN_RATE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);

    /// Time at which a transfer with this number of bytes after each pause times out; `None` if it never does.
    fn ended_after(pause: Duration, bytes: usize, steps: u32) -> Option<Duration> {
        let mut remains = Duration::ZERO;
        for step in 0..steps {
            if remains + pause >= LIMIT {
                return Some(pause * step + LIMIT.saturating_sub(remains));
            }
            remains = unpaid(remains + pause, bytes);
        }
        None
    }

    #[test]
    fn trickle_is_no_progress_and_a_slow_link_is() {
        let seconds = Duration::from_secs;
        assert_eq!(ended_after(seconds(60), 1, 100), Some(seconds(60)));
        assert_eq!(ended_after(seconds(59), 1, 100), Some(seconds(60) + seconds(1) / 64));
        assert!(ended_after(seconds(1), 32, 1000).is_some_and(|after| after <= seconds(120)));
        assert_eq!(ended_after(seconds(30), 30 * 64, 1000), None);
    }

    proptest! {
        #[test]
        fn transfer_at_the_minimum_rate_continues_and_half_of_it_ends(pause in 1u64..59, excess in 0usize..10_000) {
            let least = usize::try_from(pause).expect("small") * MIN_RATE as usize;
            prop_assert_eq!(ended_after(Duration::from_secs(pause), least + excess, 10_000), None);
            let after = ended_after(Duration::from_secs(pause), least / 2, 10_000);
            prop_assert!(after.is_some_and(|after| after <= 2 * LIMIT), "{after:?}");
        }
    }
}
