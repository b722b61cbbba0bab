//! Policies of a namespace and the admission objects that enforce them.

use super::*;

fn namespace(name: &str) -> WorkKey {
    WorkKey::GroupPolicies(name.to_owned())
}

fn policy(namespace: &str, name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"}, "spec": {"ingress": ["in"]}})
}

fn object(name: &str, version: &str) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version, "uid": "u"}, "spec": {"failurePolicy": version}})
}

#[test]
fn changes_of_policies_and_of_admission_objects_enqueue_their_namespace() {
    let admission = Kind::ADMISSION.map(WatchRole::Owned);
    let mut cache = ClusterCache::new(None, [WatchRole::GroupPolicy].into_iter().chain(admission));
    assert!(cache.put_json(WatchRole::GroupPolicy, policy("shop", "a")).contains(&namespace("shop")));
    assert!(cache.put_json(WatchRole::GroupPolicy, policy("other", "b")).contains(&namespace("other")));
    assert_eq!(cache.group_policies("shop").len(), 1);
    for role in admission {
        assert!(cache.put_json(role, object("ts-ingress-gone", "1")).contains(&namespace("gone")));
        assert!(cache.put_json(role, object("ts-ingress-gone", "2")).contains(&namespace("gone")), "an edit by hand");
        assert_eq!(cache.put_json(role, object("tailyard-proxy-secrets", "1")), BTreeSet::new());
    }
    assert_eq!(cache.admission_objects("gone").len(), 2);
    let all = cache.all();
    assert!(["shop", "other", "gone"].iter().all(|name| all.contains(&namespace(name))), "leftovers, too: {all:?}");
    cache.set_uninstall(Some(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    assert_eq!((cache.group_policies("shop").len(), cache.remaining()), (0, vec![namespace("gone")]));
    for role in admission {
        assert!(cache.gone_json(role, &object("ts-ingress-gone", "3")).contains(&namespace("gone")));
    }
    assert_eq!(cache.remaining(), []);
}
