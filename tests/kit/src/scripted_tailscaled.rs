//! A scripted tailscaled: a real process with an HTTP server on a unix socket, controlled by the files of a directory. It is the program
//! `scripted-tailscaled` of the kit; the directory is in `FAKE_DIR`, the arguments in `FAKE_ARGS`.
//!
//! | file | meaning |
//! |---|---|
//! | `starts` | one line of arguments is added for each start |
//! | `calls` | one line is added for each request: method, path with query, body |
//! | `initial` | the first message of each subscription |
//! | `bus` | every line added is sent to all subscribers; `CUT` ends their streams, `EXIT n` the process |
//! | `mode` | words: `crash` exits at once, `away` does if its state is in a Secret, `mute` never listens, `deaf` ignores SIGTERM, `slow` listens after 300 ms, `noreload` refuses a config |
//! | `goodkey` | a `start` with this key logs in |
//! | `capver` | its capability version; from 148 on it refuses obsolete bits of a watch mask, as 1.104 does |

use std::convert::Infallible;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio::sync::broadcast;

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

/// The directory that scripts it.
#[derive(Clone)]
struct Script {
    dir: PathBuf,
    bus: broadcast::Sender<String>,
}

/// Entry point of the program `scripted-tailscaled`.
pub async fn run() {
    let dir = PathBuf::from(std::env::var_os("FAKE_DIR").expect("FAKE_DIR"));
    let args = std::env::var("FAKE_ARGS").expect("FAKE_ARGS");
    append(&dir.join("starts"), &args);
    let script = Script { bus: broadcast::channel(4096).0, dir };
    if script.is("crash") || (script.is("away") && args.contains("--state=kube:")) {
        eprintln!("this daemon crashes");
        std::process::exit(7);
    }
    if script.is("deaf") {
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).expect("a handler");
        tokio::spawn(async move { while term.recv().await.is_some() {} });
    }
    die_with_parent();
    if script.is("mute") {
        std::future::pending::<()>().await;
    }
    if script.is("slow") {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let socket = args.split(' ').find_map(|arg| arg.strip_prefix("--socket=")).expect("--socket").to_owned();
    drop(fs::remove_file(&socket));
    // Before a client can connect: what a test appends once this daemon runs is for this daemon.
    let sent = script.read("bus").len();
    let listener = UnixListener::bind(&socket).expect("the socket");
    println!("listening");
    tokio::spawn(script.clone().follow(sent));
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let script = script.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let script = script.clone();
                async move { Ok::<_, Infallible>(script.answer(request).await) }
            });
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
        });
    }
}

/// Ends with the pipe whose number is in `TS_PARENT_DEATH_FD`, like tailscaled in the tests.
fn die_with_parent() {
    let fd = std::env::var("TS_PARENT_DEATH_FD").expect("TS_PARENT_DEATH_FD");
    std::thread::spawn(move || {
        let mut pipe = fs::File::open(format!("/proc/self/fd/{fd}")).expect("the pipe");
        let read = std::io::Read::read(&mut pipe, &mut [0]);
        eprintln!("the parent is gone: {read:?}");
        std::process::exit(1);
    });
}

impl Script {
    fn is(&self, word: &str) -> bool {
        self.read("mode").split_whitespace().any(|mode| mode == word)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join(file)).unwrap_or_default()
    }

    /// Sends lines appended to `bus` after this many bytes.
    async fn follow(self, mut sent: usize) {
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let text = self.read("bus");
            let Some(end) = text.rfind('\n').map(|end| end + 1).filter(|end| *end > sent) else { continue };
            for line in text[sent..end].lines() {
                if let Some(code) = line.strip_prefix("EXIT ") {
                    std::process::exit(code.parse().expect("a code"));
                }
                drop(self.bus.send(line.to_owned()));
            }
            sent = end;
        }
    }

    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = String::from_utf8(body.collect().await.expect("a body").to_bytes().to_vec()).expect("text");
        let path = head.uri.path().trim_start_matches("/localapi/v0/").to_owned();
        assert_eq!(head.headers["host"], "local-tailscaled.sock");
        let query = head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        append(&self.dir.join("calls"), &format!("{} {path}{query} {body}", head.method));
        match (head.method.as_str(), path.as_str()) {
            ("GET", "watch-ipn-bus") => self.watch(&query),
            ("GET", "status") => self.text(&status(&self.read("initial"))),
            ("GET", "prefs") => self.text(r#"{"AdvertiseServices":["svc:a"]}"#),
            ("PATCH", "prefs") | ("POST", "ping") => self.text("{}"),
            ("POST", "reload-config") if self.is("noreload") => self.text(""),
            ("POST", "reload-config") => self.text(r#"{"Reloaded":true,"Err":""}"#),
            ("GET", "dns-config") => self.text(r#"{"ExtraRecords":[{"Name":"web.lab.","Value":"100.64.0.2"}]}"#),
            ("GET", "usermetrics") => self.text("tailscaled_health_messages 0\n"),
            ("POST", "start") => {
                if body.contains(&format!("\"AuthKey\":\"{}\"", self.read("goodkey"))) {
                    fs::write(self.dir.join("initial"), self.read("running")).expect("written");
                    append(&self.dir.join("bus"), r#"{"State":5}"#);
                    append(&self.dir.join("bus"), r#"{"State":6}"#);
                }
                self.text("")
            }
            ("POST", "login-interactive" | "disconnect-control") => self.text(""),
            _ => Response::builder().status(StatusCode::NOT_FOUND).body(full("404 page not found\n")).expect("an answer"),
        }
    }

    fn capver(&self) -> u32 {
        self.read("capver").trim().parse().unwrap_or(142)
    }

    fn watch(&self, query: &str) -> Response<Body> {
        let mask: u32 = query.strip_prefix("?mask=").and_then(|mask| mask.parse().ok()).expect("a mask");
        if self.capver() >= 148 && mask & (8 | 256) != 0 {
            let refusal = Response::builder().status(StatusCode::BAD_REQUEST);
            return refusal.body(full("this bit is no longer supported\n")).expect("an answer");
        }
        let initial = self.read("initial");
        let bus = self.bus.subscribe();
        let lines = stream::unfold((Some(initial), bus), |(first, mut bus)| async move {
            let line = match first {
                Some(first) => first.trim().to_owned(),
                None => bus.recv().await.ok().filter(|line| line != "CUT")?,
            };
            Some((Ok(Frame::data(Bytes::from(line + "\n"))), (None, bus)))
        });
        Response::builder().header("Tailscale-Cap", self.capver()).body(StreamBody::new(lines).boxed()).expect("an answer")
    }

    fn text(&self, text: &str) -> Response<Body> {
        Response::builder().header("Tailscale-Cap", self.capver()).body(full(text)).expect("an answer")
    }
}

/// The status within a first message.
fn status(initial: &str) -> String {
    let message: serde_json::Value = serde_json::from_str(initial).expect("a message");
    message["InitialStatus"].to_string()
}

fn full(text: &str) -> Body {
    http_body_util::Full::from(Bytes::copy_from_slice(text.as_bytes())).boxed()
}

pub fn append(path: &Path, line: &str) {
    let mut file = fs::OpenOptions::new().append(true).create(true).open(path).expect("a file");
    // In one write: others add lines meanwhile.
    file.write_all(format!("{line}\n").as_bytes()).expect("written");
}
