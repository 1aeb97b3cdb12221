//! Cassettes: the calls of a discovery handler's rounds in a file, and players that answer them again (rule 76).
//!
//! ```text
//! Cassette ── read ──► rounds of recorded calls ── new ──► Player: answers calls, or names the first that differs
//!     └── keep ◄── Recorder: what a round has called
//! ```
//! A host that is made by [`taping_host`] asks them where the outside would come in (`taping`); the engine knows of cassettes only
//! the trait that both implement.

mod call;
mod call_queue;
mod check;
mod clock;
mod display;
mod document;
mod errors;
mod form;
mod payload;
mod player;
mod recorder;
mod round;
mod taping;
mod type_error;

pub use self::document::{CASSETTE, Cassette, CassetteError, Change, Head};
pub use self::payload::Payload;
pub use self::player::{Mismatch, Player};
pub use self::recorder::{Recorder, Trace};
pub use self::round::{Arguments, Outcome, RecordedRound, placeholder};
pub use self::taping::taping_host;
