//! The component of a DiscoveryHandler: a file, or an image in a registry (rule 74, rule 75).

use std::collections::BTreeSet;

use akri_model::image::{ImageSource, PinnedImage};
use akri_model::signature::{PublicKey, TrustedKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::validate::{FieldErrors, is_dns_subdomain};

/// Maximum number of pull secrets, and of keys.
const MAX_NAMES: usize = 16;

/// Longest name of a key, in bytes.
const MAX_KEY_NAME: usize = 63;

/// The location of a component: `file` or `image`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentRef {
    /// Name of a file in the component directory, without a path.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// An image in a registry instead of a file, pinned by the digest of its manifest:
    /// `registry.example/handlers/udev@sha256:...`.
    pub image: Option<String>,
    /// For an image: names of Secrets of type kubernetes.io/dockerconfigjson in the agent's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<String>,
    /// For an image: the signature that it needs. None is needed if absent.
    pub signature: Option<SignatureRule>,
    /// `sha256:<64 hex digits>` of the component itself: any other content is refused.
    pub digest: Option<String>,
}

/// The signature that an image needs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SignatureRule {
    /// The keys; a signature by one of them is enough.
    pub keys: Vec<SigningKey>,
}

/// A public key that signs images.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SigningKey {
    /// Its name in messages.
    pub name: String,
    /// The key in PEM: ECDSA P-256 or Ed25519.
    pub public_key: String,
}

/// The location of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ComponentSource {
    /// The name of a file in the component directories.
    File(String),
    /// An image in a registry.
    Image(ImageSource),
}

impl ComponentSource {
    /// Returns the image, if it is one.
    pub fn image(&self) -> Option<&ImageSource> {
        match self {
            Self::File(_) => None,
            Self::Image(source) => Some(source),
        }
    }
}

/// Converts a valid object. An invalid one gets a file without a name.
impl From<&ComponentRef> for ComponentSource {
    fn from(component: &ComponentRef) -> Self {
        let Some(image) = &component.image else { return Self::File(component.file.clone()) };
        let keys = component.signature.iter().flat_map(|rule| &rule.keys).map(|key| {
            let public = PublicKey::from_pem(&key.public_key).ok()?;
            Some(TrustedKey { name: key.name.clone(), key: public })
        });
        let (image, keys) = (image.parse::<PinnedImage>().ok(), keys.collect::<Option<Vec<_>>>());
        match (image, keys) {
            (Some(image), Some(keys)) if component.signature.is_none() || !keys.is_empty() => {
                Self::Image(ImageSource { image, pull_secrets: component.pull_secrets.clone(), keys })
            }
            _ => Self::File(String::new()),
        }
    }
}

/// Checks the location of a component.
pub(crate) fn check(component: &ComponentRef, errors: &mut FieldErrors) {
    let mut wrong = |field: &str, message: String| {
        errors.add(format!("/spec/component{field}"), message);
    };
    match (&*component.file, &component.image) {
        ("", Some(image)) => {
            if let Err(error) = image.parse::<PinnedImage>() {
                wrong("/image", format!("'{image}' {error}"));
            }
        }
        (_, Some(_)) => wrong("", "file and image exclude each other; keep one".to_owned()),
        (file, None) if file.is_empty() || file.contains('/') || file.starts_with('.') => {
            wrong("/file", format!("'{file}' is not the name of a file in the component directory"));
        }
        (_, None) => {}
    }
    if let Some(digest) = component.digest.as_deref().filter(|digest| !is_digest(digest)) {
        wrong("/digest", format!("'{digest}' is not 'sha256:' and 64 hex digits"));
    }
    let of_image = "is for images; remove it, or name an image instead of a file";
    if component.image.is_none() && !component.pull_secrets.is_empty() {
        wrong("/pullSecrets", of_image.to_owned());
    }
    if component.image.is_none() && component.signature.is_some() {
        wrong("/signature", of_image.to_owned());
    }
    check_pull_secrets(&component.pull_secrets, errors);
    check_keys(component.signature.as_ref(), errors);
}

fn check_pull_secrets(names: &[String], errors: &mut FieldErrors) {
    let path = "/spec/component/pullSecrets";
    if names.len() > MAX_NAMES {
        errors.add(path, format!("has {} names, more than {MAX_NAMES}", names.len()));
    }
    for (index, name) in names.iter().enumerate().filter(|(_, name)| !is_dns_subdomain(name)) {
        let message = format!("'{name}' is not the name of a Secret: lower-case letters, digits, '-' and '.'");
        errors.add(format!("{path}/{index}"), message);
    }
}

fn check_keys(rule: Option<&SignatureRule>, errors: &mut FieldErrors) {
    let path = "/spec/component/signature/keys";
    let Some(rule) = rule else { return };
    if !(1..=MAX_NAMES).contains(&rule.keys.len()) {
        errors.add(path, format!("has {} keys; give 1 to {MAX_NAMES}, or remove 'signature'", rule.keys.len()));
    }
    let mut names = BTreeSet::new();
    for (index, key) in rule.keys.iter().enumerate() {
        let is_name = (1..=MAX_KEY_NAME).contains(&key.name.len()) && !key.name.contains(char::is_control);
        if !is_name || !names.insert(&key.name) {
            let message =
                format!("'{}' is no name of its own, of up to {MAX_KEY_NAME} characters", key.name.escape_debug());
            errors.add(format!("{path}/{index}/name"), message);
        }
        if let Err(error) = PublicKey::from_pem(&key.public_key) {
            errors.add(format!("{path}/{index}/publicKey"), error.to_string());
        }
    }
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const KEY: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\
                       AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n-----END PUBLIC KEY-----\n";

    fn image() -> String {
        format!("registry.example/handlers/udev@sha256:{}", "a".repeat(64))
    }

    fn read(component: Value) -> (ComponentSource, Vec<String>) {
        let component: ComponentRef = serde_json::from_value(component).unwrap();
        let mut errors = FieldErrors::default();
        check(&component, &mut errors);
        let errors = errors.0.into_iter().map(|e| format!("{}: {}", &e.path["/spec/component".len()..], e.message));
        (ComponentSource::from(&component), errors.collect())
    }

    #[test]
    fn image_is_taken_with_secrets_and_keys() {
        let keys = json!([{"name": "release", "publicKey": KEY}]);
        let (source, errors) = read(json!({"image": image(), "pullSecrets": ["regcred"], "signature": {"keys": keys}}));
        assert_eq!(errors, Vec::<String>::new());
        let source = source.image().unwrap();
        assert_eq!((source.image.to_string(), &*source.pull_secrets[0]), (image(), "regcred"));
        assert_eq!(source.keys[0].name, "release");
    }

    #[test] // rule 74
    fn each_wrong_field_of_a_component_is_named_with_its_remedy() {
        let key = |name: &str, key: &str| json!({"name": name, "publicKey": key});
        let signed = |keys: Value| json!({"image": image(), "signature": {"keys": keys}});
        for (component, expected) in [
            (
                json!({"image": "registry.example/udev:1"}),
                "/image: 'registry.example/udev:1' is not pinned; append @sha256:",
            ),
            (json!({"image": "udev"}), "/image: 'udev' names no registry; begin with its host"),
            (json!({"image": ""}), "/image: '' names no registry"),
            (json!({"image": image(), "file": "x.wasm"}), ": file and image exclude each other; keep one"),
            (json!({"file": "x.wasm", "pullSecrets": ["a"]}), "/pullSecrets: is for images; remove it"),
            (json!({"file": "x.wasm", "signature": {"keys": [key("a", KEY)]}}), "/signature: is for images"),
            (json!({"image": image(), "pullSecrets": ["a/b"]}), "/pullSecrets/0: 'a/b' is not the name of a Secret"),
            (json!({"image": image(), "pullSecrets": vec!["a"; 17]}), "/pullSecrets: has 17 names, more than 16"),
            (signed(json!([])), "/signature/keys: has 0 keys; give 1 to 16, or remove 'signature'"),
            (signed(json!([key("", KEY)])), "/signature/keys/0/name: '' is no name of its own"),
            (signed(json!([key("a", KEY), key("a", KEY)])), "/signature/keys/1/name: 'a' is no name of its own"),
            (signed(json!([key("a", "x")])), "/signature/keys/0/publicKey: is not a public key in PEM"),
            (
                signed(json!([key("a", &KEY.replace("PUBLIC", "PRIVATE"))])),
                "/signature/keys/0/publicKey: is a private key: replace the key pair",
            ),
            (json!({"file": "x.wasm", "digest": "sha256:1"}), "/digest: 'sha256:1' is not"),
        ] {
            let (_, errors) = read(component.clone());
            assert!(errors.len() == 1 && errors[0].starts_with(expected), "{component}: {errors:?}");
        }
    }

    /// Unreadable keys must not make signatures optional.
    #[test] // rule 75
    fn unreadable_keys_leave_no_unsigned_image() {
        for keys in [json!([]), json!([{"name": "a", "publicKey": "x"}])] {
            let (source, errors) = read(json!({"image": image(), "signature": {"keys": keys}}));
            assert_eq!((source, errors.len()), (ComponentSource::File(String::new()), 1));
        }
    }
}
