//! Helper for latest-wins `watch` cells.

use tokio::sync::watch;

/// Sets a value; returns whether it differs from the previous one. An equal value wakes no receiver.
pub fn put<T: PartialEq>(cell: &watch::Sender<T>, value: T) -> bool {
    cell.send_if_modified(|current| {
        let differs = *current != value;
        if differs {
            *current = value;
        }
        differs
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_value_does_not_notify() {
        let (cell, mut receiver) = watch::channel(1);
        assert!(!put(&cell, 1) && !receiver.has_changed().expect("a sender"));
        assert!(put(&cell, 2));
        assert_eq!((receiver.has_changed().expect("a sender"), *receiver.borrow_and_update()), (true, 2));
    }
}
