//! The discovery services: encoding of requests and parsing of responses (OPC 10000-4 §5.5 and §5.6, OPC 10000-6 §5.2).

use std::time::{SystemTime, UNIX_EPOCH};

use crate::binary::{self, Reader, Writer};
use crate::status::Status;

/// Numbers of the binary encodings (OPC 10000-6 annex A.3).
mod id {
    pub(super) const SERVICE_FAULT: u32 = 397;
    pub(super) const FIND_SERVERS_REQUEST: u16 = 422;
    pub(super) const FIND_SERVERS_RESPONSE: u32 = 425;
    pub(super) const GET_ENDPOINTS_REQUEST: u16 = 428;
    pub(super) const GET_ENDPOINTS_RESPONSE: u32 = 431;
    pub(super) const OPEN_SECURE_CHANNEL_REQUEST: u16 = 446;
    pub(super) const OPEN_SECURE_CHANNEL_RESPONSE: u32 = 449;
    pub(super) const CLOSE_SECURE_CHANNEL_REQUEST: u16 = 452;
}

/// Maximum number of applications per discovery server: the maximum number of devices of a round.
pub const MAX_APPLICATIONS: usize = 4096;

/// Maximum number of endpoints per server. Seven are usual: three policies, signed or also encrypted, and none.
pub const MAX_ENDPOINTS: usize = 1024;

/// Maximum number of URLs read per application.
const MAX_URLS: usize = 8;

/// Seconds from 1601, where OPC UA's time begins, to 1970.
const EPOCH: u64 = 11_644_473_600;

/// The requested lifetime of a channel. Seconds would do; some servers refuse less than a minute.
const LIFETIME_MS: u32 = 60_000;

/// The requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The known applications, with URLs for clients of its URL.
    FindServers,
    /// The known applications, with their registered URLs.
    FindServersAnywhere,
    /// The endpoints of the server itself.
    GetEndpoints,
}

impl Question {
    /// Returns the limit on the response, in bytes. At 400 bytes for a server and 5 KiB for an endpoint with its
    /// certificate, that is 2,600 servers or 100 endpoints; the memory of a round holds many of them.
    pub fn max_response(self) -> u32 {
        match self {
            Self::FindServers | Self::FindServersAnywhere => 1024 * 1024,
            Self::GetEndpoints => 512 * 1024,
        }
    }

    /// Returns the request to the server at a URL.
    pub fn request(self, url: &str, now: SystemTime) -> Vec<u8> {
        let id = match self {
            Self::FindServers | Self::FindServersAnywhere => id::FIND_SERVERS_REQUEST,
            Self::GetEndpoints => id::GET_ENDPOINTS_REQUEST,
        };
        let mut writer = request(id, now);
        match self {
            Self::FindServersAnywhere => writer.null(),
            _ => writer.string(url),
        };
        writer.null().null(); // any language; all servers or all transport profiles
        writer.into_bytes()
    }
}

/// The reason why a response is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are no message.
    #[error("its response can't be read: {0}")]
    Malformed(#[from] binary::Error),
    /// The server returned a fault.
    #[error("it answers {0}")]
    Fault(Status),
    /// Another message, with the number of its type.
    #[error("it answers with another message{}", .0.map(|id| format!(" (type {id})")).unwrap_or_default())]
    Unexpected(Option<u32>),
    /// Too many elements.
    #[error("it lists {count} {what} (at most {most})")]
    TooMany {
        /// The kind of elements.
        what: &'static str,
        /// The number in the message.
        count: usize,
        /// The limit.
        most: usize,
    },
}

/// An ApplicationDescription (OPC 10000-4 §7.2).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Application {
    /// The application URI, globally unique by the specification.
    pub uri: String,
    /// The URI of the product.
    pub product_uri: String,
    /// The name.
    pub name: String,
    /// The type.
    pub kind: ApplicationType,
    /// The discovery URLs.
    pub discovery_urls: Vec<String>,
}

impl Application {
    /// Returns the approximate memory use in bytes.
    pub fn size(&self) -> usize {
        let texts = [&self.uri, &self.product_uri, &self.name].into_iter().chain(&self.discovery_urls);
        size_of::<Self>() + texts.map(|text| size_of::<String>() + text.len()).sum::<usize>()
    }
}

/// An ApplicationType (OPC 10000-4 §7.4).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ApplicationType {
    /// A server.
    #[default]
    Server,
    /// A client.
    Client,
    /// Both.
    ClientAndServer,
    /// A discovery server.
    DiscoveryServer,
    /// An unknown type.
    Other(i32),
}

/// The used part of an EndpointDescription (OPC 10000-4 §7.14).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// The URL, as the server sees itself.
    pub url: String,
    /// The server.
    pub server: Application,
    /// The server's certificate in DER, possibly followed by those of its issuers; empty if it has none.
    pub certificate: Vec<u8>,
    /// The URI of the security policy.
    pub security_policy: String,
    /// The UserTokenTypes, by number.
    pub user_tokens: Vec<i32>,
}

/// The ids of an open channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// SecureChannelId.
    pub channel: u32,
    /// TokenId.
    pub token: u32,
}

/// Returns OpenSecureChannel with SecurityMode None, which suffices for discovery and needs no certificates.
pub fn open_secure_channel(now: SystemTime) -> Vec<u8> {
    let mut writer = request(id::OPEN_SECURE_CHANNEL_REQUEST, now);
    writer.u32(0); // protocol version
    writer.u32(0); // issue a token, renew none
    writer.u32(1); // security mode None
    writer.null(); // no nonce
    writer.u32(LIFETIME_MS);
    writer.into_bytes()
}

/// Returns CloseSecureChannel, which has no response.
pub fn close_secure_channel(now: SystemTime) -> Vec<u8> {
    request(id::CLOSE_SECURE_CHANNEL_REQUEST, now).into_bytes()
}

/// Returns a message up to the end of its RequestHeader (OPC 10000-4 §7.32).
fn request(id: u16, now: SystemTime) -> Writer {
    let mut writer = Writer::default();
    writer.node_id(id);
    writer.raw(&[0, 0]); // authentication token: null, there is no session
    writer.i64(date_time(now));
    writer.u32(0).u32(0); // request handle; diagnostics: none
    writer.null(); // audit entry
    writer.u32(0); // timeout hint: none
    writer.raw(&[0, 0, 0]); // additional header: null
    writer
}

/// Converts to a DateTime: 100 ns since 1601; 0 means unknown (OPC 10000-6 §5.2.2.5).
fn date_time(time: SystemTime) -> i64 {
    let since_1970 = time.duration_since(UNIX_EPOCH).map(|since| since.as_nanos() / 100).unwrap_or_default();
    i64::try_from(since_1970 + u128::from(EPOCH) * 10_000_000).unwrap_or_default()
}

/// Parses an OpenSecureChannelResponse.
///
/// # Errors
/// If it is another message or invalid.
pub fn read_token(response: &[u8]) -> Result<Token, Error> {
    let mut reader = open(response, id::OPEN_SECURE_CHANNEL_RESPONSE)?;
    reader.u32()?; // protocol version
    Ok(Token { channel: reader.u32()?, token: reader.u32()? })
}

/// Parses a FindServersResponse.
///
/// # Errors
/// If it is another message, invalid, or lists more than [`MAX_APPLICATIONS`].
pub fn read_applications(response: &[u8]) -> Result<Vec<Application>, Error> {
    let mut reader = open(response, id::FIND_SERVERS_RESPONSE)?;
    let count = bounded(reader.count(25)?, MAX_APPLICATIONS, "applications")?;
    (0..count).map(|_| application(&mut reader).map_err(Error::from)).collect()
}

/// Parses a GetEndpointsResponse.
///
/// # Errors
/// If it is another message, invalid, or lists more than [`MAX_ENDPOINTS`].
pub fn read_endpoints(response: &[u8]) -> Result<Vec<Endpoint>, Error> {
    let mut reader = open(response, id::GET_ENDPOINTS_RESPONSE)?;
    let count = bounded(reader.count(50)?, MAX_ENDPOINTS, "endpoints")?;
    (0..count).map(|_| endpoint(&mut reader).map_err(Error::from)).collect()
}

/// Parses type and ResponseHeader of a response (OPC 10000-4 §7.33).
fn open(response: &[u8], expected: u32) -> Result<Reader<'_>, Error> {
    let mut reader = Reader::new(response);
    let id = reader.node_id()?;
    if id != Some(expected) && id != Some(id::SERVICE_FAULT) {
        return Err(Error::Unexpected(id));
    }
    reader.take(12)?; // timestamp, request handle
    let status = Status(reader.u32()?);
    if status.is_bad() {
        return Err(Error::Fault(status));
    }
    if id != Some(expected) {
        return Err(Error::Unexpected(id)); // a fault that says all is well
    }
    reader.skip_diagnostic_info()?;
    for _ in 0..reader.count(4)? {
        reader.byte_string()?; // the table of strings for the diagnostics
    }
    reader.skip_extension_object()?;
    Ok(reader)
}

fn bounded(count: usize, most: usize, what: &'static str) -> Result<usize, Error> {
    if count <= most { Ok(count) } else { Err(Error::TooMany { what, count, most }) }
}

fn application(reader: &mut Reader<'_>) -> Result<Application, binary::Error> {
    let (uri, product_uri, name) = (reader.string()?, reader.string()?, reader.localized_text()?);
    let kind = match reader.i32()? {
        0 => ApplicationType::Server,
        1 => ApplicationType::Client,
        2 => ApplicationType::ClientAndServer,
        3 => ApplicationType::DiscoveryServer,
        other => ApplicationType::Other(other),
    };
    reader.byte_string()?; // the gateway it is behind
    reader.byte_string()?; // the profile of its discovery URLs
    Ok(Application { uri, product_uri, name, kind, discovery_urls: discovery_urls(reader)? })
}

/// Returns the first URLs: a null in the list takes 4 bytes of a message, and six times as much of memory.
fn discovery_urls(reader: &mut Reader<'_>) -> Result<Vec<String>, binary::Error> {
    let count = reader.count(4)?;
    let urls = (0..count.min(MAX_URLS)).map(|_| reader.string()).collect::<Result<_, _>>()?;
    for _ in MAX_URLS..count {
        reader.byte_string()?;
    }
    Ok(urls)
}

fn endpoint(reader: &mut Reader<'_>) -> Result<Endpoint, binary::Error> {
    let (url, server, certificate) = (reader.string()?, application(reader)?, reader.byte_string()?.to_vec());
    reader.i32()?; // security mode
    let security_policy = reader.string()?;
    let user_tokens = (0..reader.count(20)?).map(|_| user_token(reader)).collect::<Result<_, _>>()?;
    reader.byte_string()?; // transport profile
    reader.u8()?; // security level
    Ok(Endpoint { url, server, certificate, security_policy, user_tokens })
}

/// Returns the UserTokenType of a UserTokenPolicy (OPC 10000-4 §7.42).
fn user_token(reader: &mut Reader<'_>) -> Result<i32, binary::Error> {
    reader.byte_string()?; // its id
    let kind = reader.i32()?;
    for _ in 0..3 {
        reader.byte_string()?; // issued token type, issuer, security policy
    }
    Ok(kind)
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
