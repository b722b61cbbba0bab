use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn keys(version: usize) -> CopyKeys {
    [("egress-services".to_owned(), Bytes::from(format!(r#"{{"v{version}":{{}}}}"#)))].into()
}

fn text(text: &'static str) -> CopyKeys {
    [("egress-services".to_owned(), Bytes::from_static(text.as_bytes()))].into()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn chosen(copies: &ConfigCopies, now: u64) -> Option<(CopySource, CopyKeys)> {
    copies.ranked(secs(now)).first().map(|(source, version)| (*source, CopyKeys::clone(&version.keys)))
}

fn versions(selection: &Selection<EgressDocument>) -> Option<Vec<String>> {
    let document = selection.in_force().document.as_ref()?;
    Some(document.config.services.keys().map(ToString::to_string).collect())
}

/// The watch delivers this copy at this second.
fn deliver(selection: &mut Selection<EgressDocument>, copy: CopyKeys, now: u64) {
    selection.delivered(copy);
    selection.settle(secs(now));
}

#[test]
fn compressed_config_is_read() {
    let mut selection = Selection::<EgressDocument>::new(secs(120), true);
    let packed = |text: &[u8]| CopyKeys::from([("egress-services.gz".to_owned(), Bytes::copy_from_slice(text))]);
    deliver(&mut selection, packed(&crate::model::base::gzip::pack(br#"{"a":{}}"#).expect("packed")), 0);
    assert_eq!(versions(&selection), Some(vec!["a".to_owned()]));
    deliver(&mut selection, packed(b"cut off"), 1);
    assert_eq!(versions(&selection), Some(vec!["a".to_owned()]), "the last good one");
    assert_eq!(selection.in_force().fault.as_ref().map(DocumentFault::reason), Some("Unreadable"));
    deliver(&mut selection, keys(7), 2);
    assert_eq!(versions(&selection), Some(vec!["v7".to_owned()]));
}

#[test]
fn mount_is_used_until_the_watch_delivers() {
    let mut copies = ConfigCopies::new(secs(120));
    assert_eq!(chosen(&copies, 0), None);
    copies.mounted(keys(1).into());
    assert_eq!(chosen(&copies, 0), Some((CopySource::File, keys(1))));
    copies.mounted(keys(2).into());
    assert_eq!(chosen(&copies, 0), Some((CopySource::File, keys(2))), "no watch yet: changes of the mount are taken at once");
    copies.delivered(keys(3).into());
    assert_eq!(chosen(&copies, 0), Some((CopySource::Api, keys(3))));
    copies.mounted(keys(1).into());
    assert_eq!(chosen(&copies, 9999), Some((CopySource::Api, keys(3))), "while the watch lives the mount is of no account");
}

#[test]
fn mount_that_catches_up_after_a_lost_watch_changes_nothing() {
    let mut copies = ConfigCopies::new(secs(120));
    copies.mounted(keys(1).into());
    for version in 1..=3 {
        copies.delivered(keys(version).into());
    }
    copies.lost(secs(10));
    for version in 2..=3 {
        copies.mounted(keys(version).into());
        assert_eq!(chosen(&copies, 9999), Some((CopySource::Api, keys(3))));
        assert_eq!(copies.due(secs(10)), None);
    }
}

#[test]
fn newer_mount_is_used_after_the_hold_until_the_watch_returns() {
    let mut copies = ConfigCopies::new(secs(120));
    copies.mounted(keys(1).into());
    copies.delivered(keys(1).into());
    copies.lost(secs(10));
    copies.mounted(keys(2).into());
    assert_eq!(chosen(&copies, 129), Some((CopySource::Api, keys(1))));
    assert_eq!(copies.due(secs(20)), Some(secs(130)));
    assert_eq!(chosen(&copies, 130), Some((CopySource::File, keys(2))));
    copies.mounted(keys(3).into());
    assert_eq!(chosen(&copies, 131), Some((CopySource::File, keys(3))));
    copies.delivered(keys(2).into());
    assert_eq!(chosen(&copies, 132), Some((CopySource::Api, keys(2))));
    copies.lost(secs(140));
    assert_eq!(chosen(&copies, 9999), Some((CopySource::Api, keys(2))), "the mount has not moved since the watch was live");
}

#[test]
fn revert_seen_only_in_the_mount_is_applied() {
    let mut copies = ConfigCopies::new(secs(120));
    copies.mounted(keys(1).into());
    copies.delivered(keys(1).into());
    copies.delivered(keys(2).into());
    copies.lost(secs(0));
    copies.mounted(keys(2).into());
    assert_eq!(chosen(&copies, 500), Some((CopySource::Api, keys(2))));
    copies.mounted(keys(1).into());
    assert_eq!(chosen(&copies, 500), Some((CopySource::File, keys(1))));
}

#[test]
fn unreadable_copy_leaves_the_last_good_config() {
    let mut selection = Selection::<EgressDocument>::new(secs(120), true);
    deliver(&mut selection, text(r#"{"cut":{"#), 1);
    assert_eq!(versions(&selection), None);
    assert_eq!(selection.in_force().fault.as_ref().map(DocumentFault::reason), Some("Unreadable"));
    selection.mounted(keys(1));
    selection.settle(secs(2));
    assert_eq!(versions(&selection), Some(vec!["v1".into()]), "an older readable copy is better than none");
    deliver(&mut selection, keys(2), 3);
    assert_eq!((versions(&selection), selection.in_force().fault.clone()), (Some(vec!["v2".into()]), None));
    deliver(&mut selection, text("[]"), 4);
    assert_eq!(versions(&selection), Some(vec!["v2".into()]), "not back to the mount");
    assert_eq!(selection.in_force().since, secs(3));
    assert!(selection.in_force().fault.as_ref().is_some_and(|fault| fault.to_string().contains("last good")));
}

#[test]
fn deleted_object_or_key_leaves_the_config_and_is_reported() {
    let mut selection = Selection::<EgressDocument>::new(secs(120), true);
    deliver(&mut selection, keys(1), 0);
    selection.absent();
    selection.settle(secs(1));
    assert_eq!((versions(&selection), selection.in_force().fault.clone()), (Some(vec!["v1".into()]), Some(DocumentFault::Deleted)));
    deliver(&mut selection, CopyKeys::new(), 2);
    let missing = DocumentFault::KeyMissing { from: CopySource::Api, key: "egress-services" };
    assert_eq!((versions(&selection), selection.in_force().fault.clone()), (Some(vec!["v1".into()]), Some(missing)));
    deliver(&mut selection, text("{}"), 3);
    assert_eq!((versions(&selection), selection.in_force().fault.clone()), (Some(vec![]), None));
}

#[test]
fn key_that_does_not_exist_yet_means_no_services() {
    let mut selection = Selection::<EgressDocument>::new(secs(120), false);
    selection.mounted([("hep-pings".to_owned(), Bytes::from_static(b" 6\n"))].into());
    selection.settle(secs(0));
    assert_eq!(versions(&selection), Some(vec![]));
    assert_eq!(selection.in_force().document.as_ref().map(|document| document.hep_pings), Some(6));
}

#[test]
fn ping_count_is_part_of_the_document() {
    let mut selection = Selection::<EgressDocument>::new(secs(120), true);
    for (pings, read) in [("3", 3), ("-1", 0), ("", 0), ("many", 0), ("9", 9)] {
        let mut copy = keys(1);
        copy.insert("hep-pings".to_owned(), Bytes::from_static(pings.as_bytes()));
        copy.insert("serve-config.json".to_owned(), Bytes::from_static(b"of no interest"));
        deliver(&mut selection, copy, 0);
        assert_eq!(selection.in_force().document.as_ref().map(|document| document.hep_pings), Some(read), "{pings:?}");
    }
}

/// What may happen to the object, the watch and the mount in one step of a history.
#[derive(Debug, Clone)]
enum Step {
    /// The object becomes the next version; a live watch delivers it.
    Edit,
    /// The watch is lost, or back with the newest version.
    Toggle,
    /// The kubelet brings the mount up to some version not older than it shows and not later than the newest.
    Sync(prop::sample::Index),
    /// Time passes, in seconds.
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Edit),
        1 => Just(Step::Toggle),
        3 => any::<prop::sample::Index>().prop_map(Step::Sync),
        2 => (1u64..200).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..80)
}

/// A cluster whose kubelet is never later than the hold.
#[derive(Default)]
struct World {
    copies: ConfigCopies,
    edited: Vec<u64>,
    mounted: usize,
    live: bool,
    now: u64,
}

const LATE: u64 = 100;

impl World {
    fn step(&mut self, step: &Step) {
        let newest = self.edited.len() - 1;
        match step {
            Step::Edit => {
                self.edited.push(self.now);
                if self.live {
                    self.copies.delivered(keys(newest + 1).into());
                }
            }
            Step::Toggle if self.live => (self.live, ()) = (false, self.copies.lost(secs(self.now))),
            Step::Toggle => (self.live, ()) = (true, self.copies.delivered(keys(newest).into())),
            Step::Sync(index) => self.mount(self.mounted + index.index(newest - self.mounted + 1)),
            Step::Wait(seconds) => self.now += seconds,
        }
        let overdue = self.edited.iter().rposition(|at| at + LATE <= self.now).unwrap_or(0);
        self.mount(overdue);
    }

    fn mount(&mut self, version: usize) {
        if version > self.mounted {
            self.mounted = version;
            self.copies.mounted(keys(version).into());
        }
    }

    fn version(&self) -> usize {
        let (_, copy) = chosen(&self.copies, self.now).expect("the mount is there from the first step");
        (0..self.edited.len()).find(|version| keys(*version) == copy).expect("a version that was written")
    }
}

proptest! {
    /// Whatever happens, a config never goes back to an older version, a live watch is always followed,
    /// and a mount that has the newest version while the watch is long gone is followed too.
    #[test]
    fn config_never_goes_back_to_an_older_version(steps in steps()) {
        let mut world = World { copies: ConfigCopies::new(secs(120)), edited: vec![0], ..World::default() };
        world.copies.mounted(keys(0).into());
        let (mut before, mut lost_at) = (world.version(), 0);
        for step in &steps {
            world.step(step);
            let version = world.version();
            prop_assert!(version >= before, "{version} after {before} by {step:?}");
            before = version;
            if world.live {
                lost_at = world.now;
                prop_assert_eq!(version, world.edited.len() - 1);
            } else if world.now >= lost_at + 120 {
                prop_assert!(version >= world.mounted, "the mount shows {} and {version} is in force", world.mounted);
            }
        }
    }
}
