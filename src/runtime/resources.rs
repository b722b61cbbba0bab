//! Resource limits of the process: file descriptors, raised to the maximum, and memory.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Memory limit of the container, in control groups of version 2 and 1.
const MEMORY: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Raises the soft limit of file descriptors to the hard one; returns the new limit. Child processes inherit it.
pub fn descriptors() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, soft = current, hard = maximum, "cannot raise the limit of file descriptors; connections are limited by the soft limit");
    }
    limit(if raised.is_ok() { maximum } else { current })
}

/// Memory limit of the container in bytes; `usize::MAX` without one.
pub fn memory() -> usize {
    let text = MEMORY.iter().find_map(|path| fs::read_to_string(path).ok());
    limit(text.and_then(|text| text.trim().parse().ok()))
}

fn limit(limit: Option<u64>) -> usize {
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_is_raised_to_the_hard_one() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let lower = maximum.map_or(1 << 20, |hard| hard - 1);
        setrlimit(Resource::Nofile, Rlimit { current: Some(lower), maximum }).expect("lowered");
        assert_eq!(u64::try_from(descriptors()).ok(), maximum.or(Some(u64::MAX)));
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
