//! Network of namespaces that the other tests use.

use std::net::SocketAddr;
use std::time::Duration;

use kit::netns::{Lab, Shape};
use tailyard::model::base::net::Family;

#[test]
fn nodes_reach_only_their_neighbours() {
    let lab = Lab::build(&Shape { clients: 1, proxies: 2, targets: 1, ..Shape::default() });
    let patience = Duration::from_secs(5);
    let (at_proxy, at_target) = (lab.proxies[1].serve(7000), lab.targets[0].serve(7000));
    for family in Family::ALL {
        let proxy = SocketAddr::new(lab.proxies[1].cluster[&family], 7000);
        let greeting = lab.clients[0].ask_tcp(proxy, patience).unwrap_or_else(|fault| panic!("{proxy} by TCP: {fault}"));
        assert_eq!((greeting.name.as_str(), greeting.peer.ip()), ("proxy1", lab.clients[0].cluster[&family]));
        let greeting = lab.clients[0].ask_udp(proxy, patience).unwrap_or_else(|fault| panic!("{proxy} by UDP: {fault}"));
        assert_eq!(greeting.name, "proxy1", "{proxy} by UDP");
        let target = SocketAddr::new(lab.targets[0].tailnet[&family], 7000);
        assert_eq!(
            lab.proxies[0].ask_tcp(target, patience).map(|greeting| greeting.name).ok().as_deref(),
            Some("target0"),
            "{target} by TCP"
        );
        assert!(lab.clients[0].ask_tcp(target, patience).is_err(), "the client has no way to {target} in the tailnet");
    }
    drop((at_proxy, at_target));
}
