//! TCP connections that a rule of the kernel translated to a listener of this Pod.

use std::io;
use std::net::SocketAddr;

use socket2::SockRef;
use tokio::net::TcpStream;

/// Address and port that the client connected to, before the translation; its own ones without a translation.
pub fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let is_ipv4 = stream.local_addr()?.ip().to_canonical().is_ipv4();
    let address = if is_ipv4 { socket.original_dst_v4() } else { socket.original_dst_v6() }?;
    address.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}
