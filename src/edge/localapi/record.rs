//! DNS records that prove control of a name (`set-dns`).

use std::fmt::Write as _;
use std::time::Duration;

use hyper::Method;

use super::{LocalApi, LocalApiError};

/// Timeout of a record: the daemon responds after the control server has published it.
const RECORD_TIMEOUT: Duration = Duration::from_secs(90);

impl LocalApi {
    /// Sets a TXT record through the control server, for a name that this node may have certificates for.
    pub async fn set_dns(&self, name: &str, value: &str) -> Result<(), LocalApiError> {
        let path = format!("set-dns?name={}&value={}", escaped(name), escaped(value));
        self.call("set-dns", Method::POST, &path, Vec::new(), RECORD_TIMEOUT).await.map(drop)
    }
}

/// Percent-encodes a query value: all bytes except letters, digits and `-._~`.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut escaped, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(char::from(byte)),
            _ => drop(write!(escaped, "%{byte:02X}")),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_values_are_percent_encoded() {
        assert_eq!(escaped("_acme-challenge.a.ts.net"), "_acme-challenge.a.ts.net");
        assert_eq!(escaped("a&b=c +/%"), "a%26b%3Dc%20%2B%2F%25");
    }
}
