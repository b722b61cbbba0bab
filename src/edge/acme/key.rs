//! The key of an ACME account, as it lies in a Secret.
//!
//! It is PEM text in which tailscaled and this program find the same key: P-256, as PKCS#8 (which we write) or as SEC 1 (which
//! tailscaled writes).

use instant_acme::{Error, Key};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::AcmeError;

/// What stands before a P-256 key of SEC 1 in PKCS#8, but for the two lengths: version 0, and the algorithm.
const ALGORITHM: [u8; 24] = [
    0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03,
    0x01, 0x07,
];

#[derive(Clone, PartialEq, Eq)]
pub struct AccountKey {
    pem: String,
    pkcs8: Vec<u8>,
}

impl std::fmt::Debug for AccountKey {
    /// Never the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccountKey").finish_non_exhaustive()
    }
}

impl AccountKey {
    pub fn generate() -> Result<Self, AcmeError> {
        let key = rcgen::KeyPair::generate().map_err(|_| AcmeError::Key("none can be made"))?;
        Ok(Self { pem: key.serialize_pem(), pkcs8: key.serialize_der() })
    }

    /// The one that this text holds.
    pub fn read(pem: &[u8]) -> Result<Self, AcmeError> {
        let text = std::str::from_utf8(pem).map_err(|_| AcmeError::Key("it is no PEM text"))?;
        let pkcs8 = match PrivateKeyDer::from_pem_slice(pem).map_err(|_| AcmeError::Key("it is no PEM text of a key"))? {
            PrivateKeyDer::Pkcs8(key) => key.secret_pkcs8_der().to_vec(),
            PrivateKeyDer::Sec1(key) => wrap(key.secret_sec1_der()).ok_or(AcmeError::Key("it is no P-256 key"))?,
            _ => return Err(AcmeError::Key("it is no P-256 key")),
        };
        let key = Self { pem: text.to_owned(), pkcs8 };
        key.parts().map_err(|_| AcmeError::Key("it is no P-256 key"))?;
        Ok(key)
    }

    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// As the client takes it.
    pub(super) fn parts(&self) -> Result<(Key, PrivateKeyDer<'static>), Error> {
        let key = PrivatePkcs8KeyDer::from(self.pkcs8.clone());
        Ok((Key::from_pkcs8_der(key.clone_key())?, key.into()))
    }
}

/// PKCS#8 around a key of SEC 1; nothing if it is longer than any P-256 key.
fn wrap(sec1: &[u8]) -> Option<Vec<u8>> {
    let inner = [&ALGORITHM[..], &element(0x04, sec1)?].concat();
    element(0x30, &inner)
}

/// Something with its tag and length, which is one byte, or two of which the first says so.
fn element(tag: u8, content: &[u8]) -> Option<Vec<u8>> {
    let length = match u8::try_from(content.len()).ok()? {
        short @ 0..0x80 => vec![short],
        long => vec![0x81, long],
    };
    Some([&[tag], &length[..], content].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `openssl ecparam -name prime256v1 -genkey -noout`, which writes what Go's `x509.MarshalECPrivateKey` writes.
    const SEC1: &str = "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIBwrvoK8ARNOtVbIO9lWrISZX/1S8EkpUyYXT/g0of4FoAoGCCqGSM49
AwEHoUQDQgAEIER1F6OlwywhcbqOcQAc5qy9a1XdlNQPx3yTjWUcN2ZveLlTLWg2
b3zT+adpeZMKCmVz932bIno0T6t8azI6yA==
-----END EC PRIVATE KEY-----
";

    #[test]
    fn account_key_round_trips_through_pem() {
        let made = AccountKey::generate().expect("a key");
        assert!(made.pem().starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_eq!(AccountKey::read(made.pem().as_bytes()).expect("a key"), made);
    }

    #[test]
    fn account_key_of_tailscaled_is_accepted_unchanged() {
        let key = AccountKey::read(SEC1.as_bytes()).expect("a key");
        assert_eq!(key.pem(), SEC1);
        key.parts().expect("a key of the client");
    }

    #[test]
    fn invalid_account_key_is_rejected() {
        for text in ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "x", &SEC1.replace("MHcC", "MHcD")] {
            assert_eq!(AccountKey::read(text.as_bytes()).expect_err("no key").reason(), "AccountKey", "{text}");
        }
    }
}
