//! Services with finalizers of the Tailscale operator: releases until 1.102 write one without a ProxyGroup's name, later ones with it.

use super::*;
use crate::api::proxygroup::ProxyGroupType;
use crate::model::controller::kinds::is_released;
use crate::model::controller::workload::objects::APPLIED;

const FOREIGN: &str = "example.com/service-pg-finalizer";
const FORMS: [&[&str]; 4] = [
    &["tailscale.com/service-pg-finalizer"],
    &["in.tailscale.com/service-pg-finalizer"],
    &["in.tailscale.com/service-pg-finalizer", "tailscale.com/service-pg-finalizer"],
    &["former.tailscale.com/service-pg-finalizer"],
];

/// A world with a Service in a group, and a foreign finalizer before those of a form.
fn taken_over(form: &[&str]) -> World {
    let mut world = world(Case::Service, Some("in"));
    let service = world.services.get_mut(&("default".to_owned(), "shop".to_owned())).expect("a Service");
    service.metadata.finalizers = Some([&[FOREIGN], form].concat().into_iter().map(str::to_owned).collect());
    let writes = world.writes;
    world.settle();
    assert_eq!(world.writes, writes, "{form:?} is accepted");
    world
}

/// Deletes the Service: its Tailscale Service and every form of the finalizer go, another finalizer stays.
fn assert_deletion_ends(world: &mut World, form: &[&str]) {
    Case::Service.delete(world);
    world.settle();
    assert_eq!((Case::Service.finalizers(world), world.hosted.vips.len()), (vec![FOREIGN.to_owned()], 0), "{form:?}");
}

#[test]
fn deletion_removes_every_form_of_the_finalizer() {
    for form in FORMS {
        let mut world = taken_over(form);
        assert_deletion_ends(&mut world, form);
    }
}

/// Objects that another operator wrote are applied with the fields of all writers, except Secrets that Pods fill.
#[test]
fn content_of_secrets_that_pods_fill_is_not_adopted() {
    for (case, group) in CASES.into_iter().flat_map(|case| [(case, None), (case, Some("in"))]) {
        let mut world = world(case, group);
        for (object, stored) in world.objects.clone() {
            let mut stored = Value::clone(&stored);
            if let Some(annotations) = stored["metadata"]["annotations"].as_object_mut() {
                annotations.remove(APPLIED);
            }
            world.objects.insert(object, stored.into());
        }
        let plan = world.pass(group.unwrap_or(case.key()));
        let is_filled = |object: &ObjectRef| object.kind == Kind::Secret && !object.name.ends_with(names::CONFIG_SECRET_SUFFIX);
        let (filled, others): (Vec<_>, Vec<_>) = plan.apply.iter().partition(|manifest| is_filled(&manifest.object));
        let has_certificate = filled.iter().any(|manifest| manifest.object.name == format!("shop.{DOMAIN}"));
        assert!(!filled.is_empty() && has_certificate == matches!(case, Case::Ingress), "{case:?} {group:?}");
        assert!(others.iter().any(|manifest| manifest.object.kind == Kind::StatefulSet), "{case:?} {group:?}");
        for manifest in &plan.apply {
            assert_eq!(manifest.adopt, !is_filled(&manifest.object), "{case:?} {group:?} {}", manifest.object);
        }
    }
}

#[test]
fn move_to_an_own_proxy_removes_every_form_of_the_finalizer() {
    for form in FORMS {
        let mut world = taken_over(form);
        Case::Service.put(&mut world, None);
        Case::Service.run_until(&mut world, |world| Case::Service.device(world).as_deref() == Some("shop"));
        world.settle();
        assert_eq!(Case::Service.finalizers(&world), [FOREIGN, names::FINALIZER], "{form:?}");
        assert_eq!((Case::Service.served(&world), Case::Service.names(&world)), ((true, false), vec![format!("shop.{DOMAIN}")]));
    }
}

#[test]
fn move_to_another_group_ends_with_a_deletion() {
    for form in FORMS {
        let mut world = taken_over(form);
        world.group("next", json!({"type": "ingress"}));
        Case::Service.put(&mut world, Some("next"));
        world.settle();
        assert!(world.observed_replicas("next").values().any(|replica| serves(replica, "svc:shop")), "{form:?}");
        assert_deletion_ends(&mut world, form);
    }
}

#[test]
fn uninstall_removes_every_form_of_the_finalizer() {
    for form in FORMS {
        let mut world = taken_over(form);
        world.assignment.uninstall = Some(world.time());
        world.settle();
        assert_eq!(Case::Service.finalizers(&world), [FOREIGN], "{form:?}");
    }
}

/// The Tailscale operator serves groups that publish, and this reconciler only egress groups.
#[test]
fn finalizer_of_another_operators_group_stays() {
    // Its group exists, or is created again; the object names it, names none, or is invalid.
    for (has_group, named) in [(true, None), (true, Some("in")), (false, None), (false, Some("in")), (true, Some("-")), (false, Some("-"))]
    {
        for (case, form) in FORMS.into_iter().map(|form| (Case::Service, form)).chain([(Case::Ingress, &[names::INGRESS_FINALIZER][..])]) {
            let mut world = World::new();
            world.settings.types = vec![ProxyGroupType::Egress];
            world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
            if has_group {
                world.group("in", json!({"type": "ingress"}));
            }
            case.put(&mut world, named);
            let key = ("default".to_owned(), "shop".to_owned());
            let finalizers: Vec<_> = [&[FOREIGN], form].concat().into_iter().map(str::to_owned).collect();
            match case {
                Case::Service => world.services.get_mut(&key).expect("a Service").metadata.finalizers = Some(finalizers.clone()),
                Case::Ingress => world.ingresses.get_mut(&key).expect("an Ingress").metadata.finalizers = Some(finalizers.clone()),
            }
            world.settle();
            assert_eq!(case.finalizers(&world), finalizers, "{case:?} {has_group} {named:?}");
            case.delete(&mut world);
            world.settle();
            assert_eq!(case.finalizers(&world), finalizers, "{case:?} {has_group} {named:?} in deletion");
            world.assignment.uninstall = Some(world.time());
            world.settle();
            assert_eq!(case.finalizers(&world), finalizers, "{case:?} {has_group} {named:?} in an uninstall");
            assert!(world.keys_of_work().iter().all(|key| is_released(&world.observe(key.clone()))), "an uninstall does not wait for it");
        }
    }
}
