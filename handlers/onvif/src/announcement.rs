//! WS-Discovery: the probe, and the cameras that answer it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;
use std::net::IpAddr;

use crate::service_url::ServiceUrl;
use crate::soap::{self, SoapError};
use crate::xml::Element;

/// The group and port of WS-Discovery.
pub const GROUP: &str = "239.255.255.250";
/// See [`GROUP`].
pub const PORT: u16 = 3702;
/// The namespace ONVIF prescribes, and that of WS-Discovery 1.1, which some cameras use.
const DISCOVERY: [&str; 2] =
    ["http://schemas.xmlsoap.org/ws/2005/04/discovery", "http://docs.oasis-open.org/ws-dd/ns/discovery/2009/01"];
/// What ONVIF's devices are besides `NetworkVideoTransmitter`.
const DEVICE: &str = "{http://www.onvif.org/ver10/device/wsdl}Device";
/// Matches of one message that are read.
const MAX_MATCHES: usize = 64;
/// Scopes of one camera, and URLs.
const MAX_SCOPES: usize = 64;
/// See [`MAX_SCOPES`].
const MAX_URLS: usize = 8;
/// Bytes of a scope or of an endpoint reference.
const MAX_NAME: usize = 256;
/// Cameras of one round, and bytes of what is kept of them: whoever is on the network can send as many as they like.
const MAX_CAMERAS: usize = 4096;
/// See [`MAX_CAMERAS`].
const MAX_BYTES: usize = 16 << 20;

/// Why a reply, or a match in it, does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// No SOAP message.
    #[error(transparent)]
    Soap(#[from] SoapError),
    /// The match names no endpoint reference.
    #[error("a match has no endpoint reference")]
    NoReference,
    /// No URL, or none of use.
    #[error("a match has no URL of a device service")]
    NoUrl,
    /// More than is kept of a round.
    #[error("there are too many cameras")]
    TooMany,
}

/// A camera, as it presents itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Camera {
    /// Its endpoint reference, see [`uuid`].
    pub uuid: String,
    /// Empty if it does not say.
    pub scopes: Vec<String>,
    /// Grows whenever the camera's metadata changes.
    pub metadata_version: String,
    /// Where its device service is, the most promising first; at least one.
    pub urls: Vec<ServiceUrl>,
}

impl Camera {
    /// A camera answers more than once by specification, and from each of its interfaces maybe something else.
    fn merge(&mut self, other: Self) {
        self.metadata_version = other.metadata_version;
        add_missing(&mut self.urls, other.urls, MAX_URLS);
        add_missing(&mut self.scopes, other.scopes, MAX_SCOPES);
    }

    /// About how much memory it takes.
    fn bytes(&self) -> usize {
        let scopes: usize = self.scopes.iter().map(String::len).sum();
        let urls: usize = self.urls.iter().map(|url| url.to_string().len()).sum();
        self.uuid.len() + scopes + urls + 64 * (1 + self.scopes.len()) + 256 * self.urls.len()
    }
}

fn add_missing<T: PartialEq>(known: &mut Vec<T>, new: Vec<T>, max: usize) {
    for item in new {
        if known.len() < max && !known.contains(&item) {
            known.push(item);
        }
    }
}

/// A probe for network video transmitters (ONVIF Core 7.3, WS-Discovery 5.2).
pub fn probe(message_id: &str) -> String {
    let [discovery, _] = DISCOVERY;
    let addressing = |name: &str, value: &str| {
        format!("<a:{name} xmlns:a=\"http://schemas.xmlsoap.org/ws/2004/08/addressing\">{value}</a:{name}>")
    };
    let header = [
        addressing("MessageID", message_id),
        addressing("To", "urn:schemas-xmlsoap-org:ws:2005:04:discovery"),
        addressing("Action", &format!("{discovery}/Probe")),
    ];
    let body = format!(
        "<d:Probe xmlns:d=\"{discovery}\"><d:Types xmlns:dn=\"http://www.onvif.org/ver10/network/wsdl\">\
         dn:NetworkVideoTransmitter</d:Types></d:Probe>"
    );
    soap::envelope(&header.concat(), &body)
}

/// The cameras in a message that came from `sender`, or what is wrong with each. A message that is no answer to a probe
/// has none.
pub fn read(message: &[u8], sender: IpAddr) -> Vec<Result<Camera, ReplyError>> {
    let mut body = match soap::body(message) {
        Ok(body) => body,
        Err(error) => return vec![Err(error.into())],
    };
    let wrapped = body.children.iter_mut().filter(|child| child.name == "ProbeMatches");
    let wrapped: Vec<Element> = wrapped.flat_map(|matches| mem::take(&mut matches.children)).collect();
    // Some cameras leave the wrapper out.
    let matches = wrapped.iter().chain(&body.children).filter(|element| is_match(element));
    matches.filter(|found| is_camera(found)).take(MAX_MATCHES).map(|found| camera(found, sender)).collect()
}

fn is_match(element: &Element) -> bool {
    element.name == "ProbeMatch" && DISCOVERY.contains(&element.namespace.as_str())
}

/// Printers and the like may answer a probe that was not for them. One that does not say what it is may be a camera.
fn is_camera(found: &Element) -> bool {
    let Some(types) = found.text_at(&["Types"]) else { return true };
    types.split_whitespace().any(|name| name == DEVICE || name.ends_with("}NetworkVideoTransmitter"))
}

fn camera(found: &Element, sender: IpAddr) -> Result<Camera, ReplyError> {
    let reference = found.text_at(&["EndpointReference", "Address"]);
    let uuid = reference.and_then(uuid).ok_or(ReplyError::NoReference)?;
    let urls = found.text_at(&["XAddrs"]).unwrap_or_default().split_whitespace();
    let mut urls: Vec<ServiceUrl> =
        urls.filter_map(|text| ServiceUrl::announced(text, sender)).take(MAX_URLS).collect();
    urls.sort_by_key(|url| url.rank(sender));
    if urls.is_empty() {
        return Err(ReplyError::NoUrl);
    }
    let metadata_version = found.text_at(&["MetadataVersion"]).unwrap_or_default();
    let metadata_version = metadata_version.chars().take(20).collect();
    Ok(Camera { uuid, scopes: scopes(found.text_at(&["Scopes"]).unwrap_or_default()), metadata_version, urls })
}

/// Scopes of a camera: a list of URIs with white space between them.
pub fn scopes(list: &str) -> Vec<String> {
    let scopes = list.split_whitespace().filter(|scope| scope.len() <= MAX_NAME);
    scopes.take(MAX_SCOPES).map(str::to_owned).collect()
}

/// What an endpoint reference is known by, as for Akri: without `urn:` and `uuid:` before it, in lower case. None if it
/// is empty, longer than 256 bytes, or no word.
pub fn uuid(reference: &str) -> Option<String> {
    let lower = reference.trim().to_ascii_lowercase();
    let lower = lower.strip_prefix("urn:").unwrap_or(&lower);
    let lower = lower.strip_prefix("uuid:").unwrap_or(lower);
    let is_word = !lower.contains(|c: char| c.is_whitespace() || c.is_control());
    let is_name = !lower.is_empty() && lower.len() <= MAX_NAME && is_word;
    is_name.then(|| lower.to_owned())
}

/// All cameras that answered, each once.
#[derive(Debug, Default)]
pub struct Answers {
    cameras: BTreeMap<String, Camera>,
    bytes: usize,
    /// Replies that did not count, and what was wrong with the last.
    pub skipped: usize,
    /// See `skipped`.
    pub fault: Option<ReplyError>,
}

impl Answers {
    /// Takes one datagram in.
    pub fn add(&mut self, message: &[u8], sender: IpAddr) {
        for found in read(message, sender) {
            if let Err(error) = found.and_then(|camera| self.add_camera(camera)) {
                self.skipped += 1;
                self.fault = Some(error);
            }
        }
    }

    /// In ascending order of UUID.
    pub fn cameras(&self) -> impl Iterator<Item = &Camera> {
        self.cameras.values()
    }

    /// Whether a camera answered.
    pub fn contains(&self, uuid: &str) -> bool {
        self.cameras.contains_key(uuid)
    }

    fn add_camera(&mut self, camera: Camera) -> Result<(), ReplyError> {
        let is_full = self.cameras.len() == MAX_CAMERAS && !self.contains(&camera.uuid);
        if is_full || self.bytes > MAX_BYTES {
            return Err(ReplyError::TooMany);
        }
        self.bytes += camera.bytes();
        match self.cameras.entry(camera.uuid.clone()) {
            Entry::Vacant(free) => _ = free.insert(camera),
            Entry::Occupied(known) => known.into_mut().merge(camera),
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "announcement_tests.rs"]
mod tests;
