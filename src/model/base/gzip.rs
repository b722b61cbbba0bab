//! Compression of configs that exceed an object's size limit: the reconciler compresses them, the data plane decompresses them.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// Maximum size of a decompressed config, in bytes.
pub const MAX_CONFIG_SIZE: u64 = 64 << 20;

pub fn pack(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::default());
    writer.write_all(text)?;
    writer.finish()
}

/// Decompresses a text. Fails if it is not gzip, is truncated, or exceeds `max_size` bytes when decompressed.
pub fn unpack(packed: &[u8], max_size: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = GzDecoder::new(packed).take(max_size + 1).read_to_end(&mut text)?;
    if u64::try_from(read).is_ok_and(|read| read <= max_size) {
        Ok(text)
    } else {
        Err(io::Error::other(format!("larger than {max_size} bytes when unpacked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_data_round_trips() {
        let text = br#"{"default-db":{}}"#.repeat(1000);
        let packed = pack(&text).expect("packed");
        assert!(packed.len() < text.len() / 10);
        assert_eq!(unpack(&packed, 1 << 20).expect("unpacked"), text);
    }

    #[test]
    fn invalid_or_oversized_gzip_is_an_error() {
        let packed = pack(&[0; 1000]).expect("packed");
        assert!(unpack(&packed[..packed.len() / 2], 1 << 20).is_err(), "cut off");
        assert!(unpack(b"{}", 1 << 20).is_err(), "not gzip");
        assert!(unpack(&packed, 999).is_err(), "too large");
        assert!(unpack(&packed, 1000).is_ok());
    }
}
