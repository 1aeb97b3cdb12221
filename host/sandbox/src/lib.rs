//! The sandbox: runs components as discovery handlers, in processes of their own. A guest that escapes the engine, or takes it
//! down, has neither the agent's sockets, token and journal, nor its life.
//!
//! ```text
//! Host ── load(bytes) ──► Component ── validate(Call) ──► triggers
//!   │                         ├── discover(Call) ──► DeviceSet
//!   │                         └── listen(group) ────► MulticastListener: datagrams between rounds
//!   └── SandboxProcess ── Connection ══ socket pair ══ server ── LocalHost (`akri-engine`) ── guests
//!         restarts          frames                      `akri sandbox`, confined
//! ```
//! The process has no file, socket or variable of the agent but one end of the pair and a pipe for its log. Values of Secrets
//! come with the call that is granted them, and the handler's cache comes and goes with each round. If the process ends, the
//! calls in it fail as [`RoundError::ProcessEnded`](akri_model::discovery::RoundError::ProcessEnded), the next call starts another one,
//! and the components that were running have processes of their own from then on ([`crash_tracker`]).
//!
//! Other crates need nothing of the engine but what is exported here, except for rounds that are recorded or replayed.

mod call_log;
mod compile;
mod component;
mod confine;
mod connection;
mod crash_tracker;
mod frame;
mod host;
mod listener;
mod process;
mod protocol;
mod reply_checks;
mod sandbox_process;
mod server;
mod standard_error;
#[cfg(test)]
mod testing;

pub use akri_engine::{Cache, Call, HostError, Import, LoadError, LogLine, Platform, Rates, grant_warnings};

pub use self::compile::{compile, compile_here, precompile};
pub use self::component::Component;
pub use self::host::{Host, HostConfig};
pub use self::listener::MulticastListener;
pub use self::process::{ReadablePaths, SandboxProgram};
pub use self::server::serve_standard_input;
