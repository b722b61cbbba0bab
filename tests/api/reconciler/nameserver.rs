//! `DNSConfigs` with the rights of config/rbac: the reconciler's objects and records, and the real `tailyard nameserver` with the rights that the
//! reconciler gives it, queried over UDP and TCP.

use std::fs::File;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use hickory_server::proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_server::proto::rr::{Name, RecordType};
use hickory_server::proto::serialize::binary::{BinDecodable, BinEncodable};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tailyard::api::dnsconfig::DNSConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use kit::apiserver::{DEADLINE, NAMESPACE};
use kit::reconciler::{Stage, stage};
use kit::wait::eventually_async;

const FLAGS: [&str; 2] = ["--dns-configs", "on"];
const DNS: &str = "127.0.0.1:1053";
const NAME: &str = "db.tail1234.ts.net";

/// A process that is killed with the value.
struct Program(std::process::Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn config(stage: &Stage, name: &str, spec: Value) {
    let object =
        json!({"apiVersion": "tailscale.com/v1alpha1", "kind": "DNSConfig", "metadata": {"name": name}, "spec": {"nameserver": spec}});
    stage.apply(stage.all::<DNSConfig>(), name, object).await;
}

/// A Service of a group to a name in the tailnet.
async fn service(stage: &Stage, name: &str, fqdn: &str) {
    let annotations = json!({"tailscale.com/proxy-group": "eg", "tailscale.com/tailnet-fqdn": fqdn});
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations},
        "spec": {"type": "ExternalName", "externalName": "placeholder.invalid", "ports": [{"name": "web", "port": 80}]}});
    stage.apply(stage.users(), name, object).await;
}

/// Waits for status and reason of the condition, and the address.
async fn ready(stage: &Stage, name: &str, wanted: &str) -> String {
    let status = async || stage.all::<DNSConfig>().get(name).await.ok().and_then(|config| config.status).unwrap_or_default();
    let text = |condition: &tailyard::api::condition::Condition| format!("{} {}", condition.status, condition.reason);
    let status =
        eventually_async(wanted, DEADLINE, status, |status| status.conditions.first().is_some_and(|first| text(first) == wanted)).await;
    status.nameserver.map(|nameserver| nameserver.ip).unwrap_or_default()
}

async fn ip4(stage: &Stage) -> Value {
    let map = stage.here::<ConfigMap>().get_opt("dnsrecords").await.ok().flatten();
    let document = map.and_then(|map| map.data).and_then(|mut data| data.remove("records.json")).unwrap_or_default();
    serde_json::from_str::<Value>(&document).unwrap_or_default()["ip4"].clone()
}

async fn records(stage: &Stage, wanted: &Value) {
    eventually_async(&wanted.to_string(), DEADLINE, async || ip4(stage).await, |found| found == wanted).await;
}

/// Waits for records while the replica acknowledges the egress config.
async fn acknowledged(stage: &Stage, wanted: &Value) {
    let look = async || {
        stage.acknowledge("eg", 1).await;
        ip4(stage).await
    };
    eventually_async(&wanted.to_string(), DEADLINE, look, |found| found == wanted).await;
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(format!("{name}.")).expect("a name"), kind));
    message
}

/// The answer over UDP; `None` without one.
async fn udp(message: &Message) -> Option<Message> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    socket.connect(DNS).await.expect("connected");
    socket.send(&message.to_bytes().expect("bytes")).await.ok()?;
    let mut bytes = vec![0; 65_536];
    let length = timeout(Duration::from_secs(2), socket.recv(&mut bytes)).await.ok()?.ok()?;
    Message::from_bytes(&bytes[..length]).ok()
}

async fn tcp(message: &Message) -> Message {
    let mut stream = TcpStream::connect(DNS).await.expect("connected");
    let bytes = message.to_bytes().expect("bytes");
    stream.write_u16(bytes.len().try_into().expect("short")).await.expect("sent");
    stream.write_all(&bytes).await.expect("sent");
    let mut answer = vec![0; stream.read_u16().await.expect("a length").into()];
    stream.read_exact(&mut answer).await.expect("an answer");
    Message::from_bytes(&answer).expect("a message")
}

/// Response code and data of an answer.
fn found(message: &Message) -> (ResponseCode, Vec<String>) {
    (message.metadata.response_code, message.answers.iter().map(|record| record.data.to_string()).collect())
}

async fn resolves(name: &str, wanted: &str) {
    let addresses = async || udp(&query(name, RecordType::A)).await.map(|answer| found(&answer).1).unwrap_or_default();
    eventually_async(&format!("{name}: {wanted}"), DEADLINE, addresses, |found| found.join(",") == wanted).await;
}

/// Starts the nameserver with the rights of its `ServiceAccount`.
async fn nameserver(stage: &Stage) -> Program {
    stage.cluster.account("nameserver").await;
    let log = stage.cluster.path("nameserver.log");
    let mut command = Command::new(kit::tailyard());
    command.args(["nameserver", "--listen", DNS, "--admin-addr", "127.0.0.1:9102", "--drain-timeout", "2s"]);
    command.args(["--configmap", &format!("{NAMESPACE}/dnsrecords"), "--kubeconfig"]).arg(stage.cluster.kubeconfig_of("nameserver"));
    let log = File::options().create(true).append(true).open(log).expect("a log");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Program(command.spawn().expect("the binary"))
}

async fn write_document(stage: &Stage, document: &Value) {
    let patch = Patch::Merge(json!({"data": {"records.json": document}}));
    stage.here::<ConfigMap>().patch("dnsrecords", &PatchParams::default(), &patch).await.expect("written");
}

/// Simulates the Deployment's controller.
async fn pods_are_ready(stage: &Stage) {
    let there = async || stage.here::<Deployment>().get_opt("nameserver").await.ok().flatten().is_some();
    eventually_async("a Deployment", DEADLINE, there, |there| *there).await;
    let status = Patch::Merge(json!({"status": {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2}}));
    stage.here::<Deployment>().patch_status("nameserver", &PatchParams::default(), &status).await.expect("a status");
}

async fn address_of_child(stage: &Stage, parent: &str) -> String {
    let selector =
        kube::api::ListParams::default().labels(&format!("tailscale.com/parent-resource={parent},tailscale.com/svc-type=egress"));
    let children = async || stage.here::<Service>().list(&selector).await.expect("a list").items;
    let child = eventually_async("a child", DEADLINE, children, |all| all.len() == 1).await.remove(0);
    child.spec.and_then(|spec| spec.cluster_ip).expect("an address")
}

#[test]
fn records_follow_services_and_the_nameserver_answers_without_the_api_server() {
    stage(async |mut stage| {
        stage.grant("dnsconfigs.yaml", "").await;
        let running = stage.reconciler_with("one", 9100, &FLAGS);
        stage.group("eg", 1).await;
        stage.join("eg", 1).await;
        service(&stage, "db", NAME).await;
        let address = address_of_child(&stage, "db").await;
        config(&stage, "ts-dns", json!({})).await;
        records(&stage, &json!({})).await;
        acknowledged(&stage, &json!({NAME: [address]})).await;
        assert!(!ready(&stage, "ts-dns", "False NameserverPending").await.is_empty());
        pods_are_ready(&stage).await;
        let of_service = stage.here::<Service>().get("nameserver").await.expect("a Service").spec.and_then(|spec| spec.cluster_ip);
        assert_eq!(Some(ready(&stage, "ts-dns", "True NameserverCreated").await), of_service);
        let _nameserver = nameserver(&stage).await;
        resolves(NAME, &address).await;
        answers_follow_the_protocol(&address).await;
        service(&stage, "db", "renamed.tail1234.ts.net").await;
        acknowledged(&stage, &json!({"renamed.tail1234.ts.net": [address]})).await;
        resolves("renamed.tail1234.ts.net", &address).await;
        assert_eq!(found(&udp(&query(NAME, RecordType::A)).await.expect("an answer")).0, ResponseCode::NXDomain);
        stage.quiet(&running).await;
        running.kill();
        for bad in [json!("{"), json!(""), json!(null), json!(r#"{"version":"v2"}"#)] {
            write_document(&stage, &bad).await;
        }
        stage.delete(&stage.here::<ConfigMap>(), "dnsrecords").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        resolves("renamed.tail1234.ts.net", &address).await;
        stage.cluster.kill_server();
        resolves("renamed.tail1234.ts.net", &address).await;
    });
}

#[test]
fn name_stays_with_the_service_that_has_it_whatever_older_ones_request() {
    stage(async |stage| {
        stage.grant("dnsconfigs.yaml", "").await;
        let running = stage.reconciler_with("one", 9100, &FLAGS);
        stage.group("eg", 1).await;
        stage.join("eg", 1).await;
        config(&stage, "ts-dns", json!({})).await;
        service(&stage, "a-first", "first.tail1234.ts.net").await;
        service(&stage, "db", NAME).await;
        let (first, address) = (address_of_child(&stage, "a-first").await, address_of_child(&stage, "db").await);
        acknowledged(&stage, &json!({"first.tail1234.ts.net": [first], NAME: [address]})).await;
        service(&stage, "a-first", NAME).await;
        acknowledged(&stage, &json!({NAME: [address]})).await;
        service(&stage, "db", "not a name").await;
        stage.quiet(&running).await;
        assert_eq!(ip4(&stage).await, json!({NAME: [address]}), "a faulty request changes neither what is served nor the record");
        service(&stage, "db", "second.tail1234.ts.net").await;
        acknowledged(&stage, &json!({"second.tail1234.ts.net": [address], NAME: [first]})).await;
    });
}

/// Families, absent names, foreign names, EDNS, truncation and malformed messages.
async fn answers_follow_the_protocol(address: &str) {
    let answer = udp(&query("DB.Tail1234.TS.net", RecordType::A)).await.expect("an answer");
    assert!(answer.metadata.authoritative && !answer.metadata.recursion_available);
    assert_eq!(found(&answer), (ResponseCode::NoError, vec![address.to_owned()]));
    assert_eq!(found(&tcp(&query(NAME, RecordType::A)).await), found(&answer));
    let none = udp(&query(NAME, RecordType::AAAA)).await.expect("an answer");
    assert_eq!((found(&none), none.authorities.len()), ((ResponseCode::NoError, vec![]), 1), "SOA for negative caching");
    let absent = udp(&query("no.tail1234.ts.net", RecordType::A)).await.expect("an answer");
    assert_eq!((found(&absent).0, absent.authorities.len()), (ResponseCode::NXDomain, 1));
    assert_eq!(found(&udp(&query("example.com", RecordType::A)).await.expect("an answer")).0, ResponseCode::Refused);
    let reverse = address.split('.').rev().collect::<Vec<_>>().join(".");
    let reverse = udp(&query(&format!("{reverse}.in-addr.arpa"), RecordType::PTR)).await.expect("an answer");
    assert_eq!(found(&reverse).1, [format!("{NAME}.")]);
    let mut edns = query(NAME, RecordType::A);
    edns.set_edns(Edns::new());
    assert!(udp(&edns).await.expect("an answer").edns.is_some());
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let address: SocketAddr = DNS.parse().expect("an address");
    for bad in [&b""[..], b"\0", b"\0\x07\x01\0\xff\xff\0\0\0\0\0\0", &[0xff; 600]] {
        socket.send_to(bad, address).await.expect("sent");
    }
    assert!(udp(&edns).await.is_some(), "malformed messages end nothing");
}

#[test]
fn long_answer_is_truncated_over_udp_and_complete_over_tcp() {
    stage(async |stage| {
        let map = |count: u32| {
            let ips: Vec<_> = (0..count).map(|n| format!("10.0.0.{n}")).collect();
            json!({"version": "v1alpha1", "ip4": {NAME: ips}}).to_string()
        };
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dnsrecords"}, "data": {"records.json": map(60)}});
        stage.apply(stage.here::<ConfigMap>(), "dnsrecords", object).await;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nameserver"}});
        stage.apply(stage.here::<ServiceAccount>(), "nameserver", account).await;
        let rules =
            json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["dnsrecords"], "verbs": ["get", "list", "watch"]}]);
        let role =
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "nameserver"}, "rules": rules});
        stage.apply(stage.here::<Role>(), "nameserver", role).await;
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "nameserver"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "nameserver"},
            "subjects": [{"kind": "ServiceAccount", "name": "nameserver", "namespace": NAMESPACE}]});
        let bindings: Api<k8s_openapi::api::rbac::v1::RoleBinding> = stage.here();
        stage.apply(bindings, "nameserver", binding).await;
        let mut program = nameserver(&stage).await;
        let truncated = async || udp(&query(NAME, RecordType::A)).await.map(|answer| answer.metadata.truncation);
        eventually_async("a truncated answer", DEADLINE, truncated, |truncated| *truncated == Some(true)).await;
        assert_eq!(found(&tcp(&query(NAME, RecordType::A)).await).1.len(), 60);
        write_document(&stage, &json!(map(1))).await;
        resolves(NAME, "10.0.0.0").await;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(program.0.id().try_into().expect("an ID")), nix::sys::signal::Signal::SIGTERM)
            .expect("signalled");
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(udp(&query(NAME, RecordType::A)).await.is_some(), "it answers while clients leave");
        let ended = async || program.0.try_wait().expect("a process");
        let ended = eventually_async("it ends", DEADLINE, ended, Option::is_some).await;
        assert!(ended.is_some_and(|status| status.success()));
    });
}

#[test]
fn second_config_gets_a_condition_and_takes_over_when_the_first_is_deleted() {
    stage(async |stage| {
        stage.grant("dnsconfigs.yaml", "").await;
        let running = stage.reconciler_with("one", 9100, &FLAGS);
        stage.group("eg", 0).await;
        config(&stage, "first", json!({"replicas": 3})).await;
        pods_are_ready(&stage).await;
        let address = ready(&stage, "first", "True NameserverCreated").await;
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        config(&stage, "second", json!({})).await;
        assert_eq!(ready(&stage, "second", "False MultipleDNSConfigsPresent").await, "");
        stage.quiet(&running).await;
        let replicas = async || stage.here::<Deployment>().get("nameserver").await.ok().and_then(|found| found.spec?.replicas);
        assert_eq!(replicas().await, Some(3), "that of the oldest");
        // The finalizer of the Tailscale operator.
        let finalizer = Patch::Merge(json!({"metadata": {"finalizers": ["tailscale.com/finalizer"]}}));
        stage.all::<DNSConfig>().patch("first", &PatchParams::default(), &finalizer).await.expect("patched");
        stage.delete(&stage.all::<DNSConfig>(), "first").await;
        stage.gone(&stage.all::<DNSConfig>(), "first").await;
        eventually_async("replicas of the second", DEADLINE, replicas, |found| *found == Some(2)).await;
        assert_eq!(ready(&stage, "second", "True NameserverCreated").await, address, "the same Service");
        stage.here::<ConfigMap>().delete("dnsrecords", &kube::api::DeleteParams::default()).await.expect("deleted");
        records(&stage, &json!({})).await;
        stage.delete(&stage.all::<DNSConfig>(), "second").await;
        stage.gone(&stage.here::<Deployment>(), "nameserver").await;
        stage.gone(&stage.here::<Service>(), "nameserver").await;
        stage.gone(&stage.here::<ConfigMap>(), "dnsrecords").await;
        stage.gone(&stage.here::<PodDisruptionBudget>(), "nameserver").await;
        stage.gone(&stage.here::<Role>(), "nameserver").await;
        stage.quiet(&running).await;
    });
}

#[test]
fn dns_configs_and_their_objects_are_not_touched_by_default() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        let labels = json!({"tailscale.com/managed": "true", "tailscale.com/parent-resource-type": "nameserver"});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dnsrecords", "labels": labels}, "data": {"records.json": "x"}});
        stage.apply(stage.here::<ConfigMap>(), "dnsrecords", map).await;
        config(&stage, "theirs", json!({})).await;
        stage.group("eg", 0).await;
        stage.quiet(&running).await;
        assert_eq!(stage.all::<DNSConfig>().get("theirs").await.expect("a DNSConfig").status, None);
        let map = stage.here::<ConfigMap>().get("dnsrecords").await.expect("a ConfigMap");
        assert_eq!(map.data.and_then(|data| data.get("records.json").cloned()).as_deref(), Some("x"));
        assert!(stage.here::<Deployment>().get_opt("nameserver").await.expect("an answer").is_none());
    });
}
