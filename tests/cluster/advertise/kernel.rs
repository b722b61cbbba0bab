//! Sites whose connections end in the kernel of their replicas: one with a backend, and the Kubernetes API.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{PATIENCE, TRY, names, port, site};
use kit::apiserver;
use kit::machine::DEADLINE;
use kit::member::{Member, in_pod, service};
use kit::tailnet::{Control, Tailnet};
use kit::wait::eventually;

const HOST: &str = "web.tail-lab.ts.net";
const KUBE: &str = "kube.tail-lab.ts.net";
const SERVICES: [&str; 2] = ["svc:kube", "svc:web"];

fn serve_config(member: &Member) -> Value {
    serde_json::from_str(&member.machine.tailscale(&["serve", "status", "--json"])).expect("a config")
}

#[test]
fn sites_are_served_by_the_kernel_and_move_without_a_failed_connection() {
    apiserver::cluster(async |cluster| {
        let tailnet = Tailnet::start_with([10, 87, 0], Control::Hosted);
        tailnet.plug_in(10);
        let (vips, kube) = (service(&tailnet, "svc:web"), service(&tailnet, "svc:kube"));
        tailnet.set_login("client", "alice@example.com");
        let (mut client, _client) = tailnet.node("client");
        client.tailnet_addresses();
        let machine = tailnet.machine("backend");
        let _backend = site::backend(&machine.node, 8080);
        let made = rcgen::generate_simple_self_signed([HOST, KUBE].map(str::to_owned)).expect("a certificate");
        let ca = tailnet.dir().join("own.crt");
        std::fs::write(&ca, made.cert.pem()).expect("written");
        cluster.allow("secrets", &["own"], &["get", "list", "watch"]).await;
        cluster.allow("configmaps", &["web"], &["get", "list", "watch"]).await;
        cluster.make_secret("own", &[("tls.crt", &made.cert.pem()), ("tls.key", &made.signing_key.serialize_pem())]).await;
        let address = SocketAddr::new(machine.address, 8080).to_string();
        let site = routes(&json!(vips), &json!(kube), &address);
        cluster
            .write_config("web", &[("serve-config.json", "{}"), ("tailyard-routes.json", &site.to_string()), ("ingress-config.json", "{}")])
            .await;
        let account = cluster.service_account();
        let start = |name: &'static str| {
            Member::launch(&tailnet, name, &json!({"AdvertiseServices": SERVICES}), &json!({}), Some(&json!({})), |machine| {
                let on = ("TAILYARD_KERNEL_TCP", "true".to_owned());
                in_pod(machine, &account, "ts/web").into_iter().chain([on]).collect()
            })
            .joined()
        };
        let mut one = start("web-0");
        one.wait_ready();
        assert_eq!(one.advertised(), names(&SERVICES));
        assert_eq!(serve_config(&one)["Services"], json!({"svc:kube": {"Tun": true}, "svc:web": {"Tun": true}}));

        for vip in &vips {
            let answer = eventually("an answer", DEADLINE, || site::curl(&client, &format!("https://{HOST}/page"), *vip, &ca).ok());
            assert!(
                client.node.tailnet.values().any(|own: &IpAddr| answer.contains(&own.to_string())),
                "not the client's address: {answer}"
            );
            let unserved = client.node.connect(SocketAddr::new(*vip, 22), PATIENCE).map_err(|fault| fault.kind());
            assert_eq!(unserved.map(drop), Err(std::io::ErrorKind::ConnectionRefused), "a port that is not served");
        }
        // The client is identified: the API server refuses to let the Pod impersonate it.
        for vip in &kube {
            let ask = || site::curl(&client, &format!("https://{KUBE}/api"), *vip, &ca).err();
            eventually("a refusal", DEADLINE, || ask().filter(|answer| answer.contains("cannot impersonate")));
        }
        // The kernel's TCP accepts the client's port again, whichever side closes first.
        let asking = port::Client { node: &client.node, host: HOST, at: vips[0], authority: made.cert.der().clone() };
        assert_eq!(asking.twice(443), Some(["HTTP/1.1 200 OK"; 2].map(str::to_owned)), "{}", one.output());
        assert_eq!(asking.twice(80), Some(["HTTP/1.1 301 Moved Permanently"; 2].map(str::to_owned)), "{}", one.output());

        let two = start("web-1");
        two.wait_ready();
        let page = || site::curl(&client, &format!("https://{HOST}/page"), vips[0], &ca).map(drop);
        let failed = failed_during(|| one.shut_down(), page);
        assert!(failed.is_empty(), "{failed:?}\n{}", one.output());
        one.run();
        one.wait_ready();
        eventually("a way to the service", DEADLINE, || client.node.connect(SocketAddr::new(vips[0], 443), TRY).ok());
    });
}

/// Both sites, with these addresses of their Tailscale Services.
fn routes(web: &Value, kube: &Value, backend: &str) -> Value {
    json!({
        "svc:web": {"hosts": {HOST: {"secret": "own"}}, "listeners": {"443": "https", "80": "redirect"}, "addresses": web,
            "routes": [{"path": "/", "backend": {"namespace": "ts", "service": "web", "address": backend, "protocol": "http"}}]},
        "svc:kube": {"hosts": {KUBE: {"secret": "own"}}, "listeners": {"443": "https"}, "addresses": kube,
            "routes": [], "apiServer": {"mode": "auth"}},
    })
}

/// Failed connections, 50 a second, while this work runs, at least 50 of them.
fn failed_during<T: Send>(work: impl FnOnce() -> T + Send, connect: impl Fn() -> Result<(), String>) -> Vec<(usize, String)> {
    let (mut attempts, mut failed) = (0, Vec::new());
    thread::scope(|scope| {
        let working = scope.spawn(work);
        while !working.is_finished() || attempts < 50 {
            attempts += 1;
            if let Err(fault) = connect() {
                failed.push((attempts, fault));
            }
            thread::sleep(Duration::from_millis(20));
        }
        working.join().expect("no panic");
    });
    println!("{attempts} connections, failed: {failed:?}");
    failed
}
