//! Network namespaces, created and entered without a change to the host's own.
//!
//! A namespace exists as long as its [`Namespace`] value: it has no name in the file system and leaves nothing behind. Work in it runs on a
//! dedicated thread that enters it and ends with the work, so that no other thread changes its network.

pub mod private;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

#[derive(Debug, Clone)]
pub struct Namespace(Arc<File>);

#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    #[error("cannot make a network namespace (root, or an unprivileged user namespace, is needed): {0}")]
    Make(#[source] io::Error),
    #[error("work in a network namespace did not finish: {0}")]
    Work(String),
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Namespace {
    /// Creates a namespace with only a loopback link, which is down.
    pub fn make() -> Result<Self, NetnsError> {
        let fresh = || -> io::Result<File> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        };
        let file = thread::spawn(fresh).join().map_err(|_| NetnsError::Work("the thread panicked".to_owned()))?;
        file.map(|file| Self(Arc::new(file))).map_err(NetnsError::Make)
    }

    /// Returns the namespace of the calling thread.
    pub fn current() -> Result<Self, NetnsError> {
        File::open("/proc/thread-self/ns/net").map(|file| Self(Arc::new(file))).map_err(NetnsError::Make)
    }

    /// Runs blocking work in the namespace on a dedicated thread; its child processes are in the namespace too.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let fail = |error: &dyn std::fmt::Display| NetnsError::Work(error.to_string());
        thread::scope(|scope| {
            let entered = scope.spawn(|| setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET).map(|()| work()));
            entered.join().map_err(|_| fail(&"the thread panicked"))?.map_err(|errno| fail(&errno))
        })
    }

    /// Runs asynchronous work in the namespace on a dedicated single-threaded runtime.
    pub fn block_on<T>(&self, work: impl FnOnce() -> T + Send) -> Result<T::Output, NetnsError>
    where
        T: Future,
        T::Output: Send,
    {
        self.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map(|runtime| runtime.block_on(work())).map_err(|error| NetnsError::Work(error.to_string()))
        })?
    }

    /// Path for other programs to enter the namespace (`nsenter --net=PATH`), valid while this process runs.
    pub fn path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}
