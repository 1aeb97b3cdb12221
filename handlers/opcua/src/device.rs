//! Conversion of a server that responded to a device.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sha1::{Digest as _, Sha1};

use crate::candidate::Candidate;
use crate::message::{Application, Endpoint};
use crate::url::Url;

/// The property with the server's URL, the only one of upstream Akri.
const URL: &str = "OPCUA_DISCOVERY_URL";

/// Limit on a property's text, in bytes; the host refuses longer ones.
const MAX_TEXT: usize = 4096;

/// Maximum number of security policies; the specification has nine.
const MAX_POLICIES: usize = 32;

/// Limit on the name of a security policy, in bytes.
const MAX_POLICY: usize = 64;

/// A device. Of two with one id the one with the lower origin comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The application URI, or the URL if there is none or servers are identified by it.
    pub id: String,
    /// The index of the discovery URL in the details.
    pub origin: usize,
    /// Set if the server lists itself, and nothing else, at that discovery URL.
    pub lists_itself: bool,
    /// The properties, as environment variables.
    pub properties: Vec<(&'static str, String)>,
}

impl Device {
    /// Returns the URL of the server.
    pub fn url(&self) -> &str {
        self.properties.iter().find(|(name, _)| *name == URL).map(|(_, url)| url.as_str()).unwrap_or_default()
    }

    /// Returns the size of its texts in bytes.
    pub fn size(&self) -> usize {
        self.properties.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() + self.id.len()
    }
}

/// Returns the device of a candidate at a URL, with its own endpoints there if it reports them.
///
/// Its origin is the first discovery URL that lists it. If that one is lost, the next one takes its place in the same
/// round. A server that answers at a discovery URL that lists nothing else is its own list.
pub fn device(candidate: &Candidate, url: &Url, endpoints: &[&Endpoint]) -> Device {
    let (listed, unknown) = (&candidate.application, Application::default());
    let own = endpoints.first().map_or(&unknown, |endpoint| &endpoint.server);
    let uri = first_text([&listed.uri, &own.uri]);
    let tokens: BTreeSet<i32> = endpoints.iter().flat_map(|endpoint| endpoint.user_tokens.iter().copied()).collect();
    let tokens: Vec<&str> = tokens.into_iter().filter_map(token_type).collect();
    let properties = [
        (URL, url.to_string()),
        ("OPCUA_APPLICATION_NAME", first_text([&listed.name, &own.name])),
        ("OPCUA_APPLICATION_URI", uri.clone()),
        ("OPCUA_PRODUCT_URI", first_text([&listed.product_uri, &own.product_uri])),
        ("OPCUA_SERVER_CERTIFICATE_THUMBPRINT", thumbprint(endpoints).unwrap_or_default()),
        ("OPCUA_SECURITY_POLICIES", policies(endpoints).join(",")),
        ("OPCUA_USER_TOKEN_TYPES", tokens.join(",")),
    ];
    Device {
        id: match &candidate.url {
            Some(identity) => identity.clone(),
            None if uri.is_empty() => url.to_string(),
            None => uri,
        },
        origin: candidate.origins.first().copied().unwrap_or_default(), // there is one: someone lists it
        lists_itself: candidate.sole_entry_at() == Some(url),
        properties: properties.into_iter().filter(|(_, value)| !value.is_empty()).collect(),
    }
}

fn first_text(texts: [&String; 2]) -> String {
    let text = texts.into_iter().find(|text| !text.is_empty()).map(String::as_str).unwrap_or_default();
    text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default().to_owned()
}

/// Returns the names of the policies, such as `None` and `Basic256Sha256`, in ascending order.
fn policies(endpoints: &[&Endpoint]) -> Vec<String> {
    let name = |endpoint: &&Endpoint| {
        let uri = &endpoint.security_policy;
        let name = uri.rsplit_once('#').map_or(uri.as_str(), |(_, name)| name);
        let is_name = (1..=MAX_POLICY).contains(&name.len()) && !name.contains(',');
        is_name.then(|| name.to_owned())
    };
    let names: BTreeSet<String> = endpoints.iter().filter_map(name).collect();
    names.into_iter().take(MAX_POLICIES).collect()
}

/// Returns the name of a UserTokenType (OPC 10000-4 §7.43).
fn token_type(number: i32) -> Option<&'static str> {
    match number {
        0 => Some("Anonymous"),
        1 => Some("UserName"),
        2 => Some("Certificate"),
        3 => Some("IssuedToken"),
        _ => None,
    }
}

/// Returns the SHA-1 thumbprint of the server's certificate in hexadecimal. OPC UA uses it as a name, not as a proof
/// (OPC 10000-6 §6.7.2.3). All endpoints of a server have the same certificate, or none.
fn thumbprint(endpoints: &[&Endpoint]) -> Option<String> {
    let chain = endpoints.iter().map(|endpoint| endpoint.certificate.as_slice()).find(|chain| !chain.is_empty())?;
    let digest = Sha1::digest(leaf(chain).unwrap_or(chain));
    Some(digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
        text
    }))
}

/// Returns the first certificate of a chain, by its DER length (X.690 §8.1.3).
fn leaf(chain: &[u8]) -> Option<&[u8]> {
    let (&first, rest) = chain.get(1..)?.split_first()?;
    let (length, behind) = match first {
        0..=0x7f => (usize::from(first), 2),
        _ => {
            let octets = rest.get(..usize::from(first & 0x7f)).filter(|octets| (1..=4).contains(&octets.len()))?;
            (octets.iter().fold(0, |length, octet| length << 8 | usize::from(*octet)), 2 + octets.len())
        }
    };
    chain.get(..length.checked_add(behind)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::{List, candidates};
    use crate::details::IdentifyBy;

    fn candidate(application: Application) -> Candidate {
        let discovery_urls = vec!["opc.tcp://192.0.2.1:4841/".to_owned()];
        let lists = [1, 3].map(|origin| {
            let applications = vec![Application { discovery_urls: discovery_urls.clone(), ..application.clone() }];
            List { origin, url: url(), applications }
        });
        candidates(lists.into(), None, IdentifyBy::ApplicationUri).remove(0)
    }

    fn url() -> Url {
        "opc.tcp://192.0.2.1:4841/".parse().unwrap()
    }

    fn property<'d>(device: &'d Device, name: &str) -> Option<&'d str> {
        device.properties.iter().find(|(of, _)| *of == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn device_has_all_values_of_its_server() {
        let application = Application {
            uri: "urn:a".into(),
            product_uri: "urn:product".into(),
            name: "A".into(),
            ..Application::default()
        };
        let policy = "http://opcfoundation.org/UA/SecurityPolicy#";
        let endpoint = |name: &str, user_tokens: &[i32]| Endpoint {
            security_policy: format!("{policy}{name}"),
            user_tokens: user_tokens.to_vec(),
            certificate: b"\x30\x03abc\x30\x01d".to_vec(),
            ..Endpoint::default()
        };
        let endpoints = [endpoint("None", &[1, 0]), endpoint("Basic256Sha256", &[2, 0]), endpoint("None", &[7])];
        let device = device(&candidate(application), &url(), &endpoints.each_ref());
        assert_eq!((device.id.as_str(), device.origin), ("urn:a", 1));
        // printf '0\003abc' | sha1sum
        let thumbprint = "fb81716e387a08e37bbe2c9def07e19722cd0448";
        let expected = [
            ("OPCUA_DISCOVERY_URL", "opc.tcp://192.0.2.1:4841/"),
            ("OPCUA_APPLICATION_NAME", "A"),
            ("OPCUA_APPLICATION_URI", "urn:a"),
            ("OPCUA_PRODUCT_URI", "urn:product"),
            ("OPCUA_SERVER_CERTIFICATE_THUMBPRINT", thumbprint),
            ("OPCUA_SECURITY_POLICIES", "Basic256Sha256,None"),
            ("OPCUA_USER_TOKEN_TYPES", "Anonymous,UserName,Certificate"),
        ];
        assert_eq!(device.properties, expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn server_fills_gaps_of_the_discovery_server() {
        let server = Application { uri: "urn:own".into(), name: "Own".into(), ..Application::default() };
        let endpoint = Endpoint { server, ..Endpoint::default() };
        let found = device(&candidate(Application::default()), &url(), &[&endpoint]);
        assert_eq!((found.id.as_str(), property(&found, "OPCUA_APPLICATION_NAME")), ("urn:own", Some("Own")));
        let nameless = Endpoint::default();
        let found = device(&candidate(Application::default()), &url(), &[&nameless]);
        assert_eq!(found.id, "opc.tcp://192.0.2.1:4841/");
        assert_eq!(found.properties, [("OPCUA_DISCOVERY_URL", found.id.clone())], "what nobody knows is absent");
    }

    #[test]
    fn silent_server_has_its_listed_values() {
        let listed = Application { uri: "urn:a".into(), name: "A".into(), ..Application::default() };
        let found = device(&candidate(listed), &url(), &[]);
        let expected = [
            ("OPCUA_DISCOVERY_URL", "opc.tcp://192.0.2.1:4841/"),
            ("OPCUA_APPLICATION_NAME", "A"),
            ("OPCUA_APPLICATION_URI", "urn:a"),
        ];
        assert_eq!(found.properties, expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn long_values_are_truncated() {
        let name = "é".repeat(4000);
        let endpoints: Vec<Endpoint> = (0..100)
            .map(|n| Endpoint { security_policy: format!("#{n:0>width$}", width = 60 + n % 9), ..Endpoint::default() })
            .collect();
        let endpoints: Vec<&Endpoint> = endpoints.iter().collect();
        let found = device(&candidate(Application { name, ..Application::default() }), &url(), &endpoints);
        assert!(found.properties.iter().all(|(_, value)| value.len() <= MAX_TEXT));
        let policies = property(&found, "OPCUA_SECURITY_POLICIES").unwrap();
        assert_eq!(policies.split(',').count(), MAX_POLICIES);
    }

    #[test]
    fn leaf_is_the_first_certificate_of_a_chain() {
        let long = [b"\x30\x82\x01\x00".as_slice(), &[7; 256]].concat();
        for (chain, expected) in [
            (b"\x30\x00".as_slice(), Some(b"\x30\x00".as_slice())),
            (b"\x30\x01a\x30\x01b", Some(b"\x30\x01a")),
            (&[long.as_slice(), b"more"].concat(), Some(long.as_slice())),
            (b"", None),
            (b"\x30", None),
            (b"\x30\x05a", None),
            (b"\x30\x80a", None),
            (b"\x30\x85\x01\x01\x01\x01\x01a", None),
            (b"\x30\x84\xff\xff\xff\xffa", None),
        ] {
            assert_eq!(leaf(chain), expected, "{chain:?}");
        }
    }
}
