//! Kernel TCP: whether connections to Tailscale Services may end in the kernel of a replica, with the reason if they may not.
//!
//! Decided once for each process, from its settings: another delivery would reset the connections of an advertised Service.

use crate::model::base::go_values;

/// Whether kernel TCP is requested (`TAILYARD_KERNEL_TCP`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KernelTcpMode {
    #[default]
    Off,
    /// Requested: a replica that cannot use it warns.
    On,
    /// Where the replica can use it.
    Auto,
}

impl KernelTcpMode {
    /// Reads `auto` or a boolean.
    pub fn read(text: &str) -> Option<Self> {
        if text == "auto" {
            return Some(Self::Auto);
        }
        go_values::boolean(text).map(|on| if on { Self::On } else { Self::Off })
    }
}

/// What a replica has that kernel TCP needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct KernelTcpFacts {
    /// tailscaled is supervised, so that its serve config is ours.
    pub supervised: bool,
    /// tailscaled has no tunnel device.
    pub userspace: bool,
    /// The replica writes firewall rules.
    pub forwards: bool,
    /// The control plane has no Tailscale Services: virtual hosts are served on the node's own address.
    pub on_node: bool,
}

/// Why connections end in tailscaled's TCP stack (`TCPForward`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelTcpObstacle {
    Disabled,
    OtherClient,
    Userspace,
    NoServices,
    NoRules,
}

impl KernelTcpObstacle {
    /// Reason; closed set.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Disabled => "Disabled",
            Self::OtherClient => "OtherClient",
            Self::Userspace => "Userspace",
            Self::NoServices => "NoTailscaleServices",
            Self::NoRules => "NoRules",
        }
    }
}

/// Decides for a replica: kernel TCP, or the obstacle.
pub fn decide(mode: KernelTcpMode, facts: KernelTcpFacts) -> Result<(), KernelTcpObstacle> {
    let obstacles = [
        (mode == KernelTcpMode::Off, KernelTcpObstacle::Disabled),
        (!facts.supervised, KernelTcpObstacle::OtherClient),
        (facts.userspace, KernelTcpObstacle::Userspace),
        (facts.on_node, KernelTcpObstacle::NoServices),
        (!facts.forwards, KernelTcpObstacle::NoRules),
    ];
    obstacles.into_iter().find(|(applies, _)| *applies).map_or(Ok(()), |(_, obstacle)| Err(obstacle))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABLE: KernelTcpFacts = KernelTcpFacts { supervised: true, userspace: false, forwards: true, on_node: false };

    #[test]
    fn mode_is_auto_or_a_boolean() {
        let cases = [
            ("auto", Some(KernelTcpMode::Auto)),
            ("true", Some(KernelTcpMode::On)),
            ("1", Some(KernelTcpMode::On)),
            ("false", Some(KernelTcpMode::Off)),
            ("Auto", None),
            ("kernel", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(KernelTcpMode::read(text), expected, "{text:?}");
        }
    }

    #[test]
    fn kernel_is_used_without_any_obstacle_and_the_first_one_is_the_reason() {
        let cases = [
            (ABLE, Ok(())),
            (KernelTcpFacts { supervised: false, forwards: false, ..ABLE }, Err("OtherClient")),
            (KernelTcpFacts { userspace: true, forwards: false, ..ABLE }, Err("Userspace")),
            (KernelTcpFacts { on_node: true, ..ABLE }, Err("NoTailscaleServices")),
            (KernelTcpFacts { forwards: false, ..ABLE }, Err("NoRules")),
        ];
        for (facts, expected) in cases {
            for mode in [KernelTcpMode::On, KernelTcpMode::Auto] {
                assert_eq!(decide(mode, facts).map_err(KernelTcpObstacle::reason), expected, "{mode:?} {facts:?}");
            }
            assert_eq!(decide(KernelTcpMode::Off, facts), Err(KernelTcpObstacle::Disabled));
        }
    }
}
