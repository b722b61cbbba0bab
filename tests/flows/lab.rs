//! A client, a proxy and a tailnet in namespaces of their own, with the proxy's rules loaded by nft.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tailyard::edge::conntrack::Conntrack;
use tailyard::edge::netns::Namespace;
use tailyard::edge::probe;
use tailyard::model::flow::{Flow, FlowFilter};
use tailyard::model::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::reset::Report;
use tailyard::model::ruleset::{Ruleset, diff};
use tailyard::model::surgery::{Cuts, Verdict};

/// The proxy's own address in the cluster, by family.
pub(crate) const POD: [&str; 2] = ["10.9.0.1", "fd09::1"];
/// The proxy's own address in the tailnet, by family.
pub(crate) const OWN: [&str; 2] = ["100.64.0.1", "fd7a:115c:a1e0::1"];

pub(crate) struct Lab {
    pub(crate) client: Namespace,
    pub(crate) proxy: Namespace,
    pub(crate) tailnet: Namespace,
    pub(crate) rules: Ruleset,
}

pub(crate) fn key(proto: Proto, port: u16) -> PortKey {
    PortKey { proto, port: Port::new(port).expect("not zero") }
}

/// A target of the tailnet: host 2 to 9.
pub(crate) fn target(family: Family, host: u8, port: u16) -> SocketAddr {
    let ip = match family {
        Family::V4 => format!("100.64.0.{host}"),
        Family::V6 => format!("fd7a:115c:a1e0::{host}"),
    };
    SocketAddr::new(ip.parse().expect("an address"), port)
}

pub(crate) fn pod(family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(POD[usize::from(family == Family::V6)].parse().expect("an address"), port)
}

pub(crate) fn run(ns: &Namespace, program: &str, arguments: &str, input: &str) {
    let done = ns.run(|| {
        let mut command = Command::new(program);
        let mut child = command
            .args(arguments.split_whitespace())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program is installed");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("taken");
        child.wait_with_output().expect("finished")
    });
    let done = done.expect("ran");
    assert!(done.status.success(), "{program} {arguments}: {}\n{input}", String::from_utf8_lossy(&done.stderr));
}

/// Waits for something to become true.
pub(crate) fn eventually(what: &str, within: Duration, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + within;
    while !check() {
        assert!(Instant::now() < end, "not within {within:?}: {what}");
        std::thread::yield_now();
    }
}

impl Lab {
    pub(crate) fn new(rules: Ruleset) -> Self {
        let make = || Namespace::make().expect("a namespace");
        let lab = Self { client: make(), proxy: make(), tailnet: make(), rules };
        for ns in [&lab.client, &lab.proxy, &lab.tailnet] {
            run(ns, "ip", "link set lo up", "");
        }
        lab.wire(&lab.client, "eth0", [("10.9.0.2/24", "10.9.0.1/24"), ("fd09::2/64", "fd09::1/64")]);
        lab.wire(&lab.tailnet, "tailscale0", [("100.64.0.2/24", "100.64.0.1/24"), ("fd7a:115c:a1e0::2/64", "fd7a:115c:a1e0::1/64")]);
        for host in 3..10 {
            run(&lab.tailnet, "ip", &format!("addr add 100.64.0.{host}/24 dev tailscale0"), "");
            run(&lab.tailnet, "ip", &format!("addr add fd7a:115c:a1e0::{host}/64 dev tailscale0 nodad"), "");
        }
        let on = lab.proxy.run(|| tailyard::edge::sysctl::forward(&Family::ALL)).expect("ran");
        on.expect("a namespace of our own can be made to forward");
        lab.load();
        lab
    }

    fn wire(&self, peer: &Namespace, name: &str, addresses: [(&str, &str); 2]) {
        run(&self.proxy, "ip", &format!("link add {name} type veth peer name {name} netns {}", peer.path().display()), "");
        for (ns, index) in [(peer, 0), (&self.proxy, 1)] {
            for pair in addresses {
                let address = if index == 0 { pair.0 } else { pair.1 };
                let nodad = if address.contains(':') { "nodad" } else { "" };
                run(ns, "ip", &format!("addr add {address} dev {name} {nodad}"), "");
            }
            run(ns, "ip", &format!("link set {name} up"), "");
        }
    }

    /// Loads the rules whole.
    fn load(&self) {
        let mut text = String::from(
            "add table inet tailyard
             delete table inet tailyard
             table inet tailyard {\n",
        );
        for (family, kind) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
            let digit = if family == Family::V4 { 4 } else { 6 };
            let own = self.rules.source.get(&family).map(|own| format!("elements = {{ \"tailscale0\" : {own} }};")).unwrap_or_default();
            let _ = writeln!(text, "map self{digit} {{ typeof oifname : {kind} daddr; {own} }}");
            let mut elements = String::new();
            for (key, to) in self.rules.ports.iter().flat_map(|(key, targets)| targets.iter().map(move |to| (key, to))) {
                if Family::of(to.ip()) == family {
                    let _ = write!(elements, "{} . {} : {} . {}, ", key.proto, key.port, to.ip(), to.port());
                }
            }
            let elements = if elements.is_empty() { elements } else { format!("elements = {{ {elements} }};") };
            let _ = writeln!(text, "map port{digit} {{ typeof meta l4proto . th dport : {kind} daddr . th dport; {elements} }}");
        }
        text.push_str(
            "chain prerouting {
                type nat hook prerouting priority -101; policy accept;
                iifname != \"tailscale0\" fib daddr type local dnat ip to meta l4proto . th dport map @port4
                iifname != \"tailscale0\" fib daddr type local dnat ip6 to meta l4proto . th dport map @port6
            }
            chain postrouting {
                type nat hook postrouting priority 99; policy accept;
                oifname \"tailscale0\" ct status dnat snat ip to oifname map @self4
                oifname \"tailscale0\" ct status dnat snat ip6 to oifname map @self6
                oifname != \"tailscale0\" ct status dnat masquerade
            }
            chain output {
                type filter hook output priority -300; policy accept;
                meta mark 0x5459 notrack
            }
            }\n",
        );
        run(&self.proxy, "nft", "-f -", &text);
    }

    /// Changes the rules and does the surgery that goes with it, in the proxy's order.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Ruleset)) -> (usize, Report) {
        self.change_with(change, &|_| true)
    }

    pub(crate) fn change_with(
        &mut self,
        change: impl FnOnce(&mut Ruleset),
        reachable: &(dyn Fn(IpAddr) -> bool + Sync),
    ) -> (usize, Report) {
        let before = self.rules.clone();
        change(&mut self.rules);
        self.load();
        let delta = diff(&before, &self.rules);
        let cuts = Cuts::new(&delta, &before, &self.rules, reachable);
        self.proxy.run(|| operate(&cuts, Duration::from_secs(3))).expect("ran")
    }

    pub(crate) fn flows(&self, filter: FlowFilter) -> Vec<Flow> {
        self.proxy.run(|| Conntrack::open().expect("open").flows(filter).expect("listed")).expect("ran")
    }

    pub(crate) fn listen(&self, at: SocketAddr) -> TcpListener {
        self.tailnet.run(|| TcpListener::bind(at)).expect("ran").expect("bound")
    }

    pub(crate) fn connect(&self, to: SocketAddr) -> TcpStream {
        self.client.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(3))).expect("ran").expect("connected")
    }

    /// A connection through the proxy, both ends of it, having carried a byte each way.
    pub(crate) fn pair(&self, to: SocketAddr, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let mut client = self.connect(to);
        let (mut server, _) = listener.accept().expect("accepted");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        }
        echo(&mut client, &mut server);
        (client, server)
    }
}

/// A datagram socket in a namespace.
pub(crate) fn udp(ns: &Namespace, at: SocketAddr) -> UdpSocket {
    let socket = ns.run(|| UdpSocket::bind(at)).expect("ran").expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
    socket
}

/// A datagram there, and what comes back.
pub(crate) fn ask(socket: &UdpSocket, to: SocketAddr) -> std::io::Result<String> {
    socket.connect(to).and_then(|()| socket.send(b"?"))?;
    let mut buffer = [0; 64];
    socket.recv(&mut buffer).map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// Answers one datagram with a name and the address that it came from.
pub(crate) fn answer(socket: &UdpSocket, name: &str) -> SocketAddr {
    let mut buffer = [0; 64];
    let (_, from) = socket.recv_from(&mut buffer).expect("received");
    socket.send_to(name.as_bytes(), from).expect("sent");
    from
}

/// Does what the proxy does after a change: lists, deletes, resets.
pub(crate) fn operate(cuts: &Cuts<'_>, patience: Duration) -> (usize, Report) {
    if cuts.is_empty() {
        return (0, Report::default());
    }
    let mut conntrack = Conntrack::open().expect("open");
    let flows = conntrack.flows(cuts.filter()).expect("listed");
    let ending: Vec<_> = flows.iter().filter(|flow| cuts.verdict(flow) != Verdict::Keep).collect();
    let deleted = conntrack.delete_all(ending.iter().copied()).expect("deleted");
    let resets: Vec<_> = ending.into_iter().filter(|flow| cuts.verdict(flow) == Verdict::Reset).cloned().collect();
    (deleted, probe::reset(&resets, Instant::now() + patience).expect("sent"))
}

/// A byte each way.
pub(crate) fn echo(client: &mut TcpStream, server: &mut TcpStream) {
    let mut byte = [0];
    client.write_all(b"?").expect("sent");
    server.read_exact(&mut byte).expect("received");
    server.write_all(b"!").expect("sent");
    client.read_exact(&mut byte).expect("received");
}

/// Whether an end learns of a reset before its read timeout; draining what was under way.
pub(crate) fn is_reset(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

pub(crate) fn rules(ports: &[(PortKey, &[SocketAddr])]) -> Ruleset {
    let mut rules = Ruleset::empty(InterfaceName::tailscale0());
    rules.source = Family::ALL.into_iter().zip(OWN.map(|own| own.parse().expect("an address"))).collect();
    rules.ports = ports.iter().map(|(key, targets)| (*key, targets.iter().copied().collect::<BTreeSet<_>>())).collect();
    rules
}
