//! Uninstall: every workload is released, and the objects of users stay.

use super::*;
use crate::api::proxygroup::ProxyGroupType;
use crate::model::controller::kinds::is_released;
use crate::model::controller::policy::assignment::StandaloneScope;

/// A served egress group, and a served Ingress with a proxy of its own.
fn world() -> World {
    let mut world = serving();
    world.assignment.standalone = StandaloneScope::Everywhere;
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    world.put_ingress("shop", json!({}), site("shop", "web"));
    world.settle();
    world
}

fn is_everything_released(world: &World) -> bool {
    world.keys_of_work().iter().all(|key| is_released(&world.observe(key.clone())))
}

#[test]
fn everything_is_released_and_objects_of_users_stay() {
    let mut world = world();
    assert!(!is_everything_released(&world));
    world.assignment.uninstall = Some(world.time());
    world.settle();
    let (here, in_other_namespaces): (Vec<_>, Vec<_>) = world.objects.iter().partition(|(object, _)| object.namespace == NS);
    let remaining: Vec<_> = here.iter().map(|(object, _)| object.name.as_str()).collect();
    assert_eq!(remaining, [names::ACCOUNTS], "no Secret of the certificate, either");
    assert!(
        in_other_namespaces.iter().all(|(object, value)| object.kind == Kind::RoleBinding && value["subjects"].is_null()),
        "{in_other_namespaces:?}"
    );
    assert!(world.devices.is_empty() && world.keys.is_empty() && is_everything_released(&world));
    let group = &world.groups["pg"];
    assert_eq!(group.metadata.finalizers.as_deref(), Some(&[][..]));
    let conditions = &group.status.as_ref().expect("a status").conditions;
    let ready = crate::model::base::conditions::get(conditions, "ProxyGroupReady").expect("a condition");
    assert!(ready.status == "False" && ready.message.contains("uninstall"), "{ready:?}");
    assert_eq!((world.external_name("db").as_str(), world.condition("db", EGRESS_SVC_READY)), ("placeholder", None));
    let metadata =
        world.services.values().map(|service| &service.metadata).chain(world.ingresses.values().map(|ingress| &ingress.metadata));
    assert!(metadata.into_iter().all(|metadata| metadata.finalizers.iter().flatten().next().is_none()));
    world.assignment.uninstall = None;
    world.settle();
    assert_eq!((world.devices.len(), world.condition("db", EGRESS_SVC_READY).map(|ready| ready.0)), (3, Some("True".into())), "cancelled");
}

#[test]
fn unavailable_control_plane_delays_an_uninstall_by_five_minutes() {
    let mut world = world();
    world.tailnet = TailnetState::Unavailable("no answer".into());
    world.assignment.uninstall = Some(world.time());
    world.rounds(100);
    assert!(!is_everything_released(&world));
    world.now += 300;
    world.settle();
    assert!(is_everything_released(&world));
    assert!(world.event_count("DeviceOrphaned") >= 3, "each device is named: {:?}", world.events);
}

/// Settings that exclude what was served earlier release nothing of it, and an uninstall does not take that for released.
#[test]
fn workload_that_settings_exclude_is_not_released_unless_another_operator_wrote_it_last() {
    for is_group in [false, true] {
        let mut world = world();
        let key = if is_group { "pg" } else { "ingress/default/shop" };
        if is_group {
            world.settings.types.retain(|kind| *kind != ProxyGroupType::Egress);
        } else {
            world.assignment.standalone = StandaloneScope::Namespaces(vec!["other".to_owned()]);
        }
        world.assignment.uninstall = Some(world.time());
        world.settle();
        assert!(!is_released(&world.observe(key)), "{key}");
        let workload = world.observe(key).workload;
        let set = object(Kind::StatefulSet, &workload);
        assert!(world.objects.contains_key(&set), "{key} is not touched");
        world.edit(&set, |set| drop(set["metadata"]["annotations"].take()));
        assert!(is_released(&world.observe(key)), "{key} is the Tailscale operator's");
        world.objects.remove(&set);
        assert!(!is_released(&world.observe(key)), "{key} was being deleted");
    }
}
