//! `akri:discovery/logging`: lines for the agent's log.

use crate::bindings::logging::{Host, Level};
use crate::round::Round;

impl Host for Round {
    fn log(&mut self, level: Level, context: String, message: String) -> wasmtime::Result<()> {
        self.trace("logging.log", || serde_json::json!([context, message]));
        let level = match level {
            Level::Trace => tracing::Level::TRACE,
            Level::Debug => tracing::Level::DEBUG,
            Level::Info => tracing::Level::INFO,
            Level::Warn => tracing::Level::WARN,
            Level::Error | Level::Critical => tracing::Level::ERROR,
        };
        self.log.line(level, &context, &message);
        Ok(())
    }
}
