//! Components in processes of their own: a guest that escapes the engine, or takes it down, has neither the agent's sockets,
//! token and journal, nor its life.
//!
//! ```text
//! agent: Component ─► Worker ─► Connection ══ socket pair ══► server: Host ─► guests, and what their imports touch
//!          blame, turns   start, backoff        frames          `akri sandbox`, confined
//! ```
//! The process has no file, socket or variable of the agent but one end of the pair and a pipe for its log. Values of Secrets come
//! with the call that is granted them, and the handler's cache comes and goes with each round. If the process ends, the rounds
//! in it fail, the next call starts another one, and components that were in it get a process each until one round has ended
//! well ([`blame`]).

mod answer;
mod blame;
mod call_log;
mod component;
mod connection;
mod frame;
mod listener;
mod payload;
mod process;
pub(crate) mod protocol;
mod server;
mod standard_error;
#[cfg(test)]
mod tests;
mod workers;

pub(crate) use self::component::WorkerComponent;
pub(crate) use self::listener::WorkerListener;
pub(crate) use self::process::ReadablePaths;
pub use self::process::WorkerProgram;
pub use self::server::{WorkerSettings, serve_standard_input};
pub(crate) use self::workers::Workers;
