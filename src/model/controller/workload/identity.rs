//! Device identity: which device of the tailnet is a replica's own.
//!
//! A proxy Pod writes its device ID into its state Secret, so that ID is a claim. The reconciler reads the device from the control
//! plane, checks that it joined with the replica's auth key, and records it with name and addresses in an annotation of the config Secret,
//! which Pods cannot write. Only a device that passes the check is deleted, gets routes approved, or is shown in a status.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::controller::policy::annotations::dns_label;

/// Longest identifier that a control plane hands out, in bytes; Tailscale's have about 20.
const MAX_ID_LENGTH: usize = 64;
/// Longest DNS name in text, in bytes.
const MAX_DNS_NAME_LENGTH: usize = 253;
/// Maximum addresses of a device; control planes give it one of each family.
pub const MAX_ADDRESSES: usize = 8;
/// Lifetime of an auth key: a starting Pod needs seconds.
pub const KEY_LIFETIME: Duration = Duration::from_hours(1);
/// Seconds after the end of a key in which a device that joined with it may have been created.
const KEY_MARGIN: i64 = 60;

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

            /// Parses the value of a Secret's key.
            pub fn read(value: &[u8]) -> Option<Self> {
                Self::parse(std::str::from_utf8(value).ok()?)
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
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

impl TryFrom<String> for DeviceName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("a device's name has at least two DNS labels")
    }
}

/// Addresses of a device or Tailscale Service in the tailnet, in the order of their source; at most [`MAX_ADDRESSES`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<String>")]
pub struct DeviceAddresses(Vec<IpAddr>);

impl DeviceAddresses {
    /// Parses addresses. Texts that are no address of a host, and those beyond the maximum, are dropped. Those of a status are printed from
    /// these: an API server accepts only the canonical form (`StrictIPCIDRValidation`), so IPv4 addresses mapped into IPv6 are IPv4.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let unicast = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast();
        let parsed = texts.into_iter().filter_map(|text| text.parse().ok()).map(|ip: IpAddr| ip.to_canonical());
        Self(parsed.filter(unicast).take(MAX_ADDRESSES).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().copied()
    }

    /// Whether both have the same addresses, in any order.
    pub fn matches(&self, other: &Self) -> bool {
        self.iter().collect::<BTreeSet<_>>() == other.iter().collect()
    }

    pub fn texts(&self) -> Vec<String> {
        self.iter().map(|ip| ip.to_string()).collect()
    }
}

impl From<Vec<String>> for DeviceAddresses {
    fn from(texts: Vec<String>) -> Self {
        Self::parse(texts.iter().map(String::as_str))
    }
}

/// A device as its control plane describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// ID in the answer of the control plane; empty if unknown. Requests accept other IDs of a device too.
    pub id: String,
    /// Host name that its tailscaled reports.
    pub hostname: String,
    /// Tags; empty for a device of a user.
    pub tags: Vec<String>,
    pub name: DeviceLabel,
    pub addresses: DeviceAddresses,
    pub created: Option<Timestamp>,
    /// Auth key that it joined with, where the control plane reports that: Tailscale does not.
    pub key: Option<KeyId>,
}

/// Name of a device, as its control plane reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DeviceLabel {
    #[default]
    Unknown,
    /// Its first label: headscale's API has no domain.
    Host(String),
    Whole(DeviceName),
}

/// Required properties of a replica's device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectedDevice {
    /// Host names: the one in the replica's config, and the one that its group requests now.
    pub hostnames: Vec<String>,
    /// Tags; whether the device must have all of them or one, `binding` says.
    pub tags: Vec<String>,
    pub binding: Binding,
    /// Creation time of the recorded device, in seconds; `None` if it is not known.
    pub created: Option<i64>,
}

/// Evidence that binds a device to a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Binding {
    /// Recorded after an earlier check: its ID and one tag suffice before it is changed. Its Pod may change the host name.
    #[default]
    Recorded,
    /// Recorded by a former version, without addresses: a host name is required too.
    RecordedByName,
    /// Recorded, and only read again: nothing is required. An administrator may change its tags.
    Reread,
    /// It joined with the key that was created for the replica: exactly these tags.
    Minted(KeyMint),
    /// It existed before the reconciler managed the replica, which never got a key: exactly the expected tags.
    Adopted,
}

/// Why a device is not the replica's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The control plane names the device otherwise.
    #[error("its ID in the control plane is another one")]
    Id,
    /// Its host name is another one.
    #[error("its host name is not that of the replica")]
    Hostname,
    #[error("it has none of the tags of the ProxyGroup")]
    Tags,
    #[error("its tags are not exactly those that its replica requests")]
    OtherTags,
    #[error("it joined with another auth key than the replica's")]
    Key,
    #[error("it was not created while the replica's auth key was valid")]
    Time,
    /// headscale gives an ID again after a restore of its database.
    #[error("it was created at another time than the recorded device")]
    Created,
}

impl ExpectedDevice {
    /// The device, if it is as expected; `None` if another one has its ID, so that it no longer exists.
    pub fn find(&self, id: &DeviceId, device: Device) -> Result<Option<Device>, Mismatch> {
        match self.check(id, &device) {
            Err(Mismatch::Created) => Ok(None),
            checked => checked.map(|()| Some(device)),
        }
    }

    pub fn check(&self, id: &DeviceId, device: &Device) -> Result<(), Mismatch> {
        if !device.id.is_empty() && device.id != id.as_str() {
            return Err(Mismatch::Id);
        }
        let created = device.created.map(Timestamp::as_second);
        if self.created.zip(created).is_some_and(|(recorded, created)| recorded != created) {
            return Err(Mismatch::Created);
        }
        if self.binding == Binding::Reread {
            return Ok(());
        }
        let has_hostname = || self.hostnames.iter().any(|hostname| hostname.eq_ignore_ascii_case(&device.hostname));
        if self.binding != Binding::Recorded && !has_hostname() {
            return Err(Mismatch::Hostname);
        }
        let exactly = |tags: &[String]| tags.iter().collect::<BTreeSet<_>>() == device.tags.iter().collect();
        let has_one = || device.tags.iter().any(|tag| self.tags.contains(tag));
        match &self.binding {
            Binding::Minted(mint) if !mint.is_previous(id, created) => {
                if exactly(&mint.tags) {
                    mint.admits(id, device)
                } else {
                    Err(Mismatch::OtherTags)
                }
            }
            Binding::Adopted if !exactly(&self.tags) => Err(Mismatch::OtherTags),
            Binding::Adopted => Ok(()),
            _ => {
                if has_one() {
                    Ok(())
                } else {
                    Err(Mismatch::Tags)
                }
            }
        }
    }
}

/// The last auth key that was created for a replica. JSON in the annotation `tailyard.io/auth-key` of its config Secret; it stays when the
/// key is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyMint {
    pub id: KeyId,
    /// Creation time by the control plane's clock, in seconds.
    pub created: i64,
    pub tags: Vec<String>,
    /// Host name in the replica's config.
    pub hostname: String,
    /// Recorded device that joins again with this key: a control plane that cannot delete it lets it keep its ID and creation time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<DeviceId>,
    /// Creation time of that device, in seconds. Records of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_created: Option<i64>,
}

impl KeyMint {
    /// Time after which no device can join with the key, in seconds.
    pub fn end(&self) -> i64 {
        self.created.saturating_add(i64::try_from(KEY_LIFETIME.as_secs()).unwrap_or(i64::MAX)).saturating_add(KEY_MARGIN)
    }

    /// Whether a device is the one that the key replaces.
    pub fn is_previous(&self, id: &DeviceId, created: Option<i64>) -> bool {
        self.previous.as_ref() == Some(id) && self.previous_created.zip(created).is_none_or(|(recorded, created)| recorded == created)
    }

    /// Whether a device joined with the key: as the control plane reports, else by its creation time. headscale gives the ID of a key again
    /// after a restore of its database, so a device that is newer than the key's life has another one; an older device that registers again
    /// without its former key stays the same device there.
    fn admits(&self, id: &DeviceId, device: &Device) -> Result<(), Mismatch> {
        if device.key.as_ref().is_some_and(|key| *key != self.id) {
            return Err(Mismatch::Key);
        }
        let may_be_older = device.key.is_some() && self.previous.as_ref() != Some(id);
        let begin = if may_be_older { i64::MIN } else { self.created };
        let within = device.created.is_some_and(|created| (begin..=self.end()).contains(&created.as_second()));
        if within { Ok(()) } else { Err(Mismatch::Time) }
    }
}

/// Record of a replica's device, after a check. JSON in the annotation `tailyard.io/device` of its config Secret. Records of earlier
/// versions have neither name nor addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    pub id: DeviceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Creation time by the control plane's clock, in seconds, if it reports one. Records of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,
    /// Tags at the time of the check.
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<DeviceName>,
    #[serde(default, skip_serializing_if = "DeviceAddresses::is_empty")]
    pub addresses: DeviceAddresses,
}

impl DeviceRecord {
    /// Record of a device. `domain` completes the name where the control plane reports no domain.
    pub fn new(id: DeviceId, device: Device, domain: Option<&str>) -> Self {
        let name = match device.name {
            DeviceLabel::Whole(name) => Some(name),
            DeviceLabel::Host(host) => domain.and_then(|domain| DeviceName::parse(&format!("{host}.{domain}"))),
            DeviceLabel::Unknown => None,
        };
        let domain = name.as_ref().map(|name| name.domain().to_owned());
        let created = device.created.map(Timestamp::as_second);
        Self { id, domain, created, tags: device.tags, name, addresses: device.addresses }
    }

    /// Whether it has name and addresses.
    pub fn is_complete(&self) -> bool {
        self.name.is_some() && !self.addresses.is_empty()
    }
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
        let expected = expected(Binding::RecordedByName);
        for (hostname, tags, result) in [
            ("pg-0", &["tag:k8s", "tag:b"][..], Ok(())),
            ("NEW-0", &["tag:k8s"], Ok(())),
            ("pg-1", &["tag:k8s"], Err(Mismatch::Hostname)),
            ("", &["tag:k8s"], Err(Mismatch::Hostname)),
            ("pg-0", &["tag:payroll"], Err(Mismatch::Tags)),
            ("pg-0", &[], Err(Mismatch::Tags)),
        ] {
            assert_eq!(expected.check(&id("n1"), &device(hostname, tags)), result, "{hostname} {tags:?}");
        }
        let nothing = ExpectedDevice::default();
        assert_eq!(nothing.check(&id("n1"), &device("", &[])), Err(Mismatch::Tags), "nothing expected matches nothing");
        let recorded = ExpectedDevice { binding: Binding::Recorded, ..expected.clone() };
        assert_eq!(recorded.check(&id("n1"), &device("renamed", &["tag:k8s"])), Ok(()), "its Pod may rename it");
        assert_eq!(recorded.check(&id("n1"), &device("pg-0", &["tag:payroll"])), Err(Mismatch::Tags));
        let other = Device { id: "4711".into(), ..device("pg-0", &["tag:k8s"]) };
        assert_eq!(expected.check(&id("n1"), &other), Err(Mismatch::Id), "the answer is about a device of another ID");
    }

    #[test]
    fn new_device_needs_exactly_the_tags_of_its_key() {
        for (tags, result) in [
            (&["tag:k8s"][..], Ok(())),
            (&["tag:k8s", "tag:k8s"], Ok(())),
            (&["tag:k8s", "tag:b"], Err(Mismatch::OtherTags)),
            (&[], Err(Mismatch::OtherTags)),
        ] {
            let joined = Device { created: Some(time(1_000)), ..device("pg-0", tags) };
            for binding in [Binding::Minted(mint()), Binding::Adopted] {
                assert_eq!(expected(binding.clone()).check(&id("n1"), &joined), result, "{tags:?} {binding:?}");
            }
            assert_eq!(expected(Binding::Reread).check(&id("n1"), &joined), Ok(()), "tags of a recorded device are an administrator's");
        }
    }

    #[test]
    fn device_is_bound_to_its_key_by_time_or_by_key_id() {
        let expected = expected(Binding::Minted(mint()));
        let joined = |created: Option<Timestamp>, key: Option<&str>| Device {
            created,
            key: key.and_then(KeyId::parse),
            ..device("pg-0", &["tag:k8s"])
        };
        for (created, key, result) in [
            (Some(time(999)), None, Err(Mismatch::Time)),
            (Some(time(1_000)), None, Ok(())),
            (Some(time(1_000 + 3_600)), None, Ok(())),
            (Some(time(1_000 + 3_661)), None, Err(Mismatch::Time)),
            (None, None, Err(Mismatch::Time)),
            (Some(time(1_000)), Some("k1"), Ok(())),
            (Some(time(999)), Some("k1"), Ok(())),
            (Some(time(1_000 + 3_661)), Some("k1"), Err(Mismatch::Time)),
            (None, Some("k1"), Err(Mismatch::Time)),
            (Some(time(1_000)), Some("k2"), Err(Mismatch::Key)),
        ] {
            assert_eq!(expected.check(&id("n1"), &joined(created, key)), result, "{created:?} {key:?}");
        }
        assert_eq!(expected.check(&id("nOld"), &joined(Some(time(1)), None)), Ok(()), "the recorded device that it replaces");
    }

    #[test]
    fn device_that_a_key_replaces_is_recognized_by_its_creation_time() {
        let device = |created, key: &str| Device { created, key: KeyId::parse(key), ..device("pg-0", &["tag:k8s"]) };
        for (recorded, created, key, result) in [
            (Some(1), Some(time(1)), "k7", Ok(())),
            (None, Some(time(2)), "k7", Ok(())),
            (Some(1), None, "k7", Ok(())),
            (Some(1), Some(time(2)), "k7", Err(Mismatch::Key)),
            (Some(1), Some(time(2)), "k1", Err(Mismatch::Time)),
            (Some(1), Some(time(1_000)), "k1", Ok(())),
        ] {
            let mint = KeyMint { previous_created: recorded, ..mint() };
            let checked = expected(Binding::Minted(mint.clone())).check(&id("nOld"), &device(created, key));
            assert_eq!(checked, result, "{recorded:?} {created:?} {key}");
            let text = serde_json::to_string(&mint).expect("JSON");
            assert_eq!(serde_json::from_str::<KeyMint>(&text).expect("a key"), mint);
        }
    }

    #[test]
    fn addresses_are_bounded_and_of_hosts() {
        let parsed = DeviceAddresses::parse(["100.64.0.1", "x", "", "127.0.0.1", "0.0.0.0", "ff02::1", "::1", "fd7a::1", "100.64.0.1/32"]);
        assert_eq!(parsed.texts(), ["100.64.0.1", "fd7a::1"]);
        let other_forms = DeviceAddresses::parse(["FD7A:0:0::1", "::ffff:100.64.0.1", "fd7a:115c:a1e0:0000::0a", "100.064.0.1"]);
        assert_eq!(other_forms.texts(), ["fd7a::1", "100.64.0.1", "fd7a:115c:a1e0::a"]);
        let many: Vec<_> = (0..100_u8).map(|last| format!("100.64.0.{last}")).collect();
        assert_eq!(DeviceAddresses::from(many).iter().count(), MAX_ADDRESSES);
    }

    #[test]
    fn records_of_earlier_versions_are_incomplete() {
        let old: DeviceRecord = serde_json::from_str(r#"{"id":"n1","domain":"ts.net","tags":["tag:k8s"]}"#).expect("a record");
        assert!(!old.is_complete());
        let name = DeviceLabel::Whole(DeviceName::parse("pg-0.tail1.ts.net.").expect("a name"));
        let addresses = DeviceAddresses::parse(["100.64.0.1"]);
        let record = DeviceRecord::new(id("n1"), Device { name, addresses, ..Device::default() }, Some("other.net"));
        assert_eq!((record.is_complete(), record.domain.as_deref()), (true, Some("tail1.ts.net")));
        let text = serde_json::to_string(&record).expect("JSON");
        assert_eq!(serde_json::from_str::<DeviceRecord>(&text).expect("a record"), record);
        let by_host = |domain| DeviceRecord::new(id("n1"), Device { name: DeviceLabel::Host("pg-0".into()), ..Device::default() }, domain);
        assert_eq!(by_host(Some("hs.lab")).name, DeviceName::parse("pg-0.hs.lab"));
        assert_eq!((by_host(None).name, by_host(Some("not a domain")).name), (None, None));
    }

    fn id(text: &str) -> DeviceId {
        DeviceId::parse(text).expect("an ID")
    }

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn mint() -> KeyMint {
        let key = KeyId::parse("k1").expect("an ID");
        KeyMint {
            id: key,
            created: 1_000,
            tags: vec!["tag:k8s".into()],
            hostname: "pg-0".into(),
            previous: Some(id("nOld")),
            previous_created: None,
        }
    }

    #[test]
    fn device_with_the_id_of_a_recorded_one_that_was_created_at_another_time_is_another_one() {
        let device = Device { created: Some(time(1_000)), ..device("pg-0", &["tag:k8s"]) };
        let record = DeviceRecord::new(id("n1"), device.clone(), None);
        assert_eq!(record.created, Some(1_000));
        for binding in [Binding::Recorded, Binding::RecordedByName, Binding::Reread] {
            let of = |created| ExpectedDevice { created, ..expected(binding.clone()) }.check(&id("n1"), &device);
            assert_eq!([None, Some(1_000), Some(999)].map(of), [Ok(()), Ok(()), Err(Mismatch::Created)], "{binding:?}");
            let find = |created| ExpectedDevice { created, ..expected(binding.clone()) }.find(&id("n1"), device.clone());
            assert_eq!((find(Some(1_000)), find(Some(999))), (Ok(Some(device.clone())), Ok(None)), "the recorded one no longer exists");
        }
    }

    fn expected(binding: Binding) -> ExpectedDevice {
        ExpectedDevice { hostnames: vec!["pg-0".into(), "new-0".into()], tags: vec!["tag:k8s".into()], binding, created: None }
    }

    fn device(hostname: &str, tags: &[&str]) -> Device {
        Device { hostname: hostname.into(), tags: tags.iter().map(|tag| (*tag).to_owned()).collect(), ..Device::default() }
    }

    proptest! {
        /// As Kubernetes prints addresses: lower case, the longest run of zeros shortened, no mapped IPv4.
        #[test]
        fn addresses_are_printed_in_one_form(ip in any::<[u16; 8]>(), zeros in any::<u8>(), upper in any::<bool>()) {
            let groups: Vec<u16> = ip.iter().enumerate().map(|(at, group)| if zeros >> at & 1 == 1 { 0 } else { *group }).collect();
            let long = groups.iter().map(|group| format!("{group:04x}")).collect::<Vec<_>>().join(":");
            let written = if upper { long.to_uppercase() } else { long.clone() };
            let texts = DeviceAddresses::parse([written.as_str()]).texts();
            prop_assert_eq!(&DeviceAddresses::from(texts.clone()).texts(), &texts);
            for text in texts {
                let parsed: IpAddr = text.parse().expect("an address");
                let of_long: IpAddr = long.parse().expect("an address");
                prop_assert_eq!(parsed, of_long.to_canonical());
                prop_assert_eq!(&text, &text.to_lowercase());
                prop_assert!(!text.contains("::ffff:") && text.len() <= long.len(), "{}", text);
            }
        }

        #[test]
        fn parsed_identifiers_stay_one_path_segment(text in ".{0,80}") {
            if let Some(id) = DeviceId::parse(&text) {
                prop_assert!(id.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric()));
                prop_assert_eq!(id.as_str(), text);
            }
        }
    }
}
