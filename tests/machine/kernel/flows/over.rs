//! Closed connections stay in conntrack for two minutes and are most of its entries: they must neither cost time nor affect other flows.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tailyard::model::base::net::{Family, Proto};
use tailyard::model::flows::flow::{FlowFilter, TcpState};

use super::stage::{Stage, echo, is_reset, key};
use crate::kernel::entries::{Entry, some_client, track};
use crate::kernel::firewall::Backend::Nftables;
use kit::wait::{eventually, uninterrupted};

const TIME_WAIT: u8 = 7;
const SOON: Duration = Duration::from_secs(10);

#[test]
fn time_wait_entries_are_not_deleted_and_open_flows_are_reset() {
    const OVER: u32 = 30_000;
    let tcp = key(Proto::Tcp, 10042);
    let mut stage = Stage::with(Nftables, tcp, Family::V4, 80);
    let listener = stage.listen(0, Family::V4, 80);
    let mut pairs: Vec<_> = (0..100).map(|_| stage.pair(stage.pod(Family::V4, 10042), &listener)).collect();
    let (pod, target) = (stage.pod(Family::V4, 10042), stage.target(0, Family::V4, 80));
    let (SocketAddr::V4(service), SocketAddr::V4(target)) = (pod, target) else { panic!("IPv4") };
    let entry = |number| Entry { client: some_client(number), service, target: Some(target), tcp: Some(TIME_WAIT) };
    stage.proxy().ns.run(|| track((0..OVER).map(entry))).expect("ran").expect("tracked");
    let start = Instant::now();
    assert_eq!(stage.flows(FlowFilter::under_way()).len(), pairs.len());
    let listed = start.elapsed();
    let (deleted, report) = stage.remove(tcp);
    println!("{OVER} that are over: listed in {listed:?}, {deleted} deleted, all in {:?}: {report:?}", start.elapsed());
    assert_eq!((deleted, report.reset), (pairs.len(), pairs.len()));
    assert!(pairs.iter_mut().all(|(client, server)| is_reset(client) && is_reset(server)));
    assert_eq!(stage.flows(FlowFilter::forwarded()).len(), OVER as usize);
}

/// A connection of the client from this source port.
fn connect_from(stage: &Stage, port: u16, to: SocketAddr) -> TcpStream {
    let from = SocketAddr::new(stage.client().cluster[&Family::V4], port);
    let socket = stage.client().ns.run(|| Socket::new(Domain::IPV4, Type::STREAM, None)).expect("ran").expect("a socket");
    socket.set_reuse_address(true).expect("set");
    socket.bind(&from.into()).expect("bound");
    socket.connect_timeout(&to.into(), SOON).expect("connected");
    socket.into()
}

#[test]
fn reused_client_port_in_time_wait_uses_current_rules() {
    let tcp = key(Proto::Tcp, 10042);
    let mut stage = Stage::with(Nftables, tcp, Family::V4, 80);
    let listeners = [0, 1].map(|index| stage.listen(index, Family::V4, 80));
    let pod = stage.pod(Family::V4, 10042);
    let mut client = connect_from(&stage, 40_123, pod);
    let (mut server, _) = listeners[0].accept().expect("accepted");
    echo(&mut client, &mut server);
    // The side that closes first keeps the port for a while (TIME_WAIT): here the server.
    drop(server);
    assert_eq!(uninterrupted(|| client.read(&mut [0])).expect("an end"), 0);
    drop(client);
    let is_over = || (stage.flows(FlowFilter::forwarded())[0].tcp == Some(TcpState::TimeWait)).then_some(());
    eventually("the connection is over", SOON, is_over);
    let new = stage.target(1, Family::V4, 80);
    assert_eq!(stage.change_knowing(&|ip| ip == new.ip(), |rules| drop(rules.ports.insert(tcp, [new].into()))).0, 0);
    let mut client = connect_from(&stage, 40_123, pod);
    let (mut server, _) = listeners[1].accept().expect("accepted");
    echo(&mut client, &mut server);
}
