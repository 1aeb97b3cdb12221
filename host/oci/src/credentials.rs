//! Credentials for registries, as Docker keeps them (`config.json`, Secrets of type `kubernetes.io/dockerconfigjson`).

use std::collections::BTreeMap;
use std::fmt;

use akri_model::image::Repository;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

/// Longest file, in bytes: a Secret holds no more.
const MAX_FILE: usize = 1 << 20;

/// Credentials by registry, and by path in it.
#[derive(Clone, Default)]
pub struct Credentials(BTreeMap<String, Basic>);

/// A user name with its password.
#[derive(Clone)]
pub(crate) struct Basic {
    user: String,
    password: SecretString,
}

impl Basic {
    /// Returns the value of the header `Authorization`.
    pub(crate) fn header(&self) -> SecretString {
        let pair = format!("{}:{}", self.user, self.password.expose_secret());
        format!("Basic {}", BASE64_STANDARD.encode(pair)).into()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The reasons why credentials are unusable; they quote none of them.
const FORMAT: &str = "is not a Docker configuration: JSON with 'auths'";
const ENTRY: &str = "has an entry whose 'auth' is not the base64 of USER:PASSWORD";

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    auth: Option<SecretString>,
    username: Option<String>,
    password: Option<SecretString>,
}

impl Credentials {
    /// Reads a configuration of Docker. Entries without credentials, which credential helpers leave, are ignored.
    pub fn parse(json: &[u8]) -> Result<Self, &'static str> {
        if json.len() > MAX_FILE {
            return Err(FORMAT);
        }
        let config: Config = serde_json::from_slice(json).map_err(|_| FORMAT)?;
        let mut credentials = Self::default();
        for (registry, entry) in config.auths {
            if let Some(basic) = entry.basic()? {
                credentials.0.insert(normal(&registry), basic);
            }
        }
        Ok(credentials)
    }

    /// Adds those of another configuration, where this one has none.
    pub fn extend(&mut self, other: Self) {
        for (registry, basic) in other.0 {
            self.0.entry(registry).or_insert(basic);
        }
    }

    /// Returns the ones of a repository: those of the longest path win, as in the kubelet.
    pub(crate) fn of(&self, repository: &Repository) -> Option<&Basic> {
        let name = format!("{}/{}/", own_name(repository.registry()), repository.path());
        let covers = |key: &str| name.strip_prefix(key).is_some_and(|rest| rest.starts_with('/'));
        self.0.iter().filter(|(key, _)| covers(key)).max_by_key(|(key, _)| key.len()).map(|(_, basic)| basic)
    }
}

impl Entry {
    fn basic(self) -> Result<Option<Basic>, &'static str> {
        if let (Some(user), Some(password)) = (self.username, self.password)
            && !user.is_empty()
        {
            return Ok(Some(Basic { user, password }));
        }
        let Some(auth) = self.auth.filter(|auth| !auth.expose_secret().is_empty()) else { return Ok(None) };
        let decoded = BASE64_STANDARD.decode(auth.expose_secret()).map_err(|_| ENTRY)?;
        let text = SecretString::from(String::from_utf8(decoded).map_err(|_| ENTRY)?);
        let (user, password) = text.expose_secret().split_once(':').ok_or(ENTRY)?;
        Ok(Some(Basic { user: user.to_owned(), password: password.trim_end_matches('\0').into() }))
    }
}

/// Returns a key without its scheme and the version of the API.
fn normal(key: &str) -> String {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let key = key.trim_end_matches('/');
    let key = key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key);
    let host = key.split('/').next().unwrap_or_default();
    key.replacen(host, own_name(host), 1)
}

/// Returns the name under which Docker keeps the credentials of a host: Docker Hub has several.
fn own_name(host: &str) -> &str {
    if matches!(host, "docker.io" | "registry-1.docker.io") { "index.docker.io" } else { host }
}

#[cfg(test)]
mod tests {
    use akri_model::image::ImageReference;
    use proptest::prelude::*;

    use super::*;

    fn user(credentials: &Credentials, reference: &str) -> Option<String> {
        let reference: ImageReference = reference.parse().unwrap();
        credentials.of(&reference.repository).map(|basic| basic.user.clone())
    }

    #[test]
    fn credentials_of_the_longest_path_win() {
        let json = br#"{"auths": {
            "https://r.example/v2/": {"auth": "YTpw"},
            "r.example/team": {"username": "b", "password": "p"},
            "https://index.docker.io/v1/": {"auth": "Yzpw"},
            "docker.io/team": {"auth": "ZDpw"},
            "helper.example": {}
        }, "credsStore": "x"}"#;
        let credentials = Credentials::parse(json).unwrap();
        for (reference, expected) in [
            ("r.example/x", Some("a")),
            ("r.example/team/x", Some("b")),
            ("r.example/team", Some("b")),
            ("r.example/teammate/x", Some("a")),
            ("r.example.evil/x", None),
            ("r.example:5000/x", None),
            ("docker.io/library/x", Some("c")),
            ("docker.io/team/x", Some("d")),
            ("helper.example/x", None),
        ] {
            assert_eq!(user(&credentials, reference).as_deref(), expected, "{reference}");
        }
        let basic = credentials.0.get("r.example").unwrap();
        assert_eq!(basic.header().expose_secret(), "Basic YTpw");
        assert!(!format!("{credentials:?}").contains("YTpw"));
    }

    #[test]
    fn damaged_configurations_are_refused() {
        for (json, error) in [
            ("", FORMAT),
            (r#"{"auths": []}"#, FORMAT),
            (r#"{"auths": {"r.example": {"auth": "no base64"}}}"#, ENTRY),
            (r#"{"auths": {"r.example": {"auth": "YQ=="}}}"#, ENTRY),
        ] {
            assert_eq!(Credentials::parse(json.as_bytes()).err(), Some(error), "{json}");
        }
    }

    proptest! {
        #[test] // rule 74
        fn credentials_go_to_their_registry_only(key in "[a-z.:/]{1,20}", path in "[a-z]{1,5}") {
            let json = serde_json::json!({"auths": {&key: {"username": "a", "password": "p"}}});
            let credentials = Credentials::parse(json.to_string().as_bytes()).unwrap();
            if user(&credentials, &format!("r.example/{path}")).is_some() {
                prop_assert!(normal(&key) == "r.example" || normal(&key).starts_with("r.example/"), "{}", key);
            }
        }
    }
}
