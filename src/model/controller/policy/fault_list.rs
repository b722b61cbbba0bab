//! Faults of a user's object as one text: an object has room for ten thousand of them, its condition or Event for a few.

/// Maximum number of faults in a text.
const MAX_LISTED: usize = 20;
/// Maximum length of a fault, in bytes. A longer one is cut in the middle: it begins with the field and ends with the action.
const MAX_LENGTH: usize = 1024;
const END_LENGTH: usize = 256;

/// The first faults, and the number of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultList {
    listed: Vec<String>,
    more: usize,
}

impl FaultList {
    /// Adds a fault; its text is made only if it is among the first.
    pub fn add(&mut self, fault: impl FnOnce() -> String) {
        if self.listed.len() < MAX_LISTED { self.listed.push(shortened(fault())) } else { self.more += 1 }
    }

    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// The first faults, and at the end the number of the others.
    pub fn texts(&self) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("There are {} more faults.", self.more));
        self.listed.iter().cloned().chain(more).collect()
    }
}

fn shortened(fault: String) -> String {
    if fault.len() <= MAX_LENGTH {
        return fault;
    }
    let begin = &fault[..fault.floor_char_boundary(MAX_LENGTH - END_LENGTH)];
    format!("{begin}…{}", &fault[fault.ceil_char_boundary(fault.len() - END_LENGTH)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_faults_are_listed_and_the_others_counted() {
        let list = |count: usize| {
            let mut list = FaultList::default();
            (0..count).for_each(|number| list.add(|| number.to_string()));
            list.texts()
        };
        for count in [0, 1, MAX_LISTED] {
            assert_eq!(list(count), (0..count).map(|number| number.to_string()).collect::<Vec<_>>());
        }
        assert_eq!(list(10_000)[19..], ["19", "There are 9980 more faults."]);
    }

    #[test]
    fn long_fault_has_its_begin_and_its_end() {
        for text in ["x", "é"] {
            let short = shortened(format!("tags: {} is no tag.", text.repeat(100_000)));
            assert!(short.len() < MAX_LENGTH + 10 && short.starts_with("tags: ") && short.ends_with(" is no tag."), "{short}");
        }
    }
}
