//! `tailyard status`: an overview, once or after each change.
//!
//! Objects come from watches. Live state of replicas (paths, flows) has no watch: it is requested from the Pods for each output, and at
//! least every [`POLL_INTERVAL`].

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::{BoxStream, StreamExt};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::cache::{InspectCache, changes};
use super::{InspectError, live_status};
use crate::edge::kube::{Cluster, WatchChange};
use crate::model::diagnostics::overview::{ClusterView, Gap, Overview, RowSelection, StatusPart, Width, changes as differences, text};

/// Timeout of the initial lists.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);
/// Minimum interval of outputs.
const MIN_OUTPUT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum interval of outputs without changes in the cluster.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct StatusOptions {
    pub selection: RowSelection,
    pub format: StatusFormat,
    pub rhythm: RefreshMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusFormat {
    Text(Width),
    /// As JSON: one document, or one on each line with [`RefreshMode::Watch`].
    Json,
}

/// How often the overview is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshMode {
    Once,
    /// After each change: on a terminal over the previous one, else a line for each changed row.
    Watch {
        terminal: bool,
    },
}

/// Writes the overview. Returns after the first one, or with [`RefreshMode::Watch`] only on an error.
pub async fn run(cluster: &Cluster, options: &StatusOptions, out: &mut dyn Write) -> Result<(), InspectError> {
    let mut changes = changes(cluster);
    let mut gathered = InspectCache::new(cluster.namespace());
    first(&mut changes, &mut gathered).await?;
    let mut shown = None;
    loop {
        let begin = Instant::now();
        let overview = look(cluster, &gathered, options).await?;
        write(options, shown.as_ref(), &overview, out)?;
        if options.rhythm == RefreshMode::Once {
            return Ok(());
        }
        shown = Some(overview);
        settle(&mut changes, &mut gathered, begin).await;
    }
}

/// Waits until every part is listed or known to be unreadable. Fails if the groups cannot be read.
async fn first(changes: &mut BoxStream<'static, (StatusPart, WatchChange)>, gathered: &mut InspectCache) -> Result<(), InspectError> {
    let end = Instant::now() + LIST_TIMEOUT;
    while !gathered.whole() {
        let Ok(Some((part, change))) = timeout_at(end, changes.next()).await else {
            gathered.give_up();
            break;
        };
        gathered.take(part, change);
        if gathered.gap(StatusPart::Groups).is_some() {
            break;
        }
    }
    match gathered.gap(StatusPart::Groups) {
        Some(gap) => Err(InspectError::Unread { part: StatusPart::Groups, gap: gap.clone(), namespace: gathered.view().namespace }),
        None => Ok(()),
    }
}

/// Waits for a visible change and for the minimum interval, or for [`POLL_INTERVAL`].
async fn settle(changes: &mut BoxStream<'static, (StatusPart, WatchChange)>, gathered: &mut InspectCache, begin: Instant) {
    let (mut redraw, mut end) = (false, begin + POLL_INTERVAL);
    loop {
        tokio::select! {
            () = sleep_until(end) => return,
            Some((part, change)) = changes.next() => redraw |= gathered.take(part, change),
        }
        if redraw {
            end = end.min(begin + MIN_OUTPUT_INTERVAL);
        }
    }
}

async fn look(cluster: &Cluster, gathered: &InspectCache, options: &StatusOptions) -> Result<Overview, InspectError> {
    let mut view = gathered.view();
    view.now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let once = options.rhythm == RefreshMode::Once;
    if let RowSelection::Group(group) = &options.selection
        && !view.groups.iter().any(|existing| existing.metadata.name.as_ref() == Some(group))
        && !view.connectors.iter().any(|existing| existing.metadata.name.as_ref() == Some(group))
        && once
    {
        return Err(InspectError::NoGroup(group.clone()));
    }
    request_status(cluster, &mut view, &options.selection).await;
    let overview = Overview::of(&view, &options.selection);
    match &options.selection {
        RowSelection::Object(namespace, name) if once && overview.lacks_object() && view.is_complete() => {
            Err(InspectError::NoObject(format!("{namespace}/{name}")))
        }
        _ => Ok(overview),
    }
}

async fn request_status(cluster: &Cluster, view: &mut ClusterView, selection: &RowSelection) {
    let shown = (*selection != RowSelection::All).then(|| Overview::of(view, selection));
    let shown: Option<BTreeSet<_>> = shown.as_ref().map(|overview| overview.pods().collect());
    let is_shown = |pod: &String| shown.as_ref().is_none_or(|shown| shown.contains(pod));
    let pods = view.with_status_endpoint().into_iter().filter(|(pod, _)| is_shown(pod));
    view.live = live_status(cluster, pods).await;
    let missed = view.live.iter().find_map(|(pod, live)| Some((pod, live.as_ref().err()?.clone())));
    if let Some((pod, gap)) = missed {
        let gap = match gap {
            Gap::Failed(why) => Gap::Failed(format!("{pod}: {why}")),
            gap => gap,
        };
        view.gaps.insert(StatusPart::Pages, gap);
    }
}

fn write(options: &StatusOptions, before: Option<&Overview>, now: &Overview, out: &mut dyn Write) -> Result<(), InspectError> {
    let none = Overview::default();
    match (options.format, options.rhythm) {
        (_, RefreshMode::Watch { .. }) if before == Some(now) => return Ok(()),
        (StatusFormat::Json, RefreshMode::Once) => {
            serde_json::to_writer_pretty(&mut *out, now)?;
            writeln!(out)?;
        }
        (StatusFormat::Json, RefreshMode::Watch { .. }) => {
            serde_json::to_writer(&mut *out, now)?;
            writeln!(out)?;
        }
        (StatusFormat::Text(width), RefreshMode::Once) => write!(out, "{}", text(now, width))?,
        // Cursor home, clear below: the screen does not blink.
        (StatusFormat::Text(width), RefreshMode::Watch { terminal: true }) => write!(out, "\x1b[H\x1b[J{}", text(now, width))?,
        (StatusFormat::Text(width), RefreshMode::Watch { terminal: false }) => {
            for line in differences(before.unwrap_or(&none), now, width) {
                writeln!(out, "{line}")?;
            }
        }
    }
    Ok(out.flush()?)
}
