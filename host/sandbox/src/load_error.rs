//! Errors of loading components.

use crate::compile::CompileError;

/// The reason why a component was not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The component can't be used.
    #[error("{0}")]
    Refused(String),
    /// The component does not compile within its bounds.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The host or the sandbox process failed, which says nothing of the component.
    #[error("it can't be loaded now: {0}")]
    Unavailable(String),
}

impl From<akri_engine::LoadError> for LoadError {
    fn from(error: akri_engine::LoadError) -> Self {
        match error {
            akri_engine::LoadError::Unavailable(why) => Self::Unavailable(why),
            error => Self::Refused(error.to_string()),
        }
    }
}
