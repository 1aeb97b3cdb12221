//! The problems of a local agent: a file in the state directory, written by the agent and read by `akri get`.

use std::fs;
use std::path::Path;

use akri_node::replace::replace;

use super::StoreError;

/// The file's name.
const FILE: &str = "problems.json";

/// Writes the problems of an agent, a sentence each.
///
/// # Errors
/// If the file can't be written.
pub fn write_problems(state: &Path, problems: &[String]) -> Result<(), StoreError> {
    let path = state.join(FILE);
    let text = serde_json::to_vec(problems).unwrap_or_default(); // strings have a JSON form
    replace(&path, &text, false).map_err(|source| StoreError::Io { action: "write", path, source })
}

/// Returns the problems of the agent of a state directory; none if there is no such file.
pub fn read_problems(state: &Path) -> Vec<String> {
    let text = fs::read(state.join(FILE)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}
