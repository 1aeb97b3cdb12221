//! Calls of a cassette as text for people.

use serde_json::Value;

use crate::call::{Recorded, Request};

/// The name of a call with the import it belongs to.
pub(crate) fn name(call: &Recorded) -> String {
    let (name, import) = call.import();
    format!("{name} ({import})")
}

/// A JSON value on lines.
pub(crate) fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// An HTTP request on lines.
pub(crate) fn request_lines(request: &Request) -> String {
    let Request { method, uri, headers, body } = request;
    let mut lines = format!("{method} {uri}\n");
    for (name, value) in headers.iter().flatten() {
        lines += &format!("{name}: {}\n", value.lines());
    }
    body.iter().for_each(|body| lines += &format!("\n{}", body.lines()));
    lines
}

/// The arguments of a recorded call on lines.
pub(crate) fn arguments(call: &Recorded) -> String {
    match call {
        Recorded::UdevRun { query, .. } => query.as_ref().map(pretty).unwrap_or_default(),
        Recorded::SecretRefused { name, .. } | Recorded::NamesResolve { name, .. } => name.clone(),
        Recorded::MulticastOpen { group, port, .. } => format!("{group} port {port}"),
        Recorded::MulticastSend { payload, .. } => payload.lines(),
        Recorded::MulticastReceive { datagrams, .. } => {
            datagrams.iter().map(|datagram| format!("from {}\n{}", datagram.from, datagram.payload.lines())).collect()
        }
        Recorded::TcpSocketRefused { open, error, .. } | Recorded::UdpSocketRefused { open, error, .. } => {
            format!("{error} with {open} open sockets")
        }
        Recorded::TcpConnect { to, .. } => to.to_string(),
        Recorded::TcpSend { bytes, .. } | Recorded::TcpReceive { bytes, .. } => bytes.lines(),
        Recorded::UdpSend { to, bytes, .. } => {
            format!("to {}\n{}", to.map_or_else(String::new, |to| to.to_string()), bytes.lines())
        }
        Recorded::UdpReceive { from, bytes, .. } => format!("from {from}\n{}", bytes.lines()),
        Recorded::HttpRequest { request, .. } => request_lines(request),
    }
}
