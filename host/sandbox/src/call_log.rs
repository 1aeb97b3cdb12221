//! The log of a call in a sandbox process, within bounds that the agent keeps.

use akri_engine::{Call, CallLog, ForwardedLine, LogLine};
use akri_model::text::clean;

/// Log events of a call, beside those that its limits allow.
const MORE_LINES: usize = 512;

/// The log of a call, whatever the process sends.
pub(crate) struct BoundedLog {
    output: CallLog,
    text_bytes: usize,
    lines_left: usize,
}

impl BoundedLog {
    /// Returns the log of a call whose limits allow so many lines.
    pub(crate) fn new(handler: &str, call: &Call) -> Self {
        Self {
            output: CallLog::new(handler, call),
            text_bytes: call.limits.string_bytes.saturating_add(1024),
            lines_left: call.limits.log_lines.saturating_add(MORE_LINES),
        }
    }

    /// Logs a line of a guest within its budget.
    pub(crate) fn write(&mut self, line: ForwardedLine) {
        let Some(left) = self.lines_left.checked_sub(1) else { return };
        self.lines_left = left;
        match line {
            ForwardedLine::Written { line, is_copied } => {
                let text = |text: &str| clean(text, self.text_bytes);
                let (context, message) = (text(&line.context), text(&line.message));
                self.output.write(LogLine { context, message, ..line }, is_copied);
            }
            ForwardedLine::Dropped(count) => self.output.write_dropped(count),
        }
    }
}
