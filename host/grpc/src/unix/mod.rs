//! gRPC over Unix sockets, independent of the contract spoken.

mod authority;
mod channel;
mod incoming;
mod socket;

pub use authority::Filter;
pub use channel::{cause, connect};
pub use incoming::incoming;
pub use socket::{FileId, OwnSocket, is_refused};
