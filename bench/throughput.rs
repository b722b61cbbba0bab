//! How fast is an established connection through the proxy, compared to plain forwarding?

mod group;
mod support;

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tailyard::demo::services::{FIRST_TARGET_PORT, Service, of_family};
use tailyard::demo::topology::{Topology, forward_plainly};
use tailyard::edge::netns::Namespace;
use tailyard::model::net::Family;

use crate::group::Proxy;
use crate::support::{Args, Sheet, ratios};

/// How long one measurement takes.
const SLICE: Duration = Duration::from_secs(1);
/// How much is written and read at once.
const CHUNK: usize = 256 * 1024;

fn main() -> Result<ExitCode> {
    support::main("throughput", bench)
}

fn bench(args: &Args) -> Result<Sheet> {
    let topology = Topology::make(2, 1)?;
    let target = topology.targets.first().context("there is a target")?;
    let listener = target.namespace.run(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, FIRST_TARGET_PORT)))??;
    let proxy = Proxy::start(&topology, 0, 1)?;
    forward_plainly(&topology, 1)?;
    let mut sheet = Sheet::new("One established TCP connection, as fast as it goes");
    for family in Family::ALL {
        let pod = of_family(topology.replicas.first().and_then(|site| site.pod).context("a replica has a Pod address")?, family);
        let proxied = SocketAddr::new(pod, Service { number: 0, target: 0 }.match_port());
        let plain = SocketAddr::new(of_family(target.tailnet, family), FIRST_TARGET_PORT);
        let mut rates = [Vec::new(), Vec::new()];
        copy(&topology.client, &listener, plain)?;
        for round in 0..args.repetitions(15) {
            // Each goes first every other time.
            let mut order = [(0, proxied), (1, plain)];
            order.rotate_left(round % 2);
            for (way, to) in order {
                if let Some(rates) = rates.get_mut(way) {
                    rates.push(copy(&topology.client, &listener, to)?);
                }
            }
        }
        let [through, without] = rates;
        sheet.add(format!("{family}, to plain forwarding"), "ratio", ratios(&through, &without), Some("≥ 0.97"));
        sheet.add(format!("{family}, through the proxy"), "Gbit/s", through, None);
        sheet.add(format!("{family}, plain forwarding"), "Gbit/s", without, None);
    }
    proxy.end()?;
    Ok(sheet)
}

/// Sends for a while and says how many Gbit arrived each second.
fn copy(client: &Namespace, listener: &TcpListener, to: SocketAddr) -> Result<f64> {
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
