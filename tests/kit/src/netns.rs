//! A small network of namespaces: clients and proxies on a cluster's bridge, proxies and targets on a tailnet's bridge.
//!
//! ```text
//!   client(s) ──eth0── [cluster, MTU 1500] ──eth0── proxy(s) ──tailscale0── [tailnet, MTU 1280] ──tailscale0── target(s)
//! ```
//!
//! Every node of the tailnet has an address of both families; node `i` of a kind has the same last byte in both. There are no firewall
//! rules here: a test loads them in a proxy's namespace.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::{Backlog, listen};
use tailyard::edge::netns::Namespace;
use tailyard::model::base::net::Family;

use crate::wait::uninterrupted;

/// The size of a network.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Nodes of the cluster that use the proxies.
    pub clients: u8,
    /// Replicas.
    pub proxies: u8,
    /// Nodes of the tailnet.
    pub targets: u8,
    /// The cluster's IPv4 network, a /24 given by its first three bytes.
    pub cluster4: [u8; 3],
    /// The MTU of the cluster's links.
    pub cluster_mtu: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { clients: 1, proxies: 1, targets: 1, cluster4: [10, 42, 0], cluster_mtu: 1500 }
    }
}

/// The network.
#[derive(Debug)]
pub struct Lab {
    /// Nodes of the cluster, `.10` and up.
    pub clients: Vec<Node>,
    /// Replicas: `.2` and up in the cluster, `.1` and up in the tailnet.
    pub proxies: Vec<Node>,
    /// Nodes of the tailnet, `.11` and up.
    pub targets: Vec<Node>,
    /// Their ends of the cables are removed with them.
    _switches: [Namespace; 2],
}

/// A node: a namespace and its addresses.
#[derive(Debug, Clone)]
pub struct Node {
    /// Identifies the node in failure messages and server greetings.
    pub name: String,
    /// Its network namespace.
    pub ns: Namespace,
    /// Its addresses in the cluster, if it is there.
    pub cluster: BTreeMap<Family, IpAddr>,
    /// Its addresses in the tailnet, if it is there.
    pub tailnet: BTreeMap<Family, IpAddr>,
}

/// Backlog of a server: as large as the system allows by default.
const WAITING: i32 = 4096;
/// The name of a proxy's interface to the tailnet.
pub const TAILNET: &str = "tailscale0";
/// The MTU of the tailnet's links.
pub const TAILNET_MTU: u32 = 1280;

impl Lab {
    /// Makes the network and waits for nothing: addresses are usable at once (no duplicate address detection).
    pub fn build(shape: &Shape) -> Self {
        let [a, b, c] = shape.cluster4;
        let cluster = Switch::make(shape.cluster_mtu, "eth0", move |host| [v4(a, b, c, host), v6(0xfd42, 0, 0, host)]);
        let tailnet = Switch::make(TAILNET_MTU, TAILNET, |host| [v4(100, 64, 0, host), v6(0xfd7a, 0x115c, 0xa1e0, host)]);
        let node = |kind: &str, index: u8, near: Option<u8>, far: Option<u8>| {
            let mut node = Node::make(format!("{kind}{index}"));
            node.cluster = near.map(|host| cluster.plug(&node.ns, host)).unwrap_or_default();
            node.tailnet = far.map(|host| tailnet.plug(&node.ns, host)).unwrap_or_default();
            node
        };
        let clients = (0..shape.clients).map(|i| node("client", i, Some(10 + i), None)).collect();
        let proxies: Vec<Node> = (0..shape.proxies).map(|i| node("proxy", i, Some(2 + i), Some(1 + i))).collect();
        let targets = (0..shape.targets).map(|i| node("target", i, None, Some(11 + i))).collect();
        for proxy in &proxies {
            proxy.sysctl("net.ipv4.ip_forward", "1");
            proxy.sysctl("net.ipv6.conf.all.forwarding", "1");
        }
        Self { clients, proxies, targets, _switches: [cluster.ns, tailnet.ns] }
    }
}

/// A bridge in a namespace of its own.
struct Switch<A> {
    ns: Namespace,
    mtu: u32,
    port: &'static str,
    addresses: A,
}

impl<A: Fn(u8) -> [IpAddr; 2]> Switch<A> {
    fn make(mtu: u32, port: &'static str, addresses: A) -> Self {
        let node = Node::make("switch".to_owned());
        node.ip(&format!("link add sw mtu {mtu} type bridge\nlink set sw up\n"));
        Self { ns: node.ns, mtu, port, addresses }
    }

    /// Runs a cable to a node and gives the node its addresses.
    fn plug(&self, ns: &Namespace, host: u8) -> BTreeMap<Family, IpAddr> {
        let there = Node { name: "plug".to_owned(), ns: ns.clone(), cluster: BTreeMap::new(), tailnet: BTreeMap::new() };
        let here = Node { ns: self.ns.clone(), ..there.clone() };
        let (mtu, port, path) = (self.mtu, self.port, ns.path());
        here.ip(&format!(
            "link add p{host} mtu {mtu} type veth peer name {port} mtu {mtu} netns {}\nlink set p{host} master sw up\n",
            path.display()
        ));
        let [four, six] = (self.addresses)(host);
        there.ip(&format!("addr add {four}/24 dev {port}\naddr add {six}/64 dev {port} nodad\nlink set {port} up\n"));
        BTreeMap::from([(Family::V4, four), (Family::V6, six)])
    }
}

impl Node {
    /// A node with its loopback up and no cable.
    pub fn make(name: String) -> Self {
        let ns = Namespace::make().expect("a network namespace (root, or unshare -Urnm)");
        let node = Self { name, ns, cluster: BTreeMap::new(), tailnet: BTreeMap::new() };
        node.sysctl("net.ipv6.conf.all.accept_dad", "0");
        node.sysctl("net.ipv6.conf.default.accept_dad", "0");
        // Sending a redirect uses up the allowance of ICMP errors for that peer, and a tailnet has no use for redirects.
        node.sysctl("net.ipv4.conf.all.send_redirects", "0");
        node.sysctl("net.ipv4.conf.default.send_redirects", "0");
        node.ip("link set lo up\n");
        node
    }

    /// Sets a sysctl of the node's network.
    pub fn sysctl(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        self.ns
            .run(|| std::fs::write(&path, value))
            .expect("the namespace")
            .unwrap_or_else(|fault| panic!("{}: {path}: {fault}", self.name));
    }

    /// Runs `ip -batch` with these lines.
    pub fn ip(&self, lines: &str) {
        self.feed(&["ip", "-batch", "-"], lines);
    }

    /// Runs a program with this standard input and returns its output; a failure panics.
    pub fn feed(&self, argv: &[&str], input: &str) -> String {
        let (status, out, err) = self.try_feed(argv, input);
        assert!(status, "{}: {argv:?} failed: {err}\n{input}", self.name);
        out
    }

    /// Runs a program with this standard input: whether it succeeded, its output, its errors.
    pub fn try_feed(&self, argv: &[&str], input: &str) -> (bool, String, String) {
        let run = || -> io::Result<(bool, String, String)> {
            let mut command = Command::new(argv[0]);
            command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            let mut stdin = child.stdin.take().expect("piped");
            let output = thread::scope(|scope| {
                scope.spawn(move || stdin.write_all(input.as_bytes()));
                child.wait_with_output()
            })?;
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            Ok((output.status.success(), text(output.stdout), text(output.stderr)))
        };
        self.ns.run(run).expect("the namespace").unwrap_or_else(|fault| panic!("{}: cannot run {argv:?}: {fault}", self.name))
    }

    /// Starts a server on a TCP and a UDP port, for both families; it answers with a [`Greeting`] and then echoes.
    pub fn serve(&self, port: u16) -> Server {
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let bind = || -> io::Result<(TcpListener, UdpSocket)> { Ok((TcpListener::bind(address)?, UdpSocket::bind(address)?)) };
        let (tcp, udp) = self.ns.run(bind).expect("the namespace").unwrap_or_else(|fault| panic!("{}: port {port}: {fault}", self.name));
        Server::start(self.name.clone(), tcp, udp)
    }

    /// Connects by TCP and leaves the connection open.
    pub fn connect(&self, to: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
        let stream = self.ns.run(|| TcpStream::connect_timeout(&to, patience)).expect("the namespace")?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Sends a request by TCP on a new connection.
    pub fn ask_tcp(&self, to: SocketAddr, patience: Duration) -> io::Result<Greeting> {
        Greeting::read(&mut self.connect(to, patience)?)
    }

    /// Sends a request by UDP from an unused source port, so that no existing conntrack entry applies.
    pub fn ask_udp(&self, to: SocketAddr, patience: Duration) -> io::Result<Greeting> {
        let any = if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let bind = || {
            loop {
                match UdpSocket::bind((any, next_port())) {
                    Err(fault) if fault.kind() == io::ErrorKind::AddrInUse => {}
                    bound => return bound,
                }
            }
        };
        let socket = self.ns.run(bind).expect("the namespace")?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(patience))?;
        socket.send(b"?")?;
        let mut buffer = [0; 512];
        let size = uninterrupted(|| socket.recv(&mut buffer))?;
        Greeting::parse(&String::from_utf8_lossy(&buffer[..size]))
    }
}

/// Each port in turn, of those that the system does not give out by itself.
fn next_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let turn = NEXT.fetch_add(1, Ordering::Relaxed) % (32_768 - 1_024);
    1_024 + u16::try_from(turn).expect("below 32,768")
}

/// A server's first line: its name and the source address it sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// The name of the server's node.
    pub name: String,
    /// The address and port that the server sees as its client.
    pub peer: SocketAddr,
}

impl Greeting {
    /// Reads the line with which a TCP server greets.
    pub fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\n") {
            stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        Self::parse(&String::from_utf8_lossy(&line))
    }

    fn parse(line: &str) -> io::Result<Self> {
        let fields = line.trim_end().split_once(' ').and_then(|(name, peer)| Some((name.to_owned(), peer.parse().ok()?)));
        let (name, peer) = fields.ok_or_else(|| io::Error::other(format!("not a greeting: {line:?}")))?;
        Ok(Self { name, peer: plain(peer) })
    }
}

/// A server; it ends, with its connections, when the value is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    fn start(name: String, tcp: TcpListener, udp: UdpSocket) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        tcp.set_nonblocking(true).expect("a listener");
        // Connections beyond the backlog look established to the client and are dropped here: a busy machine needs a large one.
        listen(&tcp, Backlog::new(WAITING).expect("a number")).expect("a listener");
        udp.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
        let (ended, greeter) = (stop.clone(), name.clone());
        let datagrams = thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !ended.load(Ordering::Relaxed) {
                if let Ok((_, peer)) = udp.recv_from(&mut buffer) {
                    let _ = udp.send_to(format!("{greeter} {}", plain(peer)).as_bytes(), peer);
                }
            }
        });
        let ended = stop.clone();
        let streams = thread::spawn(move || {
            let mut open = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                match tcp.accept() {
                    Ok((stream, peer)) => {
                        let (ended, name) = (ended.clone(), name.clone());
                        open.push(thread::spawn(move || echo(stream, &format!("{name} {}\n", plain(peer)), &ended)));
                    }
                    Err(_) => thread::park_timeout(Duration::from_millis(1)),
                }
                open.retain(|thread| !thread.is_finished());
            }
            for thread in open {
                let _ = thread.join();
            }
        });
        Self { stop, threads: vec![datagrams, streams] }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sends the greeting, then echoes until either side closes.
fn echo(mut stream: TcpStream, greeting: &str, ended: &AtomicBool) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
    let mut alive = stream.write_all(greeting.as_bytes()).is_ok();
    let mut buffer = [0; 16384];
    while alive && !ended.load(Ordering::Relaxed) {
        alive = match uninterrupted(|| stream.read(&mut buffer)) {
            Ok(0) => false,
            Ok(size) => stream.write_all(&buffer[..size]).is_ok(),
            Err(fault) => matches!(fault.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        };
    }
    let _ = stream.shutdown(Shutdown::Both);
}

/// The namespace of the calling thread, to see that it is left as it was.
pub fn own_links() -> String {
    let here = Namespace::current().expect("a namespace");
    let list = || Command::new("ip").args(["-o", "link"]).output().expect("ip").stdout;
    String::from_utf8(here.run(list).expect("a thread")).expect("text")
}

/// An IPv4 address that came through a dual-stack socket, as IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn v4(a: u8, b: u8, c: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(a, b, c, host).into()
}

fn v6(a: u16, b: u16, c: u16, host: u8) -> IpAddr {
    Ipv6Addr::new(a, b, c, 0, 0, 0, 0, u16::from(host)).into()
}
