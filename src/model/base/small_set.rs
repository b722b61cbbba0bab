//! Immutable sorted set of a few values: one allocation, shared by its copies.
//!
//! A B-tree node has room for eleven values even if it holds one; there are tens of thousands of these sets.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SortedSet<T>(Arc<[T]>);

impl<T: Ord> SortedSet<T> {
    pub fn contains(&self, value: &T) -> bool {
        self.0.binary_search(value).is_ok()
    }

    /// Whether the other set contains every value of this one.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.iter().all(|value| other.contains(value))
    }
}

impl<T> std::ops::Deref for SortedSet<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_unstable();
        values.dedup();
        Self(values.into())
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for SortedSet<T> {
    fn from(values: [T; N]) -> Self {
        values.into_iter().collect()
    }
}

impl<T: Ord> From<BTreeSet<T>> for SortedSet<T> {
    fn from(values: BTreeSet<T>) -> Self {
        Self(values.into_iter().collect())
    }
}

impl<'a, T> IntoIterator for &'a SortedSet<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sorted_set_equals_a_btree_set(a in proptest::collection::vec(0..12_u8, 0..8), b in proptest::collection::vec(0..12_u8, 0..8)) {
            let (few_a, few_b): (SortedSet<_>, SortedSet<_>) = (a.iter().copied().collect(), b.iter().copied().collect());
            let (set_a, set_b): (BTreeSet<_>, BTreeSet<_>) = (a.into_iter().collect(), b.into_iter().collect());
            prop_assert!(few_a.iter().eq(&set_a) && few_a.len() == set_a.len());
            prop_assert_eq!(few_a == few_b, set_a == set_b);
            prop_assert_eq!(few_a.cmp(&few_b), set_a.cmp(&set_b));
            prop_assert_eq!(few_a.is_subset(&few_b), set_a.is_subset(&set_b));
            prop_assert!((0..12).all(|value| few_a.contains(&value) == set_a.contains(&value)));
        }
    }
}
