//! Plays a schedule on the demo's stage: changes and troubles when they are due, and what the processes take, each second.

use std::time::Duration;

use tailyard::demo::fleet::Replica;
use tailyard::demo::script::{Blow, Script, ScriptError};
use tailyard::demo::swap::catch_up;

use crate::daemon;
use crate::growth::{Samples, sample};
use crate::schedule::{REPLICAS, Schedule, Trouble};

/// How often it is looked whether anything is due.
const TICK: Duration = Duration::from_millis(20);
/// How long a config that is none is in place.
const SPOILT: Duration = Duration::from_millis(200);
/// How often processes are measured.
const SAMPLES: Duration = Duration::from_secs(1);

/// Plays until the end, an offset from the start; returns what the processes took.
pub(crate) async fn play(script: &mut Script<'_>, schedule: Schedule, end: Duration, samples: &mut Samples) -> Result<(), ScriptError> {
    let (mut changes, mut troubles) = (schedule.changes.into_iter().peekable(), schedule.troubles.into_iter().peekable());
    let mut measure_at = Duration::ZERO;
    while script.now() < end {
        script.watch_over().await?;
        catch_up(&script.board).await;
        while let Some((_, trouble)) = troubles.next_if(|(at, trouble)| *at <= script.now() && can(script, *trouble)) {
            befall(script, trouble).await?;
        }
        if let Some((_, step)) = changes.next_if(|(at, _)| *at <= script.now()) {
            script.change(step).await?;
        }
        if script.now() >= measure_at {
            measure_at = script.now() + SAMPLES;
            for pid in script.replicas.iter().filter_map(Replica::pid) {
                samples.entry(pid).or_default().extend(sample(pid, script.now()));
            }
        }
        tokio::time::sleep(TICK).await;
    }
    Ok(())
}

fn can(script: &Script<'_>, trouble: Trouble) -> bool {
    match trouble {
        Trouble::Replica(blow) => script.can(blow),
        Trouble::DaemonKilled(number) | Trouble::DaemonHangs(number, _) => {
            script.can(Blow::Leave(number)) && script.replicas.get(number).is_some_and(|replica| replica.pid().is_some())
        }
        Trouble::BadConfig | Trouble::Peers(_) => true,
    }
}

async fn befall(script: &mut Script<'_>, trouble: Trouble) -> Result<(), ScriptError> {
    println!("{:8.2} s: {trouble:?}", script.now().as_secs_f64());
    match trouble {
        Trouble::Replica(blow) => script.strike(blow)?,
        Trouble::BadConfig => {
            script.volume.spoil().map_err(ScriptError::Config)?;
            tokio::time::sleep(SPOILT).await;
            script.put()?;
        }
        Trouble::Peers(others) => {
            for replica in 0..REPLICAS {
                let own = script.launch.own(replica.into());
                daemon::describe(&own, replica, others);
                daemon::tell(&own, "CUT");
            }
        }
        Trouble::DaemonKilled(number) => daemon::tell(&script.launch.own(number), "EXIT 9"),
        Trouble::DaemonHangs(number, lasts) => {
            if let Some(replica) = script.replicas.get(number).and_then(Replica::pid) {
                tokio::spawn(daemon::hang(replica, lasts));
            }
        }
    }
    Ok(())
}
