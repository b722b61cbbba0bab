//! Replicas as in a Pod, on headscale: a real API server has their state and their config.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tailyard::api::names::{CONFIG_SECRET_SUFFIX, DELETED_DEVICE_KEY};

use super::site;
use kit::apiserver::{self, Cluster};
use kit::machine::{DEADLINE, Machine};
use kit::member::{Member, in_pod};
use kit::tailnet::{Tailnet, conf_with};
use kit::wait::{eventually, eventually_async};

/// Host name of the site.
const HOST: &str = "web.example.com";
/// Address of the API server.
const API: &str = "10.99.0.2";
/// Key of tailscaled's config in a config Secret.
const CONFIG: &str = "cap-106.hujson";
/// Time without an API server.
const OUTAGE: Duration = Duration::from_secs(15);
/// Time limit from the first answer until a replica has joined.
const RECOVERY: Duration = Duration::from_secs(30);

/// Creates the Secrets of replicas and grants their rights; returns the tailnet, which reaches the API server.
async fn prepare(cluster: &Cluster, net: [u8; 3], replicas: &[&str], routes: &str) -> Tailnet {
    let tailnet = Tailnet::start(net);
    tailnet.plug_in(10);
    let configs: Vec<String> = replicas.iter().map(|name| format!("{name}{CONFIG_SECRET_SUFFIX}")).collect();
    let read: Vec<&str> = configs.iter().map(String::as_str).chain(["own"]).collect();
    cluster.allow("secrets", replicas, &["get", "list", "watch", "patch", "update"]).await;
    cluster.allow("secrets", &read, &["get", "list", "watch"]).await;
    cluster.allow("configmaps", &["web"], &["get", "list", "watch"]).await;
    cluster.write_config("web", &[("serve-config.json", "{}"), ("tailyard-routes.json", routes), ("ingress-config.json", "{}")]).await;
    for (name, config) in replicas.iter().zip(&configs) {
        cluster.make_secret(name, &[]).await;
        cluster.make_secret(config, &[(CONFIG, &conf_with(name, tailnet.key(), false))]).await;
    }
    tailnet
}

/// Starts a replica whose state is in its Secret, with this environment.
fn launch(cluster: &Cluster, tailnet: &Tailnet, name: &str, more: impl FnOnce(&Machine) -> Vec<(&'static str, String)>) -> Member {
    let empty = json!({});
    Member::launch(tailnet, name, &empty, &empty, Some(&empty), |machine| {
        let own = [("TS_KUBE_SECRET", machine.node.name.clone()), ("TAILYARD_SERVE_ON_NODE_ADDRESS", "true".to_owned())];
        in_pod(machine, &cluster.service_account(), "ts/web").into_iter().chain(own).chain(more(machine)).collect()
    })
}

/// Environment of a Pod of our reconciler: the config Secret is not mounted.
fn config_from_api(machine: &Machine) -> Vec<(&'static str, String)> {
    let dir = machine.own_dir().join("from-api");
    std::fs::create_dir_all(&dir).expect("made");
    vec![("TAILYARD_CONFIG_FROM_API", "true".to_owned()), ("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", dir.display().to_string())]
}

/// Waits until a replica has reported its device; returns the device's ID.
async fn device(cluster: &Cluster, name: &str, former: Option<&str>) -> String {
    let reported = async || cluster.secret(name).await.0.remove("device_id");
    let is_new = |id: &Option<String>| id.as_deref().is_some_and(|id| !id.is_empty() && former != Some(id));
    eventually_async(&format!("the device of {name}"), DEADLINE, reported, is_new).await.expect("it holds")
}

#[test]
fn userspace_replica_without_capabilities_serves_a_site_on_its_own_address() {
    apiserver::cluster(async |cluster| {
        let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).expect("a certificate");
        cluster.make_secret("own", &[("tls.crt", &made.cert.pem()), ("tls.key", &made.signing_key.serialize_pem())]).await;
        let tailnet = prepare(&cluster, [10, 91, 0], &["web-0"], "{}").await;
        let (mut client, _client) = tailnet.node("client");
        client.tailnet_addresses();
        let machine = tailnet.machine("backend");
        let _backend = site::backend(&machine.node, 8080);
        let backend = json!({"namespace": "ts", "service": "web", "address": format!("{}:8080", machine.address), "protocol": "http"});
        let routes = json!({"svc:web": {"hosts": {HOST: {"secret": "own"}}, "listeners": {"443": "https", "80": "redirect"},
            "routes": [{"path": "/", "backend": backend}]}});
        cluster.write_config("web", &[("serve-config.json", "{}"), ("tailyard-routes.json", &routes.to_string())]).await;
        let ca = tailnet.dir().join("own.crt");
        std::fs::write(&ca, made.cert.pem()).expect("written");

        let member = launch(&cluster, &tailnet, "web-0", |machine| {
            machine.node.sysctl("net.ipv4.ip_unprivileged_port_start", "0");
            config_from_api(machine).into_iter().chain([("TS_USERSPACE", "true".to_owned())]).collect()
        });
        member.wait_ready();
        let pid = member.machine.pid_of("tailscaled").expect("a tailscaled");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
        assert!(status.contains("CapEff:\t0000000000000000") && status.contains("CapBnd:\t0000000000000000"), "{status}");
        assert!(!member.machine.node.feed(&["ip", "link"], "").contains("tailscale0"), "it has no TUN device");

        for address in tailnet.addresses_of("web-0") {
            let ask = |scheme: &str| site::curl(&client, &format!("{scheme}://{HOST}/page"), address, &ca);
            let answer = eventually(&format!("an answer by {address}"), DEADLINE, || ask("https").ok());
            assert!(answer.starts_with("backend GET /page HTTP/1.1"), "{answer}");
            assert!(
                client.node.tailnet.values().any(|own: &IpAddr| answer.contains(&own.to_string())),
                "not the client's address: {answer}"
            );
            assert_eq!(ask("http").as_deref(), Ok(""), "a redirect");
        }
        let (state, _) = cluster.secret("web-0").await;
        assert_eq!(state["device_fqdn"], "web-0.tail.lab.");
        assert!(tailnet.addresses_of("web-0").iter().all(|address| state["device_ips"].contains(&address.to_string())), "{state:?}");
    });
}

#[test]
fn replicas_that_start_without_an_api_server_join_when_it_answers() {
    const NAMED: &str = "kubernetes.default.svc";
    apiserver::cluster(async |cluster| {
        let tailnet = prepare(&cluster, [10, 90, 0], &["web-0", "web-1"], "{}").await;
        // The config is mounted; connections to the API server are refused, as those to a Service without endpoints.
        let refused = launch(&cluster, &tailnet, "web-0", |machine| {
            let lost = format!(
                "table ip lost {{ chain out {{ type filter hook output priority 0; ip daddr {API} tcp dport 6443 reject with tcp reset; }}; }}"
            );
            machine.node.feed(&["nft", "-f", "-"], &lost);
            Vec::new()
        });
        // The config is read from the API server, whose name cannot be resolved.
        let unresolved = launch(&cluster, &tailnet, "web-1", |machine| {
            let port = format!(
                "table ip port {{ chain out {{ type nat hook output priority -100; ip daddr {API} tcp dport 443 dnat to {API}:6443; }}; }}"
            );
            machine.node.feed(&["nft", "-f", "-"], &port);
            let by_name = ("TS_KUBERNETES_READ_API_SERVER_ADDRESS_FROM_ENV", "false".to_owned());
            config_from_api(machine).into_iter().chain([by_name]).collect()
        });
        let begin = Instant::now();
        eventually("a tailscaled without its state", DEADLINE, || refused.machine.pid_of("tailscaled"));
        tokio::time::sleep(OUTAGE.saturating_sub(begin.elapsed())).await;
        for member in [&refused, &unresolved] {
            assert!(!tailnet.knows(&member.machine.node.name), "{}", member.output());
        }

        refused.machine.node.feed(&["nft", "-f", "-"], "delete table ip lost\n");
        let script = format!("echo '{API} {NAMED}' >> /etc/hosts");
        assert!(unresolved.machine.command("sh".as_ref()).args(["-c", &script]).status().expect("nsenter").success());
        let answering = Instant::now();
        for member in [&refused, &unresolved] {
            let name = &member.machine.node.name;
            member.wait_ready();
            println!("{name} is ready {:?} after the API server answers", answering.elapsed());
            assert!(answering.elapsed() < RECOVERY, "{name}: {:?}\n{}", answering.elapsed(), member.output());
            assert_eq!(device(&cluster, name, None).await, tailnet.node_id(name).to_string());
        }
        assert!(refused.output().contains("it cannot read its stored state"), "{}", refused.output());
    });
}

#[test]
fn device_deleted_at_headscale_joins_again_as_another_one() {
    apiserver::cluster(async |cluster| {
        let tailnet = prepare(&cluster, [10, 89, 0], &["web-0"], "{}").await;
        let (client, _client) = tailnet.node("client");
        let member = launch(&cluster, &tailnet, "web-0", config_from_api);
        member.wait_ready();
        let former = device(&cluster, "web-0", None).await;
        let ping = || {
            let [program, socket] = [client.bin().join("tailscale"), client.socket()];
            let mut command = client.command(&program);
            command.arg(format!("--socket={}", socket.display())).args(["ping", "--c=1", "--timeout=3s", "--until-direct=false", "web-0"]);
            command.output().expect("nsenter").status.success()
        };
        eventually("an answer to the peer", DEADLINE, || ping().then_some(()));

        tailnet.headscale(&["nodes", "delete", "--force", "-i", &former]);
        eventually("the peer loses it", DEADLINE, || (!ping()).then_some(()));
        let config = conf_with("web-0", &tailnet.new_key(), false);
        let begin = Instant::now();
        cluster.patch_secret(&format!("web-0{CONFIG_SECRET_SUFFIX}"), &[(CONFIG, &config), (DELETED_DEVICE_KEY, &former)]).await;
        let joined = device(&cluster, "web-0", Some(&former)).await;
        assert_eq!(joined, tailnet.node_id("web-0").to_string());
        eventually("an answer to the peer again", DEADLINE, || ping().then_some(()));
        member.wait_ready();
        println!("a deleted device: another one answers its peer after {:?}", begin.elapsed());
        assert!(begin.elapsed() < RECOVERY, "{:?}\n{}", begin.elapsed(), member.output());
    });
}
