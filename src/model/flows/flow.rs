//! A conntrack flow, and filters for listings.
//!
//! The layout is that of ctnetlink (`linux/netfilter/nfnetlink_conntrack.h`): two tuples, for the original and the reply direction.

use std::net::SocketAddr;

use crate::model::base::net::{Family, Port, PortKey, Proto};

/// The destination was rewritten (`IPS_DST_NAT`): every flow that we forward has this bit.
pub const DST_NAT: u32 = 1 << 5;
/// The source was rewritten (`IPS_SRC_NAT`).
pub const SRC_NAT: u32 = 1 << 4;

/// Source and destination of one direction.
///
/// The ports are the protocol's own; ICMP has its identifier as the source port and `type << 8 | code` as the destination
/// port, as in the kernel's union, and protocols without any have zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// State of a TCP flow, as conntrack tracked both directions (`enum tcp_conntrack`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// Unknown.
    None,
    /// SYN in one direction.
    SynSent,
    /// SYN in the other direction.
    SynRecv,
    /// Both ends may send.
    Established,
    /// One end has sent FIN.
    FinWait,
    /// That end's FIN was acknowledged; the other may still send.
    CloseWait,
    /// Both ends have sent FIN; the last acknowledgment is due.
    LastAck,
    /// Closed. A client that reuses the ports gets a new entry by the current rules.
    TimeWait,
    Close,
    /// Both ends sent a SYN.
    SynSent2,
}

impl TcpState {
    /// State of the kernel's number; `None` for numbers of later kernels.
    pub fn of(number: u8) -> Option<Self> {
        use TcpState::{Close, CloseWait, Established, FinWait, LastAck, SynRecv, SynSent, SynSent2, TimeWait};
        let states = [Self::None, SynSent, SynRecv, Established, FinWait, CloseWait, LastAck, TimeWait, Close, SynSent2];
        states.get(usize::from(number)).copied()
    }

    /// Whether two ends have a connection, or may have one by the time of the deletion, so that a reset is useful.
    pub fn has_ends(self) -> bool {
        self.is_half_open() || matches!(self, Self::SynRecv | Self::Established | Self::FinWait | Self::CloseWait | Self::LastAck)
    }

    /// Whether the target has not answered yet.
    pub fn is_half_open(self) -> bool {
        matches!(self, Self::SynSent | Self::SynSent2)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The IANA protocol number.
    pub proto: u8,
    /// Direction of the client: to the address and port that it connected to.
    pub original: Tuple,
    /// Direction of replies: from the target to the translated source.
    pub reply: Tuple,
    pub tcp: Option<TcpState>,
    /// `IPS_*` bits.
    pub status: u32,
    pub mark: u32,
    /// Seconds until the entry expires without further packets.
    pub timeout: u32,
    /// The kernel's ID of this entry.
    pub id: u32,
}

impl Flow {
    /// Whether its destination was translated by a NAT map of the kernel.
    pub fn is_forwarded(&self) -> bool {
        self.status & DST_NAT != 0
    }

    pub fn is_tcp(&self) -> bool {
        self.proto == Proto::Tcp.number()
    }

    /// Final destination of its packets.
    pub fn target(&self) -> SocketAddr {
        self.reply.source
    }

    /// Match port of the flow, if its protocol has ports.
    pub fn key(&self) -> Option<PortKey> {
        let proto = Proto::ALL.into_iter().find(|proto| proto.number() == self.proto)?;
        Port::new(self.original.destination.port()).map(|port| PortKey { proto, port })
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowFilter {
    pub family: Option<Family>,
    /// Only flows with translated destination.
    pub forwarded: bool,
    /// Only flows to this port and protocol.
    pub key: Option<PortKey>,
    pub under_way: bool,
}

impl FlowFilter {
    pub fn forwarded() -> Self {
        Self { forwarded: true, ..Self::default() }
    }

    /// Forwarded flows that are not over.
    pub fn under_way() -> Self {
        Self { under_way: true, ..Self::forwarded() }
    }

    /// Whether the filter admits a TCP flow in this state, regardless of its other fields.
    pub fn admits_state(self, state: Option<TcpState>) -> bool {
        !self.under_way || state != Some(TcpState::TimeWait)
    }

    /// Whether the filter admits a flow; kernels without support for a filter return more flows.
    pub fn admits(self, flow: &Flow) -> bool {
        let family = Family::of(flow.original.source.ip());
        self.family.is_none_or(|wanted| wanted == family)
            && (!self.forwarded || flow.is_forwarded())
            && self.key.is_none_or(|wanted| flow.key() == Some(wanted))
            && self.admits_state(flow.tcp)
    }
}
