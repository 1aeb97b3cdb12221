//! Keys that sign images, and what cosign's signatures say (rule 75).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use crate::image::Sha256Digest;

/// Longest PEM text of a key, in bytes.
const MAX_PEM: usize = 4096;

const BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const END: &str = "-----END PUBLIC KEY-----";

/// The bytes before the key itself in a SubjectPublicKeyInfo of ECDSA P-256: there is one DER encoding of it.
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The bytes before the key itself in a SubjectPublicKeyInfo of Ed25519.
const ED25519_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicKey {
    /// ECDSA with P-256 and SHA-256: an uncompressed point.
    P256([u8; 65]),
    /// Ed25519.
    Ed25519([u8; 32]),
}

/// The reason why a text is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is not PEM.
    #[error("is not a public key in PEM, which begins with '{BEGIN}'")]
    NotPem,
    /// It is a private key.
    #[error("is a private key: replace the key pair, and put only the public key here")]
    Private,
    /// It is a key of another kind.
    #[error("is neither an ECDSA P-256 nor an Ed25519 key")]
    Kind,
}

impl PublicKey {
    /// Reads a key in PEM (`PUBLIC KEY`).
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        if pem.contains("PRIVATE KEY-----") {
            return Err(KeyError::Private);
        }
        if pem.len() > MAX_PEM {
            return Err(KeyError::NotPem);
        }
        let body = pem.trim().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END)).ok_or(KeyError::NotPem)?;
        let body: String = body.split_ascii_whitespace().collect();
        let der = BASE64_STANDARD.decode(body).map_err(|_| KeyError::NotPem)?;
        let p256 = der.strip_prefix(&P256_HEAD).and_then(|point| <[u8; 65]>::try_from(point).ok());
        let p256 = p256.filter(|point| point.first() == Some(&4));
        let ed25519 = || der.strip_prefix(&ED25519_HEAD).and_then(|key| <[u8; 32]>::try_from(key).ok());
        p256.map(Self::P256).or_else(|| ed25519().map(Self::Ed25519)).ok_or(KeyError::Kind)
    }
}

/// A key that an administrator trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    /// Its name, for messages.
    pub name: String,
    /// The key.
    pub key: PublicKey,
}

/// Returns the digest of the manifest that a payload of cosign vouches for. The repository that it names is not looked at: images are
/// mirrored.
pub fn signed_digest(payload: &[u8]) -> Option<Sha256Digest> {
    let payload: Value = serde_json::from_slice(payload).ok()?;
    let critical = payload.get("critical")?;
    let is_signature = critical.get("type")? == "cosign container image signature";
    is_signature.then(|| critical.pointer("/image/docker-manifest-digest")?.as_str()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const P256: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEAAAAAAAAAAAAAAAAAAAAAAAAAAAA
AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==
-----END PUBLIC KEY-----
";
    const ED25519: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\
                           AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n-----END PUBLIC KEY-----";

    #[test]
    fn keys_of_both_kinds_are_read() {
        assert!(matches!(PublicKey::from_pem(P256), Ok(PublicKey::P256(point)) if point[0] == 4));
        assert_eq!(PublicKey::from_pem(ED25519), Ok(PublicKey::Ed25519([0; 32])));
        assert_eq!(
            PublicKey::from_pem(&format!("  {}\r\n", ED25519.replace('\n', "\r\n"))).ok(),
            Some(PublicKey::Ed25519([0; 32]))
        );
    }

    #[test] // rule 75
    fn other_texts_are_no_keys() {
        for (pem, error) in [
            ("", KeyError::NotPem),
            ("MCowBQYDK2VwAyEA", KeyError::NotPem),
            (&P256.replace("PUBLIC", "PRIVATE"), KeyError::Private),
            (&P256.replace("PUBLIC", "EC PRIVATE"), KeyError::Private),
            (&P256.replace("MFk", "M!k"), KeyError::NotPem),
            (&P256.replace("cDQgAEAAA", "cDQgACAAA"), KeyError::Kind), // a compressed point
            (&P256.replace("j0DAQcDQg", "j0DAQgDQg"), KeyError::Kind), // another curve
            (&ED25519.replace("AAA=", "AA=="), KeyError::Kind),
            (&format!("{BEGIN}\n{END}"), KeyError::Kind),
            (&format!("{P256}{P256}"), KeyError::NotPem),
            (&format!("{BEGIN}{}{END}", "A".repeat(MAX_PEM)), KeyError::NotPem),
        ] {
            assert_eq!(PublicKey::from_pem(pem), Err(error), "{pem}");
        }
    }

    #[test] // rule 75
    fn payload_vouches_for_one_digest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let payload = |kind: &str, digest: &str| {
            format!(
                r#"{{"critical":{{"identity":{{"docker-reference":"x"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"{kind}"}},"optional":null}}"#
            )
        };
        let kind = "cosign container image signature";
        assert_eq!(signed_digest(payload(kind, &digest).as_bytes()), digest.parse().ok());
        assert_eq!(signed_digest(payload("atomic container signature", &digest).as_bytes()), None);
        assert_eq!(signed_digest(payload(kind, "sha256:12").as_bytes()), None);
        assert_eq!(signed_digest(br#"{"critical":{}}"#), None);
        assert_eq!(signed_digest(b"\xff"), None);
    }
}
