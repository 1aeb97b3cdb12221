//! Authentication without sending the password: WS-UsernameToken and HTTP digest.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_auth::{DigestClient, PasswordParams};
use jiff::{SignedDuration, Timestamp};
use quick_xml::escape::escape;
use sha1::{Digest, Sha1};

use crate::credentials::Credentials;

/// The common prefix of WS-Security names.
const WSS: &str = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss";

/// Returns the SOAP header with a password digest (WS-Security UsernameToken Profile 1.0, ONVIF Core 5.9.4). `now` is
/// by the camera's clock, since many cameras refuse old timestamps.
pub fn username_token(credentials: &Credentials, nonce: [u8; 16], now: Timestamp) -> String {
    let created = format!("{now:.0}");
    let signed = [&nonce[..], created.as_bytes(), credentials.password.as_bytes()].concat();
    let (digest, nonce) = (BASE64_STANDARD.encode(Sha1::digest(signed)), BASE64_STANDARD.encode(nonce));
    let username = escape(&*credentials.username);
    format!(
        "<Security s:mustUnderstand=\"1\" xmlns=\"{WSS}-wssecurity-secext-1.0.xsd\"><UsernameToken>\
         <Username>{username}</Username>\
         <Password Type=\"{WSS}-username-token-profile-1.0#PasswordDigest\">{digest}</Password>\
         <Nonce EncodingType=\"{WSS}-soap-message-security-1.0#Base64Binary\">{nonce}</Nonce>\
         <Created xmlns=\"{WSS}-wssecurity-utility-1.0.xsd\">{created}</Created></UsernameToken></Security>"
    )
}

/// Returns the difference of a camera's clock from ours; zero if unknown or small, so that the response time does not
/// matter.
pub fn skew(camera: Option<Timestamp>, now: Timestamp) -> SignedDuration {
    let skew = camera.map_or(SignedDuration::ZERO, |camera| camera.duration_since(now));
    if skew.abs() < SignedDuration::from_secs(2) { SignedDuration::ZERO } else { skew }
}

/// Returns the digest challenge (RFC 7616) of a `WWW-Authenticate` header, if there is one. Basic authentication, which
/// sends the password, is never used.
pub fn digest_challenge(header: &str) -> Option<DigestClient> {
    let challenges = http_auth::parse_challenges(header).ok()?;
    challenges.iter().find_map(|challenge| DigestClient::try_from(challenge).ok())
}

/// Returns the `Authorization` header of a POST for a challenge, if it can be answered.
pub fn digest_answer(challenge: &mut DigestClient, credentials: &Credentials, path: &str) -> Option<String> {
    let answer = PasswordParams {
        username: &credentials.username,
        password: &credentials.password,
        uri: path,
        method: "POST",
        body: None,
    };
    challenge.respond(&answer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soap;
    use crate::xml;

    fn credentials(username: &str, password: &str) -> Credentials {
        Credentials { username: username.to_owned(), password: password.to_owned(), holder: String::new() }
    }

    #[test]
    fn digest_matches_the_onvif_example() {
        // ONVIF Application Programmer's Guide 1.0, 6.1.1.3
        let nonce: [u8; 16] = BASE64_STANDARD.decode("LKqI6G/AikKCQrN0zqZFlg==").unwrap().try_into().unwrap();
        let now: Timestamp = "2010-09-16T07:50:45.999Z".parse().unwrap();
        let token = username_token(&credentials("user", "userpassword"), nonce, now);
        let envelope = xml::parse(soap::envelope(&token, "").as_bytes()).unwrap();
        let token = |name| envelope.text_at(&["Header", "Security", "UsernameToken", name]);
        assert_eq!(token("Password"), Some("tuOSpGlFlIXsozq4HFNeeGeFLEI="));
        assert_eq!(token("Nonce"), Some("LKqI6G/AikKCQrN0zqZFlg=="));
        assert_eq!(token("Created"), Some("2010-09-16T07:50:45Z"));
        assert_eq!(token("Username"), Some("user"));
    }

    #[test]
    fn user_name_is_escaped() {
        let token = username_token(&credentials("<&\"é", ""), [0; 16], Timestamp::UNIX_EPOCH);
        let envelope = xml::parse(soap::envelope(&token, "").as_bytes()).unwrap();
        assert_eq!(envelope.text_at(&["Header", "Security", "UsernameToken", "Username"]), Some("<&\"é"));
    }

    #[test]
    fn small_clock_difference_is_ignored() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let skewed = |seconds: i64| skew(Some(Timestamp::from_second(1_000_000 + seconds).unwrap()), now).as_secs();
        assert_eq!([skewed(-3600), skewed(-1), skewed(0), skewed(1), skewed(86_400)], [-3600, 0, 0, 0, 86_400]);
        assert_eq!(skew(None, now), SignedDuration::ZERO);
    }

    #[test]
    fn http_digest_is_answered_and_basic_is_not() {
        let both = r#"Basic realm="x", Digest realm="ONVIF", nonce="abc", qop="auth", algorithm=MD5"#;
        let mut challenge = digest_challenge(both).unwrap();
        for count in ["nc=00000001", "nc=00000002"] {
            let answer = digest_answer(&mut challenge, &credentials("u", "p"), "/onvif").unwrap();
            assert!(answer.starts_with("Digest ") && answer.contains(count), "{answer}");
        }
        for header in [r#"Basic realm="x""#, "", "Digest", r#"Digest realm="x", nonce="y", algorithm=ROT13"#, "\"\\"] {
            assert!(digest_challenge(header).is_none(), "{header}");
        }
    }
}
