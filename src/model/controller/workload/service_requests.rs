//! Order and rate of a pass's requests for Tailscale Services.
//!
//! A pass sends a few of them, so that it does not take minutes: first releases, then new requests, in which namespaces take turns. One that
//! the control plane has refused comes last and waits longer each time: names that a tenant cannot have delay no other name.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use crate::model::controller::workload::actions::ControlAction;
use crate::model::controller::workload::observed::ControlPlaneError;

/// Maximum requests in one pass.
const MAX_REQUESTS: usize = 16;
/// Maximum requests in one pass that were refused before. They have room in each pass.
const MAX_REPEATED: usize = 4;

/// Control plane requests of a pass.
#[derive(Debug, Default, PartialEq)]
pub struct RequestTurn {
    /// To send now, in this order.
    pub due: Vec<ControlAction>,
    /// To send later, by [`ControlAction::what`].
    pub waiting: Vec<String>,
    /// Whether the next pass sends more at once.
    pub has_more: bool,
}

/// Selects the requests that a pass sends. Those that are not for Tailscale Services stay in their order and come first.
pub fn take_turn(actions: Vec<ControlAction>, denied: &BTreeMap<String, ControlPlaneError>, now: Timestamp) -> RequestTurn {
    let (services, due): (Vec<_>, Vec<_>) = actions.into_iter().partition(ControlAction::is_for_service);
    let mut turn = RequestTurn { due, ..RequestTurn::default() };
    let (mut new, mut repeated) = (Vec::new(), Vec::new());
    for action in services {
        let what = action.what();
        match denied.get(&what).and_then(|denial| Some((denial.refused?, denial.wait(now)))) {
            None => new.push(action),
            Some((refused, wait)) if wait.is_zero() => repeated.push((refused, action)),
            Some(_) => turn.waiting.push(what),
        }
    }
    repeated.sort_by_key(|(refused, _)| *refused);
    let mut repeated = alternate(repeated.into_iter().map(|(_, action)| action));
    let mut new = alternate(new);
    new.sort_by_key(|action| !matches!(action, ControlAction::ReleaseService { .. }));
    let later = repeated.split_off(repeated.len().min(MAX_REPEATED));
    let later = [new.split_off(new.len().min(MAX_REQUESTS - repeated.len())), later].concat();
    turn.has_more = !later.is_empty();
    turn.waiting.extend(later.iter().map(ControlAction::what));
    turn.due.extend(new.into_iter().chain(repeated));
    turn
}

/// The first request of each namespace, then the second ones, and so on.
fn alternate(requests: impl IntoIterator<Item = ControlAction>) -> Vec<ControlAction> {
    let mut counts = BTreeMap::<String, usize>::new();
    let rank = |action: ControlAction| {
        let count = counts.entry(action.namespace().to_owned()).or_default();
        *count += 1;
        (*count, action)
    };
    let mut ranked: Vec<_> = requests.into_iter().map(rank).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, action)| action).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::model::controller::workload::vip_service::DesiredVipService;

    /// A control plane that refuses some names.
    #[derive(Default)]
    struct Plane {
        refused: BTreeSet<String>,
        denied: BTreeMap<String, ControlPlaneError>,
        /// Times of the requests, by name.
        sent: BTreeMap<String, Vec<i64>>,
    }

    fn publish(namespace: &str, name: &str) -> ControlAction {
        let (name, namespace) = (name.to_owned(), namespace.to_owned());
        let (group, tags, ports, taken_by) = ("in".to_owned(), Vec::new(), Vec::new(), BTreeSet::new());
        let desired = DesiredVipService { name, group, tags, ports, share: false, adopt: false, taken_by, sole_owner: None };
        ControlAction::PublishService { desired, namespace, recorded: false }
    }

    fn name(action: &ControlAction) -> String {
        match action {
            ControlAction::PublishService { desired, .. } => desired.name.clone(),
            ControlAction::ReleaseService { name } => name.clone(),
            other => other.what(),
        }
    }

    impl Plane {
        /// Runs a pass that wants all of these; removes those that succeed.
        fn pass(&mut self, wanted: &mut Vec<ControlAction>, second: i64) -> RequestTurn {
            let now = Timestamp::from_second(second).expect("a time");
            let turn = take_turn(wanted.clone(), &self.denied, now);
            assert!(turn.due.len() <= MAX_REQUESTS, "{}", turn.due.len());
            assert_eq!(turn.due.len() + turn.waiting.len(), wanted.len());
            for action in &turn.due {
                self.sent.entry(name(action)).or_default().push(second);
                if self.refused.contains(&name(action)) {
                    let since = self.denied.get(&action.what()).map_or(now, |denial| denial.since);
                    self.denied.insert(action.what(), ControlPlaneError { since, why: "no".into(), refused: Some(now) });
                } else {
                    wanted.retain(|one| one != action);
                }
            }
            turn
        }
    }

    proptest! {
        /// Namespaces request names, of which the control plane refuses some, while others are released.
        #[test]
        fn request_waits_for_releases_and_as_many_requests_of_each_other_namespace_as_of_its_own(
            kinds in prop::collection::vec((0..4_usize, 0..4_u8), 0..120),
        ) {
            let mut plane = Plane::default();
            let mut wanted = Vec::new();
            for (number, (namespace, kind)) in kinds.iter().enumerate() {
                let name = format!("svc:{number}");
                if *kind == 0 {
                    wanted.push(ControlAction::ReleaseService { name });
                    continue;
                }
                wanted.push(publish(&namespace.to_string(), &name));
                plane.refused.extend((*kind > 1).then_some(name));
            }
            let published = |namespace: &usize| kinds.iter().filter(|(of, kind)| of == namespace && *kind > 0).count();
            let counts: Vec<usize> = (0..4).map(|namespace| published(&namespace)).collect();
            let releases = kinds.iter().filter(|(_, kind)| *kind == 0).count();
            for second in 0..40 {
                plane.pass(&mut wanted, second);
            }
            for (number, (namespace, kind)) in kinds.iter().enumerate() {
                let own = if *kind == 0 { 0 } else { counts[*namespace] };
                let before = releases + counts.iter().map(|count| own.min(*count)).sum::<usize>();
                let first = plane.sent[&format!("svc:{number}")][0];
                let most = before.div_ceil(MAX_REQUESTS - MAX_REPEATED);
                prop_assert!(usize::try_from(first).expect("not negative") < most, "{} of {:?} in pass {first}", number, (namespace, kind));
            }
            prop_assert!(wanted.iter().all(|action| plane.refused.contains(&name(action))));
        }
    }

    #[test]
    fn refused_request_waits_longer_each_time_and_is_repeated_for_ever() {
        let mut plane = Plane::default();
        let names: Vec<String> = (0..40).map(|number| format!("svc:{number}")).collect();
        let mut wanted: Vec<_> = names.iter().map(|name| publish("tenant", name)).collect();
        plane.refused.extend(names);
        let mut passes = 0;
        for second in 0..7_200 {
            while plane.pass(&mut wanted, second).has_more {
                passes += 1;
            }
        }
        assert!(passes < 400, "{passes} passes at once");
        for (name, sent) in &plane.sent {
            let waits: Vec<i64> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!((15..=25).contains(&sent.len()), "{name}: {sent:?}");
            assert!(waits.is_sorted() && waits[0] == 5 && waits.last() == Some(&600), "{name}: {waits:?}");
        }
    }

    #[test]
    fn refused_requests_of_one_namespace_do_not_delay_a_refused_one_of_another() {
        let mut plane = Plane::default();
        let mut wanted: Vec<_> = (0..400).map(|number| publish("many", &format!("svc:many-{number}"))).collect();
        wanted.push(publish("one", "svc:one"));
        plane.refused.extend(wanted.iter().map(name));
        for second in 0..60 {
            plane.pass(&mut wanted, second);
        }
        plane.refused.remove("svc:one");
        for second in 60..=120 {
            plane.pass(&mut wanted, second);
        }
        assert!(!wanted.iter().any(|action| name(action) == "svc:one"), "{:?}", plane.sent["svc:one"]);
    }

    #[test]
    fn requests_without_an_answer_and_other_requests_keep_their_order() {
        let list = ControlAction::ListServices { since: Timestamp::UNIX_EPOCH };
        let actions = vec![publish("a", "svc:1"), list.clone(), publish("a", "svc:2")];
        let silent = ControlPlaneError { since: Timestamp::UNIX_EPOCH, why: "no answer".into(), refused: None };
        let denied = actions.iter().map(|action| (action.what(), silent.clone())).collect();
        let turn = take_turn(actions, &denied, Timestamp::UNIX_EPOCH);
        assert_eq!(turn.due, [list, publish("a", "svc:1"), publish("a", "svc:2")]);
        assert!(turn.waiting.is_empty() && !turn.has_more);
    }
}
