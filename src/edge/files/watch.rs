//! File watcher: reports content changes, by inotify on the directory and by slow polling.
//!
//! inotify may be refused (limits) or miss changes (a directory mounted over, a writer that keeps its file open), so polling never stops;
//! without a directory or inotify it is the only source. A poll reads the files only if their metadata may have changed. Only content
//! counts: a rewrite with the same bytes is no change.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchMask};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::fingerprint::Stamp;
use super::{DATA, FilesError, Snapshot, read};

/// Poll interval with inotify.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Poll interval without inotify or directory. A user has 128 inotify instances on a node: dozens of Pods poll.
const FALLBACK_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between a change and the next read: a burst counts as one change.
const COALESCE_DELAY: Duration = Duration::from_millis(20);
/// Delay before an empty plain file is read again: its writer may just have truncated it.
const REREAD_DELAY: Duration = Duration::from_millis(75);

#[derive(Debug, Clone, Default)]
pub struct FilesView {
    /// Last content read; `None` before the first read.
    pub snapshot: Option<Snapshot>,
    /// Error of the last read, if it failed.
    pub fault: Option<Arc<FilesError>>,
    /// Whether inotify is active; otherwise changes are found by polling, once a second.
    pub notified: bool,
}

#[derive(Debug)]
pub struct FileWatcher {
    directory: PathBuf,
    names: Arc<[String]>,
    view: watch::Sender<FilesView>,
    /// Whether to use inotify.
    pub(super) inotify: bool,
    pub(super) poll_interval: Duration,
}

/// Watches named files of a directory; the directory may be created later, deleted and recreated.
pub fn directory(directory: impl Into<PathBuf>, names: &[&str]) -> (FileWatcher, watch::Receiver<FilesView>) {
    let (view, receiver) = watch::channel(FilesView::default());
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    (FileWatcher { directory: directory.into(), names, view, inotify: true, poll_interval: POLL_INTERVAL }, receiver)
}

/// Watches a single file. Also returns its file name, which is its key in the snapshot.
pub fn file(path: &Path) -> (FileWatcher, watch::Receiver<FilesView>, String) {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (watcher, receiver) = directory(parent, &[&name]);
    (watcher, receiver, name)
}

impl FileWatcher {
    /// Watches until no receiver is left.
    pub async fn run(self) {
        let mut events = None;
        let mut settling = false;
        let mut read = None;
        loop {
            let (again, changed) = self.look(&mut events, &mut read, settling).await;
            let now = Instant::now();
            let not_before = now + if changed { COALESCE_DELAY } else { Duration::ZERO };
            let latest = now
                + if again {
                    REREAD_DELAY
                } else if events.is_some() {
                    self.poll_interval
                } else {
                    FALLBACK_INTERVAL
                };
            settling = again;
            tokio::select! {
                () = self.view.closed() => return,
                () = sleep_until(latest) => {}
                alive = wanted(&mut events, &self.names) => {
                    if !alive {
                        events = None;
                    }
                    sleep_until(not_before).await;
                }
            }
        }
    }

    /// Reads the files and publishes a change. Returns whether the content must be read again before it is published, and whether it
    /// changed. The inotify watch is set before the read, so that no change is missed between them; `stamp` is that of the last read.
    pub(super) async fn look(&self, events: &mut Option<InotifyEvents>, stamp: &mut Option<Stamp>, settled: bool) -> (bool, bool) {
        if self.inotify && events.as_ref().is_none_or(|events| events.inode != inode(&self.directory)) {
            *events = InotifyEvents::of(&self.directory).ok();
        }
        let (directory, names) = (self.directory.clone(), Arc::clone(&self.names));
        let last = stamp.take();
        let Ok((read, found)) = tokio::task::spawn_blocking(move || read_unless(last.as_ref(), &directory, &names)).await else {
            return (false, false);
        };
        let notified = events.is_some();
        match read {
            None => {
                *stamp = found;
                (false, self.publish_unchanged(notified))
            }
            Some(Ok(snapshot)) if snapshot.half_written() && !settled && self.view.borrow().snapshot.as_ref() != Some(&snapshot) => {
                (true, false)
            }
            Some(Ok(snapshot)) => {
                *stamp = found;
                (false, self.publish(snapshot, notified))
            }
            Some(Err(fault)) => {
                self.publish_fault(fault, notified);
                (false, false)
            }
        }
    }

    fn publish(&self, snapshot: Snapshot, notified: bool) -> bool {
        if self.view.borrow().snapshot.as_ref() == Some(&snapshot) && self.view.borrow().fault.is_none() {
            return self.publish_unchanged(notified);
        }
        self.view.send_replace(FilesView { snapshot: Some(snapshot), fault: None, notified });
        true
    }

    /// Keeps the published snapshot, whose memory is shared with receivers.
    fn publish_unchanged(&self, notified: bool) -> bool {
        self.view.send_if_modified(|view| std::mem::replace(&mut view.notified, notified) != notified)
    }

    fn publish_fault(&self, fault: FilesError, notified: bool) {
        self.view.send_if_modified(|view| {
            let same = view.fault.as_ref().is_some_and(|last| last.to_string() == fault.to_string());
            view.fault = Some(Arc::new(fault));
            view.notified = notified;
            !same
        });
    }
}

/// Reads the files unless their stamp is unchanged since the last read; also returns the stamp for the next call. Blocks.
fn read_unless(last: Option<&Stamp>, directory: &Path, names: &[String]) -> (Option<Result<Snapshot, FilesError>>, Option<Stamp>) {
    let stamp = Stamp::of(directory, names).ok();
    if last.is_some() && stamp.as_ref() == last {
        return (None, stamp);
    }
    let now = SystemTime::now();
    (Some(read(directory, names)), stamp.filter(|stamp| stamp.is_settled(now)))
}

pub(super) struct InotifyEvents {
    /// `None` only during drop.
    stream: Option<EventStream<[u8; 4096]>>,
    inode: Option<(u64, u64)>,
}

impl InotifyEvents {
    fn of(directory: &Path) -> io::Result<Self> {
        let inode = inode(directory);
        let inotify = Inotify::init()?;
        let content = WatchMask::CLOSE_WRITE | WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVED_TO | WatchMask::MOVED_FROM;
        let itself = WatchMask::DELETE_SELF | WatchMask::MOVE_SELF | WatchMask::ONLYDIR;
        inotify.watches().add(directory, content | itself)?;
        Ok(Self { stream: Some(inotify.into_event_stream([0; 4096])?), inode })
    }
}

/// Closes the descriptor on another thread. The kernel closes an inotify descriptor after an RCU grace period, which took 4 s beside a
/// large nftables transaction: a task that ends must not wait for it.
impl Drop for InotifyEvents {
    fn drop(&mut self) {
        let stream = self.stream.take();
        // If the thread cannot be created, it is closed here.
        drop(std::thread::Builder::new().name("close inotify".to_owned()).spawn(move || drop(stream)));
    }
}

/// Device and inode of the directory at a path, which detect a replaced directory.
fn inode(directory: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(directory).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Waits for a relevant event, indefinitely without inotify. Of a projected volume's swap only the move of `..data` is relevant. `false` if
/// the directory itself is gone.
async fn wanted(events: &mut Option<InotifyEvents>, names: &[String]) -> bool {
    let Some(events) = events else { return std::future::pending().await };
    let Some(stream) = &mut events.stream else { return false };
    let mut stream = pin!(stream);
    while let Some(event) = stream.next().await {
        let Ok(event) = event else { return false };
        let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED | EventMask::UNMOUNT;
        if event.mask.intersects(gone) {
            return false;
        }
        let matters = |name: &std::ffi::OsStr| name == DATA || names.iter().any(|wanted| name == wanted.as_str());
        if event.mask.contains(EventMask::Q_OVERFLOW) || event.name.as_deref().is_some_and(matters) {
            return true;
        }
    }
    false
}
