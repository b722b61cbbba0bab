//! How fast is an established connection through the proxy, compared to plain forwarding and to the kernel's NAT with the fewest rules?

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tailyard::demo::services::{DemoService, FIRST_TARGET_PORT, of_family};
use tailyard::demo::topology::{DemoSite, Topology, forward_plainly};
use tailyard::model::base::net::{Family, Proto};

use crate::proxy::Proxy;
use crate::support::{Args, PLAIN, Point, Sheet, in_turn, ratios, tailyard};
use crate::traffic::copy::{Copied, Figure, PROCESSOR, RATE, Sink, of};

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let topology = Topology::make(3, 1)?;
    let target = topology.targets.first().context("there is a target")?;
    let sink = target.namespace.run(|| Sink::bind(FIRST_TARGET_PORT))??;
    let proxy = Proxy::start(&topology, 0, 1)?;
    forward_plainly(&topology, 1)?;
    let sites = &topology.replicas;
    let (pod, bare) = sites.first().and_then(|site| site.pod).zip(sites.get(2)).context("there are three replicas")?;
    let bare_pod = translate_barely(bare, target.tailnet)?;
    let port = DemoService { number: 0, target: 0 }.match_port();
    let mut sheet = Sheet::new("One established connection, or UDP flow, as fast as it goes");
    for (family, proto) in Family::ALL.into_iter().flat_map(|family| Proto::ALL.map(|proto| (family, proto))) {
        let ways = [(pod, port), (target.tailnet, FIRST_TARGET_PORT), (bare_pod, FIRST_TARGET_PORT)];
        let ways = ways.map(|(addresses, port)| SocketAddr::new(of_family(addresses, family), port));
        let mut taken = ways.map(|_| Vec::new());
        for to in ways {
            sink.open(&topology.client, to)?;
        }
        for round in 0..args.repetitions(15) {
            for (to, taken) in in_turn(ways.iter().zip(&mut taken), round) {
                taken.push(sink.copy(proto, &topology.client, *to)?);
            }
        }
        report(&mut sheet, &format!("{family}, {}", proto.name().to_uppercase()), &taken);
    }
    proxy.end()?;
    Ok(sheet)
}

fn report(sheet: &mut Sheet, what: &str, [proxied, plain, bare]: &[Vec<Copied>; 3]) {
    let to = |one: &[Copied], other: &[Copied], figure: Figure| ratios(&of(one, figure), &of(other, figure));
    sheet.add(format!("{what}, to plain forwarding"), "ratio", to(proxied, plain, RATE), Some("≥ 0.97"));
    sheet.add(format!("{what}, to NAT with two rules"), "ratio", to(proxied, bare, RATE), None);
    sheet.add(format!("{what}, NAT with two rules to plain forwarding"), "ratio", to(bare, plain, RATE), None);
    sheet.add(format!("{what}, processor time to plain forwarding's"), "ratio", to(proxied, plain, PROCESSOR), None);
    sheet.plot(Point::of(what, &tailyard(), 1_u8), "Gbit/s", of(proxied, RATE), None);
    sheet.plot(Point::limit(what, PLAIN), "Gbit/s", of(plain, RATE), None);
    sheet.plot(Point::limit(what, "NAT with two rules"), "Gbit/s", of(bare, RATE), None);
    let each = format!("{what}: processor time");
    sheet.plot(Point::of(&each, &tailyard(), 1_u8), "s for each Gbit", of(proxied, PROCESSOR), None);
    sheet.plot(Point::limit(&each, PLAIN), "s for each Gbit", of(plain, PROCESSOR), None);
}

/// Makes a replica without a proxy a router with the fewest NAT rules: two for each family, and none for established flows. This is the
/// lower bound for any proxy of this kind. Returns its Pod network addresses.
fn translate_barely(site: &DemoSite, [v4, v6]: [IpAddr; 2]) -> Result<[IpAddr; 2]> {
    let rules = format!(
        "table inet bare {{
            chain in {{ type nat hook prerouting priority -100; iifname eth0 th dport {FIRST_TARGET_PORT} dnat ip to {v4}
                iifname eth0 th dport {FIRST_TARGET_PORT} dnat ip6 to {v6}; }}
            chain out {{ type nat hook postrouting priority 100; oifname ts0 masquerade; }}
        }}"
    );
    let start = || -> std::io::Result<bool> {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
        let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
        nft.stdin.take().map_or(Ok(()), |mut text| text.write_all(rules.as_bytes()))?;
        nft.wait().map(|status| status.success())
    };
    ensure!(site.namespace.run(start)??, "nft did not take the rules");
    site.pod.context("a replica has a Pod address")
}
