//! Verification of passwords.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::{SignedDuration, Timestamp};
use md5::{Digest, Md5};
use sha1::Sha1;

use super::camera::USER;

/// The HTTP digest challenge of cameras.
pub(super) const CHALLENGE: &str = r#"Digest realm="farm", qop="auth", nonce="b2a1f0c4", opaque="5ccc", algorithm=MD5"#;

/// Returns whether a message has a WS-UsernameToken with a digest created within five seconds of `now`.
pub(super) fn has_token(message: &str, password: &str, now: Timestamp) -> Option<bool> {
    let (created, nonce) = (element(message, "Created")?, element(message, "Nonce")?);
    let age = now.duration_since(created.parse().ok()?);
    let nonce = BASE64_STANDARD.decode(nonce).ok()?;
    let digest = Sha1::digest([&nonce[..], created.as_bytes(), password.as_bytes()].concat());
    let is_right = element(message, "Password")? == BASE64_STANDARD.encode(digest);
    Some(is_right && element(message, "Username")? == USER && age.abs() < SignedDuration::from_secs(5))
}

/// Returns whether an `Authorization` header answers [`CHALLENGE`] for a POST (RFC 7616, 3.4.1).
pub(super) fn has_digest(authorization: &str, password: &str, path: &str) -> Option<bool> {
    let field = |name: &str| {
        let rest = authorization.split_once(&format!(" {name}="))?.1;
        Some(rest.split(',').next()?.trim_matches('"'))
    };
    let hash = |text: String| hex(&Md5::digest(text));
    let (first, second) = (hash(format!("{USER}:farm:{password}")), hash(format!("POST:{path}")));
    let (count, nonce) = (field("nc")?, field("cnonce")?);
    let expected = hash(format!("{first}:b2a1f0c4:{count}:{nonce}:auth:{second}"));
    Some(
        field("response")? == expected
            && field("username")? == USER
            && field("uri")? == path
            && field("opaque")? == "5ccc",
    )
}

/// Returns the text of the first element of that name.
pub(super) fn element<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let tags = message.split('<').filter_map(|tag| tag.split_once('>'));
    let mut named = tags.filter(|(tag, _)| tag.split(' ').next() == Some(name));
    named.next().map(|(_, text)| text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
