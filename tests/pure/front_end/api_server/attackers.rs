//! Attackers: clients without TLS, of ambiguous requests, of the cluster, and on connections that outlive their rights.

use tailyard::model::front_end::proxy_protocol::FIXED;

use kit::front_end::frames::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame};

use super::*;

/// Header of the PROXY protocol by which tailscaled names no client: the command is LOCAL.
const LOCAL: &[u8; FIXED] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
/// Ports of the Pod's address; unprivileged, and of no other test.
const POD_HTTPS: u16 = 24_445;
const POD_HTTP: u16 = 24_080;

/// Adds every claim to a request.
fn claiming(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    for (name, value) in CLAIMS {
        request.headers_mut().append(name, HeaderValue::from_static(value));
    }
    request
}

/// Whether a request, as the API server received it, is Alice's and has no claim.
fn is_of_alice(received: &Value) -> bool {
    let text = received.to_string();
    identity(received) == (vec!["alice@example.com"], vec!["dev", "ops"], vec!["Bearer one"])
        && ["stolen", "root", "masters", "c3RvbGVu", "10.0.0.1"].iter().all(|claim| !text.contains(claim))
}

impl Stage {
    /// A connection to the listener without TLS.
    async fn without_tls(&self, client: &str) -> TcpStream {
        forwarded_from(client, self.front.at("svc:kube", 80)).await.expect("connected")
    }

    /// A request of HTTP/2 with prior knowledge to the listener without TLS.
    async fn prior_knowledge(&self, client: &str, url: &str) -> ReceivedResponse {
        let stream = TokioIo::new(self.without_tls(client).await);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP");
        tokio::spawn(connection);
        got(sender.send_request(claiming(get2(url)))).await
    }
}

#[tokio::test]
async fn client_without_tls_has_the_identity_of_its_connection_in_both_versions_of_http() {
    let stage = Stage::new().await;
    let url = format!("http://{NAME}{PODS}");
    assert!(is_of_alice(&stage.prior_knowledge(CLIENT, &url).await.echoed()));
    status(&stage.prior_knowledge(STRANGER, &url).await, 401);
    status(&stage.prior_knowledge(CLIENT, &format!("http://other.example{PODS}")).await, 421);
    // An upgrade is ignored, and the bytes after it are no request of HTTP/2.
    let fields = CLAIMS.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
    let upgrade = "Connection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n";
    let head = format!("GET {PODS} HTTP/1.1\r\nHost: {NAME}\r\n{upgrade}{fields}\r\n");
    let hidden = [(":method", "GET"), (":scheme", "http"), (":authority", NAME), (":path", "/hidden"), ("impersonate-user", "root")];
    let hidden = frame(HEADERS, END_HEADERS | END_STREAM, 1, &messages::fields(&hidden));
    let bytes = [head.as_bytes(), PREFACE, &frame(SETTINGS, 0, 0, &[]), &hidden].concat();
    let answer = exchange(stage.without_tls(CLIENT).await, &bytes).await;
    assert!(answer.starts_with("HTTP/1.1 200") && is_of_alice(&messages::echo(answer.as_bytes())), "{answer}");
    assert_eq!(*stage.backend.state.paths.lock().expect("no panic"), [PODS; 2]);
}

#[tokio::test]
async fn disputed_request_reaches_the_api_server_as_one_request_of_its_connection_or_not_at_all() {
    let moment = Duration::from_millis(300);
    for alpn in [ALPN, &["http/1.1"]] {
        let authority = Authority::new();
        let backend = api_server("127.0.0.1:0", &authority, alpn).await;
        let sites = sites(&json!({"mode": "auth"}), backend.address, "https").to_string().replace(NAME, messages::NAME);
        let limits = Limits { idle_timeout: moment, body_timeout: moment, ..Limits::default() };
        let sites = serde_json::from_str(&sites).expect("JSON");
        let stage = Stage::opened(&sites, authority, backend, Options { limits, ..Options::default() }).await;
        let cases = messages::disputed_lengths().into_iter().chain(messages::disputed_parts());
        let cases = cases.flat_map(|(what, request)| {
            let claimed = request.replacen("\r\n", "\r\nImpersonate-User: root\r\n", 1);
            [request, claimed].map(|request| (what, request))
        });
        for (number, (what, request)) in cases.enumerate() {
            let request = request.replace("/seen", &format!("/seen-{number}"));
            let answer = exchange(stage.without_tls(CLIENT).await, request.as_bytes()).await;
            assert!(!answer.contains("hidden"), "{what} {alpn:?}: {answer}");
            if answer.contains("HTTP/1.1 200") {
                assert!(is_of_alice(&messages::echo(answer.as_bytes())), "{what} {alpn:?}: {answer}");
            }
        }
        let mut paths = stage.backend.state.paths.lock().expect("no panic").clone();
        paths.sort_unstable();
        assert!(paths.iter().all(|path| path.starts_with("/seen-")) && paths.windows(2).all(|two| two[0] != two[1]), "{alpn:?}: {paths:?}");
    }
}

#[tokio::test]
async fn request_on_a_connection_that_outlives_a_revocation_has_no_former_right() {
    let reduced = user("alice@example.com", &groups(&["dev"]));
    let tagged = json!({"Node": {"Name": "ci.tail.ts.net.", "Tags": ["tag:ci"]}});
    let other = user("bob@example.com", &groups(&["dev", "ops"]));
    for (later, expected) in [(None, None), (Some(reduced), Some("alice")), (Some(tagged), Some("ci.tail")), (Some(other), Some("bob"))] {
        for is_http2 in [true, false] {
            let stage = Stage::new().await;
            let (mut http1, http2) = (stage.http1(CLIENT).await, stage.http2(CLIENT).await);
            let url = format!("https://{NAME}{PODS}");
            let request = if is_http2 { get2(&url) } else { get1(&url) };
            let mut send = async || {
                let answer = if is_http2 {
                    http2.clone().send_request(request.clone()).await?
                } else {
                    http1.ready().await?;
                    http1.send_request(request.clone()).await?
                };
                Ok::<_, hyper::Error>(got(std::future::ready(Ok(answer))).await)
            };
            assert!(is_of_alice(&send().await.expect("a response").echoed()));
            match &later {
                Some(later) => stage.knows(CLIENT, later.clone()),
                None => drop(stage.whois.lock().expect("no panic").remove(&address(CLIENT))),
            }
            stage.netmap.send_replace(Some(new_netmap()));
            // The connection may be closed before the response.
            if let Ok(answer) = send().await {
                match expected {
                    None => drop(status(&answer, 401)),
                    Some(user) => {
                        let received = answer.echoed();
                        assert!(identity(&received).0[0].starts_with(user) && !is_of_alice(&received), "{received}");
                    }
                }
            }
            until_async("the connection ends", DEADLINE, async || send().await.is_err()).await;
            assert!(expected.is_some() || stage.backend.state.requests() == 1, "a client without rights reaches no API server");
        }
    }
}

#[tokio::test]
async fn client_of_the_cluster_is_served_as_no_one() {
    // The listeners of one end later than the test of the other begins.
    for (mode, pod) in [("auth", "127.44.0.3"), ("noauth", "127.44.0.4")] {
        let pod: IpAddr = pod.parse().expect("an address");
        let authority = Authority::new();
        let backend = api_server("127.0.0.1:0", &authority, ALPN).await;
        let mut sites = sites(&json!({"mode": mode}), backend.address, "https");
        sites["svc:kube"]["listeners"] = json!({POD_HTTPS.to_string(): "https", POD_HTTP.to_string(): "http"});
        let options = Options { pod_addresses: [pod].into(), ..Options::default() };
        let stage = Stage::opened(&sites, authority, backend, options).await;
        // WhoIs of the address that the connection comes from would be that of a tailnet client.
        stage.knows("127.0.0.1:1", user("alice@example.com", &groups(&["dev"])));
        let unknown = "the client's address is unknown in the tailnet";
        let stream = TcpStream::connect((pod, POD_HTTPS)).await.expect("connected");
        let stream = stage.front.secure(stream, NAME, "http/1.1").await.expect("TLS");
        let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        assert_eq!(status(&got(client.send_request(claiming(get1(&format!("https://{NAME}{PODS}"))))).await, 401), unknown);
        let request = format!("GET {PODS} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
        let answer = exchange(TcpStream::connect((pod, POD_HTTP)).await.expect("connected"), request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains(unknown), "{answer}");
        // A PROXY header names no client there.
        let stream = forwarded_from(CLIENT, (pod, POD_HTTPS).into()).await.expect("connected");
        assert!(stage.front.secure(stream, NAME, "http/1.1").await.is_err());
        let named = exchange(forwarded_from(CLIENT, (pod, POD_HTTP).into()).await.expect("connected"), request.as_bytes()).await;
        assert!(!named.contains("HTTP/1.1 200"), "{named}");
        // Nor does one without an address, at the listener for tailscaled.
        let nameless = TcpStream::connect(stage.front.at("svc:kube", POD_HTTP)).await.expect("connected");
        let answer = exchange(nameless, &[LOCAL, request.as_bytes()].concat()).await;
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains(unknown), "{answer}");
        assert_eq!((stage.lookups.load(Ordering::SeqCst), stage.backend.state.requests()), (0, 0), "mode {mode}");
    }
}
