//! Parsers of Go value formats: the variables were defined by a Go program.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Parses a boolean as Go's `strconv.ParseBool`.
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a duration as Go's `time.ParseDuration` (`300ms`, `1.5h`, `2h45m`) with nanosecond precision, but rejects negative ones.
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut parts = 0;
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_len);
        let unit_len = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        total = total.checked_add(part(number, unit_nanos(unit)?)?)?;
        rest = tail;
        parts += 1;
    }
    (parts > 0).then_some(total)
}

/// One number of a duration, multiplied by its unit.
fn part(number: &str, unit: u64) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Digits after the eighteenth are below one nanosecond for all units up to the hour.
    let digits = fraction.get(..fraction.len().min(18))?;
    let exponent = u32::try_from(digits.len()).ok()?;
    let fraction = if digits.is_empty() { 0 } else { digits.parse::<u128>().ok()? * u128::from(unit) / 10_u128.pow(exponent) };
    let nanos = whole.checked_mul(unit)?.checked_add(u64::try_from(fraction).ok()?)?;
    Some(Duration::from_nanos(nanos))
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Parses `address:port`, with IPv6 addresses in brackets. `pod` is the Pod's own address: templates that put it before the port produce an
/// IPv6 address without brackets, which is accepted.
pub fn address_port(text: &str, pod: Option<&str>) -> Option<SocketAddr> {
    let bare_port = || {
        let pod = pod.filter(|pod| pod.contains(':'))?;
        let port = text.strip_prefix(pod)?.strip_prefix(':')?;
        let address: IpAddr = pod.parse().ok()?;
        Some(SocketAddr::new(address, port.parse().ok()?))
    };
    text.parse().ok().or_else(bare_port)
}

/// Removes `--accept-dns` from extra arguments and returns its last value. A malformed one is not removed.
pub fn accept_dns(args: &str) -> (Vec<String>, Option<bool>) {
    let mut last = None;
    let mut parts = Vec::new();
    for arg in args.split_whitespace() {
        let value = match arg.strip_prefix("--accept-dns") {
            Some("") => Some(true),
            Some(rest) => rest.strip_prefix('=').and_then(boolean),
            None => None,
        };
        match value {
            Some(value) => last = Some(value),
            None => parts.push(arg.to_owned()),
        }
    }
    (parts, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_parsed_as_in_go() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(boolean(text), Some(true), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(boolean(text), Some(false), "{text}");
        }
        for text in ["", "yes", "on", "tRUE", " true", "2"] {
            assert_eq!(boolean(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_parsed_as_in_go() {
        let good = [
            ("60s", 60_000_000_000),
            ("1m30s", 90_000_000_000),
            ("0", 0),
            ("0s", 0),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("+3ms", 3_000_000),
            ("1h15m30.918273645s", 4_530_918_273_645),
            ("0.3333333333333333333h", 1_200_000_000_000 - 1),
            ("2us", 2_000),
            ("2\u{b5}s", 2_000),
        ];
        for (text, nanos) in good {
            assert_eq!(duration(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "90", "s", ".s", "1.2.3s", "-1s", "1 s", "1d", "9999999999h", "+", "3s4"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn bare_pod_ipv6_address_gets_brackets() {
        let expected: SocketAddr = "[fd00::5]:9002".parse().expect("an address");
        assert_eq!(address_port("fd00::5:9002", Some("fd00::5")), Some(expected));
        assert_eq!(address_port("[fd00::5]:9002", Some("fd00::5")), Some(expected));
        assert_eq!(address_port("fd00::5:9002", Some("fd00::6")), None);
        assert_eq!(address_port("fd00::5:9002", None), None);
        assert_eq!(address_port("10.0.0.5:9002", Some("10.0.0.5")), "10.0.0.5:9002".parse().ok());
        assert_eq!(address_port("localhost:9002", None), None);
    }

    #[test]
    fn accept_dns_flag_is_extracted_from_the_arguments() {
        let cases = [
            ("--shields-up", vec!["--shields-up"], None),
            ("--accept-dns --a", vec!["--a"], Some(true)),
            ("--a  --accept-dns=false\t--b", vec!["--a", "--b"], Some(false)),
            ("--accept-dns=false --accept-dns=true", vec![], Some(true)),
            ("--accept-dns=maybe", vec!["--accept-dns=maybe"], None),
            ("--accept-dns-not", vec!["--accept-dns-not"], None),
        ];
        for (args, remaining, last) in cases {
            assert_eq!(accept_dns(args), (remaining.into_iter().map(str::to_owned).collect(), last), "{args}");
        }
    }
}
