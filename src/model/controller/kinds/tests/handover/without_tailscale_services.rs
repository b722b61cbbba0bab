//! Moves on a control plane without Tailscale Services: names and addresses change.

use super::*;

#[test]
fn service_moves_without_interruption_on_a_control_plane_without_tailscale_services() {
    let case = Case::Service;
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    let capabilities = Capabilities::HEADSCALE;
    world.tailnet = TailnetState::Ready { server_url: "https://headscale.lab".into(), capabilities };
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    world.group("in", json!({"type": "ingress", "tailyard": {"serviceCIDRs": ["10.9.0.0/24"]}}));
    case.put(&mut world, None);
    world.settle();
    let by_route = |world: &World| world.hosted.approved.values().any(|approved| !approved.routes.is_empty());
    let shown = |world: &World| case.status(world)["loadBalancer"]["ingress"][0].clone();
    case.put(&mut world, Some("in"));
    for _ in 0..40 {
        world.round();
        assert!(case.served(&world).0 || (by_route(&world) && shown(&world) == json!({"ip": "10.9.0.1"})));
        assert!(case.device(&world).is_none_or(|name| name == "shop"), "no name is in conflict");
    }
    assert_eq!((case.device(&world), shown(&world)), (None, json!({"ip": "10.9.0.1"})));
    assert_eq!(world.event_count("ProxyMoving"), 1, "names and addresses change");
    case.put(&mut world, None);
    for _ in 0..40 {
        world.round();
        let by_proxy = world.condition("shop", PROXY_READY).is_some_and(|(status, ..)| status == "True");
        assert!(by_route(&world) || by_proxy);
    }
    world.settle();
    assert_eq!((by_route(&world), case.names(&world)), (false, vec![format!("shop.{DOMAIN}")]));
    assert_eq!(world.condition("shop", INGRESS_SVC_CONFIGURED), None);
    ends(case, world);
}

#[test]
fn ingress_with_its_own_certificate_moves_on_a_control_plane_without_tailscale_services() {
    let mut world = World::new();
    world.assignment.standalone = StandaloneScope::Everywhere;
    let capabilities = Capabilities::HEADSCALE;
    world.tailnet = TailnetState::Ready { server_url: "https://headscale.lab".into(), capabilities };
    world.plain("web", json!({}), json!({"clusterIP": "10.96.0.20", "ports": [{"port": 80}]}));
    world.group("in", json!({"type": "ingress"}));
    super::certificates::own(&mut world, "own", -1, 90);
    let put = |world: &mut World, annotations: Value| {
        let spec = json!({"tls": [{"hosts": ["shop"]}, {"hosts": ["own.example.com"], "secretName": "own"}],
            "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}});
        world.put_ingress("shop", annotations, spec);
    };
    put(&mut world, json!({}));
    world.settle();
    assert_eq!(Case::Ingress.names(&world), [format!("shop.{DOMAIN}")]);
    put(&mut world, json!({"tailscale.com/proxy-group": "in"}));
    for _ in 0..40 {
        world.round();
        let by_group = !world.config("in").routes.is_empty() && Case::Ingress.names(&world).len() == 2;
        assert!(by_group || Case::Ingress.served(&world).0);
    }
    assert_eq!((Case::Ingress.device(&world), Case::Ingress.names(&world).len()), (None, 2));
    put(&mut world, json!({}));
    for _ in 0..40 {
        world.round();
        assert!(!world.config("in").routes.is_empty() || Case::Ingress.names(&world) == [format!("shop.{DOMAIN}")]);
    }
    world.settle();
    assert!(world.config("in").routes.is_empty());
    ends(Case::Ingress, world);
}
