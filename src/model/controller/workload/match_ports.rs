//! Allocator of match ports: maps each port of each Service to a port of the proxies.
//!
//! One allocator serves a whole group during one pass, so two Services cannot get the same port. A recorded port is stable; a new one is
//! searched from the last allocation onwards, so that a port that clients may have cached is reused as late as possible. Deterministic
//! and stateless: records and cursor are stored in the objects.

use std::fmt;

/// Range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchPortRange {
    from: u16,
    to: u16,
}

/// Ports of one group during one pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchPorts {
    range: MatchPortRange,
    taken: Vec<u64>,
    next: u16,
}

impl MatchPortRange {
    pub const DEFAULT: Self = Self { from: 10_000, to: 19_999 };

    /// A range; `None` if it is empty or contains port 0.
    pub fn new(from: u16, to: u16) -> Option<Self> {
        (from > 0 && from <= to).then_some(Self { from, to })
    }

    pub fn contains(self, port: u16) -> bool {
        (self.from..=self.to).contains(&port)
    }

    /// Number of ports.
    pub fn size(self) -> u32 {
        u32::from(self.to) - u32::from(self.from) + 1
    }
}

impl fmt::Display for MatchPortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from, self.to)
    }
}

impl MatchPorts {
    /// An allocator without the reserved ports that searches from `next` on.
    pub fn new(range: MatchPortRange, reserved: impl IntoIterator<Item = u16>, next: Option<u16>) -> Self {
        let next = next.filter(|port| range.contains(*port)).unwrap_or(range.from);
        let mut ports = Self { range, taken: vec![0; 1024], next };
        for port in reserved {
            ports.keep(port);
        }
        ports
    }

    /// Allocates a recorded port, inside the range or not; false if it is taken or reserved.
    pub fn keep(&mut self, port: u16) -> bool {
        let free = self.free(port);
        if let Some(word) = self.taken.get_mut(usize::from(port / 64)) {
            *word |= 1 << (port % 64);
        }
        free
    }

    /// Whether a port is neither taken nor reserved.
    pub fn free(&self, port: u16) -> bool {
        port != 0 && self.taken.get(usize::from(port / 64)).is_some_and(|word| word & (1 << (port % 64)) == 0)
    }

    /// Allocates so many free ports. `None` if there are fewer: then none is allocated.
    pub fn take(&mut self, count: usize) -> Option<Vec<u16>> {
        let MatchPortRange { from, to } = self.range;
        let candidates = (self.next..=to).chain(from..self.next);
        let found: Vec<u16> = candidates.filter(|port| self.free(*port)).take(count).collect();
        if found.len() < count {
            return None;
        }
        for port in &found {
            self.keep(*port);
            self.next = if *port >= to { from } else { port + 1 };
        }
        Some(found)
    }

    /// Start of the next search.
    pub fn next(&self) -> u16 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Services come and go; each step is a pass that starts from the records alone.
        #[test]
        fn match_ports_are_stable_distinct_and_in_range(
            steps in prop::collection::vec((0u8..40, any::<bool>()), 1..200),
            from in 1u16..u16::MAX - 60,
            reserved in prop::collection::btree_set(any::<u16>(), 0..5),
        ) {
            let range = MatchPortRange::new(from, from + 59).expect("a range");
            let (mut records, mut cursor) = (BTreeMap::<u8, u16>::new(), None);
            for (service, wanted) in steps {
                let mut ports = MatchPorts::new(range, reserved.iter().copied(), cursor);
                let before = records.clone();
                for port in records.values() {
                    prop_assert!(ports.keep(*port));
                }
                if wanted {
                    records.entry(service).or_insert_with(|| ports.take(1).expect("room for all")[0]);
                } else {
                    records.remove(&service);
                }
                cursor = Some(ports.next());
                let distinct: BTreeSet<_> = records.values().collect();
                prop_assert_eq!(distinct.len(), records.len());
                prop_assert!(records.values().all(|port| range.contains(*port) && !reserved.contains(port)));
                prop_assert!(records.iter().all(|(service, port)| before.get(service).is_none_or(|old| old == port)));
            }
        }
    }

    proptest! {
        #[test]
        fn request_for_more_ports_than_are_free_changes_nothing(
            counts in prop::collection::vec(0..30_usize, 1..20),
            reserved in prop::collection::btree_set(1_000..1_060_u16, 0..20),
            next in 1_000..1_060_u16,
        ) {
            let range = MatchPortRange::new(1_000, 1_059).expect("a range");
            let mut ports = MatchPorts::new(range, reserved, Some(next));
            for count in counts {
                let before = ports.clone();
                let free: BTreeSet<u16> = (1_000..1_060).filter(|port| before.free(*port)).collect();
                match ports.take(count) {
                    None => prop_assert!(count > free.len() && ports == before),
                    Some(taken) => {
                        let distinct: BTreeSet<u16> = taken.iter().copied().collect();
                        prop_assert!((taken.len(), distinct.len()) == (count, count) && distinct.is_subset(&free));
                        prop_assert_eq!((1_000..1_060).filter(|port| ports.free(*port)).count(), free.len() - count);
                    }
                }
            }
        }
    }

    #[test]
    fn freed_port_is_reused_last() {
        let range = MatchPortRange::new(100, 103).expect("a range");
        let mut ports = MatchPorts::new(range, [], None);
        assert_eq!([ports.take(1), ports.take(1)], [Some(vec![100]), Some(vec![101])]);
        let mut later = MatchPorts::new(range, [], Some(ports.next()));
        assert!(later.keep(101), "100 was freed");
        assert_eq!((later.take(2), later.take(1), later.take(1)), (Some(vec![102, 103]), Some(vec![100]), None));
    }

    #[test]
    fn recorded_port_outside_the_range_stays_and_a_reserved_one_does_not() {
        let mut ports = MatchPorts::new(MatchPortRange::DEFAULT, [9002], Some(3));
        assert!(ports.keep(4000) && !ports.keep(4000) && !ports.keep(9002) && !ports.keep(0));
        assert_eq!(ports.take(1), Some(vec![10_000]), "a cursor outside the range begins anew");
    }

    #[test]
    fn empty_port_range_is_rejected() {
        assert_eq!([MatchPortRange::new(0, 10), MatchPortRange::new(11, 10)], [None, None]);
        let top = MatchPortRange::new(u16::MAX, u16::MAX).expect("one port");
        assert_eq!((top.size(), top.to_string().as_str()), (1, "65535-65535"));
        assert_eq!(MatchPorts::new(top, [], None).take(1), Some(vec![u16::MAX]));
    }
}
