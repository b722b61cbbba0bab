//! Names of the DNS, of records and of queries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum length of a name, without a trailing dot.
const MAX_NAME: usize = 253;
/// Maximum length of a label.
const MAX_LABEL: usize = 63;
/// Replaces bytes of a query that no record has. Not valid in a [`DnsName`].
const FOREIGN: char = '?';
/// Labels of an IPv4 and of an IPv6 address in a reverse name.
const REVERSE_LABELS: [usize; 2] = [4, 32];

/// A fully qualified name of at least two labels of letters, digits, hyphens and underscores, in lower case without trailing dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsName(String);

impl DnsName {
    /// Parses a name; the trailing dot is optional.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let is_label = |label: &str| (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(is_permitted);
        let is_name = text.len() <= MAX_NAME && text.contains('.') && text.split('.').all(is_label);
        is_name.then(|| Self(text.to_ascii_lowercase()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Names above it, the nearest first.
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        let dots = self.0.match_indices('.').map(|(dot, _)| dot + 1);
        dots.map(|start| &self.0[start..])
    }
}

impl std::borrow::Borrow<str> for DnsName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

fn is_permitted(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// The name of a query in lower case without trailing dot, from its labels in the order of the message. Other bytes than those of
/// [`DnsName`], also dots within a label, match no record.
pub fn query_name<'a>(labels: impl Iterator<Item = &'a [u8]>) -> String {
    let mut name = String::new();
    for label in labels {
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|byte| if is_permitted(*byte) { byte.to_ascii_lowercase().into() } else { FOREIGN }));
    }
    name
}

/// Whether a name equals another one or is below it.
pub fn is_within(name: &str, zone: &str) -> bool {
    name.strip_suffix(zone).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Address of a reverse name (RFC 1035, 3.5; RFC 3596, 2.5), such as `7.0.0.10.in-addr.arpa`.
pub fn reversed_address(name: &str) -> Option<IpAddr> {
    let [of_v4, of_v6] = REVERSE_LABELS;
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        // `parse` refuses leading zeros.
        let bytes: Vec<u8> =
            labels.rsplit('.').map(|label| label.parse::<u8>().ok().filter(|byte| byte.to_string() == label)).collect::<Option<_>>()?;
        return <[u8; 4]>::try_from(bytes).ok().filter(|bytes| bytes.len() == of_v4).map(|bytes| Ipv4Addr::from(bytes).into());
    }
    let labels = name.strip_suffix(".ip6.arpa")?;
    let digit = |label: &str| label.chars().next().filter(|_| label.len() == 1)?.to_digit(16);
    let digits: Vec<u32> = labels.rsplit('.').map(digit).collect::<Option<_>>()?;
    (digits.len() == of_v6).then(|| Ipv6Addr::from(digits.iter().fold(0, |bits: u128, digit| bits << 4 | u128::from(*digit))).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_completely_or_not_at_all() {
        assert_eq!(DnsName::parse("Web.Tail.TS.net.").expect("a name").as_str(), "web.tail.ts.net");
        assert_eq!(DnsName::parse("_a.b-c.net").expect("a name").ancestors().collect::<Vec<_>>(), ["b-c.net", "net"]);
        let (long, label) = (format!("{}net", "a.".repeat(126)), format!("{}.net", "a".repeat(64)));
        for bad in ["", ".", "net", "a..net", ".net", "a b.net", "a.net..", "ä.net", "a?.net", "*.net", &long, &label] {
            assert_eq!(DnsName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn query_names_match_in_any_case_and_foreign_bytes_match_nothing() {
        let name = |labels: &[&[u8]]| query_name(labels.iter().copied());
        assert_eq!(name(&[b"WeB", b"Ts", b"nEt"]), "web.ts.net");
        assert_eq!(name(&[b"a.b", b"ts", b"net"]), "a?b.ts.net", "a dot within a label is no boundary");
        assert_eq!(name(&[b"\xff\0", b"ts", b"net"]), "??.ts.net");
        assert_eq!(name(&[]), "");
        assert!(is_within("a.ts.net", "ts.net") && is_within("ts.net", "ts.net"));
        assert!(!is_within("ats.net", "ts.net") && !is_within("net", "ts.net") && !is_within("", "ts.net"));
    }

    #[test]
    fn reverse_names_are_addresses_of_either_family() {
        let address = |name: &str| reversed_address(name).map(|ip| ip.to_string());
        assert_eq!(address("7.0.0.10.in-addr.arpa").as_deref(), Some("10.0.0.7"));
        let digits = format!("{}d.f.ip6.arpa", "7.".to_owned() + &"0.".repeat(29));
        assert_eq!(address(&digits).as_deref(), Some("fd00::7"));
        for bad in ["0.0.10.in-addr.arpa", "07.0.0.10.in-addr.arpa", "256.0.0.10.in-addr.arpa", "+7.0.0.10.in-addr.arpa", "in-addr.arpa"] {
            assert_eq!(address(bad), None, "{bad}");
        }
        for bad in ["7.d.f.ip6.arpa", "ip6.arpa", "a.ts.net", &digits.replace("7.", "70."), &digits.replace("d.f", "g.f")] {
            assert_eq!(address(bad), None, "{bad}");
        }
    }
}
