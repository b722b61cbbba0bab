//! Device identity: which device of the tailnet is a replica's own.
//!
//! A proxy Pod writes its device ID into its state Secret, so that ID is a claim. The reconciler reads the device from the control
//! plane, checks its host name and tags, and records it in an annotation of the config Secret, which Pods cannot write. Only a device
//! that passes the check is deleted or gets routes approved.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::controller::policy::annotations::dns_label;

/// Longest identifier that a control plane hands out, in bytes; Tailscale's have about 20.
const MAX_ID_LENGTH: usize = 64;
/// Longest DNS name in text, in bytes.
const MAX_DNS_NAME_LENGTH: usize = 253;

/// Defines an identifier of a control plane: 1 to 64 ASCII letters and digits, so that it is one segment of a URL path.
macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// Parses an identifier; `None` if it is empty, too long or has other characters than ASCII letters and digits.
            pub fn parse(text: &str) -> Option<Self> {
                let valid = (1..=MAX_ID_LENGTH).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
                valid.then(|| Self(text.to_owned()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = &'static str;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::parse(&text).ok_or("an identifier has 1 to 64 letters and digits")
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

identifier! {
    /// Stable ID of a device: such as `nAb12CNTRL` at Tailscale, decimal digits at headscale.
    DeviceId
}
identifier! {
    /// ID of an auth key: such as `kAb12CNTRL` at Tailscale, decimal digits at headscale.
    KeyId
}

/// Name of a device in its tailnet, `host.domain`, without the final dot and in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName(String);

impl DeviceName {
    /// Parses a name of at least two DNS labels, with or without the final dot.
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let valid = name.len() <= MAX_DNS_NAME_LENGTH && name.contains('.') && name.split('.').all(dns_label);
        valid.then_some(Self(name))
    }

    /// The first label.
    pub fn host(&self) -> &str {
        self.0.split_once('.').map_or("", |(host, _)| host)
    }

    /// Everything after the first label: the domain of the tailnet.
    pub fn domain(&self) -> &str {
        self.0.split_once('.').map_or("", |(_, domain)| domain)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A device as its control plane describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Host name that its tailscaled reports.
    pub hostname: String,
    /// Tags; empty for a device of a user.
    pub tags: Vec<String>,
    /// Domain of its name, where the control plane reports one: headscale does not.
    pub domain: Option<String>,
}

/// Required properties of a replica's device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectedDevice {
    /// Host names: the one in the replica's config, and the one that its group requests now.
    pub hostnames: Vec<String>,
    /// Tags, of which the device must have at least one.
    pub tags: Vec<String>,
}

/// Why a device is not the replica's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Its host name is another one.
    #[error("its host name is not that of the replica")]
    Hostname,
    #[error("it has none of the tags of the ProxyGroup")]
    Tags,
}

impl ExpectedDevice {
    pub fn check(&self, device: &Device) -> Result<(), Mismatch> {
        if !self.hostnames.iter().any(|hostname| hostname.eq_ignore_ascii_case(&device.hostname)) {
            return Err(Mismatch::Hostname);
        }
        if device.tags.iter().any(|tag| self.tags.contains(tag)) { Ok(()) } else { Err(Mismatch::Tags) }
    }
}

/// Record of a replica's device, after a check. JSON in the annotation `tailyard.io/device` of its config Secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    pub id: DeviceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Tags at the time of the check.
    #[serde(default)]
    pub tags: Vec<String>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn identifiers_are_letters_and_digits() {
        for valid in ["nABC123CNTRL", "66", "TESTCTRL00000001", &"a".repeat(64)] {
            assert_eq!(DeviceId::parse(valid).map(|id| id.to_string()), Some(valid.to_owned()));
        }
        for hostile in ["", "../user/1", "../tailnet/-/keys/k?x=", "n/1", "n%2f1", "n?x", "n#x", "..", "n 1", "nä", "n\n", &"a".repeat(65)]
        {
            assert_eq!(DeviceId::parse(hostile), None, "{hostile:?}");
            assert_eq!(KeyId::parse(hostile), None, "{hostile:?}");
        }
        assert!(serde_json::from_str::<DeviceRecord>(r#"{"id":"../user/1"}"#).is_err());
    }

    #[test]
    fn device_names_are_dns_names_of_two_labels() {
        let name = DeviceName::parse("PG-0.tail1234.ts.net.").expect("a name");
        assert_eq!((name.host(), name.domain(), name.as_str()), ("pg-0", "tail1234.ts.net", "pg-0.tail1234.ts.net"));
        for hostile in
            ["", ".", "pg-0", "pg-0.", "pg-0..ts.net", "pg-0.ts.net..", "pg_0.ts.net", "pg-0.a/b", &format!("a.{}", "b".repeat(64))]
        {
            assert_eq!(DeviceName::parse(hostile), None, "{hostile:?}");
        }
    }

    #[test]
    fn device_needs_a_host_name_and_a_tag_of_the_replica() {
        let expected = ExpectedDevice { hostnames: vec!["pg-0".into(), "new-0".into()], tags: vec!["tag:k8s".into()] };
        let device = |hostname: &str, tags: &[&str]| Device {
            hostname: hostname.into(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            domain: None,
        };
        for (hostname, tags, result) in [
            ("pg-0", &["tag:k8s", "tag:b"][..], Ok(())),
            ("NEW-0", &["tag:k8s"], Ok(())),
            ("pg-1", &["tag:k8s"], Err(Mismatch::Hostname)),
            ("", &["tag:k8s"], Err(Mismatch::Hostname)),
            ("pg-0", &["tag:payroll"], Err(Mismatch::Tags)),
            ("pg-0", &[], Err(Mismatch::Tags)),
        ] {
            assert_eq!(expected.check(&device(hostname, tags)), result, "{hostname} {tags:?}");
        }
        assert_eq!(ExpectedDevice::default().check(&device("", &[])), Err(Mismatch::Hostname), "nothing expected matches nothing");
    }

    proptest! {
        #[test]
        fn parsed_identifiers_stay_one_path_segment(text in ".{0,80}") {
            if let Some(id) = DeviceId::parse(&text) {
                prop_assert!(id.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric()));
                prop_assert_eq!(id.as_str(), text);
            }
        }
    }
}
