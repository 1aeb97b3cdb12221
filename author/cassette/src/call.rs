//! The calls that a cassette holds: those whose answer comes from outside of the host.

use std::net::{IpAddr, SocketAddr};

use akri_model::secret_scanner::SecretScanner;
use akri_model::text::clean;
use akri_node::sysfs::Snapshot;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::form;
use crate::payload::Payload;

/// Microseconds since the round began.
pub(crate) type Micros = u64;

/// Declares the calls, each with its name in a cassette and the import that it is one of, in two forms: a call in a cassette has its
/// name beside its arguments, which is how it is written. It is read from `{NAME: ARGUMENTS}`, since serde names the wrong argument
/// there only.
macro_rules! calls {
    ($($(#[$doc:meta])* $call:ident = $name:literal of $import:literal { $($fields:tt)* })*) => {
        /// A call with its arguments and its result.
        #[serde_with::skip_serializing_none]
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(tag = "call")]
        pub(crate) enum Recorded { $($(#[$doc])* #[serde(rename = $name)] $call { $($fields)* },)* }

        #[derive(Deserialize)]
        #[serde(remote = "Recorded", deny_unknown_fields)]
        enum ByName { $(#[serde(rename = $name)] $call { $($fields)* },)* }

        impl Recorded {
            /// The name of the call in a cassette, and the import that it is one of.
            pub(crate) fn import(&self) -> (&'static str, &'static str) {
                match self { $(Self::$call { .. } => ($name, $import),)* }
            }
        }
    };
}

/// A recorded call with its place and its time.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RecordedCall {
    /// The line in the file; 0 if it is in none yet.
    #[serde(skip)]
    pub(crate) line: usize,
    #[serde(flatten)]
    pub(crate) call: Recorded,
    /// The time at which the result was there.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) at: Micros,
}

/// A call that is read from `{NAME: ARGUMENTS}`.
#[derive(Deserialize)]
pub(crate) struct NamedCall(#[serde(with = "ByName")] pub(crate) Recorded);

calls! {
    UdevRun = "udev.run" of "akri:discovery/udev" {
        query: Option<Value>,
        snapshot: Option<Snapshot>,
        error: Option<Refused>,
    }
    /// A secret that was refused. What is granted is in the head of the round.
    SecretRefused = "secrets.get" of "akri:discovery/secrets" {
        name: String,
        error: Refused,
    }
    MulticastOpen = "multicast.open" of "akri:discovery/multicast" {
        conversation: u32,
        group: String,
        port: u16,
        error: Option<Refused>,
    }
    MulticastSend = "multicast.send" of "akri:discovery/multicast" {
        conversation: u32,
        payload: Payload,
        error: Option<Refused>,
    }
    MulticastReceive = "multicast.receive" of "akri:discovery/multicast" {
        conversation: u32,
        datagrams: Vec<ReceivedDatagram>,
    }
    NamesResolve = "names.resolve" of "wasi:sockets/ip-name-lookup" {
        name: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<IpAddr>,
        error: Option<String>,
        /// Set if there was no answer until the handler gave up.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        silent: bool,
    }
    /// A socket that was refused while so many were open. Others are in the calls that use them.
    TcpSocketRefused = "tcp.socket" of "wasi:sockets/tcp-create-socket" {
        #[serde(default)]
        open: usize,
        error: String,
    }
    UdpSocketRefused = "udp.socket" of "wasi:sockets/udp-create-socket" {
        #[serde(default)]
        open: usize,
        error: String,
    }
    TcpConnect = "tcp.connect" of "wasi:sockets/tcp" {
        socket: u32,
        #[serde(deserialize_with = "form::address")]
        to: SocketAddr,
        error: Option<String>,
        /// Set if nobody answered until the handler gave up.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        silent: bool,
    }
    TcpSend = "tcp.send" of "wasi:io/streams" {
        socket: u32,
        bytes: Payload,
    }
    /// Bytes, or the end, or an error.
    TcpReceive = "tcp.receive" of "wasi:io/streams" {
        socket: u32,
        #[serde(default, skip_serializing_if = "Payload::is_empty")]
        bytes: Payload,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        end: bool,
        error: Option<String>,
    }
    UdpSend = "udp.send" of "wasi:sockets/udp" {
        socket: u32,
        #[serde(default, deserialize_with = "form::optional_address", skip_serializing_if = "Option::is_none")]
        to: Option<SocketAddr>,
        bytes: Payload,
        error: Option<String>,
    }
    UdpReceive = "udp.receive" of "wasi:sockets/udp" {
        socket: u32,
        #[serde(deserialize_with = "form::address")]
        from: SocketAddr,
        bytes: Payload,
    }
    HttpRequest = "http.request" of "wasi:http/outgoing-handler" {
        request: Request,
        response: Option<Response>,
        error: Option<String>,
        /// Set if there was no answer until the handler gave up.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        silent: bool,
    }
}

fn is_zero(at: &Micros) -> bool {
    *at == 0
}

/// An HTTP request. Headers or a body that are left out may be any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) uri: String,
    #[serde(default, deserialize_with = "form::optional_headers", skip_serializing_if = "Option::is_none")]
    pub(crate) headers: Option<Vec<(String, Payload)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<Payload>,
}

/// Its response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Response {
    pub(crate) status: u16,
    #[serde(default, deserialize_with = "form::headers", skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<(String, Payload)>,
    #[serde(default, skip_serializing_if = "Payload::is_empty")]
    pub(crate) body: Payload,
}

impl Response {
    /// Returns its status and headers.
    ///
    /// # Errors
    /// If no response can have them.
    pub(crate) fn head(&self) -> Result<(StatusCode, HeaderMap), String> {
        let status = StatusCode::from_u16(self.status).map_err(|_| format!("{} is no HTTP status", self.status))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let wrong = || format!("'{}' is no HTTP header", clean(name, 64));
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            headers.append(name, HeaderValue::from_bytes(&value.0).map_err(|_| wrong())?);
        }
        Ok((status, headers))
    }
}

/// A datagram to a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceivedDatagram {
    #[serde(deserialize_with = "form::address")]
    pub(crate) from: SocketAddr,
    #[serde(default)]
    pub(crate) interface: String,
    pub(crate) payload: Payload,
}

/// The error of a call of `akri:discovery`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    rename_all_fields = "kebab-case",
    deny_unknown_fields,
    expecting = "an error is {not-granted: TEXT}, {limit: TEXT} or {unavailable: TEXT}"
)]
pub(crate) enum Refused {
    NotGranted { not_granted: String },
    Limit { limit: String },
    Unavailable { unavailable: String },
}

/// Returns the property whose secret is in a text or a name of a value, or across them as JSON writes it.
pub(crate) fn secret_in<'s>(value: &Value, secrets: &'s SecretScanner) -> Option<&'s str> {
    fn in_texts<'s>(value: &Value, secrets: &'s SecretScanner) -> Option<&'s str> {
        match value {
            Value::String(text) => secrets.within(text),
            Value::Array(items) => items.iter().find_map(|item| in_texts(item, secrets)),
            Value::Object(fields) => {
                fields.iter().find_map(|(name, value)| secrets.within(name).or_else(|| in_texts(value, secrets)))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => None,
        }
    }
    in_texts(value, secrets).or_else(|| secrets.within(&value.to_string()))
}

impl Payload {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Recorded {
    /// Returns whether there was no response.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(
            self,
            Self::NamesResolve { silent: true, .. }
                | Self::TcpConnect { silent: true, .. }
                | Self::HttpRequest { silent: true, .. }
        )
    }

    /// Returns the call with the arguments of another one of its kind. A query that is left out may be any.
    pub(crate) fn with_arguments_of(&self, made: &Self) -> Self {
        let mut call = self.clone();
        match (&mut call, made) {
            (Self::UdevRun { query: Some(query), .. }, Self::UdevRun { query: Some(made), .. }) => {
                query.clone_from(made)
            }
            (Self::MulticastSend { payload, .. }, Self::MulticastSend { payload: made, .. }) => {
                payload.clone_from(made)
            }
            (Self::UdpSend { to, bytes, .. }, Self::UdpSend { to: made_to, bytes: made, .. }) => {
                *to = *made_to;
                bytes.clone_from(made);
            }
            _ => {}
        }
        call
    }

    /// All bytes of others in it.
    pub(crate) fn payloads(&self) -> Vec<&Payload> {
        match self {
            Self::MulticastReceive { datagrams, .. } => datagrams.iter().map(|datagram| &datagram.payload).collect(),
            Self::MulticastSend { payload: bytes, .. }
            | Self::TcpSend { bytes, .. }
            | Self::TcpReceive { bytes, .. }
            | Self::UdpSend { bytes, .. }
            | Self::UdpReceive { bytes, .. } => vec![bytes],
            Self::HttpRequest { request, response, .. } => {
                let headers = request.headers.iter().flatten().chain(response.iter().flat_map(|r| &r.headers));
                let bodies = request.body.iter().chain(response.iter().map(|response| &response.body));
                headers.map(|(_, value)| value).chain(bodies).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the property whose secret is in it, if any: in its bytes as they are, or in any of its texts.
    pub(crate) fn secret<'s>(&self, secrets: &'s SecretScanner) -> Option<&'s str> {
        let in_bytes = || self.payloads().into_iter().find_map(|payload| secrets.within_bytes(&payload.0));
        in_bytes().or_else(|| secret_in(&serde_json::to_value(self).unwrap_or_default(), secrets))
    }

    /// Returns whether its bytes are sent or received; `None` if they are no piece of a stream or a series of datagrams.
    pub(crate) fn is_sent(&self) -> Option<bool> {
        match self {
            Self::TcpSend { .. } | Self::UdpSend { .. } | Self::MulticastSend { .. } => Some(true),
            Self::TcpReceive { .. } | Self::UdpReceive { .. } | Self::MulticastReceive { .. } => Some(false),
            _ => None,
        }
    }

    /// Bytes that it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        let entries = match self {
            Self::UdevRun { snapshot, .. } => {
                snapshot.iter().flat_map(|snapshot| &snapshot.entries).map(akri_node::sysfs::Entry::bytes).sum()
            }
            _ => 0,
        };
        256 + entries + self.payloads().iter().map(|payload| payload.0.len() + 32).sum::<usize>()
    }
}
