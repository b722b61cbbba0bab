//! Network namespaces, made and left without touching the machine's own.
//!
//! A namespace lives as long as its [`Namespace`] value: no name in the file system, nothing left behind. Work is done in
//! it by a thread of its own that enters it and ends with the work, so no other thread ever changes its network.

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
    /// Makes a namespace with nothing in it but its loopback, down.
    pub fn make() -> Result<Self, NetnsError> {
        let fresh = || -> io::Result<File> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        };
        let file = thread::spawn(fresh).join().map_err(|_| NetnsError::Work("the thread panicked".to_owned()))?;
        file.map(|file| Self(Arc::new(file))).map_err(NetnsError::Make)
    }

    /// The namespace of the calling thread.
    pub fn current() -> Result<Self, NetnsError> {
        File::open("/proc/thread-self/ns/net").map(|file| Self(Arc::new(file))).map_err(NetnsError::Make)
    }

    /// Does blocking work in the namespace, on a thread of its own; child processes started by it live in the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let fail = |error: &dyn std::fmt::Display| NetnsError::Work(error.to_string());
        thread::scope(|scope| {
            let entered = scope.spawn(|| setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET).map(|()| work()));
            entered.join().map_err(|_| fail(&"the thread panicked"))?.map_err(|errno| fail(&errno))
        })
    }

    /// Does asynchronous work in the namespace, on a single-threaded runtime of its own.
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

    /// A path by which other programs of this process's lifetime can enter the namespace (`nsenter --net=PATH`).
    pub fn path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}
