//! Identity protocol between a client and an identity target, over TCP and UDP.
//!
//! A request is an eight-byte nonce. The answer is that nonce and four bytes with the target's identity. So an answer is tied to its
//! request and to its target.

use crate::model::diagnostics::load::TargetIdentity;

/// Length of a request in bytes.
pub const REQUEST: usize = 8;
/// Length of an answer in bytes.
pub const ANSWER: usize = 12;

pub fn request(nonce: u64) -> [u8; REQUEST] {
    nonce.to_be_bytes()
}

pub fn answer(request: [u8; REQUEST], identity: TargetIdentity) -> [u8; ANSWER] {
    let [n0, n1, n2, n3, n4, n5, n6, n7] = request;
    let ([t0, t1], [p0, p1]) = (identity.target.to_be_bytes(), identity.port.to_be_bytes());
    [n0, n1, n2, n3, n4, n5, n6, n7, t0, t1, p0, p1]
}

/// Identity in an answer to this request; `None` if it is not one.
pub fn read(nonce: u64, answer: &[u8]) -> Option<TargetIdentity> {
    let [n0, n1, n2, n3, n4, n5, n6, n7, t0, t1, p0, p1] = <[u8; ANSWER]>::try_from(answer).ok()?;
    let identity = TargetIdentity { target: u16::from_be_bytes([t0, t1]), port: u16::from_be_bytes([p0, p1]) };
    (u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]) == nonce).then_some(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_matches_only_its_question() {
        let identity = TargetIdentity { target: 2, port: 7003 };
        let answered = answer(request(0x0123_4567_89ab_cdef), identity);
        assert_eq!(read(0x0123_4567_89ab_cdef, &answered), Some(identity));
        assert_eq!(read(1, &answered), None);
        assert_eq!(read(0x0123_4567_89ab_cdef, &answered[..11]), None);
    }
}
