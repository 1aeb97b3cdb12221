//! The errors that calls have, by the names that WASI gives them.

use wasmtime_wasi::p2::bindings::sockets::network::ErrorCode;
use wasmtime_wasi_http::Error;

/// A list of the errors of sockets.
macro_rules! codes {
    ($($code:ident)*) => { &[$(ErrorCode::$code),*] };
}

/// The errors of sockets and of names.
const SOCKET_ERRORS: &[ErrorCode] = codes! {
    Unknown AccessDenied NotSupported InvalidArgument OutOfMemory Timeout InvalidState NewSocketLimit AddressNotBindable
    RemoteUnreachable ConnectionRefused ConnectionReset ConnectionAborted DatagramTooLarge NameUnresolvable
    TemporaryResolverFailure PermanentResolverFailure
};

/// A name and its error.
type NamedError = (&'static str, fn() -> Error);

/// The errors of HTTP requests, without details.
const HTTP_ERRORS: [NamedError; 22] = [
    ("dns-timeout", || Error::DnsTimeout),
    ("dns-error", || Error::DnsError { rcode: None, info_code: None }),
    ("destination-not-found", || Error::DestinationNotFound),
    ("destination-unavailable", || Error::DestinationUnavailable),
    ("destination-IP-prohibited", || Error::DestinationIpProhibited),
    ("destination-IP-unroutable", || Error::DestinationIpUnroutable),
    ("connection-refused", || Error::ConnectionRefused),
    ("connection-terminated", || Error::ConnectionTerminated),
    ("connection-timeout", || Error::ConnectionTimeout),
    ("connection-read-timeout", || Error::ConnectionReadTimeout),
    ("connection-limit-reached", || Error::ConnectionLimitReached),
    ("TLS-protocol-error", || Error::TlsProtocolError),
    ("TLS-certificate-error", || Error::TlsCertificateError),
    ("TLS-alert-received", || Error::TlsAlertReceived { alert_id: None, alert_message: None }),
    ("HTTP-request-denied", || Error::HttpRequestDenied),
    ("HTTP-request-method-invalid", || Error::HttpRequestMethodInvalid),
    ("HTTP-request-URI-invalid", || Error::HttpRequestUriInvalid),
    ("HTTP-response-timeout", || Error::HttpResponseTimeout),
    ("HTTP-response-incomplete", || Error::HttpResponseIncomplete),
    ("HTTP-response-body-size", || Error::HttpResponseBodySize(None)),
    ("HTTP-request-body-size", || Error::HttpRequestBodySize(None)),
    ("HTTP-protocol-error", || Error::HttpProtocolError),
];

/// Returns the names of the errors of sockets.
pub(crate) fn socket_errors() -> Vec<&'static str> {
    SOCKET_ERRORS.iter().map(ErrorCode::name).collect()
}

/// Returns the names of the errors of requests.
pub(crate) fn http_errors() -> Vec<&'static str> {
    HTTP_ERRORS.map(|(name, _)| name).to_vec()
}

/// Returns the error of a socket of that name.
pub(crate) fn socket_error(name: &str) -> ErrorCode {
    SOCKET_ERRORS.iter().copied().find(|code| code.name() == name).unwrap_or(ErrorCode::Unknown)
}

/// Returns the error of a request of that name.
pub(crate) fn http_error(name: &str) -> Error {
    HTTP_ERRORS.iter().find(|(known, _)| *known == name).map_or(Error::HttpProtocolError, |(_, error)| error())
}

/// Returns the name of a request's error. Errors that the table lacks are errors of the protocol.
pub(crate) fn http_error_name(error: &Error) -> String {
    let is_it = |known: &Error| std::mem::discriminant(known) == std::mem::discriminant(error);
    let name = HTTP_ERRORS.iter().find(|(_, known)| is_it(&known())).map_or("HTTP-protocol-error", |(name, _)| name);
    name.to_owned()
}
