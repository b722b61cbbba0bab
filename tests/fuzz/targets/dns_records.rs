//! Arbitrary bytes as the records of a nameserver and as a query: no panic, and written records are read again unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::nameserver::answer::{AnswerCode, QueryType, answer};
use tailyard::model::nameserver::name::query_name;
use tailyard::model::nameserver::records::Records;

fuzz_target!(|data: &[u8]| {
    let (document, query) = data.split_at(data.len() - data.len().min(64) / 2);
    let Ok(records) = Records::parse(document) else { return };
    let read = Records::parse(records.document().as_bytes()).expect("a document");
    assert!(read.len() <= records.len());
    let name = query_name(query.split(|byte| *byte == b'.'));
    for kind in [QueryType::A, QueryType::Aaaa, QueryType::Ptr, QueryType::Soa, QueryType::Any, QueryType::Other] {
        let found = answer(&records, &name, kind);
        assert_eq!(found.zone.is_none(), found.code == AnswerCode::Refused);
    }
});
