use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto};

use super::*;
use crate::edge::netns::Namespace;
use crate::model::base::net::{Port, PortKey, Proto};

/// Namespace with connection tracking enabled, by a rule that uses it.
fn tracked() -> Namespace {
    let ns = Namespace::make().expect("a namespace");
    let rules = "table inet t { chain c { type filter hook output priority 0; ct state new accept; }; }";
    let loaded = ns.run(|| {
        let up = std::process::Command::new("ip").args("link set lo up".split(' ')).status().expect("ip is installed");
        let loaded = std::process::Command::new("nft").arg(rules).status().expect("nft is installed");
        up.success() && loaded.success()
    });
    assert!(loaded.expect("ran"), "the namespace is set up");
    ns
}

fn send(ns: &Namespace, to: &str) {
    let to: SocketAddr = to.parse().expect("an address");
    let from = if to.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let socket = ns.run(|| UdpSocket::bind(from)).expect("ran").expect("bound");
    socket.send_to(b"?", to).expect("sent");
}

#[test]
fn a_flow_is_listed_once_deleted_once_and_counted() {
    let ns = tracked();
    let mut conntrack = ns.run(Conntrack::open).expect("ran").expect("open");
    assert_eq!(conntrack.flows(FlowFilter::default()).expect("listed"), []);
    for to in ["127.0.0.1:7001", "127.0.0.1:7002", "[::1]:7001"] {
        send(&ns, to);
    }
    let flows = conntrack.flows(FlowFilter::default()).expect("listed");
    assert_eq!(flows.len(), 3);
    assert_eq!(conntrack.pressure().expect("read").entries, 3);
    assert_eq!(conntrack.flows(FlowFilter::forwarded()).expect("listed"), [], "none of them is forwarded");
    let six = FlowFilter { family: Some(Family::V6), ..FlowFilter::default() };
    assert_eq!(conntrack.flows(six).expect("listed").len(), 1);
    let key = PortKey { proto: Proto::Udp, port: Port::new(7001).expect("not zero") };
    let by_port = conntrack.flows(FlowFilter { key: Some(key), ..FlowFilter::default() }).expect("listed");
    assert_eq!(by_port.len(), 2);
    assert!(by_port.iter().all(|flow| flow.original.destination.port() == 7001 && flow.proto == 17));
    assert_eq!(conntrack.delete_all(&flows[..1]).expect("asked"), 1);
    assert_eq!(conntrack.delete_all(&flows[..1]).expect("asked"), 0, "it is gone");
    assert_eq!(conntrack.delete_all(&flows).expect("asked"), 2);
    assert_eq!(conntrack.flows(FlowFilter::default()).expect("listed"), []);
}

/// Sends an echo request to the namespace's loopback, in both families.
fn ping() -> nix::Result<()> {
    let raw = |family, protocol| nix::sys::socket::socket(family, SockType::Raw, SockFlag::empty(), protocol);
    // Type, code, checksum (set by the kernel in IPv6), identifier, sequence number.
    let (four, six) = ([8, 0, 0xe5, 0xca, 0x12, 0x34, 0, 1], [128, 0, 0, 0, 0x12, 0x34, 0, 1]);
    let (home4, home6) = (SockaddrIn::new(127, 0, 0, 1, 0), SockaddrIn6::from(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0)));
    sendto(raw(AddressFamily::Inet, SockProtocol::Icmp)?.as_raw_fd(), &four, &home4, MsgFlags::empty())?;
    sendto(raw(AddressFamily::Inet6, SockProtocol::IcmpV6)?.as_raw_fd(), &six, &home6, MsgFlags::empty())?;
    Ok(())
}

#[test]
fn icmp_flows_are_deleted_by_their_id() {
    let ns = tracked();
    ns.run(ping).expect("ran").expect("sent");
    let mut conntrack = ns.run(Conntrack::open).expect("ran").expect("open");
    let flows = conntrack.flows(FlowFilter::default()).expect("listed");
    let pings: Vec<_> = flows.iter().filter(|flow| flow.original.source.port() == 0x1234).collect();
    assert_eq!(pings.len(), 2, "{flows:?}");
    assert_eq!(conntrack.delete_all(pings).expect("asked"), 2);
}

#[test]
fn listing_spans_several_netlink_messages() {
    let ns = tracked();
    let socket = ns.run(|| UdpSocket::bind("127.0.0.1:0")).expect("ran").expect("bound");
    for port in 10_000..13_000 {
        // An error from an earlier datagram is irrelevant.
        let _ = socket.send_to(b"?", ("127.0.0.1", port));
    }
    let mut conntrack = ns.run(Conntrack::open).expect("ran").expect("open");
    let flows = conntrack.flows(FlowFilter::default()).expect("listed");
    let mut ports: Vec<_> = flows.iter().map(|flow| flow.original.destination.port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, (10_000..13_000).collect::<Vec<_>>());
    assert_eq!(conntrack.delete_all(&flows).expect("asked"), 3_000);
}

/// A listing whose responses exceed the socket's buffer is repeated on a new socket.
#[test]
fn listing_with_lost_messages_is_repeated() {
    let ns = tracked();
    send(&ns, "127.0.0.1:7001");
    let mut conntrack = ns.run(Conntrack::open).expect("ran").expect("open");
    // Unread responses fill the buffer until the kernel drops some.
    conntrack.socket.shrink_receive_buffer();
    for sequence in 1_000_000..1_000_200 {
        conntrack.socket.send_only(&wire::get_stats(sequence));
    }
    let listed = ns.run(|| conntrack.flows(FlowFilter::default())).expect("ran");
    assert_eq!(listed.expect("listed").len(), 1);
}

/// Deletions whose responses exceed the socket's buffer are repeated on a new socket.
#[test]
fn deletions_with_lost_replies_are_repeated() {
    let ns = tracked();
    for port in 10_000..10_200 {
        send(&ns, &format!("127.0.0.1:{port}"));
    }
    let mut conntrack = ns.run(Conntrack::open).expect("ran").expect("open");
    let flows = conntrack.flows(FlowFilter::default()).expect("listed");
    assert_eq!(flows.len(), 200);
    conntrack.socket.shrink_receive_buffer();
    let deleted = ns.run(|| conntrack.delete_all(&flows)).expect("ran").expect("asked");
    assert!((1..200).contains(&deleted), "{deleted}: answers were lost, and with them the count");
    assert_eq!(conntrack.flows(FlowFilter::default()).expect("listed"), []);
}
