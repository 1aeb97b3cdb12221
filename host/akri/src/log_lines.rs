//! The log's writer: what names and texts from outside hold can't forge a line of the log, or hide in one.

use std::io::{self, Stderr, Write, stderr};

use akri_model::text::visible;

/// Standard error for events of the log, each of which is written at once.
pub(crate) struct LogLines(Stderr);

impl LogLines {
    pub(crate) fn new() -> Self {
        Self(stderr())
    }
}

impl Write for LogLines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(lines(&String::from_utf8_lossy(event)).as_bytes()).map(|()| event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns an event with invisible characters replaced, and all lines but the first indented. Escape characters are colours:
/// the subscriber escapes those of messages.
fn lines(event: &str) -> String {
    let indented = |text: &str| text.split('\n').map(visible).collect::<Vec<_>>().join("\n  ");
    let pieces: Vec<String> = event.trim_end_matches('\n').split('\x1b').map(indented).collect();
    pieces.join("\x1b") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // threat 14
    fn events_do_not_forge_lines_of_the_log() {
        for (event, expected) in [
            ("a fact\n", "a fact\n"),
            ("a file 'a\n2026-01-01 ERROR b.yaml'\n", "a file 'a\n  2026-01-01 ERROR b.yaml'\n"),
            ("one\rtwo\u{85}\u{202e}three\u{200b}\n", "one two  three \n"),
            ("\x1b[32m INFO\x1b[0m a\nb\n", "\x1b[32m INFO\x1b[0m a\n  b\n"),
        ] {
            assert_eq!(lines(event), expected);
        }
    }
}
