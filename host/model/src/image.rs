//! References to components in registries (rule 74).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::signature::TrustedKey;
use crate::text::hex;

/// Longest reference, in bytes.
const MAX_REFERENCE: usize = 512;

/// Longest repository with its registry, in bytes, as registries have it.
const MAX_REPOSITORY: usize = 255;

/// Longest tag, in bytes.
const MAX_TAG: usize = 128;

/// A SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sha256Digest(String);

impl Sha256Digest {
    /// Takes the bytes of a digest.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(hex(&bytes))
    }

    /// Takes 64 lower-case hex digits.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let is_hex = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then(|| Self(hex.to_owned()))
    }

    /// Returns the hex digits.
    pub fn hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl FromStr for Sha256Digest {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        text.strip_prefix("sha256:").and_then(Self::from_hex).ok_or(ReferenceError::Digest)
    }
}

/// A repository of a registry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repository {
    registry: String,
    path: String,
}

impl Repository {
    /// Returns the host of the registry, with its port if one is given.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the path within the registry.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)
    }
}

/// A reference `REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageReference {
    /// The repository.
    pub repository: Repository,
    /// The tag, which may move to another image at any time.
    pub tag: Option<String>,
    /// The digest of the manifest.
    pub digest: Option<Sha256Digest>,
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repository.fmt(f)?;
        self.tag.as_ref().map_or(Ok(()), |tag| write!(f, ":{tag}"))?;
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

/// An image of exactly one content. A tag beside the digest is dropped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PinnedImage {
    /// The repository.
    pub repository: Repository,
    /// The digest of the manifest.
    pub digest: Sha256Digest,
}

impl fmt::Display for PinnedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repository, self.digest)
    }
}

impl FromStr for PinnedImage {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let reference: ImageReference = text.parse()?;
        let digest = reference.digest.ok_or(ReferenceError::NotPinned)?;
        Ok(Self { repository: reference.repository, digest })
    }
}

/// The image of a DiscoveryHandler, with what is needed to pull and to trust it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSource {
    /// The image.
    pub image: PinnedImage,
    /// Names of Secrets with credentials for registries.
    pub pull_secrets: Vec<String>,
    /// The keys of which one has to have signed the image. Without any, no signature is needed.
    pub keys: Vec<TrustedKey>,
}

impl ImageSource {
    /// Returns whether an image that was accepted with this is still acceptable with other keys: whichever of its keys has signed
    /// it, it is one of them.
    pub fn is_covered_by(&self, keys: &[TrustedKey]) -> bool {
        let is_trusted = |own: &TrustedKey| keys.iter().any(|key| key.key == own.key);
        keys.is_empty() || !self.keys.is_empty() && self.keys.iter().all(is_trusted)
    }
}

/// The reason why a text is no reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// It is too long.
    #[error("is longer than {MAX_REFERENCE} characters")]
    TooLong,
    /// It begins with no registry.
    #[error("names no registry; begin with its host, such as registry.example/handlers/udev")]
    NoRegistry,
    /// The host or port of the registry is not valid.
    #[error("has no valid registry: HOST or HOST:PORT, without a scheme such as https://")]
    Registry,
    /// The path within the registry is not valid.
    #[error("has no valid repository: up to 255 lower-case letters, digits, '.', '_', '-' and '/'")]
    Repository,
    /// The tag is not valid.
    #[error("has no valid tag: up to 128 letters, digits, '.', '_' and '-'")]
    Tag,
    /// The digest is not valid.
    #[error("has no valid digest: 'sha256:' and 64 lower-case hex digits")]
    Digest,
    /// There is no digest where one is needed.
    #[error("is not pinned; append @sha256:DIGEST, which `akri handler pull` and `akri handler push` print")]
    NotPinned,
}

impl FromStr for ImageReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        if text.len() > MAX_REFERENCE {
            return Err(ReferenceError::TooLong);
        }
        let (named, digest) = match text.split_once('@') {
            Some((named, digest)) => (named, Some(digest.parse()?)),
            None => (text, None),
        };
        let (registry, rest) = named.split_once('/').ok_or(ReferenceError::NoRegistry)?;
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (rest, None),
        };
        check_registry(registry)?;
        if registry.len() + path.len() >= MAX_REPOSITORY || !path.split('/').all(is_path_component) {
            return Err(ReferenceError::Repository);
        }
        if !tag.is_none_or(is_tag) {
            return Err(ReferenceError::Tag);
        }
        let repository = Repository { registry: registry.to_owned(), path: path.to_owned() };
        Ok(Self { repository, tag: tag.map(str::to_owned), digest })
    }
}

/// Checks the host and port of a registry, as in references.
///
/// # Errors
/// If it is not `HOST` or `HOST:PORT`, or if it could be a part of a repository.
pub fn check_registry(registry: &str) -> Result<(), ReferenceError> {
    if registry.ends_with(':') && !registry.contains('.') {
        return Err(ReferenceError::Registry); // a scheme
    }
    if registry != "localhost" && !registry.contains(['.', ':']) {
        return Err(ReferenceError::NoRegistry);
    }
    let (host, port) = split_port(registry).ok_or(ReferenceError::Registry)?;
    let is_port = port.is_none_or(|port| port.len() <= 5 && port.parse::<u16>().is_ok_and(|port| port > 0));
    if is_host(host) && is_port { Ok(()) } else { Err(ReferenceError::Registry) }
}

/// Splits `HOST:PORT`; the host of an IPv6 address is in brackets.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if authority.starts_with('[') {
        let (host, rest) = authority.split_once(']')?;
        let host = authority.get(..=host.len())?;
        return if rest.is_empty() { Some((host, None)) } else { Some((host, Some(rest.strip_prefix(':')?))) };
    }
    match authority.split_once(':') {
        Some((host, port)) => Some((host, Some(port))),
        None => Some((authority, None)),
    }
}

fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[') {
        return address.strip_suffix(']').is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
    }
    let is_label = |label: &str| {
        let allowed = label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        !label.is_empty() && label.len() <= 63 && allowed && !label.starts_with('-') && !label.ends_with('-')
    };
    host.split('.').all(is_label)
}

/// Returns whether a registry, with or without a port, is this machine: the only one that may be reached without TLS.
pub fn is_loopback(registry: &str) -> bool {
    let Some((host, _)) = split_port(registry) else { return false };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Lower-case letters and digits, with one '.', one or two '_' or any number of '-' between them.
fn is_path_component(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_word = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let separators = text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_separator = |text: &str| matches!(text, "" | "." | "_" | "__") || text.bytes().all(|b| b == b'-');
    bytes.first().is_some_and(is_word) && bytes.last().is_some_and(is_word) && separators.into_iter().all(is_separator)
}

fn is_tag(tag: &str) -> bool {
    let allowed = tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    !tag.is_empty() && tag.len() <= MAX_TAG && allowed && !tag.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::signature::PublicKey;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn references_are_taken_apart() {
        for (text, registry, path, tag) in [
            ("registry.example/udev", "registry.example", "udev", None),
            ("localhost/a/b", "localhost", "a/b", None),
            ("localhost:5000/a:1.2", "localhost:5000", "a", Some("1.2")),
            ("[::1]:5000/a", "[::1]:5000", "a", None),
            ("[fd00::1]/a:x", "[fd00::1]", "a", Some("x")),
            ("ghcr.io/some-org/hand__lers/u.dev:v1", "ghcr.io", "some-org/hand__lers/u.dev", Some("v1")),
        ] {
            for digest in ["", "@"] {
                let text = format!("{text}{digest}{}", if digest.is_empty() { "" } else { DIGEST });
                let reference: ImageReference = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
                assert_eq!((reference.repository.registry(), reference.repository.path()), (registry, path), "{text}");
                assert_eq!((reference.tag.as_deref(), reference.digest.is_some()), (tag, !digest.is_empty()));
                assert_eq!(reference.to_string(), text);
            }
        }
    }

    #[test] // rule 74
    fn hostile_references_are_refused() {
        let long = format!("r.example/{}", "a/".repeat(300));
        for (text, error) in [
            ("", ReferenceError::NoRegistry),
            ("udev", ReferenceError::NoRegistry),
            ("handlers/udev", ReferenceError::NoRegistry),
            ("https://r.example/a", ReferenceError::Registry),
            ("user@r.example/a", ReferenceError::Digest),
            ("r.example:/a", ReferenceError::Registry),
            ("r.example:0/a", ReferenceError::Registry),
            ("r.example:99999/a", ReferenceError::Registry),
            ("r.example:5000:1/a", ReferenceError::Registry),
            ("r..example/a", ReferenceError::Registry),
            ("[::1/a", ReferenceError::Registry),
            ("[::g]/a", ReferenceError::Registry),
            ("r.example\r\nHost: x/a", ReferenceError::Registry),
            ("r.example/", ReferenceError::Repository),
            ("r.example/a//b", ReferenceError::Repository),
            ("r.example/../v2/_catalog", ReferenceError::Repository),
            ("r.example/A", ReferenceError::Repository),
            ("r.example/a b", ReferenceError::Repository),
            ("r.example/a?x=y", ReferenceError::Repository),
            ("r.example/a:", ReferenceError::Tag),
            ("r.example/a:.x", ReferenceError::Tag),
            ("r.example/a:x#", ReferenceError::Tag),
            ("r.example/a@sha256:12", ReferenceError::Digest),
            ("r.example/a@sha512:12", ReferenceError::Digest),
            (&format!("r.example/a@{}", DIGEST.to_uppercase()), ReferenceError::Digest),
            (&format!("r.example/a@{DIGEST}@{DIGEST}"), ReferenceError::Digest),
            (&long, ReferenceError::TooLong),
        ] {
            assert_eq!(text.parse::<ImageReference>(), Err(error), "{text}");
        }
        assert_eq!("r.example/a:1".parse::<PinnedImage>(), Err(ReferenceError::NotPinned));
        let pinned: PinnedImage = format!("r.example/a:1@{DIGEST}").parse().unwrap();
        assert_eq!(pinned.to_string(), format!("r.example/a@{DIGEST}"));
    }

    #[test] // rule 75
    fn image_is_covered_while_all_its_keys_are_trusted() {
        let keys = |numbers: &[u8]| -> Vec<TrustedKey> {
            let key = |number: &u8| TrustedKey { name: "key".to_owned(), key: PublicKey::Ed25519([*number; 32]) };
            numbers.iter().map(key).collect()
        };
        for (accepted, now, expected) in [
            (&[][..], &[][..], true),
            (&[], &[1], false),
            (&[1], &[], true),
            (&[1], &[1], true),
            (&[1], &[2], false),
            (&[1], &[1, 2], true),
            (&[1, 2], &[2, 1], true),
            (&[1, 2], &[2], false),
        ] {
            let image = format!("r.example/a@{DIGEST}").parse().unwrap();
            let source = ImageSource { image, pull_secrets: Vec::new(), keys: keys(accepted) };
            assert_eq!(source.is_covered_by(&keys(now)), expected, "{accepted:?} {now:?}");
        }
    }

    #[test] // rule 74
    fn loopback_is_this_machine_only() {
        for registry in ["localhost", "localhost:5000", "127.0.0.1", "127.1.2.3:80", "[::1]:5000"] {
            assert!(is_loopback(registry), "{registry}");
        }
        for registry in ["localhost.example", "10.0.0.1:5000", "[fd00::1]", "127.0.0.1.example:5000", "registry:5000"] {
            assert!(!is_loopback(registry), "{registry}");
        }
    }

    proptest! {
        #[test]
        fn parsed_references_read_the_same_and_are_safe_in_a_url(text in "\\PC{0,40}|[a-z.:/@_\\[\\]0-9-]{0,60}") {
            if let Ok(reference) = text.parse::<ImageReference>() {
                prop_assert_eq!(reference.to_string(), text);
                let path = reference.repository.path();
                prop_assert!(!path.contains("..") && !path.contains(['?', '#', '%', ' ', '\\', ':']), "{}", path);
                prop_assert!(!reference.repository.registry().contains(['/', '@', ' ']));
            }
        }
    }
}
