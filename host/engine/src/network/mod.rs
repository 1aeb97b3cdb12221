//! Network access of guests by `wasi:http` and `wasi:sockets`: only addresses that are granted, each checked when it is
//! used.
//!
//! ```text
//! wasi:http     ──► destination ──► names ──► grants, address by address ──► turns ──► dial ──► tls ──► body
//! wasi:sockets  ──► names ──► resolver
//!               └─► check: each bind, connect, send and receive
//! ```

pub(crate) mod body;
pub(crate) mod destination;
pub(crate) mod http;
pub(crate) mod names;
pub(crate) mod request_permits;
pub(crate) mod resolver;
pub(crate) mod sockets;
pub(crate) mod tls;
