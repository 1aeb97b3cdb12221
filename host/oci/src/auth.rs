//! Challenges of registries, which ask for credentials.

use http::HeaderValue;
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
    let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let parameters = parameters(rest)?;
    let find = |name: &str| parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v.clone());
    Some(Challenge::Bearer { realm: find("realm")?, service: find("service") })
}

/// Reads `key="value", key=value`, with commas and escapes within quotes.
fn parameters(mut text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    loop {
        text = text.trim_start_matches([' ', ',', '\t']);
        if text.is_empty() {
            return Some(found);
        }
        let (key, rest) = text.split_once('=')?;
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let (value, rest) = rest.split_at_checked(end)?;
                (value.trim_end().to_owned(), rest)
            }
        };
        found.push((key.trim().to_owned(), value));
        text = rest;
    }
}

/// Reads up to the closing quote, and returns what follows.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
    None
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
            ("bearer Realm=https://a/t , service=r", bearer("https://a/t", Some("r"))),
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
