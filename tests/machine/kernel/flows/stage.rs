//! One client, one proxy and two targets. The proxy's rules are loaded and changed in the same order of operations as by the proxy.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use tailyard::edge::conntrack::Conntrack;
use tailyard::edge::raw_tcp::RawTcpSockets;
use tailyard::model::base::net::{Family, InterfaceName, Port, PortKey, Proto};
use tailyard::model::firewall::ruleset::Ruleset;
use tailyard::model::flows::cleanup::{FlowAction, FlowChanges, RulesetHistory};
use tailyard::model::flows::flow::{Flow, FlowFilter};
use tailyard::model::flows::tcp_reset::ResetReport;

use crate::kernel::firewall::{Backend, Firewall};
use kit::netns::{Lab, Node, Shape};
use kit::wait::uninterrupted;

/// Time limit for the resets of one change.
const PATIENCE: Duration = Duration::from_secs(6);

pub(crate) struct Stage {
    pub(crate) lab: Lab,
    firewall: Firewall,
}

pub(crate) fn key(proto: Proto, port: u16) -> PortKey {
    PortKey { proto, port: Port::new(port).expect("not zero") }
}

impl Stage {
    /// Builds a proxy without a key.
    pub(crate) fn new(backend: Backend) -> Self {
        let lab = Lab::build(&Shape { targets: 2, ..Shape::default() });
        let mut rules = Ruleset::empty(InterfaceName::tailscale0());
        rules.source = lab.proxies[0].tailnet.iter().map(|(family, ip)| (*family, *ip)).collect();
        let firewall = Firewall::load(backend, &lab.proxies[0], rules);
        Self { lab, firewall }
    }

    /// Builds a proxy with one key that is mapped to the first target.
    pub(crate) fn with(backend: Backend, key: PortKey, family: Family, port: u16) -> Self {
        let mut stage = Self::new(backend);
        let to = stage.target(0, family, port);
        stage.point(key, &[to]);
        stage
    }

    pub(crate) fn client(&self) -> &Node {
        &self.lab.clients[0]
    }

    pub(crate) fn proxy(&self) -> &Node {
        &self.lab.proxies[0]
    }

    pub(crate) fn target(&self, index: usize, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.lab.targets[index].tailnet[&family], port)
    }

    pub(crate) fn pod(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.proxy().cluster[&family], port)
    }

    pub(crate) fn own(&self, family: Family) -> IpAddr {
        self.proxy().tailnet[&family]
    }

    /// Sets the targets of a key and ends the affected flows.
    pub(crate) fn point(&mut self, key: PortKey, targets: &[SocketAddr]) -> (usize, ResetReport) {
        self.change(|rules| drop(rules.ports.insert(key, targets.iter().copied().collect())))
    }

    /// Removes a key and ends the affected flows.
    pub(crate) fn remove(&mut self, key: PortKey) -> (usize, ResetReport) {
        self.change(|rules| drop(rules.ports.remove(&key)))
    }

    /// Rewrites all rules, as a starting replica does.
    pub(crate) fn rewrite(&self) {
        self.firewall.rewrite();
    }

    /// Changes the rules and runs the flow cleanup; returns the number of deleted entries and the report of the resets.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Ruleset)) -> (usize, ResetReport) {
        self.change_knowing(&|_| true, change)
    }

    /// Like `change`, with the addresses that still belong to a node.
    pub(crate) fn change_knowing(
        &mut self,
        reachable: &(dyn Fn(IpAddr) -> bool + Sync),
        change: impl FnOnce(&mut Ruleset),
    ) -> (usize, ResetReport) {
        self.change_while(reachable, change, |_| ())
    }

    /// Like `change_knowing`, with an action between the listing of the flows and their end.
    pub(crate) fn change_while(
        &mut self,
        reachable: &(dyn Fn(IpAddr) -> bool + Sync),
        change: impl FnOnce(&mut Ruleset),
        meanwhile: impl FnOnce(&Self),
    ) -> (usize, ResetReport) {
        let past = RulesetHistory::of(&self.firewall.ruleset, None);
        let after = self.write(change);
        let delta = past.until(&after);
        let cuts = FlowChanges::new(&past, &delta, &after, reachable);
        if cuts.is_empty() {
            return (0, ResetReport::default());
        }
        let flows = self.flows(cuts.filter());
        meanwhile(self);
        self.proxy().ns.run(|| end(&cuts, &flows)).expect("ran")
    }

    /// Changes the rules without a flow cleanup; returns the rules.
    pub(crate) fn write(&mut self, change: impl FnOnce(&mut Ruleset)) -> Ruleset {
        self.firewall.change(change);
        self.firewall.ruleset.clone()
    }

    pub(crate) fn flows(&self, filter: FlowFilter) -> Vec<Flow> {
        self.conntrack().flows(filter).expect("listed")
    }

    pub(crate) fn conntrack(&self) -> Conntrack {
        self.proxy().ns.run(Conntrack::open).expect("ran").expect("open")
    }

    pub(crate) fn listen(&self, index: usize, family: Family, port: u16) -> TcpListener {
        let at = self.target(index, family, port);
        self.lab.targets[index].ns.run(|| TcpListener::bind(at)).expect("ran").expect("bound")
    }

    /// Both ends of a client's connection that has carried a byte each way.
    pub(crate) fn pair(&self, to: SocketAddr, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let mut client = self.client().connect(to, Duration::from_secs(10)).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        server.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
        echo(&mut client, &mut server);
        (client, server)
    }
}

/// Selects the flows to end, deletes their entries and resets them.
fn end(cuts: &FlowChanges<'_>, flows: &[Flow]) -> (usize, ResetReport) {
    let mut conntrack = Conntrack::open().expect("open");
    let ending: Vec<_> = flows.iter().filter(|flow| cuts.verdict(flow) != FlowAction::Keep).collect();
    let resets: Vec<_> = ending.iter().copied().filter(|flow| cuts.verdict(flow) == FlowAction::Reset).cloned().collect();
    let probe = RawTcpSockets::open().expect("open");
    let deleted = conntrack.delete_all(ending).expect("deleted");
    (deleted, probe.reset(&resets, Instant::now() + PATIENCE).expect("sent"))
}

/// UDP socket on a node; port 0 is any port.
pub(crate) fn udp(node: &Node, at: SocketAddr) -> UdpSocket {
    let socket = node.ns.run(|| UdpSocket::bind(at)).expect("ran").expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    socket
}

/// Sends a datagram; returns the response.
pub(crate) fn ask(socket: &UdpSocket, to: SocketAddr) -> io::Result<String> {
    socket.connect(to).and_then(|()| socket.send(b"?"))?;
    let mut buffer = [0; 64];
    uninterrupted(|| socket.recv(&mut buffer)).map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// Answers one datagram with a name; returns its source address.
pub(crate) fn answer(socket: &UdpSocket, name: &str) -> SocketAddr {
    let mut buffer = [0; 64];
    let (_, from) = uninterrupted(|| socket.recv_from(&mut buffer)).expect("received");
    socket.send_to(name.as_bytes(), from).expect("sent");
    from
}

/// Transfers a byte each way.
pub(crate) fn echo(client: &mut TcpStream, server: &mut TcpStream) {
    let mut byte = [0];
    client.write_all(b"?").expect("sent");
    server.read_exact(&mut byte).expect("received");
    server.write_all(b"!").expect("sent");
    client.read_exact(&mut byte).expect("received");
}

/// Whether an end receives a reset before its read timeout; earlier data is drained first.
pub(crate) fn is_reset(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match uninterrupted(|| stream.read(&mut buffer)) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}
