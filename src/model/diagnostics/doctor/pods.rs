//! Check of the proxies' Pods: of those that do not run, and of those that their `StatefulSet`s have not created.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;

use super::facts::ClusterFacts;
use super::{Check, listed, page};
use crate::api::names::replica;
use crate::model::controller::workload::pod_fault::{CreateFailure, PodFault};

const NAME: &str = "pods";

/// Pods that should exist or do, by name; each with its fault.
#[derive(Default)]
struct Found {
    faults: BTreeMap<String, PodFault>,
    missing: BTreeSet<String>,
}

pub(super) fn check(facts: &ClusterFacts) -> Check {
    let (pods, sets) = match (&facts.pods, &facts.sets) {
        (Ok(pods), Ok(sets)) => (pods, sets),
        (Err(gap), _) => return Check::unread(NAME, "the Pods of the proxies", gap, &format!("list pods in {}", facts.namespace)),
        (_, Err(gap)) => {
            let needs = format!("list statefulsets.apps in {}", facts.namespace);
            return Check::unread(NAME, "the StatefulSets of the proxies", gap, &needs);
        }
    };
    let pods = pods.iter().filter_map(|pod| Pod::deserialize(pod).ok());
    let pods: BTreeMap<String, Pod> = pods.filter_map(|pod| Some((pod.metadata.name.clone()?, pod))).collect();
    let found = find(facts, &pods, sets);
    if !found.faults.is_empty() {
        let text = |(name, fault): (String, PodFault)| format!("{name}: {}", fault.message);
        let fixes: BTreeSet<&str> = found.faults.values().map(|fault| fault.fix).filter(|fix| !fix.is_empty()).collect();
        let describe = format!("kubectl -n {} describe statefulsets,pods shows the Events ({})", facts.namespace, page("failures.md"));
        let fix = fixes.into_iter().chain([describe.as_str()]).collect::<Vec<_>>().join("; ");
        return Check::bad(NAME, listed(found.faults.into_iter().map(text).collect(), "; "), fix);
    }
    if !found.missing.is_empty() {
        let fix = match &facts.failures {
            Ok(_) => format!("kubectl -n {} describe statefulsets", facts.namespace),
            Err(_) => format!("ask for the right to list events.events.k8s.io in {}: they name the cause", facts.namespace),
        };
        return Check::warn(NAME, format!("not created yet: {}", listed(found.missing.into_iter().collect(), ", ")), fix);
    }
    Check::ok(NAME, format!("none of {} waits for anything", pods.len()))
}

fn find(facts: &ClusterFacts, pods: &BTreeMap<String, Pod>, sets: &[Value]) -> Found {
    let events = facts.failures.iter().flatten().filter_map(|event| Event::deserialize(event).ok());
    let failures: Vec<_> = events.filter_map(|event| CreateFailure::read(&event)).collect();
    let of_pod = |(name, pod): (&String, &Pod)| Some((name.clone(), PodFault::find(Some(pod), None)?));
    let now = i64::try_from(facts.now.as_secs()).ok().and_then(|now| Timestamp::from_second(now).ok()).unwrap_or_default();
    let mut found = Found { faults: pods.iter().filter_map(of_pod).collect(), ..Found::default() };
    for set in sets {
        let name = set["metadata"]["name"].as_str().unwrap_or_default();
        let wanted = set["spec"]["replicas"].as_u64().and_then(|wanted| u32::try_from(wanted).ok()).unwrap_or(1);
        let names: Vec<_> = (0..wanted).map(|ordinal| replica(name, ordinal)).collect();
        let existing = names.iter().filter_map(|name| pods.get(name));
        let failure = CreateFailure::current(failures.iter().filter(|failure| failure.set == name), existing, now);
        for name in names.into_iter().filter(|name| !pods.contains_key(name)) {
            match PodFault::find(None, failure) {
                Some(fault) => drop(found.faults.insert(name, fault)),
                None => drop(found.missing.insert(name)),
            }
        }
    }
    found
}
