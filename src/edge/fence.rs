//! Fence: the kernel kills this process unless it is renewed in time, also while the process hangs, is stopped, or the machine sleeps.
//!
//! A child that ends with this process, as tailscaled does, ends too. Without effect in the first process of a PID namespace, which signals
//! of its own namespace cannot kill.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

/// Not armed at first. Dropping it disarms it.
#[derive(Debug, Clone)]
pub struct Fence(Sender<Duration>);

impl Fence {
    /// Starts the thread that has the kernel's timer, which no other thread may use.
    pub fn start() -> io::Result<Self> {
        let (sender, requests) = channel();
        let run = move || {
            if let Err(error) = set(&requests) {
                tracing::warn!("cannot arm the watchdog timer: {error}; a hung process will not be killed");
            }
        };
        thread::Builder::new().name("fence".to_owned()).spawn(run)?;
        Ok(Self(sender))
    }

    /// The process is killed after this time, unless this or [`Self::disarm`] is called before.
    pub fn arm(&self, time: Duration) {
        // A timer of zero would be disarmed.
        let _ended = self.0.send(time.max(Duration::from_nanos(1)));
    }

    pub fn disarm(&self) {
        let _ended = self.0.send(Duration::ZERO);
    }
}

/// Sets the kernel's timer to each requested time.
fn set(requests: &Receiver<Duration>) -> nix::Result<()> {
    let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 });
    let mut timer = Timer::new(ClockId::CLOCK_BOOTTIME, event)?;
    requests.iter().try_for_each(|time| timer.set(Expiration::OneShot(time.into()), TimerSetTimeFlags::empty()))
}
