//! What a Secret of the proxies' namespace is, by its name.
//!
//! A replica's Role lets its Pods change labels, owner references and every other field of the Secrets that it may write, but not names. So
//! the name decides what a Secret is, and the record of the workload (its `StatefulSet` and config Secrets, which no Pod may write) decides
//! whose it is. The names of the kinds are disjoint: a DNS name has a dot, and no name of a workload has one.

use crate::api::names;

/// End of the names in each tailnet of Tailscale.
const TAILNETS: &str = ".ts.net";

/// Kind of a Secret, with the part of its name that identifies its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretName<'a> {
    /// Config Secret of a Pod. Pods only read it: its labels are the reconciler's.
    Config { pod: &'a str },
    /// State Secret of a replica.
    State { workload: &'a str, ordinal: u32 },
    /// Certificate of a DNS name.
    Certificate,
    /// ACME account of a group.
    Account { workload: &'a str },
    /// ACME accounts that proxies share and may write: of no workload.
    SharedAccounts,
    /// Everything else.
    Other,
}

impl<'a> SecretName<'a> {
    pub fn parse(name: &'a str) -> Self {
        if name.contains('.') {
            return Self::Certificate;
        }
        if let Some(pod) = name.strip_suffix(names::CONFIG_SECRET_SUFFIX) {
            return Self::Config { pod };
        }
        if let Some(workload) = name.strip_suffix(names::ACCOUNT_SUFFIX) {
            return if name == names::ACCOUNTS { Self::SharedAccounts } else { Self::Account { workload } };
        }
        let replica = name.rsplit_once('-').and_then(|(workload, number)| Some((workload, ordinal(number)?)));
        replica.map_or(Self::Other, |(workload, ordinal)| Self::State { workload, ordinal })
    }

    /// Name of the workload to which the Secret of a replica or an account belongs.
    pub fn workload(self) -> Option<&'a str> {
        match self {
            Self::State { workload, .. } | Self::Account { workload } => Some(workload),
            Self::Config { .. } | Self::Certificate | Self::SharedAccounts | Self::Other => None,
        }
    }

    /// Whether the Secret of this name can be a certificate of users. Replicas have certificates of names in the tailnet, which only Tailscale
    /// issues.
    pub fn is_of_users(name: &str) -> bool {
        match SecretName::parse(name) {
            SecretName::Certificate => !name.ends_with(TAILNETS),
            SecretName::Other => true,
            SecretName::Config { .. } | SecretName::State { .. } | SecretName::Account { .. } | SecretName::SharedAccounts => false,
        }
    }

    /// Whether Pods of one workload may write the Secret, and so its finalizers: these do not hold its deletion.
    pub fn is_written_by_pods(self) -> bool {
        matches!(self, Self::State { .. } | Self::Certificate | Self::Account { .. })
    }
}

/// An ordinal as Kubernetes writes it, without leading zeros.
fn ordinal(text: &str) -> Option<u32> {
    let number = text.parse().ok()?;
    (format!("{number}") == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_decides_what_a_secret_is() {
        use SecretName::{Account, Certificate, Config, Other, SharedAccounts, State};
        let table = [
            ("eg-0", State { workload: "eg", ordinal: 0 }, false),
            ("ts-web-0123456789abcdef-0", State { workload: "ts-web-0123456789abcdef", ordinal: 0 }, false),
            ("eg-12", State { workload: "eg", ordinal: 12 }, false),
            ("eg-012", Other, true),
            ("eg-+1", Other, true),
            ("eg-0-config", Config { pod: "eg-0" }, false),
            ("shop.tail1.ts.net", Certificate, false),
            ("x-0.ts.net", Certificate, false),
            ("shop.example.com", Certificate, true),
            ("in-acme-accounts", Account { workload: "in" }, false),
            ("tailscale-acme-accounts", SharedAccounts, false),
            ("eg", Other, true),
            ("", Other, true),
        ];
        for (name, wanted, is_of_users) in table {
            assert_eq!((SecretName::parse(name), SecretName::is_of_users(name)), (wanted, is_of_users), "{name}");
        }
    }
}
