//! Cassettes: the calls of a discovery handler's rounds in a file, and players that answer them again (rule 76).
//!
//! ```text
//! Cassette ── read ──► rounds of recorded calls ── player ──► Player: answers calls, or names the first that differs
//!     └── keep ◄── Recorder: what a round has called
//! ```
//! Whoever runs handlers asks the recorder or the player where the world would come in; this crate knows nothing of wasm.

#[allow(missing_docs, reason = "the fields are those of the file, which docs/cassettes.md describes")]
pub mod call;
mod check;
pub mod clock;
mod display;
mod document;
mod errors;
mod form;
mod payload;
mod player;
mod recorder;
mod round;
mod series;
mod type_error;

pub use self::document::{CASSETTE, Cassette, CassetteError, Head, KeepError};
pub use self::errors::{HTTP_ERRORS, SOCKET_ERRORS};
pub use self::payload::Payload;
pub use self::player::{Differs, Mismatch, Place, Player};
pub use self::recorder::{Recorder, TraceLine};
pub use self::round::{Arguments, Outcome, RecordedRound};
pub use self::series::Received;
