//! A listener that stands for one that terminates TLS: it reads the PROXY protocol's preamble, version 2, and greets whoever it names.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::lab::Node;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

pub(crate) struct Listener {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Listens on a port of the node's loopback.
pub(crate) fn listen(node: &Node, port: u16) -> Listener {
    listen_at(node, Ipv4Addr::LOCALHOST.into(), port)
}

/// Listens on a port of an address of the node.
pub(crate) fn listen_at(node: &Node, address: IpAddr, port: u16) -> Listener {
    let listener = node.ns.run(|| TcpListener::bind((address, port))).expect("the namespace").expect("a port");
    listener.set_nonblocking(true).expect("a listener");
    let (stop, name) = (Arc::new(AtomicBool::new(false)), node.name.clone());
    let ended = Arc::clone(&stop);
    let thread = thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => drop(greet(stream, &name)),
                Err(_) => thread::park_timeout(Duration::from_millis(2)),
            }
        }
    });
    Listener { stop, thread: Some(thread) }
}

fn greet(mut stream: TcpStream, name: &str) -> io::Result<()> {
    stream.set_nonblocking(false)?;
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

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}
