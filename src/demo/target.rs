//! Identity target: TCP and UDP servers on some ports of one namespace that answer with their identity.

use std::io;
use std::net::Ipv6Addr;
use std::ops::Range;
use std::thread::JoinHandle;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::DemoError;
use crate::edge::netns::{Namespace, NetnsError};
use crate::load::identity_protocol;
use crate::model::diagnostics::load::TargetIdentity;

/// A running target; dropping it stops the servers.
#[derive(Debug)]
pub struct DemoTarget {
    /// Dropping it stops the servers.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Result<io::Result<()>, NetnsError>>>,
}

impl DemoTarget {
    /// Serves on every port of the range, with both protocols and families; returns once all are bound.
    pub fn start(namespace: &Namespace, number: u16, ports: Range<u16>) -> Result<Self, DemoError> {
        let (stop, stopped) = mpsc::channel(1);
        let (bound, is_bound) = oneshot::channel();
        let namespace = namespace.clone();
        let thread = std::thread::spawn(move || namespace.block_on(|| serve(number, ports, bound, stopped)));
        if is_bound.blocking_recv().is_ok() {
            return Ok(Self { stop: Some(stop), thread: Some(thread) });
        }
        // It ended before it was bound: return its error.
        match thread.join() {
            Ok(Ok(served)) => Err(DemoError::io("serve on the target's ports")(served.err().unwrap_or(io::ErrorKind::Interrupted.into()))),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(NetnsError::Work("the target's thread panicked".to_owned()).into()),
        }
    }
}

impl Drop for DemoTarget {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Nothing to report: clients detect faults of a target.
            let _ = thread.join();
        }
    }
}

async fn serve(number: u16, ports: Range<u16>, bound: oneshot::Sender<()>, mut stopped: mpsc::Receiver<()>) -> io::Result<()> {
    let mut servers = JoinSet::new();
    for port in ports {
        let identity = TargetIdentity { target: number, port };
        // A socket on the unspecified IPv6 address receives both families.
        let (tcp, udp) = (TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await?, UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).await?);
        servers.spawn(serve_tcp(tcp, identity));
        servers.spawn(serve_udp(udp, identity));
    }
    // If the receiver is gone, the channel below is closed too.
    let _ = bound.send(());
    stopped.recv().await;
    Ok(())
}

async fn serve_tcp(listener: TcpListener, identity: TargetIdentity) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(answer(stream, identity));
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Answers requests until the client ends the connection.
async fn answer(mut stream: TcpStream, identity: TargetIdentity) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut request = [0; identity_protocol::REQUEST];
    loop {
        stream.read_exact(&mut request).await?;
        stream.write_all(&identity_protocol::answer(request, identity)).await?;
    }
}

async fn serve_udp(socket: UdpSocket, identity: TargetIdentity) {
    let mut request = [0; identity_protocol::REQUEST];
    loop {
        // An error here is about an earlier answer that its client rejected.
        if let Ok((identity_protocol::REQUEST, client)) = socket.recv_from(&mut request).await {
            let _ = socket.send_to(&identity_protocol::answer(request, identity), client).await;
        }
    }
}
