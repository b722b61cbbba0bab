//! An identity target: TCP and UDP servers on some ports of one namespace, each answer saying who gave it.

use std::io;
use std::net::Ipv6Addr;
use std::ops::Range;
use std::thread::JoinHandle;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::edge::netns::{Namespace, NetnsError};
use crate::load::identity_protocol;
use crate::model::diagnostics::load::TargetIdentity;

/// A running target; it ends when this value does.
#[derive(Debug)]
pub struct DemoTarget {
    /// Dropping it tells the servers to end.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Result<io::Result<()>, NetnsError>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("cannot serve on the target's ports: {0}")]
    Bind(#[source] io::Error),
    #[error(transparent)]
    Namespace(#[from] NetnsError),
}

impl DemoTarget {
    /// Serves on every port of the range, both protocols and both families; returns once all of them are bound.
    pub fn start(namespace: &Namespace, number: u16, ports: Range<u16>) -> Result<Self, TargetError> {
        let (stop, stopped) = mpsc::channel(1);
        let (bound, is_bound) = oneshot::channel();
        let namespace = namespace.clone();
        let thread = std::thread::spawn(move || namespace.block_on(|| serve(number, ports, bound, stopped)));
        if is_bound.blocking_recv().is_ok() {
            return Ok(Self { stop: Some(stop), thread: Some(thread) });
        }
        // It ended before it was bound: it says why.
        match thread.join() {
            Ok(Ok(Ok(()))) => Err(TargetError::Bind(io::ErrorKind::Interrupted.into())),
            Ok(Ok(Err(error))) => Err(TargetError::Bind(error)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(NetnsError::Work("the target's thread panicked".to_owned()).into()),
        }
    }
}

impl Drop for DemoTarget {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Nothing to report: what a target does wrong its clients notice.
            let _ = thread.join();
        }
    }
}

async fn serve(number: u16, ports: Range<u16>, bound: oneshot::Sender<()>, mut stopped: mpsc::Receiver<()>) -> io::Result<()> {
    let mut servers = JoinSet::new();
    for port in ports {
        let identity = TargetIdentity { target: number, port };
        // Bound to the unspecified IPv6 address, both families arrive.
        let (tcp, udp) = (TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await?, UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).await?);
        servers.spawn(serve_tcp(tcp, identity));
        servers.spawn(serve_udp(udp, identity));
    }
    // If the other end is gone nobody waits for the target, and the channel below is closed too.
    let _ = bound.send(());
    stopped.recv().await;
    Ok(())
}

async fn serve_tcp(listener: TcpListener, identity: TargetIdentity) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(converse(stream, identity));
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Answers question after question until the client ends the connection.
async fn converse(mut stream: TcpStream, identity: TargetIdentity) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut question = [0; identity_protocol::QUESTION];
    loop {
        stream.read_exact(&mut question).await?;
        stream.write_all(&identity_protocol::answer(question, identity)).await?;
    }
}

async fn serve_udp(socket: UdpSocket, identity: TargetIdentity) {
    let mut question = [0; identity_protocol::QUESTION];
    loop {
        // An error here tells of an earlier answer that its client did not want any more.
        if let Ok((identity_protocol::QUESTION, client)) = socket.recv_from(&mut question).await {
            let _ = socket.send_to(&identity_protocol::answer(question, identity), client).await;
        }
    }
}
