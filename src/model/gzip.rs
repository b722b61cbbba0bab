//! Configs that would not fit into an object as they are: packed by the reconciler, unpacked by the data plane.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// The most that a packed text may become, in bytes: what is read from outside has an end.
const LARGEST: u64 = 64 << 20;

/// Packs a text.
pub fn pack(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::default());
    writer.write_all(text)?;
    writer.finish()
}

/// Unpacks a text. Fails if it is not gzip, is cut off, or becomes larger than 64 MiB.
pub fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = GzDecoder::new(packed).take(LARGEST + 1).read_to_end(&mut text)?;
    if u64::try_from(read).is_ok_and(|read| read <= LARGEST) { Ok(text) } else { Err(io::Error::other("larger than 64 MiB when unpacked")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let text = br#"{"default-db":{}}"#.repeat(1000);
        let packed = pack(&text).expect("packed");
        assert!(packed.len() < text.len() / 10);
        assert_eq!(unpack(&packed).expect("unpacked"), text);
    }

    #[test]
    fn what_cannot_be_unpacked_is_an_error() {
        let packed = pack(&[0; 1000]).expect("packed");
        assert!(unpack(&packed[..packed.len() / 2]).is_err(), "cut off");
        assert!(unpack(b"{}").is_err(), "not gzip");
        let bomb = pack(&vec![0; (64 << 20) + 1]).expect("packed");
        assert!(unpack(&bomb).is_err(), "too large");
    }
}
