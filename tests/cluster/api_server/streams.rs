//! Sessions of kubectl: exec, attach, run, cp and port-forward.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use kit::cluster::DEADLINE;
use kit::cluster::images::TOOLS;
use kit::wait::{eventually, until};

use super::stage::{ANSWER, SHELL, Stage, pod};
use super::user::{feed, printed};

/// A streaming protocol of kubectl.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Protocol {
    pub(crate) name: &'static str,
    /// Value of kubectl's feature gates.
    is_websocket: &'static str,
    /// Local port of forwards.
    port: u16,
}

pub(crate) const PROTOCOLS: [Protocol; 2] =
    [Protocol { name: "WebSocket", is_websocket: "true", port: 18080 }, Protocol { name: "SPDY", is_websocket: "false", port: 18081 }];

/// Word of kubectl's log (level 4) when it uses SPDY after a failed `WebSocket` upgrade.
pub(crate) const FALLBACK: &str = "allback";

/// Bytes of a large transfer.
const LARGE: usize = 4 << 20;

impl Protocol {
    pub(crate) fn env(self) -> [(&'static str, &'static str); 2] {
        ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"].map(|gate| (gate, self.is_websocket))
    }
}

/// Runs sessions of each kind.
pub(crate) fn carry_every_byte(stage: &Stage, protocol: Protocol) {
    exec(stage, protocol);
    attach(stage, protocol);
    run(stage, protocol);
    copy(stage, protocol);
    forward(stage, protocol);
    debug(stage, protocol);
}

/// kubectl, to be run, which logs when it uses another protocol.
fn kubectl(stage: &Stage, protocol: Protocol, args: &[&str]) -> Command {
    let mut command = stage.alice.command();
    command.envs(protocol.env()).arg("-v=4").args(args);
    command
}

/// Output, errors, exit code and input of a command, and a terminal.
fn exec(stage: &Stage, protocol: Protocol) {
    let run = |args: &[&str], input: &[u8]| feed(&mut kubectl(stage, protocol, &[&["exec"], args].concat()), input);
    let output = run(&[SHELL, "--", "sh", "-c", "echo out; echo err >&2; exit 3"], b"");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((String::from_utf8_lossy(&output.stdout).as_ref(), output.status.code()), ("out\n", Some(3)), "{errors}");
    assert!(errors.lines().any(|line| line == "err") && !errors.contains(FALLBACK), "by {}: {errors}", protocol.name);
    let large: Vec<u8> = (0..LARGE).map(|index| u8::try_from(index * 31 % 251).expect("small")).collect();
    let echoed = run(&["-i", SHELL, "--", "cat"], &large);
    assert!(echoed.stdout == large, "{} of {LARGE} bytes: {}", echoed.stdout.len(), String::from_utf8_lossy(&echoed.stderr));
    let mut command = terminal(stage, protocol, &format!("exec -it {SHELL} -- sh -c 'test -t 0 && echo terminal'"));
    let shown = printed("exec -it", &command.output().expect("nsenter"));
    assert!(shown.contains("terminal"), "{shown}");
}

/// kubectl in a terminal, to be run with these words of a shell.
fn terminal(stage: &Stage, protocol: Protocol, words: &str) -> Command {
    let program = stage.alice.command().get_args().last().expect("kubectl").to_owned();
    let mut command = stage.alice.client.command("/usr/bin/script".as_ref());
    command.envs(stage.alice.command().get_envs().filter_map(|(name, value)| Some((name, value?)))).envs(protocol.env());
    command.args(["-qec", &format!("{} {words}", program.display()), "/dev/null"]);
    command
}

/// A Pod for the time of a terminal, which reads a line from it.
fn run(stage: &Stage, protocol: Protocol) {
    let name = format!("run-{}", protocol.name.to_lowercase());
    let options = format!("-v=4 --rm --restart=Never --image={TOOLS} --image-pull-policy=Never");
    let words = format!("run -it {name} {options} -- sh -c 'read line; test -t 0 && echo got $line'");
    let mut command = terminal(stage, protocol, &words);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("nsenter");
    // The terminal stores the line until kubectl is attached. Its input does not end before.
    let mut input = child.stdin.take().expect("piped");
    input.write_all(b"typed\n").expect("written");
    eventually("the end of run -it", DEADLINE, || child.try_wait().expect("a child"));
    let shown = printed("run -it --rm", &child.wait_with_output().expect("a child"));
    assert!(shown.contains("got typed") && shown.contains("deleted") && !shown.contains(FALLBACK), "by {}: {shown}", protocol.name);
    let gone = || !stage.cluster.try_kubectl(&["get", "pod", &name]).status.success();
    until("the Pod is deleted", DEADLINE, gone);
}

/// Input and output of a running container.
fn attach(stage: &Stage, protocol: Protocol) {
    let name = format!("echo-{}", protocol.name.to_lowercase());
    stage.cluster.apply(&[pod(&name, "cat")]);
    stage.cluster.wait(&["--for=condition=Ready", &format!("pod/{name}")]);
    let output = feed(&mut kubectl(stage, protocol, &["attach", "-i", &name]), b"typed\n");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(printed("attach", &output).contains("typed") && !errors.contains(FALLBACK), "{errors}");
}

/// A file to a Pod and back.
fn copy(stage: &Stage, protocol: Protocol) {
    let dir = stage.cluster.tailnet.dir();
    let path = |name: &str| dir.join(format!("{name}-{}", protocol.name)).display().to_string();
    let (from, to, inside) = (path("sent"), path("received"), format!("default/{SHELL}:/tmp/{}", protocol.name));
    let large: Vec<u8> = (0..LARGE).map(|index| u8::try_from(index * 17 % 253).expect("small")).collect();
    fs::write(&from, &large).expect("written");
    for args in [["cp", &from, &inside], ["cp", &inside, &to]] {
        printed("cp", &kubectl(stage, protocol, &args).output().expect("nsenter"));
    }
    assert!(fs::read(&to).expect("a file") == large, "the copy of the copy");
}

/// Connections through a local port, several at once.
fn forward(stage: &Stage, protocol: Protocol) {
    let (ports, url) = (format!("{}:8080", protocol.port), format!("http://127.0.0.1:{}/", protocol.port));
    let forward =
        stage.alice.start(&format!("forward-{}", protocol.name), &["port-forward", "-v=4", "deployment/web", &ports], &protocol.env());
    until("the local port", DEADLINE, || forward.output().contains("Forwarding from 127.0.0.1"));
    eventually("an answer through the port", DEADLINE, || (stage.alice.curl(&url, &[]).ok()?.body.trim() == ANSWER).then_some(()));
    let urls = format!("{url}?[1-20]");
    let many = stage.alice.curl(&urls, &["--parallel", "--fail-early", "--fail"]).expect("answers");
    assert_eq!(many.body.matches(ANSWER).count(), 20, "{many:?}");
    assert!(!forward.output().contains(FALLBACK), "by {}: {}", protocol.name, forward.output());
}

/// Output of an ephemeral container in a running Pod. containerd detaches a client whose input has ended, so that it has none.
fn debug(stage: &Stage, protocol: Protocol) {
    let (image, name) = (format!("--image={TOOLS}"), format!("--container=debug-{}", protocol.name.to_lowercase()));
    let program = ["--", "sh", "-c", "sleep 1; echo debugged; sleep 1"];
    let args = [&["debug", SHELL, "--attach", "--image-pull-policy=Never", &image, &name][..], &program].concat();
    let output = kubectl(stage, protocol, &args).output().expect("nsenter");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(printed("debug", &output).contains("debugged") && !errors.contains(FALLBACK), "{errors}");
}
