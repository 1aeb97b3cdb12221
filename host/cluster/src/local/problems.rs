//! The problems of a local agent: a file in the state directory, written by the agent and read by `akri get`.

use std::io;
use std::path::Path;

use akri_node::json_file;

/// The file's name.
const FILE: &str = "problems.json";

/// Writes the problems of an agent, a sentence each.
///
/// # Errors
/// If the file can't be written.
pub fn write_problems(state: &Path, problems: &[String]) -> io::Result<()> {
    json_file::write(&state.join(FILE), problems, false)
}

/// Returns the problems of the agent of a state directory; none if there is no such file.
pub fn read_problems(state: &Path) -> Vec<String> {
    json_file::read(&state.join(FILE)).ok().flatten().unwrap_or_default()
}
