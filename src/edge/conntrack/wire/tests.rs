use netlink_packet_core::NetlinkBuffer;
use proptest::prelude::*;

use super::*;
use crate::model::base::net::{Port, PortKey, Proto};
use crate::model::firewall::netlink::NETFILTER_HEADER;

/// Attributes of an established TCP flow as encoded by the kernel, without those that are not parsed.
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
fn all_attributes_of_a_flow_are_parsed() {
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
fn flow_of_a_conntrack_zone_is_skipped() {
    let mut bytes = established();
    bytes.extend([6, 0, 18, 0, 0, 1, 0, 0]);
    assert_eq!(parse_flow(&bytes), None);
}

#[test]
fn delete_request_has_reply_tuple_and_id() {
    let flow = parse_flow(&established()).expect("a flow");
    let request = delete(&flow, 9);
    let message = NetlinkBuffer::new_checked(&request).expect("a message");
    assert_eq!((message.sequence_number(), message.message_type()), (9, 0x102));
    let body = &message.payload()[NETFILTER_HEADER..];
    let (proto, reply) = parse_tuple(find(body, TUPLE_REPLY).expect("the way back")).expect("whole");
    assert_eq!((proto, reply), (6, flow.reply));
    assert_eq!(find(body, ID).and_then(be_u32), Some(flow.id));
    assert!(find(body, TUPLE_ORIG).is_none(), "the kernel would go by the way there");
}

#[test]
fn listing_by_key_filters_protocol_and_port_in_the_kernel() {
    let key = PortKey { proto: Proto::Udp, port: Port::new(53).expect("not zero") };
    let request = dump(FlowFilter { family: Some(Family::V6), key: Some(key), ..FlowFilter::forwarded() }, 1);
    let message = NetlinkBuffer::new_checked(&request).expect("a message");
    assert_eq!(message.payload()[0], 10, "the family");
    let body = &message.payload()[NETFILTER_HEADER..];
    assert_eq!(find(body, STATUS).and_then(be_u32), Some(DST_NAT));
    let flags = find(find(body, FILTER).expect("a filter"), FILTER_ORIG_FLAGS).expect("its flags");
    assert_eq!(flags, (FILTER_PROTO | FILTER_DESTINATION).to_ne_bytes());
}

proptest! {
    #[test]
    fn flow_without_both_tuples_is_rejected_and_counters_accumulate(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some(flow) = parse_flow(&bytes) {
            prop_assert!(find(&bytes, TUPLE_ORIG).is_some() && find(&bytes, TUPLE_REPLY).is_some() && find(&bytes, ZONE).is_none(), "{flow:?}");
        }
        let mut once = Pressure::default();
        parse_stats_cpu(&bytes, &mut once);
        let mut twice = once;
        parse_stats_cpu(&bytes, &mut twice);
        prop_assert_eq!(
            (twice.insert_failed, twice.dropped, twice.evicted),
            (once.insert_failed * 2, once.dropped * 2, once.evicted * 2)
        );
        parse_stats(&bytes, &mut twice);
        let mut again = twice;
        parse_stats(&bytes, &mut again);
        prop_assert_eq!(again, twice, "the size of a table is no sum");
    }

    #[test]
    fn counters_of_all_processors_are_summed(each in prop::collection::vec(any::<[u32; 3]>(), 0..8)) {
        let mut pressure = Pressure::default();
        for counts in &each {
            let mut bytes = Vec::new();
            // An attribute of another kind, and one of the right kind with an invalid length.
            put(&mut bytes, 2, &7_u32.to_be_bytes());
            put(&mut bytes, 9, &[1]);
            (9..).zip(counts).for_each(|(kind, count)| put(&mut bytes, kind, &count.to_be_bytes()));
            parse_stats_cpu(&bytes, &mut pressure);
        }
        let sum = |which: usize| each.iter().map(|counts| u64::from(counts[which])).sum::<u64>();
        prop_assert_eq!((pressure.insert_failed, pressure.dropped, pressure.evicted), (sum(0), sum(1), sum(2)));
    }

    #[test]
    fn truncated_flow_needs_both_tuples_and_defaults_the_rest(length in 0_usize..500) {
        let (whole, bytes) = (parse_flow(&established()).expect("a flow"), established());
        let cut = &bytes[..length % (bytes.len() + 1)];
        let tuples = find(cut, TUPLE_ORIG).is_some() && find(cut, TUPLE_REPLY).is_some();
        let read = parse_flow(cut);
        prop_assert_eq!(read.is_some(), tuples);
        if let Some(read) = read {
            prop_assert_eq!((read.proto, &read.original, &read.reply), (whole.proto, &whole.original, &whole.reply));
            for (read, whole) in [(read.status, whole.status), (read.timeout, whole.timeout), (read.mark, whole.mark), (read.id, whole.id)] {
                prop_assert!(read == whole || read == 0, "{read}, neither absent nor {whole}");
            }
            prop_assert!(read.tcp == whole.tcp || read.tcp.is_none());
        }
    }

    /// With one byte changed: a flow that is still parsed can be encoded and parsed again.
    #[test]
    fn flow_parsed_from_corrupt_bytes_round_trips(at in 0_usize..500, value in any::<u8>()) {
        let mut bytes = established();
        let size = bytes.len();
        bytes[at % size] = value;
        if let Some(flow) = parse_flow(&bytes) {
            let written = |direction: &Tuple| {
                let mut out = Vec::new();
                tuple(&mut out, flow.proto, direction);
                parse_tuple(&out)
            };
            prop_assert_eq!(written(&flow.original), Some((flow.proto, flow.original)));
            prop_assert_eq!(written(&flow.reply), Some((flow.proto, flow.reply)));
        }
    }

    /// Parsing an encoded tuple returns the same tuple.
    #[test]
    fn tuples_round_trip(
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
