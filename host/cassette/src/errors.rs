//! The names of the errors that calls have, as WASI spells them.

/// The errors of sockets and of names.
pub const SOCKET_ERRORS: [&str; 17] = [
    "unknown",
    "access-denied",
    "not-supported",
    "invalid-argument",
    "out-of-memory",
    "timeout",
    "invalid-state",
    "new-socket-limit",
    "address-not-bindable",
    "remote-unreachable",
    "connection-refused",
    "connection-reset",
    "connection-aborted",
    "datagram-too-large",
    "name-unresolvable",
    "temporary-resolver-failure",
    "permanent-resolver-failure",
];

/// The errors of HTTP requests.
pub const HTTP_ERRORS: [&str; 22] = [
    "dns-timeout",
    "dns-error",
    "destination-not-found",
    "destination-unavailable",
    "destination-IP-prohibited",
    "destination-IP-unroutable",
    "connection-refused",
    "connection-terminated",
    "connection-timeout",
    "connection-read-timeout",
    "connection-limit-reached",
    "TLS-protocol-error",
    "TLS-certificate-error",
    "TLS-alert-received",
    "HTTP-request-denied",
    "HTTP-request-method-invalid",
    "HTTP-request-URI-invalid",
    "HTTP-response-timeout",
    "HTTP-response-incomplete",
    "HTTP-response-body-size",
    "HTTP-request-body-size",
    "HTTP-protocol-error",
];
