//! Check of a tailnet's settings, by the faults that the reconciler reports: its policy cannot be read.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::facts::ClusterFacts;
use super::objects::{assignment, ingress_reports, warnings};
use super::{Check, advertises, is_api_server, listed, named, page};
use crate::model::api_server::grants::CAPABILITY;
use crate::model::controller::policy::annotations::is_tag;
use crate::model::controller::workload::tailnet_setting::{AUTO_APPROVERS, TailnetSetting};

const NAME: &str = "tailnet";

/// Conditions of objects of a kind: object and message.
fn conditions(kind: &str, objects: &[Value]) -> Vec<(String, String)> {
    let of = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let subject = format!("{kind} {}", named(object));
        conditions.into_iter().filter_map(move |condition| Some((subject.clone(), condition["message"].as_str()?.to_owned())))
    };
    objects.iter().flat_map(of).collect()
}

/// Tags of the groups that are included.
fn tags(groups: &[Value], includes: fn(&Value) -> bool, default: &[String]) -> BTreeSet<String> {
    let groups = groups.iter().filter(|group| includes(group));
    let own = |group: &Value| group["spec"]["tags"].as_array().filter(|tags| !tags.is_empty()).cloned();
    let text = |tags: Vec<Value>| tags.iter().filter_map(|tag| tag.as_str().map(str::to_owned)).collect::<Vec<_>>();
    groups.flat_map(|group| own(group).map_or_else(|| default.to_vec(), text)).collect()
}

/// A policy entry for each tag.
fn entries<'a>(tags: impl IntoIterator<Item = &'a String>, value: impl Fn(&str) -> String) -> String {
    tags.into_iter().map(|tag| format!("{tag:?}: [{:?}]", value(tag))).collect::<Vec<_>>().join(", ")
}

pub(super) fn checks(facts: &ClusterFacts) -> Vec<Check> {
    let groups = match &facts.groups {
        Ok(groups) => groups,
        Err(gap) => return vec![Check::unread(NAME, "conditions of ProxyGroups", gap, "list proxygroups.tailscale.com")],
    };
    let default = assignment(facts).0.workloads.tags;
    let [all, publishing, api_servers] = [|_: &Value| true, advertises, is_api_server].map(|includes| tags(groups, includes, &default));
    let ingresses = ingress_reports(facts).into_iter();
    let reports = conditions("ProxyGroup", groups).into_iter().chain(conditions("Service", facts.services.as_deref().unwrap_or_default()));
    let reports = reports.chain(ingresses.map(|fault| (format!("Ingress {}/{}", fault.namespace, fault.name), fault.message)));
    let mut found = BTreeMap::<TailnetSetting, BTreeSet<String>>::new();
    for (subject, message) in reports {
        if let Some(setting) = TailnetSetting::of_fault(&message) {
            found.entry(setting).or_default().insert(format!("{subject}: {message}"));
        }
    }
    if found.is_empty() {
        let list = |tags: &BTreeSet<String>| listed(tags.iter().cloned().collect(), ", ");
        let owners = (!all.is_empty()).then(|| format!("; groups need tagOwners for {}", list(&all)));
        let approvers = (!publishing.is_empty()).then(|| format!(" and {AUTO_APPROVERS}.services for {}", list(&publishing)));
        let grants = (!api_servers.is_empty()).then(|| format!(", and a grant of {CAPABILITY} to {}", list(&api_servers)));
        let needed = owners.into_iter().chain(approvers).chain(grants).collect::<String>();
        return vec![Check::ok(NAME, format!("no fault names a setting that it lacks{needed}"))];
    }
    let warn = |(setting, rows): (TailnetSetting, BTreeSet<String>)| {
        let fix = match setting {
            TailnetSetting::TagOwners => tag_owners(&rows, &all),
            TailnetSetting::AutoApprovers => format!(
                "approve them in the admin console, or add to its policy \"{AUTO_APPROVERS}\": {{\"services\": {{{}}}}} ({})",
                entries(&publishing, str::to_owned),
                page("tailscale.md")
            ),
            TailnetSetting::Https => {
                format!("enable HTTPS certificates on the DNS page of the admin console ({})", page("tailscale.md"))
            }
        };
        warnings(NAME, rows.into_iter().collect(), "more objects report this", &fix)
    };
    found.into_iter().flat_map(warn).collect()
}

/// Entry for the tags that faults name, else for those of all groups.
fn tag_owners(rows: &BTreeSet<String>, all: &BTreeSet<String>) -> String {
    let words = |row: &String| {
        let words = row.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != ':' && letter != '-');
        words.filter(|word| is_tag(word)).map(str::to_owned).collect::<Vec<_>>()
    };
    let denied: BTreeSet<_> = rows.iter().flat_map(words).collect();
    let tags = if denied.is_empty() { all } else { &denied };
    let owner = "tag:k8s-operator";
    format!(
        "add to its policy \"tagOwners\": {{{}}}, where {owner} is a tag of the OAuth client ({}, {})",
        entries(tags, |_| owner.to_owned()),
        page("tailscale.md"),
        page("headscale.md")
    )
}
