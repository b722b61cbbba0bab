//! How long does it take until every service has its certificate when all are ordered at once, and how many certificates are ordered,
//! compared with the stock proxy's tailscaled?

use std::fmt::Write as _;
use std::fs;
use std::time::Instant;

use anyhow::{Result, ensure};
use kit::acme_front::Front;
use kit::certs::{Replica, Stage, stage};
use kit::machine::{Machine, Process};
use kit::servers::tailscale_release;
use kit::sheet::counted;
use kit::stock;

use crate::support::{Args, Point, Sheet, in_turn, ratios};

/// How many services there are, with a name each.
const SIZES: [u16; 3] = [1, 10, 100];

/// An issuer of certificates.
enum Issuer {
    /// Our group: one replica orders, both load the certificates.
    Ours([Replica; 2]),
    /// The stock proxy's tailscaled, which orders on request.
    Theirs { machine: Machine, _tailscaled: Process },
}

/// An issuer and its samples at one size.
struct Side {
    party: Issuer,
    seconds: Vec<f64>,
    orders: Vec<f64>,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let sizes = if args.quick { &SIZES[..2] } else { &SIZES };
    let rounds = args.repetitions(5);
    // One more for each, for the creation of the account.
    let each = 1 + rounds * sizes.iter().map(|size| usize::from(*size)).sum::<usize>();
    let names: Vec<String> = (0..2 * each).map(|number| format!("c{number}.tail-lab.ts.net")).collect();
    let names: &[&str] = &names.iter().map(String::as_str).collect::<Vec<_>>();
    let mut sheet = Sheet::new("Services that are published at once until each has its certificate");
    sheet.version("tailscaled", tailscale_release());
    let mut outcome = Ok(());
    let (measured, written) = (&mut outcome, &mut sheet);
    stage(names, async move |stage| *measured = all(&stage, sizes, rounds, names, written).await);
    outcome?;
    Ok(sheet)
}

async fn all(stage: &Stage, sizes: &[u16], rounds: usize, names: &[&str], sheet: &mut Sheet) -> Result<()> {
    let mut remaining = names;
    // Pebble alone is not sufficient for tailscaled, so both use the front.
    let front = Front::start(&stage.tailnet);
    let mut both = [ours(stage, &front.directory).await, theirs(stage, &front.directory)].map(|party| Side {
        party,
        seconds: Vec::new(),
        orders: Vec::new(),
    });
    for side in &mut both {
        side.order(stage, &mut remaining, 1).await?;
    }
    for size in sizes {
        for side in &mut both {
            (side.seconds, side.orders) = (Vec::new(), Vec::new());
        }
        for round in 0..rounds {
            for side in in_turn(&mut both, round) {
                side.order(stage, &mut remaining, *size).await?;
            }
        }
        report(sheet, &both, *size);
    }
    Ok(())
}

async fn ours(stage: &Stage, directory: &str) -> Issuer {
    let replicas = [stage.replica_at(0, &[], directory).await, stage.replica_at(1, &[], directory).await];
    replicas[0].until_leads(true).await;
    Issuer::Ours(replicas)
}

fn theirs(stage: &Stage, directory: &str) -> Issuer {
    let machine = stage.tailnet.machine("stock");
    let tailscaled = stock::start(&stage.tailnet, &machine, &[("TS_DEBUG_ACME_DIRECTORY_URL", directory)]);
    Issuer::Theirs { machine, _tailscaled: tailscaled }
}

impl Side {
    /// Orders certificates for this number of the remaining names.
    async fn order(&mut self, stage: &Stage, remaining: &mut &[&str], size: u16) -> Result<()> {
        let all = *remaining;
        let (names, rest) = all.split_at(size.into());
        *remaining = rest;
        let (before, begun) = (stage.pebble.issued(), Instant::now());
        match &self.party {
            Issuer::Ours(replicas) => order_with_replicas(replicas, names).await,
            Issuer::Theirs { machine, .. } => order_with_tailscaled(machine, names)?,
        }
        self.seconds.push(begun.elapsed().as_secs_f64());
        let issued = u32::try_from(stage.pebble.issued() - before)?;
        self.orders.push(f64::from(issued) / f64::from(size));
        ensure!(issued >= size.into(), "{issued} certificates were issued for {size} names");
        Ok(())
    }
}

/// Configures the names on both replicas and waits until both have the certificates.
async fn order_with_replicas(replicas: &[Replica; 2], names: &[&str]) {
    for replica in replicas {
        replica.want(names);
    }
    for replica in replicas {
        for name in names {
            replica.pair(name).await;
        }
    }
}

/// Requests all certificates from tailscaled at once, like its supervisor, and waits for the responses.
fn order_with_tailscaled(machine: &Machine, names: &[&str]) -> Result<()> {
    let file = machine.own_dir().join("orders");
    let mut wanted = String::new();
    for name in names {
        writeln!(wanted, "url = http://local-tailscaled.sock/localapi/v0/cert/{name}?type=pair")?;
    }
    fs::create_dir_all(machine.own_dir())?;
    fs::write(&file, wanted)?;
    let mut curl = machine.command("curl".as_ref());
    curl.args(["--no-progress-meter", "--fail-with-body", "--parallel", "--parallel-immediate", "--parallel-max", "200", "--unix-socket"]);
    let output = curl.arg(machine.socket()).arg("--config").arg(&file).output()?;
    let given = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{}{given}", String::from_utf8_lossy(&output.stderr));
    // A key and a chain of two for each.
    ensure!(given.matches("PRIVATE KEY-----\n").count() == 2 * names.len(), "keys for {} names are missing: {given}", names.len());
    Ok(())
}

fn report(sheet: &mut Sheet, both: &[Side; 2], size: u16) {
    let [ours, theirs] = both;
    for (side, system) in [(ours, "Tailyard, two replicas"), (theirs, "Tailscale proxy, one tailscaled")] {
        sheet.plot(Point::of("published until each has its certificate", system, size), "s", side.seconds.clone(), None);
        sheet.plot(Point::of("certificates ordered for each", system, size), "", side.orders.clone(), Some("≤ 1"));
    }
    let what = format!("published until each has its certificate, {}: ours to theirs", counted(size.into(), "service"));
    sheet.add(what, "ratio", ratios(&ours.seconds, &theirs.seconds), None);
}
