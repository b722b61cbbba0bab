use netlink_packet_core::NetlinkBuffer;
use proptest::prelude::*;

use super::*;
use crate::model::net::{Port, PortKey, Proto};

/// As the kernel writes an established TCP flow (attributes that are not read left out).
fn established() -> Vec<u8> {
    let tuple = |out: &mut Vec<u8>, source: &str, destination: &str| {
        let tuple = Tuple { source: source.parse().expect("an address"), destination: destination.parse().expect("an address") };
        super::tuple(out, 6, &tuple);
    };
    let mut out = Vec::new();
    nest(&mut out, TUPLE_ORIG, |out| tuple(out, "10.0.0.9:4000", "10.0.0.1:10042"));
    nest(&mut out, TUPLE_REPLY, |out| tuple(out, "100.64.0.2:5432", "100.64.0.1:4000"));
    put(&mut out, STATUS, &0x1be_u32.to_be_bytes());
    nest(&mut out, PROTOINFO, |out| nest(out, PROTOINFO_TCP, |out| put(out, PROTOINFO_TCP_STATE, &[3])));
    put(&mut out, TIMEOUT, &86_399_u32.to_be_bytes());
    put(&mut out, MARK, &7_u32.to_be_bytes());
    put(&mut out, ID, &0xdead_beef_u32.to_be_bytes());
    out
}

#[test]
fn a_flow_is_read_whole() {
    let flow = parse_flow(&established()).expect("a flow");
    assert_eq!(flow.original.source, "10.0.0.9:4000".parse().expect("an address"));
    assert_eq!(flow.original.destination, "10.0.0.1:10042".parse().expect("an address"));
    assert_eq!(flow.target(), "100.64.0.2:5432".parse().expect("an address"));
    assert_eq!((flow.proto, flow.tcp, flow.status), (6, Some(TcpState::Established), 0x1be));
    assert_eq!((flow.timeout, flow.mark, flow.id), (86_399, 7, 0xdead_beef));
    assert!(flow.is_forwarded());
    assert_eq!(parse_state(&established()), flow.tcp);
}

#[test]
fn a_flow_of_a_zone_is_not_ours() {
    let mut bytes = established();
    bytes.extend([6, 0, 18, 0, 0, 1, 0, 0]);
    assert_eq!(parse_flow(&bytes), None);
}

#[test]
fn a_deletion_names_the_way_back_and_the_identity() {
    let flow = parse_flow(&established()).expect("a flow");
    let request = delete(&flow, 9);
    let message = NetlinkBuffer::new_checked(&request).expect("a message");
    assert_eq!((message.sequence_number(), message.message_type()), (9, 0x102));
    let body = &message.payload()[HEADER..];
    let (proto, reply) = parse_tuple(find(body, TUPLE_REPLY).expect("the way back")).expect("whole");
    assert_eq!((proto, reply), (6, flow.reply));
    assert_eq!(find(body, ID).and_then(be_u32), Some(flow.id));
    assert!(find(body, TUPLE_ORIG).is_none(), "the kernel would go by the way there");
}

#[test]
fn a_listing_by_key_compares_protocol_and_port_in_the_kernel() {
    let key = PortKey { proto: Proto::Udp, port: Port::new(53).expect("not zero") };
    let request = dump(FlowFilter { family: Some(Family::V6), key: Some(key), ..FlowFilter::forwarded() }, 1);
    let message = NetlinkBuffer::new_checked(&request).expect("a message");
    assert_eq!(message.payload()[0], 10, "the family");
    let body = &message.payload()[HEADER..];
    assert_eq!(find(body, STATUS).and_then(be_u32), Some(DST_NAT));
    let flags = find(find(body, FILTER).expect("a filter"), FILTER_ORIG_FLAGS).expect("its flags");
    assert_eq!(flags, (FILTER_PROTO | FILTER_DESTINATION).to_ne_bytes());
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut pressure = Pressure::default();
        let _ = (parse_flow(&bytes), parse_state(&bytes));
        parse_stats(&bytes, &mut pressure);
        parse_stats_cpu(&bytes, &mut pressure);
    }

    #[test]
    fn a_damaged_flow_is_read_without_a_fault(at in 0_usize..500, value in any::<u8>(), length in 0_usize..500) {
        let mut bytes = established();
        let size = bytes.len();
        bytes[at % size] = value;
        let _ = parse_flow(&bytes[..length % (size + 1)]);
    }

    /// What is written for any flow is read as the same.
    #[test]
    fn tuples_survive_the_wire(
        proto in prop::sample::select(vec![1_u8, 6, 17, 47, 50, 58, 132]), four in any::<bool>(), source in any::<[u8; 16]>(), destination in any::<[u8; 16]>(),
        ports in any::<(u16, u16)>(),
    ) {
        let ip = |bytes: [u8; 16]| if four { IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]) } else { IpAddr::from(bytes) };
        let flow = Tuple { source: SocketAddr::new(ip(source), ports.0), destination: SocketAddr::new(ip(destination), ports.1) };
        let mut bytes = Vec::new();
        tuple(&mut bytes, proto, &flow);
        prop_assert_eq!(parse_tuple(&bytes), Some((proto, flow)));
    }
}
