//! WS-Discovery: the probe, and the responses of cameras.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;
use std::net::IpAddr;

use crate::inquiry::MAX_TRIED;
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
/// The type of ONVIF devices that do not announce `NetworkVideoTransmitter`.
const DEVICE: &str = "{http://www.onvif.org/ver10/device/wsdl}Device";
/// Limit on the matches of one message.
const MAX_MATCHES: usize = 64;
/// Limit on the scopes of one camera.
const MAX_SCOPES: usize = 64;
/// Limit on the URLs of one camera.
const MAX_URLS: usize = 8;
/// Limit on a scope or an endpoint reference, in bytes.
const MAX_NAME: usize = 256;
/// Limit on the cameras of one round: any host on the network can send responses.
const MAX_CAMERAS: usize = 4096;
/// Limit on the memory for the cameras of one round, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// Limit on the cameras that one host announces, such as a recorder: it must not take the room of others.
const MAX_CAMERAS_OF_ONE: usize = 256;
/// Limit on the memory for them, in bytes.
const MAX_BYTES_OF_ONE: usize = 1 << 20;

/// The reason for skipping a response or a match in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// Not a SOAP message.
    #[error(transparent)]
    Soap(#[from] SoapError),
    /// The match has no endpoint reference.
    #[error("a match has no endpoint reference")]
    NoReference,
    /// The match has no usable URL.
    #[error("a match has no URL of a device service")]
    NoUrl,
    /// A limit of the round is reached.
    #[error("there are too many cameras")]
    TooMany,
}

/// A camera as announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Camera {
    /// The endpoint reference, see [`uuid`].
    pub uuid: String,
    /// The scopes; empty if there are none.
    pub scopes: Vec<String>,
    /// The metadata version, which changes with the camera's metadata.
    pub metadata_version: String,
    /// The URLs of the device service, the most promising first; at least one.
    pub urls: Vec<ServiceUrl>,
    /// The first of them at the address that answered the probe, unless that address is announced.
    pub answered: Option<ServiceUrl>,
}

impl Camera {
    /// Returns the URLs to try: announced ones, and last the address that answered the probe. The one that was used before, if
    /// it is still announced, comes first: which of a camera's interfaces answers a probe first is chance.
    pub fn tried(&self, before: &str) -> Vec<&ServiceUrl> {
        let announced = MAX_TRIED - usize::from(self.answered.is_some());
        let known = self.urls.iter().find(|url| url.to_string() == before);
        let others = self.urls.iter().take(announced).chain(&self.answered).filter(|url| Some(*url) != known);
        known.into_iter().chain(others).take(MAX_TRIED).collect()
    }

    /// Merges another response. A camera responds repeatedly by specification, and possibly differently on each of its
    /// interfaces.
    fn merge(&mut self, other: Self) {
        self.metadata_version = other.metadata_version;
        self.answered = self.answered.take().or(other.answered);
        add_missing(&mut self.urls, other.urls, MAX_URLS);
        add_missing(&mut self.scopes, other.scopes, MAX_SCOPES);
    }

    /// Returns the approximate memory use in bytes.
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

/// Returns a probe for network video transmitters (ONVIF Core 7.3, WS-Discovery 5.2).
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

/// Returns the cameras in a message from `sender`, or the errors of its matches. Other messages contain none.
pub fn read(message: &[u8], sender: IpAddr) -> Vec<Result<Camera, ReplyError>> {
    let mut body = match soap::body(message) {
        Ok(body) => body,
        Err(error) => return vec![Err(error.into())],
    };
    let wrapped = body.children.iter_mut().filter(|child| child.name == "ProbeMatches");
    let wrapped: Vec<Element> = wrapped.flat_map(|matches| mem::take(&mut matches.children)).collect();
    // Some cameras omit the wrapper.
    let matches = wrapped.iter().chain(&body.children).filter(|element| is_match(element));
    matches.filter(|found| is_camera(found)).take(MAX_MATCHES).map(|found| camera(found, sender)).collect()
}

fn is_match(element: &Element) -> bool {
    element.name == "ProbeMatch" && DISCOVERY.contains(&element.namespace.as_str())
}

/// Returns whether a match is a camera. Printers and similar devices respond to any probe; a match without types may be
/// a camera.
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
    let Some(first) = urls.first() else { return Err(ReplyError::NoUrl) };
    let is_announced = urls.iter().any(|url| url.ip() == Some(sender));
    let answered = if is_announced { None } else { first.at(sender) };
    let metadata_version = found.text_at(&["MetadataVersion"]).unwrap_or_default();
    let metadata_version = metadata_version.chars().take(20).collect();
    Ok(Camera {
        uuid,
        scopes: scopes(found.text_at(&["Scopes"]).unwrap_or_default()),
        metadata_version,
        urls,
        answered,
    })
}

/// Parses a list of scopes: URIs separated by white space.
pub fn scopes(list: &str) -> Vec<String> {
    let scopes = list.split_whitespace().filter(|scope| scope.len() <= MAX_NAME);
    scopes.take(MAX_SCOPES).map(str::to_owned).collect()
}

/// Returns an endpoint reference as Akri identifies cameras: without `urn:` and `uuid:`, in lower case. `None` if it is
/// empty, longer than 256 bytes or contains white space.
pub fn uuid(reference: &str) -> Option<String> {
    let lower = reference.trim().to_ascii_lowercase();
    let lower = lower.strip_prefix("urn:").unwrap_or(&lower);
    let lower = lower.strip_prefix("uuid:").unwrap_or(lower);
    let is_word = !lower.contains(|c: char| c.is_whitespace() || c.is_control());
    let is_name = !lower.is_empty() && lower.len() <= MAX_NAME && is_word;
    is_name.then(|| lower.to_owned())
}

/// The cameras that responded, each once.
#[derive(Debug, Default)]
pub struct Answers {
    cameras: BTreeMap<String, Camera>,
    bytes: usize,
    /// The number of cameras that each host was the first to announce, and the memory for all that it announced.
    senders: BTreeMap<IpAddr, (usize, usize)>,
    /// Number of skipped responses.
    pub skipped: usize,
    /// The error of the last skipped response.
    pub fault: Option<ReplyError>,
}

impl Answers {
    /// Adds one datagram.
    pub fn add(&mut self, message: &[u8], sender: IpAddr) {
        for found in read(message, sender) {
            if let Err(error) = found.and_then(|camera| self.add_camera(camera, sender)) {
                self.skipped += 1;
                self.fault = Some(error);
            }
        }
    }

    /// Returns the cameras in ascending order of UUID.
    pub fn cameras(&self) -> impl Iterator<Item = &Camera> {
        self.cameras.values()
    }

    /// Returns whether a camera responded.
    pub fn contains(&self, uuid: &str) -> bool {
        self.cameras.contains_key(uuid)
    }

    fn add_camera(&mut self, camera: Camera, sender: IpAddr) -> Result<(), ReplyError> {
        let is_new = !self.contains(&camera.uuid);
        let (cameras, bytes) = self.senders.get(&sender).copied().unwrap_or_default();
        let is_full = self.cameras.len() == MAX_CAMERAS || cameras == MAX_CAMERAS_OF_ONE;
        if is_new && is_full || self.bytes > MAX_BYTES || bytes > MAX_BYTES_OF_ONE {
            return Err(ReplyError::TooMany);
        }
        self.bytes += camera.bytes();
        self.senders.insert(sender, (cameras + usize::from(is_new), bytes + camera.bytes()));
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
