//! How many API requests, and how much time and memory, do the Tailscale operator and our reconciler need for many standalone Services?
//!
//! As `operators`, with Services of type `LoadBalancer`, each with a proxy of its own. A Service is ready when its status has the addresses
//! of its device, so the time includes the start of its Pod and its login.

use std::thread::sleep;

use anyhow::Result;
use kit::operators::Stage;
use kit::servers::tailscale_release;

use super::CLASS;
use crate::operators::{Demand, IDLE, Samples, add_samples, compare, measured_with, processor};
use crate::players::{OURS, OperatorPair, THEIRS, pids};
use crate::rolling::number;
use crate::support::{Args, Sheet, in_turn, ratios, status};
use crate::users::Users;

/// Label of the Pods of all proxies.
const PROXIES: &str = "tailscale.com/parent-resource-type=svc";

/// Means of the Pods of all proxies.
#[derive(Debug, Default)]
struct Pods {
    /// Of all processes of a Pod, in MB.
    resident: Vec<f64>,
    /// Of one processor at rest, in percent.
    rest: Vec<f64>,
}

pub(crate) fn bench(args: &Args) -> Result<Sheet> {
    let count = args.services.unwrap_or(if args.quick { 4 } else { 20 });
    let (mut ours, mut theirs) = (<(Samples, Pods)>::default(), <(Samples, Pods)>::default());
    let mut game = OperatorPair::install();
    game.stage.set_class(None, "first");
    for round in 0..args.rounds.unwrap_or_else(|| args.repetitions(3)) {
        for (party, (taken, pods)) in in_turn([(&OURS, &mut ours), (&THEIRS, &mut theirs)], round) {
            game.clear_for(party);
            measured_with(&game, Users::standalone, &mut 0, Demand { group: CLASS, sizes: &[count], own: 0 }, taken)?;
            pods.measure(&game.stage, count + 1)?;
            eprintln!("{}: {taken:?}, {pods:?}", party.name);
        }
    }
    let mut sheet = Sheet::new("Standalone Services on a real cluster: the Tailscale operator and Tailyard's reconciler");
    sheet.version("Tailscale operator", tailscale_release());
    for (party, (taken, pods)) in [(&OURS, &ours), (&THEIRS, &theirs)] {
        add_samples(&mut sheet, party, taken);
        sheet.add(format!("{}: resident, Pod of a proxy", party.name), "MB", pods.resident.clone(), None);
        sheet.add(format!("{}: processor at rest, Pod of a proxy", party.name), "%", pods.rest.clone(), None);
    }
    compare(&mut sheet, &ours.0, &theirs.0, [None; 4]);
    sheet.add("resident, Pod of a proxy: ours to theirs", "ratio", ratios(&ours.1.resident, &theirs.1.resident), None);
    sheet.add("processor at rest, Pod of a proxy: ours to theirs", "ratio", ratios(&ours.1.rest, &theirs.1.rest), None);
    Ok(sheet)
}

impl Pods {
    /// Measures the Pods of this number of proxies.
    fn measure(&mut self, stage: &Stage, proxies: usize) -> Result<()> {
        let (pids, proxies) = (pids(stage, PROXIES), number(proxies));
        self.resident.push(pids.iter().map(|pid| status(*pid, "VmRSS:")).sum::<Result<f64>>()? / proxies);
        let before = processor(&pids)?;
        sleep(IDLE);
        self.rest.push(processor(&pids)?.saturating_sub(before).as_secs_f64() / IDLE.as_secs_f64() * 100.0 / proxies);
        Ok(())
    }
}
