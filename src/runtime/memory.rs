//! Makes the C library give memory back: what a large config took while it was read is not kept for the next one.
//!
//! glibc reads these settings once, when a process starts, from the environment; so the program starts itself again with them,
//! as the same process. An environment that has any of them is left as it is. Elsewhere than with glibc they mean nothing.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// One arena for all threads, for what one of them frees another would not use; and everything large is a mapping of its own,
/// which goes when it is freed, as does the end of the arena.
const SETTINGS: [(&str, &str); 3] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_TRIM_THRESHOLD_", "131072"), ("MALLOC_MMAP_THRESHOLD_", "131072")];

/// Starts the program again with the settings, unless it has some; returns only if there is nothing to do, or why it could not.
pub fn give_back() -> io::Result<()> {
    if has_settings() { Ok(()) } else { Err(again()?.exec()) }
}

/// This very program with the same arguments, and with the settings unless it has some.
pub(super) fn again() -> io::Result<Command> {
    let mut args = std::env::args_os();
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(args.next().unwrap_or_default()).args(args);
    if !has_settings() {
        command.envs(SETTINGS);
    }
    Ok(command)
}

fn has_settings() -> bool {
    SETTINGS.iter().any(|(name, _)| std::env::var_os(name).is_some())
}
