//! Client that reuses the port of a connection that has just ended, as a client with many connections does sooner or later.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};
use socket2::{Domain, Socket, Type};

use super::{PATIENCE, TRY};
use kit::machine::DEADLINE;
use kit::netns::Node;

/// Source port, below the kernel's range of ephemeral ports.
const PORT: u16 = 22_000;

/// Client of a site.
pub(crate) struct Client<'a> {
    pub(crate) node: &'a Node,
    pub(crate) host: &'a str,
    pub(crate) at: IpAddr,
    pub(crate) authority: CertificateDer<'static>,
}

impl Client<'_> {
    /// Requests a page on a connection that is closed afterwards, and again from the same source port. `port` is the site's. `None` if the
    /// second connection is not answered.
    pub(crate) fn twice(&self, port: u16) -> Option<[String; 2]> {
        // The client's kernel permits the port again in the next second of its clock, not only after a minute.
        self.node.sysctl("net.ipv4.tcp_tw_reuse", "1");
        let first = self.once(port).expect("an answer");
        // Without the pause tailscaled may still be closing the first connection and refuse the second. Clients do not reuse a port that
        // fast.
        thread::sleep(Duration::from_secs(1));
        let begun = Instant::now();
        loop {
            match self.once(port) {
                Ok(second) => return Some([first, second]),
                Err(error) if error.kind() == ErrorKind::TimedOut => return None,
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable && begun.elapsed() < DEADLINE => thread::sleep(TRY),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn once(&self, port: u16) -> io::Result<String> {
        let connected = self.node.ns.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)).into())?;
            socket.connect_timeout(&SocketAddr::new(self.at, port).into(), PATIENCE)?;
            let mut stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(DEADLINE))?;
            let answer = if port == 443 { self.ask(Stream::new(&mut self.session(), &mut stream)) } else { self.ask(&mut stream) }?;
            // Time for the other side to close first.
            stream.set_read_timeout(Some(Duration::from_millis(300)))?;
            let _ = stream.read(&mut [0]);
            Ok(answer)
        });
        connected.expect("in its namespace")
    }

    fn session(&self) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).expect("a certificate");
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let config = builder.with_safe_default_protocol_versions().expect("versions").with_root_certificates(roots).with_no_client_auth();
        ClientConnection::new(Arc::new(config), ServerName::try_from(self.host.to_owned()).expect("a name")).expect("a session")
    }

    fn ask(&self, mut stream: impl Read + Write) -> io::Result<String> {
        write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.host)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.lines().next().unwrap_or_default().to_owned())
    }
}
