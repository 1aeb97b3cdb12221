//! The log's writer: what names and texts from outside hold can't forge a line of the log, or hide in one.

use std::io::{self, IsTerminal as _, Write, stderr, stdout};
use std::sync::OnceLock;

use akri_model::text::visible;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The lines at the end of a terminal that are drawn in place: the log is written above them.
static DRAWN: OnceLock<ProgressBar> = OnceLock::new();

/// Returns lines of standard output that are drawn in place; `None` if that is no terminal.
pub(crate) fn drawn() -> Option<&'static ProgressBar> {
    let style = ProgressStyle::with_template("{msg}").ok().filter(|_| stdout().is_terminal())?;
    Some(DRAWN.get_or_init(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout()).with_style(style)))
}

/// Standard error for events of the log, each of which is written at once.
pub(crate) struct LogLines;

impl Write for LogLines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let lines = lines(&String::from_utf8_lossy(event));
        let write = || stderr().write_all(lines.as_bytes()).map(|()| event.len());
        match DRAWN.get() {
            Some(drawn) => drawn.suspend(write),
            None => write(),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        stderr().flush()
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
