//! Signatures as cosign makes them: a small payload that names the digest of a manifest, signed with a key (rule 75).

use akri_model::image::Sha256Digest;
use akri_model::signature::{PublicKey, TrustedKey, signed_digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

/// The type of layer that holds a payload.
pub(crate) const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

/// The annotation of such a layer that holds the signature.
pub(crate) const ANNOTATION: &str = "dev.cosignproject.cosign/signature";

/// Signatures of one image that are looked at.
pub(crate) const MAX_SIGNATURES: usize = 32;

/// Limit on a payload, in bytes.
pub(crate) const MAX_PAYLOAD: u64 = 16 << 10;

/// A signature of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The signed payload.
    pub payload: String,
    /// The signature, in base64.
    pub signature: String,
}

/// Names keys in a message.
pub(crate) fn names(keys: &[TrustedKey]) -> String {
    let names: Vec<String> = keys.iter().map(|key| format!("'{}'", key.name)).collect();
    format!("{} {}", if keys.len() == 1 { "key" } else { "one of the keys" }, names.join(", "))
}

/// Returns the key that one of the signatures of a manifest is valid for.
pub fn verify<'a>(signatures: &[Signature], digest: &Sha256Digest, keys: &'a [TrustedKey]) -> Option<&'a TrustedKey> {
    let of_digest = signatures.iter().filter(|s| signed_digest(s.payload.as_bytes()).as_ref() == Some(digest));
    let signed: Vec<(&Signature, Vec<u8>)> =
        of_digest.filter_map(|s| Some((s, BASE64_STANDARD.decode(&s.signature).ok()?))).collect();
    keys.iter().find(|key| signed.iter().any(|(of, signature)| is_valid(&key.key, of.payload.as_bytes(), signature)))
}

fn is_valid(key: &PublicKey, payload: &[u8], signature: &[u8]) -> bool {
    match key {
        PublicKey::P256(point) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).verify(payload, signature),
        PublicKey::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(payload, signature),
    }
    .is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};

    use super::*;
    use crate::digest_of;

    fn payload(digest: &Sha256Digest) -> String {
        format!(
            r#"{{"critical":{{"identity":{{"docker-reference":"r.example/a"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"cosign container image signature"}},"optional":null}}"#
        )
    }

    type Signer = Box<dyn Fn(&str) -> Signature>;

    fn key(name: &str, key: PublicKey) -> TrustedKey {
        TrustedKey { name: name.to_owned(), key }
    }

    fn signature(payload: &str, bytes: &[u8]) -> Signature {
        Signature { payload: payload.to_owned(), signature: BASE64_STANDARD.encode(bytes) }
    }

    fn ed25519() -> (TrustedKey, Signer) {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let public = PublicKey::Ed25519(pair.public_key().as_ref().try_into().unwrap());
        (key("ed", public), Box::new(move |text| signature(text, pair.sign(text.as_bytes()).as_ref())))
    }

    fn p256() -> (TrustedKey, Signer) {
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_ASN1_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(kind, pkcs8.as_ref(), &random).unwrap();
        let public = PublicKey::P256(pair.public_key().as_ref().try_into().unwrap());
        (
            key("ec", public),
            Box::new(move |text| signature(text, pair.sign(&random, text.as_bytes()).unwrap().as_ref())),
        )
    }

    #[test] // rule 75
    fn signatures_of_both_kinds_are_verified() {
        let (digest, other) = (digest_of(b"a"), digest_of(b"b"));
        let ((ed, sign_ed), (ec, sign_ec)) = (ed25519(), p256());
        let by_both = [sign_ed(&payload(&digest)), sign_ec(&payload(&digest))];
        let name = |signatures: &[Signature], digest: &Sha256Digest, keys: &[TrustedKey]| {
            verify(signatures, digest, keys).map(|key| key.name.clone())
        };
        for key in [&ed, &ec] {
            assert_eq!(name(&by_both, &digest, std::slice::from_ref(key)).as_ref(), Some(&key.name));
            assert_eq!(name(&by_both, &other, std::slice::from_ref(key)), None, "of another image");
        }
        assert_eq!(name(&by_both, &digest, &[ec.clone(), ed.clone()]).as_deref(), Some("ec"));
        assert_eq!(name(&by_both[..1], &digest, &[ec, ed]).as_deref(), Some("ed"), "one key of several is enough");
        assert_eq!(name(&by_both, &digest, &[ed25519().0, p256().0]), None, "of other keys");
        assert_eq!(name(&[], &digest, &[ed25519().0]), None);
    }

    #[test] // rule 75
    fn another_payload_under_a_signature_counts_for_nothing() {
        let (digest, other) = (digest_of(b"a"), digest_of(b"b"));
        let (trusted, sign) = ed25519();
        let mut moved = sign(&payload(&other));
        moved.payload = payload(&digest);
        assert_eq!(verify(&[moved], &digest, &[trusted]), None);
    }

    proptest! {
        #[test] // rule 75
        fn changed_signature_is_not_valid(at in 0..64usize, bit in 0..8u32) {
            let digest = digest_of(b"a");
            let (trusted, sign) = ed25519();
            let good = sign(&payload(&digest));
            let mut bytes = BASE64_STANDARD.decode(&good.signature).unwrap();
            bytes[at] ^= 1 << bit;
            prop_assert!(verify(&[signature(&good.payload, &bytes)], &digest, &[trusted]).is_none());
        }
    }
}
