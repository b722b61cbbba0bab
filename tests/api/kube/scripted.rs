//! Responses that a well-behaved API server rarely or never sends, from a scripted server.

use std::collections::VecDeque;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::ObjectReference;
use tailyard::edge::kube::{
    Cluster as Client, EventWriter, Follow, LeaderClient, Leading, ObjectEvent, Resource, StateSecret, WatchChange, WatchedItem,
};
use tailyard::edge::netns::Namespace;
use tailyard::model::base::backoff::Backoff;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// Response to one request.
#[derive(Debug, Clone)]
struct Answer {
    status: u16,
    body: String,
    /// Whether the connection stays open after the body, as for a watch.
    held_open: bool,
}

/// API server that sends these responses in order, then closes every connection at once.
struct Script {
    client: Client,
    requests: Arc<Mutex<Vec<String>>>,
    _place: TempDir,
}

fn answer(status: u16, body: impl Into<String>) -> Answer {
    Answer { status, body: body.into(), held_open: false }
}

fn held_open(body: impl Into<String>) -> Answer {
    Answer { held_open: true, ..answer(200, body) }
}

fn object(version: u32) -> String {
    let metadata = format!(r#""metadata":{{"name":"eg","namespace":"ts","resourceVersion":"{version}"}}"#);
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap",{metadata},"data":{{"egress-services":"v{version}"}}}}"#)
}

fn list(version: u32) -> Answer {
    let items = object(version);
    answer(200, format!(r#"{{"apiVersion":"v1","kind":"ConfigMapList","metadata":{{"resourceVersion":"{version}"}},"items":[{items}]}}"#))
}

fn event(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn expired() -> String {
    event(
        "ERROR",
        r#"{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}"#,
    )
}

/// Runs a test against a scripted server in its own network namespace.
fn script(answers: Vec<Answer>, test: impl AsyncFnOnce(Script) + Send) {
    let namespace = Namespace::make().expect("a network namespace");
    let work = async move || {
        assert!(std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("the ip command").success());
        test(serve(answers).await).await;
    };
    namespace.block_on(work).expect("the test's thread");
}

async fn serve(answers: Vec<Answer>) -> Script {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let (request_log, answers) = (Arc::clone(&requests), Arc::new(Mutex::new(VecDeque::from(answers))));
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let (request_log, answers) = (Arc::clone(&request_log), Arc::clone(&answers));
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n") && connection.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
                // The body is read first: closing a connection with unread data could discard the response.
                let text = String::from_utf8_lossy(&head).into_owned();
                let length =
                    text.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok());
                let body = text.find("\r\n\r\n").map_or(0, |end| end + 4) + length.unwrap_or_default();
                while head.len() < body && connection.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
                let line = text.lines().next().unwrap_or_default().to_owned();
                request_log.lock().expect("requests").push(line);
                let Some(Answer { status, body, held_open }) = answers.lock().expect("answers").pop_front() else { return };
                let head = format!("HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n");
                let sent = connection.write_all((head + &body).as_bytes()).await;
                if sent.is_ok() && held_open {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    let place = TempDir::new().expect("a directory");
    let path = place.path().join("kubeconfig");
    let file = format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"t","clusters":[{{"name":"t","cluster":{{"server":"{url}"}}}}],
            "users":[{{"name":"t","user":{{"token":"t"}}}}],"contexts":[{{"name":"t","context":{{"cluster":"t","user":"t","namespace":"ts"}}}}]}}"#
    );
    fs::write(&path, file).expect("written");
    Script { client: Client::kubeconfig(&path).await.expect("a client"), requests, _place: place }
}

impl Script {
    fn watch(&self) -> WatchEvents {
        let retry = Backoff::new(PAUSE, Duration::from_secs(2), 0.0).expect("bounds");
        WatchEvents(self.client.watch_config_map("ts", "eg", retry).boxed())
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("requests").clone()
    }
}

/// Events of a watch, as text.
struct WatchEvents(BoxStream<'static, ObjectEvent>);

impl WatchEvents {
    async fn next(&mut self) -> String {
        match timeout(DEADLINE, self.0.next()).await.expect("in time").expect("it never ends") {
            ObjectEvent::Current(values) => String::from_utf8(values["egress-services"].to_vec()).expect("text"),
            ObjectEvent::Gone => "gone".into(),
            ObjectEvent::Live => "live".into(),
            ObjectEvent::Lost(error) => format!("lost: {}", error.reason()),
        }
    }

    async fn is(&mut self, expected: &[&str]) {
        for what in expected {
            assert_eq!(self.next().await, *what, "of {expected:?}");
        }
    }
}

#[test]
fn expired_resource_version_is_listed_again_without_fault() {
    let answers = vec![list(1), held_open(expired()), list(5), held_open(event("MODIFIED", &object(6)))];
    script(answers, async |script| {
        script.watch().is(&["v1", "live", "v5", "live", "v6"]).await;
        let versions: Vec<_> =
            script.requests().iter().filter_map(|line| Some(line.split_once("resourceVersion=")?.1.to_owned())).collect();
        assert!(versions[0].starts_with('1') && versions[1].starts_with('5'), "{versions:?}");
        assert!(script.requests().iter().all(|line| line.contains("fieldSelector=metadata.name%3Deg")), "{:?}", script.requests());
    });
}

#[test]
fn repeated_expiry_is_retried_with_backoff() {
    let answers = (1..=3).flat_map(|version| [list(version), held_open(expired())]).chain([list(4)]).collect();
    script(answers, async |script| {
        let begin = Instant::now();
        script.watch().is(&["v1", "live", "v2", "live", "v3", "live", "v4"]).await;
        assert!(begin.elapsed() >= PAUSE * 7, "pauses of 1, 2 and 4 times {PAUSE:?}, not {:?}", begin.elapsed());
    });
}

#[test]
fn closed_watch_resumes_at_its_version() {
    let answers = vec![list(1), answer(200, event("MODIFIED", &object(3))), held_open(event("DELETED", &object(4)))];
    script(answers, async |script| {
        script.watch().is(&["v1", "live", "v3", "live", "gone"]).await;
        assert!(script.requests().last().is_some_and(|line| line.contains("resourceVersion=3")), "{:?}", script.requests());
    });
}

#[test]
fn malformed_event_restarts_the_watch() {
    let answers = vec![list(1), held_open("{\"type\":\"MODIFIED\",\"object\":7}\n"), list(2), held_open(String::new())];
    script(answers, async |script| script.watch().is(&["v1", "live", "lost: Malformed", "v2", "live"]).await);
}

#[test]
fn server_errors_are_classified_and_retried() {
    let status =
        |code: u16| answer(code, format!(r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","code":{code}}}"#));
    let answers = vec![status(401), status(429), status(503), answer(502, "<html>bad gateway</html>"), answer(200, "{"), list(1)];
    let kinds = ["lost: Unauthorized", "lost: Throttled", "lost: ServerError", "lost: ServerError", "lost: Malformed", "v1"];
    script(answers, async move |script| script.watch().is(&kinds).await);
}

#[test]
fn page_that_turns_out_large_is_requested_again_with_few_objects() {
    let page = |items: &str, token: &str| {
        let metadata = format!(r#"{{"resourceVersion":"2","continue":"{token}"}}"#);
        answer(200, format!(r#"{{"apiVersion":"v1","kind":"ConfigMapList","metadata":{metadata},"items":[{items}]}}"#))
    };
    let large = object(2).replace("v2", &"x".repeat(17 << 20));
    let large = |token| page(&large, token);
    let pages =
        vec![page(&object(1), "a"), large(""), large(""), large(""), large(""), large("b"), page(&object(3), "c"), page(&object(4), "")];
    script(pages, async |script| {
        let what = Follow { resource: Resource::CONFIG_MAP, namespace: Some("ts".into()), labels: None, fields: None };
        let mut changes = script.client.follow_json(&what, WatchedItem::into_value);
        let mut listed = Vec::new();
        loop {
            match timeout(DEADLINE, changes.next()).await.expect("in time").expect("it never ends") {
                WatchChange::Listed(object) => listed.push(object["metadata"]["resourceVersion"].as_str().map(str::to_owned)),
                WatchChange::Complete => break,
                change => assert!(matches!(change, WatchChange::Begin), "{change:?}"),
            }
        }
        assert_eq!(listed, ["1", "2", "3", "4"].map(|version| Some(version.to_owned())));
        let parameter = |line: &String, name: &str| {
            let value = line.split(['?', '&', ' ']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_default().to_owned()
        };
        let requests: Vec<_> =
            script.requests().iter().map(|line| format!("{} {}", parameter(line, "limit"), parameter(line, "continue"))).collect();
        assert_eq!(requests, ["8 ", "500 a", "8 a", "4 a", "2 a", "1 a", "1 b", "500 c"]);
    });
}

#[test]
fn list_is_paged_and_its_watch_resumes_after_a_fault() {
    let page = |version: u32, token: &str| {
        let (metadata, items) = (format!(r#"{{"resourceVersion":"2","continue":"{token}"}}"#), object(version));
        answer(200, format!(r#"{{"apiVersion":"v1","kind":"ConfigMapList","metadata":{metadata},"items":[{items}]}}"#))
    };
    let fault = event("ERROR", r#"{"apiVersion":"v1","kind":"Status","status":"Failure","code":500,"message":"no"}"#);
    let watch = held_open(event("MODIFIED", &object(3)) + &fault);
    script(vec![page(1, "more"), page(2, ""), watch, held_open(event("DELETED", &object(4)))], async |script| {
        let what = Follow { resource: Resource::CONFIG_MAP, namespace: Some("ts".into()), labels: None, fields: None };
        let mut changes = script.client.follow_json(&what, WatchedItem::into_value);
        let version = |object: &serde_json::Value| object["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
        let expected = ["begin", "listed 1", "listed 2", "complete", "live", "put 3", "lost ServerError", "live", "gone 4"];
        for expected in expected {
            let change = match timeout(DEADLINE, changes.next()).await.expect("in time").expect("it never ends") {
                WatchChange::Begin => "begin".to_owned(),
                WatchChange::Listed(object) => format!("listed {}", version(&object)),
                WatchChange::Complete => "complete".to_owned(),
                WatchChange::Live => "live".to_owned(),
                WatchChange::Put(object) => format!("put {}", version(&object)),
                WatchChange::Gone(object) => format!("gone {}", version(&object)),
                WatchChange::Unknown => "unknown".to_owned(),
                WatchChange::Lost(error) => format!("lost {}", error.reason()),
            };
            assert_eq!(change, expected);
        }
        let requests = script.requests();
        assert!(requests[1].contains("continue=more") && requests[3].contains("resourceVersion=3"), "{requests:?}");
        assert!(requests.iter().all(|line| !line.contains("fieldSelector")), "{requests:?}");
    });
}

/// Response to the creation of an Event.
fn made() -> Answer {
    answer(201, r#"{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"g.1"}}"#)
}

/// Writer of Events, and the number of those that it drops.
fn event_writer(script: &Script, leads: watch::Receiver<Option<Leading>>) -> (EventWriter, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&dropped);
    let count = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let client = LeaderClient::new(script.client.clone(), leads, Arc::new(|_, _, _| {}));
    (EventWriter::new(client, "test", "one".to_owned(), Arc::new(count)), dropped)
}

#[test]
fn events_beyond_the_rate_of_their_namespace_are_dropped_and_counted() {
    script(vec![made(); 500], async |script| {
        let since = tokio::time::Instant::now();
        let (_leading, leads) = watch::channel(Some(Leading { since, until: since + DEADLINE }));
        let (events, dropped) = event_writer(&script, leads);
        let write = async |about: &ObjectReference, number: usize| {
            events.write_event(about, true, "Changed", &number.to_string()).await.expect("written or dropped");
        };
        for number in 0..400 {
            write(&Resource::SERVICE.reference("default", &format!("web{}", number % 7), None), number).await;
        }
        let flood = script.requests().len();
        assert!((100..100 + 30).contains(&flood), "{flood}");
        assert_eq!(dropped.load(Ordering::Relaxed), 400 - flood);
        write(&Resource::SERVICE.reference("quiet", "web", None), 0).await;
        write(&Resource::PROXY_GROUP.reference("", "in", None), 0).await;
        assert_eq!(
            script.requests().len(),
            flood + 2,
            "another namespace, and a cluster-scoped object, whose Events are in the flooded one"
        );
    });
}

#[test]
fn equal_events_are_counted_and_other_messages_are_separate() {
    let made = made();
    let refused = answer(403, r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","code":403}"#);
    script(vec![made.clone(), made.clone(), made, refused], async |script| {
        let since = tokio::time::Instant::now();
        let (leading, leads) = watch::channel(Some(Leading { since, until: since + DEADLINE }));
        let (events, _) = event_writer(&script, leads);
        let write = async |namespace: &str, text: &str| {
            let about = Resource::SERVICE.reference(namespace, "web", None);
            events.write_event(&about, true, "NameConflict", text).await.map_err(|error| error.reason())
        };
        for text in ["first", "first", "second"] {
            write("ts", text).await.expect("written");
        }
        assert_eq!((write("ts", "third").await, write("ts", "fourth").await), (Err("Forbidden"), Ok(())), "one try an hour");
        leading.send_replace(None);
        assert_eq!(write("other", "first").await, Err("NotLeading"));
        let methods: Vec<_> = script.requests().iter().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect();
        assert_eq!(methods, ["POST", "PATCH", "POST", "POST"]);
    });
}

#[test]
fn late_renewal_writes_nothing_and_does_not_end_the_term() {
    script(Vec::new(), async |script| {
        let since = tokio::time::Instant::now();
        let (leading, leads) = watch::channel(Some(Leading { since, until: since }));
        let client = LeaderClient::new(script.client.clone(), leads, Arc::new(|_, _, _| {}));
        assert_eq!((client.open(), client.in_term()), (false, true), "the renewal is late");
        leading.send_replace(Some(Leading { since, until: since + DEADLINE }));
        assert_eq!((client.open(), client.in_term()), (true, true));
        leading.send_replace(None);
        assert_eq!((client.open(), client.in_term()), (false, false));
    });
}

#[test]
fn unanswered_request_times_out() {
    let answers = vec![Answer { status: 200, body: String::new(), held_open: true }];
    script(answers, async |script| {
        let begin = Instant::now();
        let error = StateSecret::new(script.client.clone(), "eg-0").get().await.expect_err("no answer");
        assert_eq!(error.reason(), "Timeout", "{error}");
        assert!(begin.elapsed() < DEADLINE / 2, "{:?}", begin.elapsed());
    });
}
