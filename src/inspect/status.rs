//! `tailyard status`: an overview, once or again at each change.
//!
//! Objects come by watches. What only a replica knows (ways, flows) is asked of its Pod for each drawing, for there is no watch
//! on it; so that it does not grow old, that is also done when nothing has changed for [`LOOK`].

use std::io::Write;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::cache::{Gathered, changes};
use super::{InspectError, gap};
use crate::edge::kube::{Change, Cluster};
use crate::model::diagnostics::overview::{Gap, Live, Overview, Part, Seen, Width, changes as differences, text};

/// How long the API server may take for the first answer to everything.
const FIRST: Duration = Duration::from_secs(20);
/// The least time between two drawings.
const PACE: Duration = Duration::from_secs(1);
/// How long a drawing stands when nothing changes in the cluster.
const LOOK: Duration = Duration::from_secs(10);
/// How long one replica may take to say how it is.
const PAGE: Duration = Duration::from_secs(5);
/// How many replicas are asked at a time.
const AT_A_TIME: usize = 16;

/// What is asked.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// One group only.
    pub group: Option<String>,
    /// How it is written.
    pub format: Format,
    /// How often.
    pub rhythm: Rhythm,
}

/// How the answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As tables.
    Text(Width),
    /// As JSON: one document, or one on each line with [`Rhythm::Watch`].
    Json,
}

impl Default for Format {
    fn default() -> Self {
        Self::Text(Width::Narrow)
    }
}

/// How often the answer is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rhythm {
    /// Once.
    #[default]
    Once,
    /// Again at each change, over the one before if it is for a terminal; else a line for each row that changed.
    Watch {
        /// It is for a terminal.
        terminal: bool,
    },
}

/// Answers. Ends with the first answer, or with [`Rhythm::Watch`] never but for an error.
pub async fn run(cluster: &Cluster, options: &Options, out: &mut dyn Write) -> Result<(), InspectError> {
    let mut changes = changes(cluster);
    let mut gathered = Gathered::new(cluster.namespace());
    first(&mut changes, &mut gathered).await?;
    let mut shown = None;
    loop {
        let begin = Instant::now();
        let overview = look(cluster, &gathered, options).await?;
        write(options, shown.as_ref(), &overview, out)?;
        if options.rhythm == Rhythm::Once {
            return Ok(());
        }
        shown = Some(overview);
        settle(&mut changes, &mut gathered, begin).await;
    }
}

/// Waits until something is known of everything. Fails if the groups themselves cannot be read.
async fn first(changes: &mut BoxStream<'static, (Part, Change)>, gathered: &mut Gathered) -> Result<(), InspectError> {
    let end = Instant::now() + FIRST;
    while !gathered.whole() {
        let Ok(Some((part, change))) = timeout_at(end, changes.next()).await else {
            gathered.give_up();
            break;
        };
        gathered.take(part, change);
        if gathered.gap(Part::Groups).is_some() {
            break;
        }
    }
    match gathered.gap(Part::Groups) {
        Some(gap) => Err(InspectError::Unread { part: Part::Groups, gap: gap.clone(), namespace: gathered.seen().namespace }),
        None => Ok(()),
    }
}

/// Waits for something to see, and for the least time between two drawings.
async fn settle(changes: &mut BoxStream<'static, (Part, Change)>, gathered: &mut Gathered, begin: Instant) {
    let (mut news, mut end) = (false, begin + LOOK);
    loop {
        tokio::select! {
            () = sleep_until(end) => return,
            Some((part, change)) = changes.next() => news |= gathered.take(part, change),
        }
        if news {
            end = end.min(begin + PACE);
        }
    }
}

async fn look(cluster: &Cluster, gathered: &Gathered, options: &Options) -> Result<Overview, InspectError> {
    let mut seen = gathered.seen();
    if let Some(group) = &options.group
        && !seen.groups.iter().any(|held| held.metadata.name.as_ref() == Some(group))
        && options.rhythm == Rhythm::Once
    {
        return Err(InspectError::NoGroup(group.clone()));
    }
    ask(cluster, &mut seen, options.group.as_deref()).await;
    Ok(Overview::of(&seen, options.group.as_deref()))
}

/// Asks the replicas how they are.
async fn ask(cluster: &Cluster, seen: &mut Seen, group: Option<&str>) {
    let of_group = |pod: &str| group.is_none_or(|group| pod.rsplit_once('-').is_some_and(|(of, _)| of == group));
    let pods = seen.askable().into_iter().filter(|(pod, _)| of_group(pod));
    let asked = stream::iter(pods).map(|(pod, port)| async move {
        let answer = timeout(PAGE, cluster.replica_status(&pod, port)).await;
        let live: Live = match answer {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(error)) => Err(gap(&error)),
            Err(_elapsed) => Err(Gap::Failed(format!("no answer within {PAGE:?}"))),
        };
        (pod, live)
    });
    seen.live = asked.buffer_unordered(AT_A_TIME).collect().await;
    let missed = seen.live.iter().find_map(|(pod, live)| Some((pod, live.as_ref().err()?.clone())));
    if let Some((pod, gap)) = missed {
        let gap = match gap {
            Gap::Failed(why) => Gap::Failed(format!("{pod}: {why}")),
            gap => gap,
        };
        seen.gaps.insert(Part::Pages, gap);
    }
}

fn write(options: &Options, before: Option<&Overview>, now: &Overview, out: &mut dyn Write) -> Result<(), InspectError> {
    let none = Overview::default();
    match (options.format, options.rhythm) {
        (_, Rhythm::Watch { .. }) if before == Some(now) => return Ok(()),
        (Format::Json, Rhythm::Once) => {
            serde_json::to_writer_pretty(&mut *out, now)?;
            writeln!(out)?;
        }
        (Format::Json, Rhythm::Watch { .. }) => {
            serde_json::to_writer(&mut *out, now)?;
            writeln!(out)?;
        }
        (Format::Text(width), Rhythm::Once) => write!(out, "{}", text(now, width))?,
        // Home, clear what is below: the screen does not blink.
        (Format::Text(width), Rhythm::Watch { terminal: true }) => write!(out, "\x1b[H\x1b[J{}", text(now, width))?,
        (Format::Text(width), Rhythm::Watch { terminal: false }) => {
            for line in differences(before.unwrap_or(&none), now, width) {
                writeln!(out, "{line}")?;
            }
        }
    }
    Ok(out.flush()?)
}
