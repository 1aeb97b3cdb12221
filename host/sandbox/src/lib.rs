//! The sandbox: loads components and runs them as discovery handlers, in processes of their own or in this one.
//!
//! ```text
//! Host ── load(bytes) ──► Component ── validate(Call) ──► triggers
//!   │                              ├── discover(Call) ──► DeviceSet
//!   │                              ├── coverage(Grants) ─► what it imports, beside what it is granted
//!   │                              └── listen(group) ────► Listener: datagrams between rounds
//!   └── the engine (`akri-engine`), here or in sandbox processes (`worker`)
//! ```
//! Other crates need nothing of the engine but what is exported here.

mod component;
mod host;
mod listener;
mod load_error;
mod worker;

pub use akri_engine::{
    Cache, Call, CompileError, Covered, HostConfig, HostError, Import, ImportKind, LogLine, PrecompileError, Rates,
    Tape, cautions, compile_here, covers_subsystem, precompile,
};

pub use self::component::Component;
pub use self::host::{FindError, FoundDevice, Host};
pub use self::listener::Listener;
pub use self::load_error::LoadError;
pub use self::worker::{WorkerProgram, WorkerSettings, serve_standard_input};
