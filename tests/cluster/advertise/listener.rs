//! Listener of a test in a machine; closed when dropped.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kit::netns::Node;

pub(crate) struct Listener {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens on a port of the node at this address, and calls `each` for every connection.
    pub(crate) fn start(node: &Node, address: IpAddr, port: u16, each: impl Fn(TcpStream) + Send + 'static) -> Self {
        let listener = node.ns.run(|| TcpListener::bind(SocketAddr::new(address, port))).expect("the namespace").expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nonblocking(false).expect("a connection");
                        each(stream);
                    }
                    Err(_) => thread::park_timeout(Duration::from_millis(2)),
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}
