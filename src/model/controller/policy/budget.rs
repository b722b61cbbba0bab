//! Shares of namespaces in the shared objects of a group.
//!
//! A namespace may use three quarters of the room that the others leave free. So one that comes first fills no object: whatever it wants, a
//! quarter is left for the next one. Existing parts always stay, and a rejected part takes no room.

use std::collections::BTreeMap;

/// The part of the free room that one namespace may use.
const SHARE: (usize, usize) = (3, 4);

/// Room of `PARTS` shared objects, in bytes.
#[derive(Debug, Clone)]
pub struct NamespaceBudget<const PARTS: usize> {
    rooms: [usize; PARTS],
    used: [usize; PARTS],
    namespaces: BTreeMap<String, [usize; PARTS]>,
}

/// Most that a single namespace may use of an otherwise empty room.
pub fn share_of(room: usize) -> usize {
    room / SHARE.1 * SHARE.0
}

impl<const PARTS: usize> NamespaceBudget<PARTS> {
    pub fn new(rooms: [usize; PARTS]) -> Self {
        Self { rooms, used: [0; PARTS], namespaces: BTreeMap::new() }
    }

    /// Counts an existing part.
    pub fn keep(&mut self, namespace: &str, size: [usize; PARTS]) {
        self.count(namespace, [0; PARTS], size);
    }

    /// Replaces a part of size `from`, zero for a new one, unless its namespace would exceed its share. A smaller one is always accepted.
    /// Returns whether it was replaced.
    pub fn replace(&mut self, namespace: &str, from: [usize; PARTS], to: [usize; PARTS]) -> bool {
        let own = self.namespaces.get(namespace).copied().unwrap_or([0; PARTS]);
        let fits = |part: usize| {
            let free = self.rooms[part].saturating_sub(self.used[part] - own[part]);
            to[part] <= from[part] || own[part] - from[part] + to[part] <= share_of(free)
        };
        let accepted = (0..PARTS).all(fits);
        if accepted {
            self.count(namespace, from, to);
        }
        accepted
    }

    fn count(&mut self, namespace: &str, from: [usize; PARTS], to: [usize; PARTS]) {
        let own = self.namespaces.entry(namespace.to_owned()).or_insert([0; PARTS]);
        for part in 0..PARTS {
            own[part] = own[part] - from[part] + to[part];
            self.used[part] = self.used[part] - from[part] + to[part];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn namespace_that_comes_first_leaves_a_quarter() {
        let mut budget = NamespaceBudget::new([1_000]);
        let mut admitted = |namespace: &str| (0..2_000).filter(|_| budget.replace(namespace, [0], [1])).count();
        assert_eq!([admitted("a"), admitted("b"), admitted("c"), admitted("a")], [750, 186, 48, 0]);
    }

    #[test]
    fn existing_parts_stay_and_may_shrink_in_a_full_room() {
        let mut budget = NamespaceBudget::new([100, 100]);
        budget.keep("a", [150, 10]);
        assert!(budget.replace("a", [150, 10], [140, 10]) && !budget.replace("a", [140, 10], [141, 10]));
        assert!(!budget.replace("b", [0, 0], [1, 0]) && budget.replace("b", [0, 0], [0, 60]), "each room has its own share");
    }

    proptest! {
        /// The room is never exceeded, and a rejected part of one namespace changes nothing for another.
        #[test]
        fn rejected_parts_cost_nothing(wants in prop::collection::vec((0..4_usize, 1..400_usize), 0..60)) {
            let mut budget = NamespaceBudget::new([1_000]);
            let mut accepted = Vec::new();
            for (namespace, size) in &wants {
                if budget.replace(&namespace.to_string(), [0], [*size]) {
                    accepted.push((*namespace, *size));
                }
            }
            prop_assert!(accepted.iter().map(|(_, size)| size).sum::<usize>() <= 1_000);
            let mut without = NamespaceBudget::new([1_000]);
            for (namespace, size) in &accepted {
                prop_assert!(without.replace(&namespace.to_string(), [0], [*size]));
            }
        }
    }
}
