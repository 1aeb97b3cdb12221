//! Output as tables, JSON and YAML.

use std::fmt::Display;
use std::io::{self, Write as _};

use akri_model::text::is_hidden;
use anyhow::{Context as _, anyhow};
use serde::Serialize;

use crate::args::Output;

/// Prints values as JSON or YAML, or as the text of `table`.
///
/// # Errors
/// If they can't be written.
pub fn print<T: Serialize>(values: &[T], output: Output, table: impl FnOnce() -> String) -> anyhow::Result<()> {
    let text = match output {
        Output::Table => table(),
        Output::Json => serde_json::to_string_pretty(values)? + "\n",
        Output::Yaml => serde_saphyr::to_string(&values).context("cannot write YAML")?,
    };
    print_text(&text)
}

/// Prints a text. A closed pipe is not an error.
///
/// # Errors
/// If it can't be written.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    match write(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Writes to standard output without the panic of `print!` on errors.
///
/// # Errors
/// If that fails.
pub fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a line to standard error. If that is closed, nobody reads it, which is no reason to end.
pub fn print_message(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Returns a header and rows in aligned columns, as kubectl prints them.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(ToString::to_string).collect();
    Columns::default().lines(std::iter::once(&header).chain(rows))
}

/// The widths of columns. They grow with each line that is printed.
#[derive(Debug, Default)]
pub struct Columns(Vec<usize>);

impl Columns {
    /// Returns lines in columns that are as wide as their widest cell so far.
    pub fn lines<'l>(&mut self, lines: impl Iterator<Item = &'l Vec<String>> + Clone) -> String {
        for line in lines.clone() {
            self.0.resize(self.0.len().max(line.len()), 0);
            for (width, cell) in self.0.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let print = |line: &Vec<String>| {
            let cells = line.iter().zip(&self.0).map(|(cell, width)| format!("{cell:width$}   "));
            format!("{}\n", cells.collect::<String>().trim_end())
        };
        lines.map(print).collect()
    }
}

/// Escapes control characters and other invisible ones, for output to a terminal.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Returns a number of things: `1 round`, `2 rounds`.
pub fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Returns a number of seconds as an age: `42s`, `5m`, `3h`, `12d`.
pub fn age(seconds: i64) -> String {
    let (number, unit) = match seconds {
        ..120 => (seconds.max(0), 's'),
        120..7_200 => (seconds / 60, 'm'),
        7_200..172_800 => (seconds / 3_600, 'h'),
        _ => (seconds / 86_400, 'd'),
    };
    format!("{number}{unit}")
}

/// Returns an error whose text already includes its causes.
pub fn with_causes(error: impl Display) -> anyhow::Error {
    anyhow!("{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["läng".to_owned(), String::new()]];
        assert_eq!(table(&["N", "VALUE"], &rows), "N      VALUE\na      1\nläng\n");
        let mut columns = Columns::default();
        assert_eq!(columns.lines(rows.iter()), "a      1\nläng\n");
        let later = [vec!["b".to_owned(), "2".to_owned(), "more".to_owned()]];
        assert_eq!(columns.lines(later.iter()), "b      2   more\n", "later lines stand below earlier ones");
    }

    #[test]
    fn ages_are_rounded_down() {
        let shown = [-5, 119, 120, 7_199, 7_200, 172_799, 172_800].map(age);
        assert_eq!(shown, ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }

    #[test]
    fn terminal_escapes_of_devices_are_removed() {
        assert_eq!(plain("cam\u{1b}[2J\n"), "cam\\u{1b}[2J\\n");
        assert_eq!(plain("cam\u{202e}\u{200b}"), "cam\\u{202e}\\u{200b}");
    }
}
