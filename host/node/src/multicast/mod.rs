//! Datagrams to and from multicast groups, on each interface that is granted.
//!
//! ```text
//! interfaces ──► sockets ──► Conversation: datagrams that a guest sends and receives in a round
//!                       └──► Listener: datagrams between rounds, which start one
//! ```

mod conversation;
mod interfaces;
mod listener;
mod own_senders;
mod queue;
mod sockets;
#[cfg(test)]
mod tests;

pub use self::conversation::Conversation;
pub use self::listener::Listener;
pub use self::own_senders::OwnSenders;
pub use self::queue::Datagram;

/// Bytes of a datagram: no UDP payload is larger.
const DATAGRAM: usize = 1 << 16;
