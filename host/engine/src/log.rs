//! The output of a guest: its log lines, standard output and standard error, bounded and in the agent's log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use akri_model::grant::Grants;
use akri_model::secret_scanner::SecretScanner;
use akri_model::text::clean;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_with::{DisplayFromStr, serde_as};
use tokio::io::AsyncWrite;
use tracing::Level;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::Call;
use crate::rates::{ForwardedLine, Rates};

/// Bytes of standard error kept for the message of a trap: a panic's text is its end.
const TAIL: usize = 1024;
/// Different things a round was refused that are said in the log.
const REFUSALS: usize = 8;
/// Places that were refused, of which notes say so.
const UNREACHABLE: usize = 64;
/// Bytes a guest may write at once; it comes back for more.
const CHUNK: usize = 4096;

/// Advice at the end of a panic's message that nobody can follow: a guest has no environment.
const ADVICE: &str = "note: run with `RUST_BACKTRACE=1`";
/// Bytes of a line beside what the guest wrote.
pub const LOG_LINE_BYTES: usize = 128;

/// A line that a guest wrote by the `logging` interface.
#[serde_as]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The level.
    #[serde_as(as = "DisplayFromStr")]
    pub level: Level,
    /// The context, in the guest's words.
    pub context: String,
    /// One line without control characters, at most as long as the limits allow.
    pub message: String,
    /// Set if the host wrote it: something was refused.
    pub is_refusal: bool,
}

/// Logs an event of a level that is not known when the program is compiled.
#[macro_export]
macro_rules! event_at {
    ($level:expr, target: $target:literal, $($event:tt)*) => {
        match $level {
            tracing::Level::TRACE => tracing::event!(target: $target, tracing::Level::TRACE, $($event)*),
            tracing::Level::DEBUG => tracing::event!(target: $target, tracing::Level::DEBUG, $($event)*),
            tracing::Level::INFO => tracing::event!(target: $target, tracing::Level::INFO, $($event)*),
            tracing::Level::WARN => tracing::event!(target: $target, tracing::Level::WARN, $($event)*),
            tracing::Level::ERROR => tracing::event!(target: $target, tracing::Level::ERROR, $($event)*),
        }
    };
}
/// The destination of a call's log lines: the log, within the budget of its rates, and whoever wants a copy.
pub struct CallLog {
    handler: String,
    configuration: String,
    copy: Option<mpsc::Sender<LogLine>>,
    rates: Rates,
}

impl CallLog {
    /// Returns the log of a call. Its handler and subject are fields of each line.
    pub fn new(handler: &str, call: &Call) -> Self {
        Self {
            handler: handler.to_owned(),
            configuration: call.subject.clone(),
            copy: call.log.clone(),
            rates: call.rates.clone(),
        }
    }

    /// Logs a line, or counts it if it is beyond the budget.
    pub fn write(&self, line: LogLine, is_copied: bool) {
        if let Some(forward) = self.rates.forward() {
            return forward(ForwardedLine::Written { line, is_copied });
        }
        let is_known = line.is_refusal && !self.rates.is_new_refusal(&line.message);
        if !is_known && self.rates.log(line.context.len() + line.message.len() + LOG_LINE_BYTES) {
            let refused = if line.is_refusal { "refused: " } else { "" };
            self.write_event(line.level, &line.context, &format!("{refused}{}", line.message));
        }
        if let Some(copy) = self.copy.as_ref().filter(|_| is_copied) {
            let _ = copy.send(line); // nobody may be interested any more
        }
    }

    /// Logs the number of lines that were dropped, once there is room for that.
    pub fn write_dropped(&self, count: u64) {
        if let Some(forward) = self.rates.forward() {
            return forward(ForwardedLine::Dropped(count));
        }
        let dropped = self.rates.log_dropped(count);
        if dropped > 0 {
            self.write_event(Level::WARN, "log", &format!("{dropped} more lines were dropped"));
        }
    }

    fn write_event(&self, level: Level, context: &str, message: &str) {
        let Self { handler, configuration, .. } = self;
        event_at!(level, target: "akri::handler", handler, configuration, context, "{message}");
    }
}

/// The call is over.
impl Drop for CallLog {
    fn drop(&mut self) {
        self.rates.end_refusals();
    }
}

/// The log of one round.
pub(crate) struct RoundLog {
    output: CallLog,
    text_bytes: usize,
    scanner: Arc<SecretScanner>,
    /// The holder of the grants, and nothing else of them.
    grants: Grants,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lines_left: usize,
    dropped: u64,
    /// The incomplete last line of standard output and of standard error.
    partial: BTreeMap<Stream, PartialLine>,
    tail: Vec<u8>,
    refusals: BTreeSet<String>,
    absent: BTreeSet<&'static str>,
    /// The refusals of addresses and names, by what they are in URLs.
    unreachable: BTreeMap<Place, String>,
}

/// An output stream of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stream {
    Output,
    Error,
}

impl RoundLog {
    /// A log of at most `limits.log_lines` lines; the handler and the call's subject are fields of each.
    pub(crate) fn new(handler: &str, call: &Call) -> Arc<Self> {
        let state = State { lines_left: call.limits.log_lines, ..State::default() };
        let grants = Grants { holder: call.grants.holder.clone(), ..Grants::default() };
        Arc::new(Self {
            output: CallLog::new(handler, call),
            text_bytes: call.limits.string_bytes,
            scanner: Arc::new(SecretScanner::all(&call.properties.secrets)),
            grants,
            state: Mutex::new(state),
        })
    }

    /// Logs a line, or only counts it if it is beyond a limit.
    pub(crate) fn line(&self, level: Level, context: &str, message: &str) {
        if !self.state.lock().take_line() {
            return;
        }
        self.write_line(level, context, message, true);
    }

    fn write_line(&self, level: Level, context: &str, message: &str, is_copied: bool) {
        let text = |text: &str| self.hide(clean(text, self.text_bytes));
        let line = LogLine { level, context: text(context), message: text(message), is_refusal: false };
        self.output.write(line, is_copied);
    }

    /// Logs once what the guest was refused, for whoever writes its grants, up to [`REFUSALS`] of them.
    pub(crate) fn refused(&self, what: &dyn Display) {
        let what = self.hide(clean(&what.to_string(), self.text_bytes));
        let mut state = self.state.lock();
        let is_new = state.refusals.len() < REFUSALS && state.refusals.insert(what.clone());
        drop(state);
        if !is_new {
            return;
        }
        let context = "grants".to_owned();
        self.output.write(LogLine { level: Level::WARN, context, message: what, is_refusal: true }, true);
    }

    /// Logs that a required grant is empty. Devices that the handler does not see without it are not missing.
    pub(crate) fn not_granted(&self, grant: &'static str, what: &dyn Display) {
        self.state.lock().absent.insert(grant);
        let (field, begin) = (self.grants.field(grant), example(grant));
        self.refused(&format_args!("{what}: {field} is empty; a line to begin with, below spec.grants: {begin}"));
    }

    /// Logs that something is not covered by what is granted, and with which entry it would be.
    pub(crate) fn not_covered<T>(&self, grant: &'static str, granted: &[T], what: &dyn Display, entry: &str) {
        if granted.is_empty() {
            self.not_granted(grant, what);
        } else {
            let field = self.grants.field(grant);
            self.refused(&format_args!("{what} is not covered by {field}; {entry} would allow it"));
        }
    }

    /// Like [`RoundLog::not_covered`], about a place that the guest may name in a note: it got to know no more than that it was
    /// refused.
    pub(crate) fn unreachable<T>(&self, grant: &'static str, granted: &[T], to: Place, what: &str, entry: &str) {
        let refusal = format!("{what} is not covered by {}; {entry} would allow it", self.grants.field(grant));
        let mut state = self.state.lock();
        if state.unreachable.len() < UNREACHABLE {
            state.unreachable.insert(to, refusal);
        }
        drop(state);
        self.not_covered(grant, granted, &what, entry);
    }

    /// Adds to a text of the guest what it was refused at the places in it.
    pub(crate) fn complete(&self, text: String) -> String {
        let state = self.state.lock();
        let refusals = state.unreachable.iter().filter(|(to, _)| to.is_in(&text)).map(|(_, why)| why.as_str());
        std::iter::once(text.as_str()).chain(refusals).collect::<Vec<_>>().join("; ")
    }

    /// The grants that were asked for and are empty.
    pub(crate) fn absent_grants(&self) -> BTreeSet<&'static str> {
        self.state.lock().absent.clone()
    }

    /// Replaces a text that contains a secret.
    pub(crate) fn hide(&self, text: String) -> String {
        self.scanner.hide(text)
    }

    /// Returns the scanner for the secrets of the call. It has all of them, revealed or not: one may be in the cache since
    /// an earlier round.
    pub(crate) fn scanner(&self) -> &Arc<SecretScanner> {
        &self.scanner
    }

    /// Returns the end of what the guest wrote to standard error, on one line.
    pub(crate) fn tail(&self) -> String {
        let tail = String::from_utf8_lossy(&self.state.lock().tail).into_owned();
        let lines: Vec<&str> = tail.lines().filter(|line| !line.starts_with(ADVICE)).collect();
        clean(lines.join("\n").trim(), TAIL)
    }

    fn write(&self, stream: Stream, bytes: &[u8]) {
        let lines = self.state.lock().write(stream, bytes, self.text_bytes);
        for line in lines {
            self.written(stream, &line);
        }
    }

    fn written(&self, stream: Stream, line: &[u8]) {
        if line.starts_with(ADVICE.as_bytes()) {
            return;
        }
        let (level, context) = match stream {
            Stream::Output => (Level::INFO, "stdout"),
            Stream::Error => (Level::WARN, "stderr"),
        };
        self.write_line(level, context, &String::from_utf8_lossy(line), false);
    }
}

/// The round is over, however it ended: what is left of its last lines, and how many there were too many.
impl Drop for RoundLog {
    fn drop(&mut self) {
        let partial = std::mem::take(&mut self.state.lock().partial);
        for (stream, PartialLine(line)) in partial {
            if !line.is_empty() && self.state.lock().take_line() {
                self.written(stream, &line);
            }
        }
        let dropped = self.state.lock().dropped;
        self.output.write_dropped(dropped);
    }
}

impl State {
    fn take_line(&mut self) -> bool {
        let left = self.lines_left.checked_sub(1);
        self.lines_left = left.unwrap_or(0);
        self.dropped += u64::from(left.is_none());
        left.is_some()
    }

    /// Takes what was written; the lines it ended that may be logged.
    fn write(&mut self, stream: Stream, bytes: &[u8], max: usize) -> Vec<Vec<u8>> {
        if stream == Stream::Error {
            self.tail.extend_from_slice(bytes);
            let old = self.tail.len().saturating_sub(TAIL);
            self.tail.drain(..old);
        }
        let lines = self.partial.entry(stream).or_default().push(bytes, max);
        lines.into_iter().filter(|_| self.take_line()).collect()
    }
}

/// A place in the network: a host as URLs have it, and a port; without one every port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(pub(crate) String, pub(crate) Option<u16>);

impl Place {
    /// Returns whether a text has it, in a URL or by itself.
    fn is_in(&self, text: &str) -> bool {
        let Self(host, port) = self;
        let goes_on = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        text.match_indices(host.as_str()).any(|(at, _)| {
            let before = text.get(..at).unwrap_or_default();
            let after = text.get(at + host.len()..).unwrap_or_default();
            let own_port = after.strip_prefix(':').and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
            let is_port = match (port, own_port.and_then(|own| own.parse::<u16>().ok())) {
                (Some(port), Some(own)) => *port == own,
                (Some(port), None) => matches!(port, 80 | 443) && after.starts_with('/'),
                (None, _) => !after.starts_with(goes_on),
            };
            is_port && !before.ends_with(goes_on)
        })
    }
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Self {
        let host = address.to_string();
        let host = host.rsplit_once(':').map_or("", |(host, _)| host);
        Self(host.to_owned(), Some(address.port()))
    }
}

/// Returns a line for the grants of a DiscoveryHandler, to be changed to what the handler asked for.
fn example(grant: &str) -> &'static str {
    match grant {
        "udev" => "udev: {subsystems: [tty]}",
        "multicast" => "multicast: [{group: 239.255.255.250, port: 3702}]",
        "secrets" => "secrets: [PASSWORD]",
        "names" => "names: ['*.example']",
        "http" => "http: [{networks: [192.0.2.7], ports: [80]}]",
        "tcp" => "tcp: [{networks: [192.0.2.7], ports: [502]}]",
        _ => "udp: [{networks: [192.0.2.7], ports: [161]}]",
    }
}

/// The incomplete last line of a stream.
#[derive(Debug, Default)]
pub struct PartialLine(Vec<u8>);

impl PartialLine {
    /// Adds bytes; returns the lines that they end. What goes beyond `max` bytes of a line is cut.
    pub fn push(&mut self, bytes: &[u8], max: usize) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n");
            let room = max.saturating_sub(self.0.len());
            self.0.extend(text.unwrap_or(piece).iter().take(room));
            lines.extend(text.map(|_| std::mem::take(&mut self.0)));
        }
        lines
    }
}

/// A guest's standard output or standard error.
#[derive(Clone)]
pub(crate) struct Console {
    pub(crate) log: Arc<RoundLog>,
    pub(crate) stream: Stream,
}

impl IsTerminal for Console {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Console {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        // Of WASI 0.3 only, which is not linked.
        Box::new(tokio::io::empty())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Pollable for Console {
    async fn ready(&mut self) {}
}

#[async_trait]
impl OutputStream for Console {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.log.write(self.stream, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use akri_model::grant::Limits;

    use super::*;

    fn state(lines: usize) -> State {
        State { lines_left: lines, ..State::default() }
    }

    fn text(lines: Vec<Vec<u8>>) -> Vec<String> {
        lines.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test] // rule 138
    fn refused_places_are_found_in_notes() {
        let at = |text: &str| Place::from(text.parse::<SocketAddr>().unwrap());
        for (place, text, expected) in [
            (at("10.0.0.4:9999"), "http://10.0.0.4:9999/onvif: refused", true),
            (at("10.0.0.4:9999"), "http://10.0.0.4:99999/", false),
            (at("10.0.0.4:9999"), "http://110.0.0.4:9999/", false),
            (at("10.0.0.4:80"), "http://10.0.0.4/onvif", true),
            (at("10.0.0.4:81"), "http://10.0.0.4/onvif", false),
            (at("10.0.0.4:80"), "http://10.0.0.40/onvif", false),
            (at("[fd00::1]:80"), "http://[fd00::1]/", true),
            (Place("cam.example".to_owned(), None), "http://cam.example:81/: refused", true),
            (Place("cam.example".to_owned(), None), "http://cam.example.org/", false),
        ] {
            assert_eq!(place.is_in(text), expected, "{place:?} in {text}");
        }
    }

    #[test]
    fn writes_become_lines_whatever_their_size() {
        let mut state = state(9);
        assert_eq!(text(state.write(Stream::Output, b"one\ntw", 99)), ["one"]);
        assert_eq!(text(state.write(Stream::Error, b"err\n", 99)), ["err"]);
        assert_eq!(text(state.write(Stream::Output, b"o\n\nthree", 99)), ["two", ""]);
        assert_eq!(state.partial[&Stream::Output].0, b"three");
    }

    #[test]
    fn line_without_an_end_does_not_grow() {
        let mut state = state(9);
        for _ in 0..1000 {
            assert!(state.write(Stream::Error, &[b'x'; 100], 64).is_empty());
        }
        assert_eq!((state.partial[&Stream::Error].0.len(), state.tail.len()), (64, TAIL));
        assert_eq!(text(state.write(Stream::Error, b"\n", 64)), ["x".repeat(64)]);
    }

    #[test]
    fn lines_beyond_the_bound_are_counted() {
        let mut state = state(2);
        assert_eq!(state.write(Stream::Output, b"1\n2\n3\n4\n", 99).len(), 2);
        assert_eq!(state.dropped, 2);
    }

    #[test]
    fn whoever_asks_gets_a_copy_of_the_lines_within_the_bound() {
        let (copy, lines) = mpsc::channel();
        let limits = Limits { log_lines: 2, string_bytes: 8, ..Limits::default() };
        let log = RoundLog::new("", &Call { limits, log: Some(copy), ..Call::default() });
        for message in ["one\ntwo", "longer than that", "three"] {
            log.line(Level::INFO, "context", message);
        }
        let lines: Vec<LogLine> = lines.try_iter().collect();
        assert_eq!(lines.iter().map(|line| line.message.as_str()).collect::<Vec<_>>(), ["one two", "longer t"]);
        assert_eq!((lines[0].level, lines[0].context.as_str()), (Level::INFO, "context"));
    }

    #[test]
    fn tail_is_the_end_of_standard_error() {
        let log = RoundLog::new("", &Call::default());
        log.write(Stream::Error, &[b'.'; 5000]);
        log.write(Stream::Error, b"\nthe end\n");
        log.write(Stream::Output, b"not this\n");
        assert!(log.tail().ends_with("... the end"), "{}", log.tail());
        log.write(Stream::Error, b"note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n");
        assert!(log.tail().ends_with("... the end"), "{}", log.tail());
    }
}
