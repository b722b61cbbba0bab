//! Plays a schedule on the demo's stage: changes and troubles when they are due, and what the processes take, each second.

use std::time::Duration;

use tailyard::demo::board::look;
use tailyard::demo::fleet::{Replica, netmap_file};
use tailyard::demo::script::{Script, ScriptError};
use tailyard::demo::services::write_netmap;
use tailyard::demo::swap::catch_up;

use crate::growth::{Samples, sample};
use crate::schedule::{Schedule, Trouble};

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
        Trouble::BadConfig | Trouble::Peers(_) => true,
    }
}

async fn befall(script: &mut Script<'_>, trouble: Trouble) -> Result<(), ScriptError> {
    look(&script.board).tell(format!("{trouble:?}"));
    match trouble {
        Trouble::Replica(blow) => script.strike(blow)?,
        Trouble::BadConfig => {
            script.volume.spoil().map_err(ScriptError::Config)?;
            tokio::time::sleep(SPOILT).await;
            script.put()?;
        }
        Trouble::Peers(others) => {
            for number in 0..script.replicas.len() {
                let path = netmap_file(&script.launch, number);
                write_netmap(script.topology, number, others, &path).map_err(ScriptError::Config)?;
            }
        }
    }
    Ok(())
}
