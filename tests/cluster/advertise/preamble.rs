//! Listener in place of a TLS terminator: reads a PROXY protocol header, version 2, and greets the client that it names.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::advertise::listener::Listener;
use kit::netns::Node;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Listens on a port of the node's loopback.
pub(crate) fn listen(node: &Node, port: u16) -> Listener {
    listen_at(node, Ipv4Addr::LOCALHOST.into(), port)
}

/// Listens on a port of an address of the node.
pub(crate) fn listen_at(node: &Node, address: IpAddr, port: u16) -> Listener {
    let name = node.name.clone();
    Listener::start(node, address, port, move |stream| drop(greet(stream, &name)))
}

fn greet(mut stream: TcpStream, name: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut head = [0; 16];
    stream.read_exact(&mut head)?;
    assert_eq!((&head[..12], head[12]), (&SIGNATURE[..], 0x21), "a preamble of version 2");
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[14], head[15]]))];
    stream.read_exact(&mut rest)?;
    let (ip, port): (IpAddr, _) = match head[13] {
        0x11 => (Ipv4Addr::from(<[u8; 4]>::try_from(&rest[..4]).expect("four bytes")).into(), &rest[8..10]),
        _ => (Ipv6Addr::from(<[u8; 16]>::try_from(&rest[..16]).expect("sixteen bytes")).into(), &rest[32..34]),
    };
    let client = SocketAddr::new(ip, u16::from_be_bytes([port[0], port[1]]));
    stream.write_all(format!("{name} {client}\n").as_bytes())
}
