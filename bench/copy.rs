//! One established connection, as fast as it goes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Result;
use tailyard::edge::netns::Namespace;

/// How long one measurement takes.
const SLICE: Duration = Duration::from_secs(1);
/// How much is written and read at once.
const CHUNK: usize = 256 * 1024;

/// Sends for a while and says how many Gbit arrived each second.
pub(crate) fn copy(client: &Namespace, listener: &TcpListener, to: SocketAddr) -> Result<f64> {
    let send = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(to)?;
        let (chunk, until) = (vec![0; CHUNK], Instant::now() + SLICE);
        while Instant::now() < until {
            stream.write_all(&chunk)?;
        }
        Ok(())
    };
    let receive = || -> std::io::Result<f64> {
        let (mut stream, _) = listener.accept()?;
        let (mut chunk, mut received, begun) = (vec![0; CHUNK], 0_u64, Instant::now());
        loop {
            match stream.read(&mut chunk)? {
                0 => break,
                some => received += some as u64,
            }
        }
        #[allow(clippy::cast_precision_loss, reason = "a few terabytes at most")]
        let bits = received as f64 * 8.0;
        Ok(bits / begun.elapsed().as_secs_f64() / 1e9)
    };
    std::thread::scope(|scope| {
        let receiver = scope.spawn(receive);
        client.run(send)??;
        Ok(receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??)
    })
}
