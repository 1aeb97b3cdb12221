//! Tables for people, JSON and YAML for programs.

use std::fmt::Display;
use std::io::{self, Write as _};

use anyhow::{Context as _, anyhow};
use serde::Serialize;

use crate::cli::Output;

/// Prints values in one of the forms for programs, or what `table` makes for people.
pub(crate) fn print<T: Serialize>(values: &[T], output: Output, table: impl FnOnce() -> String) -> anyhow::Result<()> {
    let text = match output {
        Output::Table => table(),
        Output::Json => serde_json::to_string_pretty(values)? + "\n",
        Output::Yaml => serde_saphyr::to_string(&values).context("cannot write YAML")?,
    };
    print_text(&text)
}

/// Prints a text. A reader that has gone has seen enough: that is no failure.
pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    match write(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Writes to standard output, where `print!` would panic if that can't be done.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Lines in aligned columns, as kubectl prints them.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(ToString::to_string).collect();
    let lines = std::iter::once(&header).chain(rows);
    let mut widths = vec![0; header.len()];
    for line in lines.clone() {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let print = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}   "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    lines.map(print).collect()
}

/// Text from outside as it can be printed to a terminal: control characters are escaped.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// An error whose text names its causes already: with its chain they would be told again.
pub(crate) fn whole(error: impl Display) -> anyhow::Error {
    anyhow!("{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["läng".to_owned(), String::new()]];
        assert_eq!(table(&["N", "VALUE"], &rows), "N      VALUE\na      1\nläng\n");
    }

    #[test]
    fn a_device_can_not_speak_to_the_terminal() {
        assert_eq!(plain("cam\u{1b}[2J\n"), "cam\\u{1b}[2J\\n");
    }
}
