//! headscale's API v2, and its v1 errors as problem+json, against a scripted server.
//!
//! The server is written against the published contract of headscale 0.30, which is not released: paths, shapes, scopes and statuses. It
//! shows what the client does with them, not what headscale does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use tailyard::edge::control::{ClientCredentials, ControlClient, ControlError};
use tailyard::model::controller::key::WorkloadKey;
use tailyard::model::controller::workload::actions::{ClaimedDevice, DeviceReport};
use tailyard::model::controller::workload::control_plane::Capabilities;
use tailyard::model::controller::workload::device_claim::DeviceClaim;
use tailyard::model::controller::workload::identity::{Binding, DeviceAddresses, DeviceLabel, DeviceRecord, ExpectedDevice, KeyId};
use tailyard::model::tailnet::supervise::Secret;
use tailyard::reconciler::control_plane::{ControlPlanes, RequestLimit};

use super::{expected, id, mint, settings, tags};

const CLIENT: (&str, &str) = ("hskey-client-1", "hskey-client-1-secret");
const TOKEN: &str = "hskey-oauthtok-1";

/// Content of the scripted server.
#[derive(Debug, Default)]
struct Content {
    keys: BTreeMap<String, Value>,
    /// Devices by ID, with their approved routes.
    devices: BTreeMap<String, (Value, BTreeSet<String>)>,
    /// Scopes of the OAuth client.
    scopes: BTreeSet<&'static str>,
    /// Answer to every request, in place of the API.
    fixed: Option<(u16, String)>,
    /// Access token.
    token: &'static str,
    /// Answers to lists of Tailscale Services; without one, the path does not exist.
    lists: VecDeque<Answer>,
}

type Answer = (u16, Value);

/// An error of the API v2: Tailscale's shape.
fn refused(status: u16, message: &str) -> Answer {
    (status, json!({"message": message, "status": status}))
}

impl Content {
    fn answer(&mut self, method: &str, path: &str, authorization: &str, body: &str) -> Answer {
        if let Some((status, body)) = &self.fixed {
            return (*status, serde_json::from_str(body).expect("JSON"));
        }
        if (method, path) == ("POST", "/api/v2/oauth/token") {
            let credentials = format!("client_id={}&client_secret={}", CLIENT.0, CLIENT.1);
            let form = body.contains("grant_type=client_credentials") && body.contains(&credentials);
            let token = json!({"access_token": self.token, "token_type": "Bearer", "expires_in": 3600, "scope": "all"});
            let error = json!({"error": "invalid_client", "error_description": "unknown client"});
            return if form { (200, token) } else { (401, error) };
        }
        if authorization != format!("Bearer {}", self.token) {
            return refused(401, "unauthorized");
        }
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let parts: Vec<_> = path.trim_start_matches("/api/v2/").split('/').collect();
        if parts == ["tailnet", "-", "vip-services"] {
            return self.lists.pop_front().unwrap_or_else(|| refused(404, "Not Found"));
        }
        let scope = match parts.as_slice() {
            ["tailnet", "-", "keys", ..] => "auth_keys",
            ["device", _, "routes"] => "devices:routes",
            ["device", _] => "devices:core",
            _ => return refused(404, "Not Found"),
        };
        if !self.scopes.contains(scope) {
            return refused(403, &format!("token lacks scope {scope}"));
        }
        match (method, parts.as_slice()) {
            ("GET", ["tailnet", _, "keys"]) => (200, json!({"keys": self.keys.values().collect::<Vec<_>>()})),
            ("POST", ["tailnet", _, "keys"]) => self.create_key(&body),
            ("DELETE", ["tailnet", _, "keys", key]) => {
                self.keys.remove(*key).map_or_else(|| refused(404, "auth key not found"), |_| (200, json!({})))
            }
            (_, ["device", device, ..]) if !self.devices.contains_key(*device) => refused(404, "device not found"),
            ("GET", ["device", device]) => (200, self.devices[*device].0.clone()),
            ("DELETE", ["device", device]) => {
                self.devices.remove(*device);
                (200, json!({}))
            }
            (method, ["device", device, "routes"]) => {
                let approved = &mut self.devices.get_mut(*device).expect("a device").1;
                if method == "POST" {
                    *approved = serde_json::from_value(body["routes"].clone()).expect("routes");
                }
                (200, json!({"advertisedRoutes": [], "enabledRoutes": approved}))
            }
            _ => refused(405, "Method Not Allowed"),
        }
    }

    fn create_key(&mut self, body: &Value) -> Answer {
        let create = &body["capabilities"]["devices"]["create"];
        if create["tags"] == json!(["tag:other"]) {
            return refused(400, "creating auth key: tag not permitted");
        }
        assert!(body["description"].as_str().is_none_or(|text| text.len() <= 50) && body["expirySeconds"] == 3600, "{body}");
        let key = (self.keys.len() + 7).to_string();
        let stored = json!({"id": key, "keyType": "auth", "created": "2026-11-01T10:00:00Z", "capabilities": body["capabilities"]});
        let mut made = stored.clone();
        made["key"] = json!(format!("hskey-auth-{key}"));
        self.keys.insert(key, stored);
        (200, made)
    }
}

/// The running server.
struct Scripted {
    url: String,
    content: Arc<Mutex<Content>>,
}

impl Scripted {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let scopes = BTreeSet::from(["auth_keys", "devices:core", "devices:routes"]);
        let content = Arc::new(Mutex::new(Content { scopes, token: TOKEN, ..Content::default() }));
        let shared = Arc::clone(&content);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&shared)));
            }
        });
        Self { url, content }
    }

    fn change(&self, change: impl FnOnce(&mut Content)) {
        change(&mut self.content.lock().expect("no panic"));
    }

    fn client(&self, credentials: ClientCredentials) -> ControlClient {
        ControlClient::new(settings(self.url.clone(), credentials)).expect("a client")
    }

    fn oauth(&self) -> ControlClient {
        self.client(ClientCredentials::OAuth { client_id: CLIENT.0.to_owned(), client_secret: Secret::new(CLIENT.1) })
    }

    /// A client of the API v1.
    fn v1(&self) -> ControlClient {
        self.client(ClientCredentials::Headscale { api_key: Secret::new("hskey-api-1") })
    }
}

/// Answers one request, then closes the connection.
async fn answer(mut stream: TcpStream, content: Arc<Mutex<Content>>) {
    let (mut request, mut bytes) = (Vec::new(), [0; 4096]);
    let (head, body) = loop {
        let Ok(read @ 1..) = stream.read(&mut bytes).await else { return };
        request.extend_from_slice(&bytes[..read]);
        let text = String::from_utf8_lossy(&request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = header(head, "content-length").parse().unwrap_or(0);
        if body.len() >= length {
            break (head.to_owned(), body.to_owned());
        }
    };
    let mut first = head.split(' ');
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let (status, body) = content.lock().expect("no panic").answer(method, path, header(&head, "authorization"), &body);
    let (body, kind) = (body.to_string(), if status < 400 { "application/json" } else { "application/problem+json" });
    let head = format!("HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    drop(stream.write_all(format!("{head}{body}").as_bytes()).await);
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let headers = head.lines().filter_map(|line| line.split_once(':'));
    headers.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value.trim())
}

/// A node as the API v2 shows it: its name has no domain.
fn node(hostname: &str) -> (Value, BTreeSet<String>) {
    let node = json!({"nodeId": "3", "id": "3", "hostname": hostname, "name": hostname, "tags": ["tag:k8s"], "created": "2026-11-01T10:00:05Z",
        "addresses": ["100.64.0.3", "FD7A:115C:A1E0::3"]});
    (node, BTreeSet::from(["10.7.0.0/16".to_owned()]))
}

#[tokio::test]
async fn oauth_client_of_headscale_mints_keys_approves_routes_and_deletes_devices() {
    let server = Scripted::start().await;
    let control = server.oauth();
    control.probe().await.expect("allowed");
    assert_eq!(control.capabilities(), Capabilities::HEADSCALE, "its token shows it");
    control.probe_services().await.expect("it has none");
    let key = control.mint_key(&tags(), "eg/0").await.expect("a key");
    assert_eq!((key.id.as_str(), key.key.reveal(), key.created.is_some()), ("7", "hskey-auth-7", true));
    server.change(|content| content.devices.extend([("3".to_owned(), node("eg-0"))]));
    let created = key.created.expect("a time").as_second();
    let minted =
        |created| ExpectedDevice { binding: Binding::Minted(mint(KeyId::parse("7").expect("an ID"), created)), ..expected("eg-0") };
    let device = control.device(&id("3"), &minted(created)).await.expect("an answer").expect("a device");
    assert_eq!(
        (device.name, device.addresses.texts()),
        (DeviceLabel::Host("eg-0".into()), vec!["100.64.0.3".into(), "fd7a:115c:a1e0::3".into()])
    );
    assert_eq!(control.device(&id("3"), &minted(0)).await.expect_err("another time").reason(), "Mismatch");
    let routes = |list: &[&str]| list.iter().map(|route| (*route).to_owned()).collect::<BTreeSet<_>>();
    let (own, none) = (routes(&["10.9.0.1/32"]), BTreeSet::new());
    let with = control.approve_routes(&id("3"), &expected("eg-0"), &own, &none).await.expect("approved");
    assert_eq!(with, routes(&["10.7.0.0/16", "10.9.0.1/32"]), "what others approved stays");
    assert_eq!(control.approve_routes(&id("3"), &expected("other"), &own, &none).await.expect_err("not it").reason(), "Mismatch");
    assert_eq!(control.approve_routes(&id("3"), &expected("eg-0"), &none, &own).await.expect("withdrawn"), routes(&["10.7.0.0/16"]));
    for _ in 0..2 {
        control.delete_device(&id("3"), &expected("eg-0")).await.expect("deleted, and gone already");
        control.revoke_key(&key.id).await.expect("revoked, and gone already");
    }
}

/// A gateway in front of the server, or a maintenance, answers a list of Tailscale Services.
#[tokio::test]
async fn single_answer_about_tailscale_services_makes_no_verdict() {
    let (t, h) = (Capabilities::TAILSCALE, Capabilities::HEADSCALE);
    let (listed, absent) = (|| (200, json!({"vipServices": []})), || refused(404, "no Route matched with those values"));
    let table = [
        // Tokens of known servers.
        ("tskey-api-1", vec![absent(), absent()], Ok(t)),
        ("tskey-api-1", vec![refused(400, "no"), absent()], Ok(t)),
        (TOKEN, vec![refused(403, "no"), refused(400, "no")], Ok(h)),
        // Others.
        ("other", vec![listed()], Ok(t)),
        ("other", vec![absent(), listed(), listed()], Ok(t)),
        ("other", vec![refused(403, "no")], Ok(h)),
        ("other", vec![refused(400, "no")], Ok(h)),
        ("other", vec![(200, json!({"status": "pass"}))], Ok(h)),
        ("other", vec![refused(502, "no"), listed()], Err("Refused")),
        ("other", vec![], Ok(h)),
    ];
    for (token, lists, wanted) in table {
        let server = Scripted::start().await;
        let row = format!("{token} {lists:?}");
        server.change(|content| (content.token, content.lists) = (token, lists.into()));
        let control = server.oauth();
        if let Err(reason) = wanted {
            assert_eq!(control.probe().await.expect_err("undecided").reason(), reason, "{row}");
        } else {
            // A first answer that shows nothing is followed by one of the server itself.
            control.probe().await.expect("allowed");
            control.probe().await.expect("allowed");
            assert_eq!(Ok(control.capabilities()), wanted, "{row}");
        }
        // A verdict of the server itself outlasts answers of a gateway.
        let verdict = control.capabilities();
        server.change(|content| content.lists = [absent(), refused(403, "no"), refused(502, "no")].into());
        control.probe().await.ok();
        assert_eq!(control.capabilities(), verdict, "{row}");
    }
}

/// After a restore of headscale's database another machine can have the ID of a recorded device.
#[tokio::test]
async fn device_that_was_created_at_another_time_is_absent_and_stays_unchanged() {
    let server = Scripted::start().await;
    let control = server.oauth();
    control.probe().await.expect("allowed");
    let created = control.mint_key(&tags(), "eg-0").await.expect("a key").created.expect("a time").as_second() + 5;
    server.change(|content| content.devices.extend([("3".to_owned(), node("eg-0"))]));
    let of = |created| ExpectedDevice { created: Some(created), ..expected("eg-0") };
    let (other, routes) = (of(created + 1), BTreeSet::from(["10.9.0.1/32".to_owned()]));
    assert!(control.device(&id("3"), &of(created)).await.expect("an answer").is_some());
    assert_eq!(control.device(&id("3"), &other).await.expect("an answer"), None);
    control.delete_device(&id("3"), &other).await.expect("gone already");
    let refused = control.approve_routes(&id("3"), &other, &routes, &routes).await.expect_err("not it");
    assert_eq!((refused.reason(), refused.to_string().contains("remove it")), ("Absent", false), "{refused}");

    let planes = ControlPlanes::new(true);
    let credentials = ClientCredentials::OAuth { client_id: CLIENT.0.to_owned(), client_secret: Secret::new(CLIENT.1) };
    planes.examine(None, "", settings(server.url.clone(), credentials)).await;
    let key = WorkloadKey::of_group("eg");
    let limit = RequestLimit { key: &key, replicas: 1 };
    let replaced = ClaimedDevice { id: id("3"), expected: other };
    planes.mint_key(None, &tags(), "eg-0", (limit, true), (Some(&replaced), None)).await.expect("a key");
    let recorded = DeviceRecord {
        id: id("3"),
        domain: None,
        created: Some(created + 1),
        tags: tags(),
        name: None,
        addresses: DeviceAddresses::default(),
    };
    let report = DeviceReport::default();
    // The replica claims the recorded device, then another one.
    for (claimed, missing) in [(recorded.id.clone(), Some(1)), (recorded.id.clone(), Some(2)), (id("4"), Some(2))] {
        let binding = if claimed == recorded.id { Binding::Reread } else { Binding::RecordedByName };
        let created = recorded.created.filter(|_| claimed == recorded.id);
        let device = ClaimedDevice { id: claimed, expected: ExpectedDevice { binding, created, ..expected("eg-0") } };
        let claim = DeviceClaim { device: &device, domain: None, report: &report, recorded: Some(&recorded) };
        let denied = planes.check_device(None, ("eg-0", limit), &claim).await.expect_err("no such device");
        assert_eq!(denied.reason(), "DeviceUnknown", "{denied}");
        assert_eq!(planes.device_reads(None).get(&recorded.id).map(|read| read.missing), missing);
    }
    server.change(|content| assert_eq!(content.devices, BTreeMap::from([("3".to_owned(), node("eg-0"))])));
}

#[tokio::test]
async fn denials_of_headscale_name_the_scope_and_the_secret() {
    let server = Scripted::start().await;
    let control = server.oauth();
    let error = control.mint_key(&["tag:other".to_owned()], "x").await.expect_err("not permitted");
    assert!(matches!(&error, ControlError::Refused { status: 400, message, .. } if message.contains("tag not permitted")), "{error}");
    assert!(!error.passes(), "it needs a change of the policy");
    server.change(|content| content.devices.extend([("3".to_owned(), node("eg-0"))]));
    control.probe().await.expect("allowed");
    server.change(|content| content.scopes = BTreeSet::from(["devices:core"]));
    let routes = BTreeSet::from(["10.9.0.1/32".to_owned()]);
    let error = control.approve_routes(&id("3"), &expected("eg-0"), &routes, &BTreeSet::new()).await.expect_err("denied");
    assert!(error.to_string().contains("devices:routes"), "{error}");
    let credentials = ClientCredentials::OAuth { client_id: "hskey-client-2".to_owned(), client_secret: Secret::new("wrong") };
    let error = server.client(credentials).probe().await.expect_err("denied");
    assert!(error.reason() == "Denied" && error.to_string().contains("unknown client; check ID and secret"), "{error}");
}

#[tokio::test]
async fn problem_json_of_the_v1_api_is_understood() {
    let server = Scripted::start().await;
    let control = server.v1();
    let problem = |status: u16, detail: &str, cause: &str| {
        let problem = json!({"$schema": "https://hs.lab/ErrorModel.json", "title": "A title", "status": status, "detail": detail,
            "errors": [{"message": cause}]});
        server.change(|content| content.fixed = Some((status, problem.to_string())));
    };
    problem(404, "getting node", "record not found");
    assert_eq!(control.device(&id("3"), &expected("eg-0")).await.expect("an answer"), None);
    control.delete_device(&id("3"), &expected("eg-0")).await.expect("gone already");
    control.revoke_key(&KeyId::parse("7").expect("an ID")).await.expect("never was");
    for status in [400, 409, 422] {
        problem(status, "creating auth key", "requested tags are invalid");
        let error = control.mint_key(&tags(), "x").await.expect_err("refused");
        assert!(matches!(error, ControlError::Refused { status: found, .. } if found == status) && !error.passes(), "{error:?}");
        assert!(error.to_string().ends_with(&format!("responds {status}: creating auth key: requested tags are invalid")), "{error}");
    }
    problem(401, "", "");
    let error = control.probe().await.expect_err("denied");
    assert!(error.to_string().contains("(401): A title; check the API key"), "{error}");
    problem(500, &"long ".repeat(1000), "");
    let error = control.probe().await.expect_err("failed");
    assert!(error.passes() && error.to_string().len() < 400, "{error}");
}
