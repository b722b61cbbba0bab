//! Scenarios: parts of a test that share what is expensive to start. Each is reported as libtest reports a test; the runner of tiers reads
//! these lines.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::time::Instant;

/// Runs a scenario and prints its result. A panic of it ends the test, with the scenario's name.
pub fn scenario<T>(name: &str, play: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let played = panic::catch_unwind(AssertUnwindSafe(play));
    let result = if played.is_ok() { "ok" } else { "FAILED" };
    println!("test {name} ... {result} <{:.3}s>", begin.elapsed().as_secs_f64());
    played.unwrap_or_else(|fault| panic!("{name}: {}", message(fault.as_ref())))
}

/// Name, whether it passed, and seconds, from a line that [`scenario`] printed.
pub fn parse(line: &str) -> Option<(&str, bool, f64)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let (result, seconds) = result.strip_suffix("s>")?.split_once(" <")?;
    let is_ok = match result {
        "ok" => true,
        "FAILED" => false,
        _ => return None,
    };
    Some((name, is_ok, seconds.parse().ok()?))
}

/// Message of a panic.
fn message(fault: &(dyn Any + Send)) -> &str {
    fault.downcast_ref::<String>().map(String::as_str).or_else(|| fault.downcast_ref().copied()).unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_line_is_parsed() {
        assert_eq!(parse("test a rolling restart ... ok <12.500s>"), Some(("a rolling restart", true, 12.5)));
        assert_eq!(parse("test a ... b ... FAILED <0.001s>"), Some(("a ... b", false, 0.001)));
        for other in ["test a ... ignored", "test a ... ok", "a ... ok <1s>", "test result: ok. 1 passed; finished in 0.00s", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn failed_scenario_ends_the_test_with_its_name() {
        assert_eq!(scenario("a", || 1), 1);
        let fault = panic::catch_unwind(|| scenario("a part", || panic!("no answer"))).expect_err("a panic");
        assert_eq!(message(fault.as_ref()), "a part: no answer");
    }
}
