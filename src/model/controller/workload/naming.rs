//! Names of workloads of standalone objects.

use std::collections::BTreeSet;

use crate::api::names;
use crate::model::base::hash::sha256;

/// Longest part of an object's name in the name of its workload: a Pod has a label of that name and eleven bytes.
const LONGEST_PART: usize = 43;

/// Length of the suffix of a workload's name.
const SUFFIX: usize = 5;

/// Names of the workloads of an object, of which there is one unless the Tailscale operator left several.
///
/// `sets`: `StatefulSet`s and headless Services with the object's labels. `devices`: Pods whose state Secret has a device. The first of
/// the result is kept: it has a device, or else it is the first by name.
pub fn workloads<'a>(sets: impl Iterator<Item = &'a str>, devices: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let of_devices = devices.iter().filter_map(|pod| pod.rsplit_once('-')).map(|(set, _)| set);
    let mut all: Vec<_> = sets.chain(of_devices).collect::<BTreeSet<_>>().into_iter().collect();
    all.sort_by_key(|set| !devices.contains(names::replica(set, 0).as_str()));
    all
}

/// Name of a new workload: a prefix of the object's name, without dots, and a suffix of the UID's hash.
pub fn new_name(name: &str, uid: &str) -> String {
    let part = name.get(..name.len().min(LONGEST_PART)).unwrap_or(name).trim_end_matches(['-', '.']);
    let part = part.replace('.', "-");
    format!("ts-{part}-{}", &sha256(uid.as_bytes())[..SUFFIX])
}

/// Name of the `StatefulSet` of a workload's second Pod: as long as a new name, so that labels with it have room.
pub fn standby_name(workload: &str) -> String {
    let stem = workload.rsplit_once('-').map_or(workload, |(stem, _)| stem);
    format!("{stem}-{}", &sha256(format!("{workload}/standby").as_bytes())[..SUFFIX])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_names_have_at_most_fifty_two_characters() {
        for length in [1, 42, 43, 44, 63] {
            let name = new_name(&"a".repeat(length), "uid");
            assert_eq!(name.len(), "ts--".len() + length.min(LONGEST_PART) + SUFFIX);
            assert!(name.len() <= 52);
        }
        assert_ne!(new_name("web", "1"), new_name("web", "2"), "a Service that is created again gets another name");
        assert_eq!(new_name(&format!("{}-b", "a".repeat(42)), "1").matches("--").count(), 0);
    }

    #[test]
    fn workload_with_a_device_is_kept() {
        let pods = ["ts-web-ccccc-0"].into_iter().collect();
        assert_eq!(workloads(["ts-web-aaaaa", "ts-web-bbbbb"].into_iter(), &pods), ["ts-web-ccccc", "ts-web-aaaaa", "ts-web-bbbbb"]);
        assert_eq!(workloads(["ts-web-bbbbb", "ts-web-aaaaa"].into_iter(), &BTreeSet::new()), ["ts-web-aaaaa", "ts-web-bbbbb"]);
    }
}
