//! The log of a call in a sandbox process, within the budgets that the agent keeps.

use std::sync::mpsc;

use akri_engine::{Call, LOG_LINE_BYTES, LogLine, Rates, write_event};
use akri_model::text::clean;
use tracing::Level;

use super::protocol::{Line, level_of};

/// Log events of a call, beside those that its limits allow.
const MORE_LINES: usize = 512;

/// The destination of a call's log lines.
pub(super) struct CallLog {
    handler: String,
    configuration: String,
    text_bytes: usize,
    lines_left: usize,
    rates: Rates,
    copy: Option<mpsc::Sender<LogLine>>,
}

impl CallLog {
    /// Logs a line of a guest within its budget.
    pub(super) fn write(&mut self, line: Line) {
        let Some(left) = self.lines_left.checked_sub(1) else { return };
        self.lines_left = left;
        match line {
            Line::Written { level, context, message, is_logged } => {
                let level = level_of(level);
                let text = |text: &str| clean(text, self.text_bytes);
                let (context, message) = (text(&context), text(&message));
                if self.rates.log(context.len() + message.len() + LOG_LINE_BYTES) {
                    write_event(&self.handler, &self.configuration, level, &context, &message);
                }
                if let Some(copy) = self.copy.as_ref().filter(|_| is_logged) {
                    let _ = copy.send(LogLine { level, context, message, is_refusal: false }); // nobody may be interested any more
                }
            }
            Line::Dropped(count) => {
                let dropped = self.rates.log_dropped(count);
                if dropped > 0 {
                    let message = format!("{dropped} more lines were dropped");
                    write_event(&self.handler, &self.configuration, Level::WARN, "log", &message);
                }
            }
        }
    }

    /// Returns the log of a call whose limits allow so many lines.
    pub(super) fn new(handler: &str, call: &Call) -> Self {
        Self {
            handler: handler.to_owned(),
            configuration: call.subject.clone(),
            text_bytes: call.limits.string_bytes.saturating_add(1024),
            lines_left: call.limits.log_lines.saturating_add(MORE_LINES),
            rates: call.rates.clone(),
            copy: call.log.clone(),
        }
    }
}
