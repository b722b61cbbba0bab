//! Arbitrary bytes in front of a forwarded connection: no panic, a client only from a complete header, and a declared length within the
//! limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailyard::model::front_end::proxy_protocol::{FIXED, Fixed, MAX_BYTES, header};

fuzz_target!(|data: &[u8]| {
    let Some(first) = data.first_chunk::<FIXED>() else { return };
    let Ok(fixed) = Fixed::read(first) else { return };
    assert!(fixed.rest <= MAX_BYTES);
    let rest = &data[FIXED..];
    // The rest may be shorter than declared.
    let client = fixed.client(rest);
    if let Some(client) = client.filter(|_| rest.len() >= fixed.rest) {
        let again = header(client, client);
        let fixed = Fixed::read(again.first_chunk().expect("a header")).expect("what is written is read");
        assert_eq!(fixed.client(&again[FIXED..]), Some(client));
    }
});
