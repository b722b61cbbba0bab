//! Forbidden target addresses: neither an egress config nor the address of an ingress backend makes a replica relay to them.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use kit::netns::{Lab, Shape};
use kit::wait::until;
use serde_json::{Value, json};
use tailyard::model::base::net::Family;

use crate::proxy::replica::{PATIENCE, Replica, Start, netmap, service};

/// Time limit for quick operations on a busy machine.
const QUICK: Duration = Duration::from_secs(5);
/// Addresses of a metadata service and of an API server.
const STRANGERS: [&str; 2] = ["169.254.169.254", "10.96.0.1"];
/// Address of a Tailscale Service.
const VIP: &str = "100.99.1.2";

/// Modes of all firewalls.
const FIREWALLS: [&str; 3] = ["nftables", "iptables-nft", "iptables-legacy"];

/// Lab in which a cluster node answers at these addresses, and a second tailnet node at its own.
fn lab_with(strangers: &[&str]) -> (Lab, [kit::netns::Server; 2]) {
    let lab = Lab::build(&Shape { clients: 2, targets: 2, ..Shape::default() });
    let stranger = &lab.clients[1];
    for ip in strangers {
        stranger.ip(&format!("addr add {ip}/32 dev lo\n"));
        lab.proxies[0].ip(&format!("route add {ip}/32 via {} dev eth0\n", stranger.cluster[&Family::V4]));
    }
    lab.targets[0].ip(&format!("route add {VIP}/32 via {}\n", lab.proxies[0].tailnet[&Family::V4]));
    let servers = [stranger.serve(80), lab.targets[1].serve(80)];
    (lab, servers)
}

/// The same with the forbidden addresses.
fn lab() -> (Lab, [kit::netns::Server; 2]) {
    lab_with(&STRANGERS)
}

fn environment() -> Vec<(String, String)> {
    vec![("TAILYARD_DENIED_TARGETS".to_owned(), "10.96.0.0/16".to_owned())]
}

#[test]
fn egress_by_ip_cannot_reach_node_or_cluster() {
    for backend in FIREWALLS {
        let (lab, _servers) = lab();
        let (client, proxy) = (&lab.clients[0], &lab.proxies[0]);
        let ports = (10_080..).zip(["169.254.169.254", "10.96.0.1", "10.42.0.11", "10.42.0.2"]);
        let config: serde_json::Map<String, Value> =
            ports.clone().map(|(port, ip)| (format!("to-{ip}"), service(&json!({"ip": ip}), port, 80))).collect();
        let start = Start { args: vec!["--firewall-mode".to_owned(), backend.to_owned()], env: environment() };
        // A peer claims to route addresses of the cluster.
        let mut tailnet = netmap(proxy, &lab.targets);
        tailnet["peers"][0]["routes"] = json!(["169.254.0.0/16", "10.96.0.0/16", "10.42.0.2/32"]);
        let mut replica = Replica::launch(proxy, &Value::Object(config).to_string(), &tailnet, &start);
        replica.wait_ready();
        for (port, ip) in ports {
            let answer = client.ask_tcp(SocketAddr::new(replica.pod(Family::V4), port), QUICK);
            assert_eq!(
                answer.as_ref().map_err(std::io::Error::kind).err(),
                Some(ErrorKind::ConnectionRefused),
                "{backend} {ip}: {answer:?}"
            );
        }
        let count = |reason: &str| replica.metric(&format!("tailyard_services_rejected{{reason=\"{reason}\"}}"));
        until("the refusals are counted", PATIENCE, || (count("ForbiddenTarget"), count("Unrouted")) == (Some(3.0), Some(1.0)));
        until("and in the status", PATIENCE, || {
            let status = replica.status();
            status["rejected"]["to-169.254.169.254"][0].as_str().is_some_and(|reason| reason.contains("link-local"))
        });
        assert!(replica.log().contains("target rejected"), "{}", replica.log());
    }
}

#[test]
fn ingress_by_external_name_cannot_reach_node_or_cluster() {
    let names = [("169.254.169.254", false), ("10.96.0.1", false), ("100.64.0.12", false), ("169.254.169.254", true)];
    for (backend, (name, allowed)) in FIREWALLS.into_iter().flat_map(|backend| names.map(|name| (backend, name))) {
        let (lab, _servers) = lab();
        let (proxy, client) = (&lab.proxies[0], &lab.targets[0]);
        let files = tempfile::TempDir::new().expect("a directory");
        let config = json!({"svc:db": {"IPv4Mapping": {"TailscaleServiceIP": VIP, "ClusterIP": ""}, "externalName": name}});
        let path = files.path().join("ingress-config.json");
        std::fs::write(&path, config.to_string()).expect("a file");
        let args = ["--ingress-config", &path.display().to_string(), "--firewall-mode", backend].map(str::to_owned).to_vec();
        let mut start = Start { args, env: environment() };
        start.env.extend(allowed.then(|| ("TAILYARD_ALLOWED_TARGETS".to_owned(), format!("{name}/32"))));
        let mut replica = Replica::launch(proxy, "{}", &netmap(proxy, &lab.targets), &start);
        replica.wait_ready();
        let to = SocketAddr::new(VIP.parse().expect("an address"), 80);
        if allowed {
            until(&format!("{backend}: an allowed target answers"), PATIENCE, || {
                client.ask_tcp(to, QUICK).is_ok_and(|greeting| greeting.name == "client1")
            });
            continue;
        }
        until(&format!("{backend}: the refusal of {name} is counted"), PATIENCE, || {
            replica.metric("tailyard_service_rejected{proxied_service=\"svc:db\",reason=\"ForbiddenTarget\"}") == Some(1.0)
        });
        assert!(client.ask_tcp(to, QUICK / 5).is_err(), "{backend} {name}");
        until("and in the status", PATIENCE, || {
            let state = replica.state();
            let status: Option<Value> = state["ingress-config.json"].as_str().and_then(|text| serde_json::from_str(text).ok());
            status.is_some_and(|status| status["rejected"]["svc:db"][0].is_string())
        });
    }
}

#[test]
fn external_name_cannot_reach_nodes_api_server_or_services_by_default() {
    // Own node, another one, an endpoint of the API server, a Service of another namespace, and an address outside of the cluster.
    let targets = ["10.0.0.5", "10.0.0.4", "10.0.9.9", "10.96.0.10", "192.0.2.9"];
    for backend in FIREWALLS {
        let (lab, _servers) = lab_with(&targets);
        let (proxy, client) = (&lab.proxies[0], &lab.targets[0]);
        let files = tempfile::TempDir::new().expect("a directory");
        // What the reconciler writes into the config Secret.
        let rules = json!({"cluster": ["10.0.0.4/31", "10.0.9.9/32", "10.96.0.0/12"]});
        std::fs::write(files.path().join("target-policy.json"), rules.to_string()).expect("a file");
        let address = |number: usize| format!("100.99.1.{}", number + 10);
        let service = |(number, target): (usize, &&str)| {
            let mapping = json!({"TailscaleServiceIP": address(number), "ClusterIP": ""});
            (format!("svc:s{number}"), json!({"IPv4Mapping": mapping, "externalName": target}))
        };
        let config: serde_json::Map<String, Value> = targets.iter().enumerate().map(service).collect();
        for number in 0..targets.len() {
            lab.targets[0].ip(&format!("route add {}/32 via {}\n", address(number), lab.proxies[0].tailnet[&Family::V4]));
        }
        let path = files.path().join("ingress-config.json");
        std::fs::write(&path, Value::Object(config).to_string()).expect("a file");
        let args = ["--ingress-config", &path.display().to_string(), "--firewall-mode", backend].map(str::to_owned).to_vec();
        let env = [("NODE_IP", "10.0.0.5".to_owned()), ("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", files.path().display().to_string())];
        let env = env.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let mut replica = Replica::launch(proxy, "{}", &netmap(proxy, &lab.targets), &Start { args, env });
        replica.wait_ready();
        let to = |number: usize| SocketAddr::new(address(number).parse().expect("an address"), 80);
        until(&format!("{backend}: an address outside of the cluster answers"), PATIENCE, || {
            client.ask_tcp(to(4), QUICK).is_ok_and(|greeting| greeting.name == "client1")
        });
        for (number, target) in targets[..4].iter().enumerate() {
            until(&format!("{backend}: the refusal of {target} is counted"), PATIENCE, || {
                let labels = format!("proxied_service=\"svc:s{number}\",reason=\"ForbiddenTarget\"");
                replica.metric(&format!("tailyard_service_rejected{{{labels}}}")) == Some(1.0)
            });
            assert!(client.ask_tcp(to(number), QUICK / 5).is_err(), "{backend} {target}");
        }
    }
}
