//! Cost of a name that very many objects request, and the choice of the first ones among them.

use proptest::prelude::*;

use super::cluster::{Cluster, text};
use super::namesakes::{ALL as REQUESTS, NAME, Request, cluster};
use super::*;
use crate::api::names;
use crate::model::controller::policy::age::age;
use crate::model::controller::policy::requests::Parent;
use crate::model::controller::policy::tenancy::parse::parse;
use crate::model::controller::workload::observed::replica::ObservedReplica;
use crate::model::controller::workload::observed::{Namesake, name_winner};
use crate::reconciler::cache::indices::WorkloadObjects;

/// Key of the workload of an object in a namespace.
fn key(request: Request, namespace: &str) -> String {
    match request.group() {
        Some(group) => group.to_owned(),
        None if request.kind() == "Ingress" => format!("ingress/{namespace}/{NAME}"),
        None => format!("{namespace}/{NAME}"),
    }
}

/// Maximum number of keys that a change of one of so many objects of a name enqueues, and of objects that passes of the oldest one and the
/// youngest one are compared with.
fn costs(request: Request, count: usize, is_served: bool) -> (usize, usize) {
    let mut cluster = cluster();
    cluster.permit_standalone();
    cluster.put("Ingress", Request::SecondGroupIngress.object("other"));
    let namespaces: Vec<_> = (0..count).map(|number| format!("n{number:04}")).collect();
    for (number, namespace) in namespaces.iter().enumerate() {
        cluster.put(request.kind(), request.object(namespace));
        if number == 0 && is_served {
            assert!(cluster.settles());
        }
        cluster.wait(1);
    }
    let (mut enqueued, mut compared) = (0, 0);
    for namespace in [&namespaces[0], &namespaces[count - 1]] {
        cluster.patch(
            request.kind(),
            namespace,
            NAME,
            &json!({"metadata": {"labels": {"changed": "true"}, "annotations": {names::TAGS: "tag:k8s"}}}),
        );
        enqueued = enqueued.max(cluster.enqueued.len());
        for key in [key(request, namespace), "in".to_owned(), "in2".to_owned()] {
            let publish = cluster.observe(&cluster.cache, &key).publish;
            let rivals = publish.rivals.values().map(Vec::len).sum::<usize>();
            compared = compared.max(publish.namesakes.values().map(Vec::len).sum::<usize>() + rivals);
        }
        let ended = json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}});
        cluster.patch(request.kind(), namespace, NAME, &ended);
        enqueued = enqueued.max(cluster.enqueued.len());
    }
    (enqueued, compared)
}

#[test]
fn change_of_one_of_a_thousand_objects_of_a_name_costs_as_much_as_of_one_of_ten() {
    for request in REQUESTS {
        for is_served in [false, true] {
            let (few, many) = (costs(request, 10, is_served), costs(request, 1_000, is_served));
            assert_eq!(few, many, "{request:?}: keys enqueued and objects compared");
            assert!(many.0 <= 4 && many.1 <= 8, "{request:?}: {many:?}");
        }
    }
}

/// Objects of other workloads that have a label or request it, by a look at all objects.
fn all_namesakes(cache: &ClusterCache, of: &WorkloadKey, label: &str) -> Vec<Namesake> {
    let stored = [WatchRole::Service, WatchRole::Ingress].into_iter().flat_map(|role| cache.objects(role));
    let requested = stored.flat_map(|(id, object)| {
        let own =
            cache.standalone_name(object).map(|(label, claimant)| (label, WorkloadKey::from(&claimant), WorkloadKey::from(&claimant)));
        let request = cache.publish_request(id, object);
        let of_group = request.and_then(|request| Some((request.label, request.key?, WorkloadKey::from(&request.claimant))));
        own.into_iter().chain(of_group)
    });
    let requested = requested.filter(|(requested, ..)| requested == label).map(|(_, workload, object)| (workload, object));
    let holders = cache.indices.holders.get(label).into_iter().flat_map(BTreeMap::keys).cloned();
    let replicas = cache.first_claimants(of, label).into_iter().filter(|(_, subject)| subject.group().is_some());
    let all: BTreeSet<_> = requested.chain(holders).chain(replicas).filter(|(workload, _)| workload != of).collect();
    all.into_iter().filter_map(|pair| cache.namesake(of, pair, label)).collect()
}

/// An object by which a workload requests a label or has it.
type Claim = (WorkloadKey, String, WorkloadKey);

/// Claims of all workloads.
fn claims(cache: &ClusterCache) -> BTreeSet<Claim> {
    let stored = [WatchRole::Service, WatchRole::Ingress].into_iter().flat_map(|role| cache.objects(role));
    let requested = stored.flat_map(|(id, object)| {
        let own =
            cache.standalone_name(object).map(|(label, claimant)| (WorkloadKey::from(&claimant), label, WorkloadKey::from(&claimant)));
        let request = cache.publish_request(id, object);
        let of_group = request.and_then(|request| Some((request.key?, request.label, WorkloadKey::from(&request.claimant))));
        own.into_iter().chain(of_group)
    });
    let holders =
        cache.indices.holders.iter().flat_map(|(label, all)| all.keys().map(move |(workload, subject)| (workload, label, subject)));
    let recorded = holders.map(|(workload, label, subject)| (workload.clone(), label.clone(), subject.clone()));
    // A proxy is compared by the name that it requests.
    let is_current = |(workload, label, _): &Claim| {
        !workload.is_standalone() || cache.standalone_parent(workload).map(Parent::label).as_ref() == Some(label)
    };
    requested.chain(recorded.collect::<Vec<_>>()).filter(|(.., subject)| subject.publisher().is_some()).filter(is_current).collect()
}

/// The object that a claim leaves its name to, among these.
fn winner(cache: &ClusterCache, (workload, label, subject): &Claim, others: &Vec<Namesake>, holds: Option<bool>) -> Option<WorkloadKey> {
    let metadata = cache.claimant(&subject.publisher()?).and_then(|(_, object)| object.user_metadata());
    let age = metadata.map_or((i64::MIN, ""), age);
    let recorded = || cache.indices.holders.get(label).is_some_and(|all| all.contains_key(&(workload.clone(), subject.clone())));
    name_winner(workload, (subject, age, holds.unwrap_or_else(recorded)), Some(others)).cloned()
}

/// Claims that get their names, by a look at all objects.
fn winners(cache: &ClusterCache) -> BTreeSet<Claim> {
    let wins = |claim: &Claim| winner(cache, claim, &all_namesakes(cache, &claim.0, &claim.1), None).is_none();
    claims(cache).into_iter().filter(wins).collect()
}

/// Checks that the first claimants decide as all of them do.
fn check_decisions(cluster: &Cluster) {
    let cache = &cluster.cache;
    for claim in claims(cache) {
        let (workload, label, subject) = &claim;
        if workload.group().is_some_and(|name| cache.group(name).is_none()) {
            continue;
        }
        let all = all_namesakes(cache, workload, label);
        let first = cache.namesakes(workload, &[label.clone()].into()).remove(label).unwrap_or_default();
        for holds in [None, Some(false), Some(true)] {
            assert_eq!(winner(cache, &claim, &first, holds), winner(cache, &claim, &all, holds), "{claim:?} of {all:?} and {first:?}");
        }
        let in_other_tailnets = |all: &[Namesake]| -> BTreeSet<WorkloadKey> {
            let others = all.iter().filter(|one| one.holds && !one.is_same_tailnet && one.subject != *subject);
            others.filter(|one| one.workload.group().is_some()).map(|one| one.workload.clone()).collect()
        };
        assert_eq!(in_other_tailnets(&first), in_other_tailnets(&all), "{claim:?}");
        let is_rival = |(other, of, object): &Claim| {
            let publisher = object.publisher().expect("an object");
            let exists = other.group().is_some_and(|name| cache.group(name).is_some());
            let request = cache.claimant(&publisher).and_then(|(id, stored)| cache.publish_request(&id, stored));
            // A record of another name than the object requests now is no request.
            let requests = || request.is_some_and(|request| request.key.as_ref() == Some(other) && request.label == *label);
            let is_current = cache.live(&publisher).is_some() && !cache.is_refused(other, &publisher);
            of == label
                && other != workload
                && exists
                && is_current
                && requests()
                && (workload.is_standalone() || cache.is_same_tailnet(workload, other))
        };
        let rivals: Vec<Claim> = claims(cache).into_iter().filter(is_rival).collect();
        let found = cache.rivals(workload, label);
        let groups = |all: &mut dyn Iterator<Item = &WorkloadKey>| all.cloned().collect::<BTreeSet<_>>();
        assert_eq!(groups(&mut found.iter().map(|rival| &rival.key)), groups(&mut rivals.iter().map(|rival| &rival.0)), "{claim:?}");
        let own = groups(&mut rivals.iter().filter(|rival| rival.2 == *subject).map(|rival| &rival.0));
        let of_subject = found.iter().filter(|rival| Some(&rival.claimant) == subject.publisher().as_ref());
        assert_eq!(groups(&mut of_subject.map(|rival| &rival.key)), own, "{claim:?}");
    }
}

/// Checks the number of earlier requests of a namespace, which is counted up to a limit of two.
fn check_names_before(cluster: &Cluster) {
    let cache = &cluster.cache;
    let requests = |key: &WorkloadKey| cache.standalone_parent(key).is_some_and(|parent| cache.assignment.has_own_proxy(parent));
    for key in cache.standalone_keys().filter(|key| requests(key)) {
        let rank = |key: &WorkloadKey| {
            let publisher = key.publisher()?;
            Some(age(cache.live(&publisher)?)).map(|(created, uid)| (created, uid.to_owned()))
        };
        let is_before = |other: &&WorkloadKey| {
            *other != key
                && other.namespace() == key.namespace()
                && (cache.has_proxy(other) || (requests(other) && rank(other) < rank(key)))
        };
        let all = if cache.has_proxy(key) { 0 } else { cache.standalone_keys().filter(is_before).count() };
        let found = cluster.observe(cache, &text(key)).names_before;
        assert!(found == all || (found >= 2 && found <= all), "{key}: {found} of {all}");
    }
}

/// Checks the index of workloads whose device records have a domain.
fn check_domains(cluster: &Cluster) {
    let indices = &cluster.cache.indices;
    let has_domain = |replica: &&ObservedReplica| {
        replica.config.as_ref().is_some_and(|config| config.entry().record.is_some_and(|record| record.domain.is_some()))
    };
    let count = |objects: &WorkloadObjects| objects.replicas.values().filter(has_domain).count();
    let counted = indices.workloads.iter().map(|(key, objects)| (key.clone(), count(objects))).filter(|(_, count)| *count > 0);
    assert_eq!(indices.domains, counted.collect::<BTreeMap<_, _>>());
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Create,
    Rename,
    Move,
    Terminate,
    Delete,
    Invalidate,
    Pass,
    Round,
}

const STEPS: [Step; 10] = [
    Step::Create,
    Step::Create,
    Step::Create,
    Step::Rename,
    Step::Move,
    Step::Terminate,
    Step::Delete,
    Step::Invalidate,
    Step::Pass,
    Step::Round,
];

/// Changes one of the objects, or runs passes. Returns whether a user changed it.
fn take(cluster: &mut Cluster, step: Step, (request, namespace, other): (Request, &str, Request)) -> bool {
    let kind = request.kind();
    let name = format!("{NAME}{}", REQUESTS.iter().position(|one| *one == request).expect("a request"));
    let exists = cluster.object(kind, namespace, &name).is_some();
    let patch = match step {
        Step::Create => {
            let mut object = request.object(namespace);
            object["metadata"]["name"] = json!(name);
            cluster.put(kind, object);
            return true;
        }
        _ if !exists => return false,
        Step::Rename if kind == "Ingress" => json!({"spec": {"tls": [{"hosts": ["app"]}]}}),
        Step::Rename => json!({"metadata": {"annotations": {names::HOSTNAME: "app"}}}),
        Step::Move => json!({"metadata": {"annotations": {names::PROXY_GROUP: other.group()}}}),
        Step::Terminate => json!({"metadata": {"deletionTimestamp": cluster.time().to_string()}}),
        Step::Invalidate if kind == "Ingress" => json!({"spec": {"defaultBackend": null}}),
        Step::Invalidate => json!({"spec": {"ports": []}}),
        Step::Delete => {
            cluster.delete_object(kind, namespace, &name);
            return true;
        }
        Step::Pass => {
            let object =
                WorkloadKey::of_object(if kind == "Ingress" { PublishSource::Ingress } else { PublishSource::Service }, namespace, &name);
            let key = request.group().map_or_else(|| text(&object), str::to_owned);
            cluster.pass(&key);
            return false;
        }
        Step::Round => {
            cluster.round();
            return false;
        }
    };
    cluster.patch(kind, namespace, &name, &patch);
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Also with a group of another Tailnet object. Each claim that gets its name by a change of an object, or loses it, has a pass.
    #[test]
    fn first_claimants_decide_as_all_do_and_a_change_enqueues_those_whose_decision_changes(
        steps in prop::collection::vec((prop::sample::select(&STEPS[..]), prop::sample::select(&REQUESTS[..]), 0..2_usize, prop::sample::select(&REQUESTS[..])), 1..40),
        is_other_tailnet in any::<bool>(),
    ) {
        let mut cluster = cluster();
        cluster.settings_mut().standalone_tenants = Arc::new(parse(r#"[{"namespaceSelector": {}, "maxNames": 2}]"#).expect("tenants"));
        for namespace in ["old", "new"] {
            cluster.put("Namespace", json!({"metadata": {"name": namespace}}));
        }
        if is_other_tailnet {
            cluster.patch("ProxyGroup", "", "in2", &json!({"spec": {"tailnet": "other"}}));
        }
        for (step, request, namespace, other) in steps {
            let before = winners(&cluster.cache);
            let is_change = take(&mut cluster, step, (request, ["old", "new"][namespace], other));
            check_decisions(&cluster);
            check_names_before(&cluster);
            check_domains(&cluster);
            let after = winners(&cluster.cache);
            let all = claims(&cluster.cache);
            // One that is in deletion, or refused for another reason, gets no name.
            let requests = |claim: &Claim| {
                let publisher = claim.2.publisher();
                publisher.is_some_and(|one| cluster.cache.live(&one).is_some() && !cluster.cache.is_refused(&claim.0, &one))
            };
            for claim in before.symmetric_difference(&after).filter(|claim| is_change && all.contains(*claim) && requests(claim)) {
                prop_assert!(cluster.enqueued.contains(&WorkKey::Workload(claim.0.clone())), "{claim:?} after {step:?} {request:?}");
            }
            cluster.wait(i64::from(namespace == 0));
        }
    }
}
