//! Challenges of registries, which ask for credentials.

use http::HeaderValue;
use http_auth::{ChallengeParser, ChallengeRef};
use serde::Deserialize;

/// Longest challenge, in bytes.
const MAX_CHALLENGE: usize = 4096;

/// Longest token, in bytes.
const MAX_TOKEN: usize = 32 << 10;

/// A challenge of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// The registry takes user name and password itself.
    Basic,
    /// Another server issues tokens.
    Bearer {
        /// The address of that server.
        realm: String,
        /// The scope of the token.
        service: Option<String>,
    },
}

/// Reads the header `WWW-Authenticate`: the first challenge that is understood.
pub(crate) fn challenge(header: &HeaderValue) -> Option<Challenge> {
    let text = header.to_str().ok().filter(|text| text.len() <= MAX_CHALLENGE)?;
    ChallengeParser::new(text).map_while(Result::ok).find_map(|ChallengeRef { scheme, params }| {
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        let find = |name: &str| params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        let value = |name| find(name).map(|(_, value)| value.to_unescaped());
        let is_bearer = scheme.eq_ignore_ascii_case("bearer");
        is_bearer.then(|| Some(Challenge::Bearer { realm: value("realm")?, service: value("service") }))?
    })
}

#[derive(Deserialize)]
struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
}

/// Reads the response of a token server, as the value of the header `Authorization`.
pub(crate) fn authorization(response: &[u8]) -> Option<HeaderValue> {
    let response: TokenResponse = serde_json::from_slice(response).ok()?;
    let token =
        response.token.or(response.access_token).filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN)?;
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Option<Challenge> {
        challenge(&HeaderValue::from_str(text).unwrap())
    }

    #[test] // rule 74
    fn challenges_are_understood() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
        };
        for (text, expected) in [
            ("Basic realm=\"x\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            ("Bearer realm=\"https://a/t\",service=\"r\",scope=\"x:y:pull,push\"", bearer("https://a/t", Some("r"))),
            ("bearer Realm=\"https://a/t\" , service=r", bearer("https://a/t", Some("r"))),
            ("Negotiate, Basic realm=\"x\"", Some(Challenge::Basic)),
            ("Bearer scope=\"a,b\", realm=\"a\\\"b\"", bearer("a\"b", None)),
            ("Bearer", None),
            ("Bearer realm=\"unclosed", None),
            ("Bearer realm", None),
            ("Bearer realm=\"a\\", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
        assert_eq!(of(&format!("Basic {}", "x".repeat(MAX_CHALLENGE))), None);
    }

    #[test]
    fn tokens_of_both_names_are_taken() {
        let value = |json: &str| authorization(json.as_bytes()).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(value(r#"{"token": "a"}"#).as_deref(), Some("Bearer a"));
        assert_eq!(value(r#"{"access_token": "b", "expires_in": 60}"#).as_deref(), Some("Bearer b"));
        for json in [r#"{"token": ""}"#, r#"{"token": "a\r\nHost: b"}"#, "{}", "x"] {
            assert_eq!(value(json), None, "{json}");
        }
    }

    proptest! {
        #[test]
        fn no_challenge_does_harm(text in "(Bearer|Basic|) ?[ -~]{0,60}") {
            let _ = of(&text);
        }
    }
}
