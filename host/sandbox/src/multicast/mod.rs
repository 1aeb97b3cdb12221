//! Datagrams to and from multicast groups, on each interface that is granted.
//!
//! ```text
//! interfaces ──► sockets ──► Conversation: what a guest says and hears during a round
//!                       └──► Listener: what is said between rounds, to start one
//! ```

mod conversation;
mod interfaces;
mod listener;
mod own_senders;
mod queue;
mod sockets;
#[cfg(test)]
mod tests;

#[expect(unreachable_pub, reason = "the bindings re-export it")]
pub use self::conversation::Conversation;
pub(crate) use self::conversation::Stop;
pub(crate) use self::listener::Listener;
pub(crate) use self::own_senders::OwnSenders;
pub(crate) use self::queue::Datagram;
