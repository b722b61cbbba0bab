//! Status conditions by the Kubernetes convention: one per type, with the time of the last status change.
//!
//! Times have the API server's precision of one second, so that values read back equal the values written. The clock is the caller's.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::api::condition::{self, Condition};

/// Bytes of a message that the API server accepts.
const MAX_MESSAGE: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    /// Value as in the object.
    pub fn name(self) -> &'static str {
        match self {
            Self::True => condition::TRUE,
            Self::False => condition::FALSE,
            Self::Unknown => condition::UNKNOWN,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredCondition<'a> {
    /// Condition type.
    pub kind: &'static str,
    pub status: ConditionStatus,
    /// One-word reason.
    pub reason: &'a str,
    /// Cause, and remedy if any.
    pub message: String,
    /// Generation of the object that the condition refers to; 0 if the format has none.
    pub generation: i64,
}

/// Truncates a time to the API server's precision.
pub fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// A message, cut if the API server would reject it.
fn cut(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    format!("{}…", &message[..message.floor_char_boundary(MAX_MESSAGE - '…'.len_utf8())])
}

/// Adds or replaces a condition, whose message is cut if it is too long. Returns whether the list changed.
pub fn set(conditions: &mut Vec<Condition>, wanted: &DesiredCondition<'_>, now: Timestamp) -> bool {
    let condition = |since: Time| Condition {
        type_: wanted.kind.to_owned(),
        status: wanted.status.name().to_owned(),
        reason: wanted.reason.to_owned(),
        message: cut(&wanted.message),
        observed_generation: (wanted.generation != 0).then_some(wanted.generation),
        last_transition_time: since,
    };
    let Some(existing) = conditions.iter_mut().find(|found| found.type_ == wanted.kind) else {
        conditions.push(condition(seconds(now)));
        return true;
    };
    let since = if existing.status == wanted.status.name() { existing.last_transition_time.clone() } else { seconds(now) };
    let mut new = condition(since);
    if existing.observed_generation.unwrap_or(0) == wanted.generation {
        new.observed_generation = existing.observed_generation;
    }
    let differs = *existing != new;
    *existing = new;
    differs
}

/// Removes a condition. Returns whether it existed.
pub fn remove(conditions: &mut Vec<Condition>, kind: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != kind);
    conditions.len() != before
}

pub fn of_service<'a>(service: &'a Service, kind: &str) -> Option<&'a Condition> {
    get(service.status.as_ref()?.conditions.as_deref()?, kind)
}

/// Whether a Service has the condition with status `True`.
pub fn is_true(service: &Service, kind: &str) -> bool {
    of_service(service, kind).is_some_and(|condition| condition.status == condition::TRUE)
}

pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time").checked_add(std::time::Duration::from_millis(700)).expect("a time")
    }

    fn wanted(status: ConditionStatus, reason: &'static str) -> DesiredCondition<'static> {
        DesiredCondition { kind: "Ready", status, reason, message: format!("{reason} it is"), generation: 0 }
    }

    #[test]
    fn transition_time_changes_only_with_the_status() {
        let mut conditions = Vec::new();
        assert!(set(&mut conditions, &wanted(ConditionStatus::False, "A"), at(1)));
        assert!(set(&mut conditions, &wanted(ConditionStatus::False, "B"), at(2)));
        assert_eq!(conditions[0].last_transition_time.0.as_second(), 1);
        assert!(set(&mut conditions, &wanted(ConditionStatus::True, "C"), at(3)));
        assert_eq!((conditions.len(), conditions[0].last_transition_time.0.as_second()), (1, 3));
        assert_eq!(get(&conditions, "Ready").map(|condition| condition.status.as_str()), Some("True"));
        assert_eq!(get(&conditions, "Other"), None);
    }

    #[test]
    fn condition_read_back_from_the_api_server_is_unchanged() {
        let mut conditions = Vec::new();
        set(&mut conditions, &wanted(ConditionStatus::True, "A"), at(1));
        let text = serde_json::to_string(&conditions).expect("JSON");
        let mut read: Vec<Condition> = serde_json::from_str(&text).expect("conditions");
        assert_eq!(read, conditions);
        read[0].observed_generation = Some(0);
        assert!(!set(&mut read, &wanted(ConditionStatus::True, "A"), at(9)), "theirs writes a 0, ours leaves it out");
    }

    #[test]
    fn message_that_the_api_server_would_reject_is_cut() {
        for (unit, count) in [("x", MAX_MESSAGE), ("x", MAX_MESSAGE + 1), ("é", MAX_MESSAGE), ("…", 10_923), ("…", 10_922)] {
            let mut conditions = Vec::new();
            let wanted = DesiredCondition { message: unit.repeat(count), ..wanted(ConditionStatus::False, "A") };
            set(&mut conditions, &wanted, at(1));
            let (message, whole) = (conditions[0].message.clone(), &wanted.message);
            assert!(message.len() <= MAX_MESSAGE && message.len() + 4 > whole.len().min(MAX_MESSAGE), "{unit} {count}: {}", message.len());
            assert_eq!(message == *whole, whole.len() <= MAX_MESSAGE, "{unit} {count}");
            assert!(!set(&mut conditions, &wanted, at(2)), "{unit} {count}: it is unchanged");
        }
    }

    #[test]
    fn conditions_of_other_types_stay_in_order() {
        let mut conditions = Vec::new();
        for kind in ["Other", "Ready", "Third"] {
            set(&mut conditions, &DesiredCondition { kind, ..wanted(ConditionStatus::True, "A") }, at(1));
        }
        set(&mut conditions, &wanted(ConditionStatus::False, "B"), at(2));
        let kinds = |conditions: &[Condition]| conditions.iter().map(|each| each.type_.clone()).collect::<Vec<_>>();
        assert_eq!(kinds(&conditions), ["Other", "Ready", "Third"]);
        assert!(remove(&mut conditions, "Ready") && !remove(&mut conditions, "Ready"));
        assert_eq!(kinds(&conditions), ["Other", "Third"]);
    }
}
